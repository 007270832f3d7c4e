"""A teacher on a server of vLLM's interface: as the one in host memory, and what it refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from transformers import AutoModelForCausalLM

from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import DataError, ModelError, StageError
from ouroboros.stages.learner.served_teacher import ServedTeacher
from ouroboros.stages.learner.teacher import Teacher
from tests.configs import TINY
from tests.golden.messages import refuses
from tests.learner.test_teacher import larger, rows, various  # noqa: F401 (larger is a fixture)
from tests.servers import serving

ROOM = "model.max_response_tokens=23"  # the teacher has 64 positions, and a server adds a token
GKD = ("algorithm.algorithm_type=gkd", "trainer.max_token_len_per_gpu=64")


def app(directory, largest=1024, silent=False, name=None, shift=0):
    """A server of the model in a directory, which gives at most `largest` likeliest tokens; silent: none at all. name:
    of another model; shift: of the ids in its replies."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def said(tokens, count):
        with torch.no_grad():
            logprobs = model(torch.tensor([tokens])).logits[0].float().log_softmax(-1)
        found = [None]
        for place, token in enumerate(tokens[1:]):
            ids = {token, *logprobs[place].topk(min(count, logprobs.shape[1])).indices.tolist()} if count else {token}
            found.append({str(one + shift): {"logprob": float(logprobs[place, one])} for one in ids})
        return found

    async def complete(request):
        body = await request.json()
        if body["prompt_logprobs"] > largest:
            return JSONResponse({"error": {"message": f"at most {largest}"}}, 400)
        given = {} if silent else {"prompt_logprobs": said(body["prompt"], body["prompt_logprobs"])}
        return JSONResponse({"id": "x", "object": "text_completion", "created": 0, "model": body["model"],
                             "choices": [{"index": 0, "text": "", "finish_reason": "length", **given}]})

    async def models(_):
        return JSONResponse({"object": "list", "data": [{"id": name or str(directory), "object": "model", "created": 0,
                                                         "owned_by": "x"}]})

    return Starlette(routes=[Route("/v1/completions", complete, methods=["POST"]), Route("/v1/models", models)])


@pytest.fixture
def asked(tmp_path, context_of, tiny_model, larger, process):  # noqa: F811
    def make(kind, *words):
        return kind(context_of(tmp_path / kind.__name__, *TINY, ROOM, *words, teacher=larger), tiny_model, process)

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
        read = asked(ServedTeacher, *words, f"model.teacher_url={url}/v1")
    read.add(again)  # without the server
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


@pytest.mark.parametrize(("words", "options", "error", "said"), [
    ((), {"silent": True}, StageError, "prompt_logprobs"), ((), {"name": "another"}, ModelError, "another"),
    ((), {"shift": 5000}, ModelError, "token id"),
    ((*GKD, "algorithm.policy_loss_fn_args.top_k=8"), {"largest": 4}, StageError, "most 4")])
def test_a_server_without_log_probs_or_of_another_model_is_refused_at_the_start(
        asked, larger, words, options, error, said):  # noqa: F811
    with serving(app(larger, **options)) as url, refuses(error, said):
        asked(ServedTeacher, *words, f"model.teacher_url={url}/v1")


def test_a_teacher_without_room_for_the_token_that_a_server_adds_is_refused(asked):
    with refuses(ModelError, "64"):
        asked(ServedTeacher, "model.max_response_tokens=24", "model.teacher_url=http://127.0.0.1:9/v1")


def test_an_error_of_any_kind_reaches_every_rank(asked, larger, monkeypatch):  # noqa: F811
    with serving(app(larger)) as url:
        served, told = asked(ServedTeacher, f"model.teacher_url={url}/v1"), []
        monkeypatch.setattr(served, "of_row", lambda *_: {}["token"])
        monkeypatch.setattr(type(served.process), "first", lambda _, value: told.append(value) or value)
        with refuses(StageError, "KeyError"):
            served.logprobs(rows())
    assert isinstance(told[0], StageError)


@pytest.mark.parametrize(("given", "count"), [((), 16), ((*GKD, "algorithm.policy_loss_fn_args.top_k=64"), 7)], ids=str)
def test_the_replies_at_once_have_at_most_64_mib(asked, larger, monkeypatch, given, count):  # noqa: F811
    """A reply of 1,024 tokens has 65 log-probs of each, 128 bytes: 8.1 MiB, 7 of which are 57 MiB."""
    with serving(app(larger)) as url:
        served, made = asked(ServedTeacher, *given, f"model.teacher_url={url}/v1"), []

    def note(settings):
        made.append(settings.concurrency)
        raise StageError("seen")

    monkeypatch.setattr("ouroboros.stages.learner.served_teacher.Remote", note)
    with pytest.raises(StageError, match="seen"):
        served.logprobs([replace(rows()[0], tokens=[1] * 1024)])
    assert made == [count]


def test_rows_that_were_sampled_otherwise_are_refused(asked, larger):  # noqa: F811
    with serving(app(larger)) as url:
        served = asked(ServedTeacher, f"model.teacher_url={url}/v1")
    for row in (various()[1], various()[2]):
        with refuses(DataError, row.id, "temperature"):
            served.logprobs([row])
