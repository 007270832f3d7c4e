"""A teacher on a server of vLLM's interface: as the one in host memory, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from transformers import AutoModelForCausalLM

from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import DataError, StageError
from ouroboros.stages.learner.served_teacher import ServedTeacher
from ouroboros.stages.learner.teacher import Teacher
from tests.configs import TINY
from tests.golden.messages import refuses
from tests.learner.test_teacher import larger, rows, various  # noqa: F401 (larger is a fixture)
from tests.servers import serving

GKD = ("algorithm.algorithm_type=gkd", "trainer.max_token_len_per_gpu=64")


def app(directory, largest=1024, silent=False):
    """A server of the model in a directory, which gives at most `largest` likeliest tokens; silent: none at all."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def said(tokens, count):
        with torch.no_grad():
            logprobs = model(torch.tensor([tokens])).logits[0].float().log_softmax(-1)
        found = [None]
        for place, token in enumerate(tokens[1:]):
            ids = {token, *logprobs[place].topk(min(count, logprobs.shape[1])).indices.tolist()} if count else {token}
            found.append({str(one): {"logprob": float(logprobs[place, one])} for one in ids})
        return found

    async def complete(request):
        body = await request.json()
        if body["prompt_logprobs"] > largest:
            return JSONResponse({"error": {"message": f"at most {largest}"}}, 400)
        given = {} if silent else {"prompt_logprobs": said(body["prompt"], body["prompt_logprobs"])}
        return JSONResponse({"id": "x", "object": "text_completion", "created": 0, "model": body["model"],
                             "choices": [{"index": 0, "text": "", "finish_reason": "length", **given}]})

    return Starlette(routes=[Route("/v1/completions", complete, methods=["POST"])])


@pytest.fixture
def asked(tmp_path, context_of, tiny_model, larger, process):  # noqa: F811
    def make(kind, *words):
        return kind(context_of(tmp_path / kind.__name__, *TINY, *words, teacher=larger), tiny_model, process)

    return make


@pytest.mark.parametrize("words", [
    (), *((*GKD, f"algorithm.policy_loss_fn_args.top_k={count}") for count in (3, 64, 1024))], ids=str)
def test_what_a_server_says_is_what_the_teacher_in_host_memory_says(asked, larger, words):  # noqa: F811
    """In float32 to 1e-4, of the sampled tokens, the likeliest, and all others together; from the table again too."""
    there, here = rows(), rows()
    asked(Teacher, *words).add(there)
    with serving(app(larger)) as url:
        served = asked(ServedTeacher, *words, f"model.teacher_url={url}/v1")
        served.add(here)
    again = rows()
    asked(ServedTeacher, *words, "model.teacher_url=http://127.0.0.1:9/v1").add(again)
    for one, other, read in zip(there, here, again, strict=True):
        assert one.columns.keys() == other.columns.keys() == read.columns.keys()
        for name in one.columns:
            if name != "teacher_top_logprobs":
                np.testing.assert_allclose(other.columns[name], one.columns[name], atol=1e-4)
            np.testing.assert_array_equal(read.columns[name], other.columns[name])
        if words:
            mine, other = (each.columns["teacher_top_logprobs"] for each in (one, other))
            np.testing.assert_allclose(other[:, :-1], mine[:, :-1], atol=1e-4)
            np.testing.assert_allclose(np.exp(other[:, -1]), np.exp(mine[:, -1]), atol=1e-5)
    stored = tables.read(tables.step_file(served.context.directory, "teacher", 0), records.FixedLogprobs)
    assert stored["experience_id"].to_pylist() == ["r0", "r1", "r2", "r3", "r4"]
    assert math.isclose(stored["logprobs"][0][0].as_py(), there[0].columns["teacher_logprobs"][0], abs_tol=1e-4)


@pytest.mark.parametrize(("words", "options", "said"), [
    ((), {"silent": True}, "prompt_logprobs"),
    ((*GKD, "algorithm.policy_loss_fn_args.top_k=8"), {"largest": 4}, "most 4")])
def test_a_server_without_log_probs_is_refused(asked, larger, words, options, said):  # noqa: F811
    with serving(app(larger, **options)) as url, refuses(StageError, said):
        asked(ServedTeacher, *words, f"model.teacher_url={url}/v1").logprobs(rows())


def test_rows_that_were_sampled_otherwise_are_refused(asked):
    for row in (various()[1], various()[2]):
        with refuses(DataError, row.id, "temperature"):
            asked(ServedTeacher, "model.teacher_url=http://127.0.0.1:9/v1").logprobs([row])
