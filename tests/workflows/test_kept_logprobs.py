"""Log-probs that stay with the sampler: every request gets its own, whatever happens to its batch."""

import ast
import dataclasses
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ouroboros.workflows.engines.kept_logprobs import KeptLogprobs, keep, of_first, of_second


@pytest.fixture
def kept():
    return KeptLogprobs(lines=2, width=8, device=torch.device("cpu"))


def write(kept, positions: dict[str, int], *logprobs: float) -> None:
    kept.write(list(positions), torch.tensor(list(positions.values())), torch.tensor(logprobs))


def test_a_request_gets_the_values_of_its_positions_also_when_its_batch_changes(kept):
    write(kept, {"0-a": 3, "1-b": 5}, -0.5, -1.0)
    write(kept, {"1-b": 6}, -2.0)  # 0 was preempted
    assert kept.take([(1, 5, 2)]) == [[-1.0, -2.0]]
    write(kept, {"2-c": 3, "0-a": 4}, -4.0, -0.25)
    assert kept.take([(0, 3, 2), (2, 3, 1)]) == [[-0.5, -0.25], [-4.0]]


def test_a_position_past_the_end_is_not_handed_over(kept):
    write(kept, {"0-a": 3, "1-b": 5}, -0.5, -1.0)
    write(kept, {"0-a": 4, "1-b": 6}, -0.25, -2.0)  # that of 0 was computed before its end was known
    assert kept.take([(1, 5, 2), (0, 3, 1)]) == [[-1.0, -2.0], [-0.5]]


def test_more_requests_than_lines_find_room_and_lose_nothing(kept):
    write(kept, {"0-a": 1, "1-b": 1}, -1.0, -2.0)
    write(kept, {"2-c": 1, "3-d": 1, "4-e": 1}, -3.0, -4.0, -5.0)
    assert kept.take([(n, 1, 1) for n in range(5)]) == [[-1.0], [-2.0], [-3.0], [-4.0], [-5.0]]
    assert len(kept.values) == 8


def test_lines_of_cancelled_requests_are_used_again(kept):
    for number in range(0, 20, 2):
        write(kept, {f"{number}-x": 1, f"{number + 1}-x": 1}, -1.0, -2.0)
        kept.drop([number])
        assert kept.take([(number + 1, 1, 1)]) == [[-2.0]]
    assert len(kept.values) == 2


def test_a_request_without_tokens_has_no_values(kept):
    write(kept, {"0-a": 1}, -1.0)
    assert kept.take([(7, 3, 0), (0, 1, 1)]) == [[], [-1.0]]
    assert kept.take([]) == []


class Sampler:
    """Answers with log-probs as vLLM's does: [B, 1 + further tokens]."""

    def __init__(self, further: int = 0):
        self.further = further

    def __call__(self, logits, input_batch):
        columns = torch.cat([logits[:, :1]] * (1 + self.further), 1)
        return SimpleNamespace(logprobs_tensors=SimpleNamespace(logprobs=columns), sampled_token_ids=logits)


BATCH = SimpleNamespace(req_ids=["5-x", "6-y"], positions=torch.tensor([0, 1, 2, 0, 1]),
                        logits_indices=torch.tensor([2, 4]))


def test_the_sampler_hands_over_tokens_alone():
    sampler = Sampler()
    kept = keep(sampler, 2, 8, torch.device("cpu"), of_second)
    output = sampler(torch.tensor([[-0.5], [-1.5]]), BATCH)
    assert output.logprobs_tensors is None
    assert output.sampled_token_ids.tolist() == [[-0.5], [-1.5]]
    assert kept.take([(5, 3, 1), (6, 2, 1)]) == [[-0.5], [-1.5]]


def test_the_first_runners_batch_is_read_when_it_samples():
    """A prompt of 3 tokens and one of 2; in the next step the second one's request is alone."""
    class First(Sampler):
        def __call__(self, logits, sampling_metadata):
            return super().__call__(logits, None)

    runner, sampler = SimpleNamespace(), First()
    kept = keep(sampler, 2, 8, torch.device("cpu"), of_first(runner))
    runner.input_batch = SimpleNamespace(req_ids=["5-x", "6-y"], num_reqs=2, num_tokens_no_spec=np.array([3, 2, 9]))
    assert sampler(logits=torch.tensor([[-0.5], [-1.5]]), sampling_metadata=None).logprobs_tensors is None
    runner.input_batch = SimpleNamespace(req_ids=["6-y"], num_reqs=1, num_tokens_no_spec=np.array([3, 0, 9]))
    sampler(logits=torch.tensor([[-2.5]]), sampling_metadata=None)
    assert kept.take([(5, 3, 1), (6, 2, 2)]) == [[-0.5], [-1.5, -2.5]]


def test_log_probs_of_further_tokens_pass():
    sampler = Sampler(further=2)
    keep(sampler, 2, 8, torch.device("cpu"), of_second)
    assert sampler(torch.tensor([[-0.5], [-1.5]]), BATCH).logprobs_tensors.logprobs.shape == (2, 3)


def test_the_installed_vllm_has_the_sampler_that_is_overridden():
    """By its source: the modules need a GPU's kernels to import."""
    place = Path(find_spec("vllm").origin).parent / "v1/worker/gpu"
    sampler = _class(place / "sample/sampler.py", "Sampler")
    call = next(one for one in sampler.body if getattr(one, "name", "") == "__call__")
    assert [argument.arg for argument in call.args.args] == ["self", "logits", "input_batch"]
    fields = {one.target.id for one in _class(place / "input_batch.py", "InputBatch").body
              if isinstance(one, ast.AnnAssign)}
    assert fields >= {"req_ids", "positions", "logits_indices"}
    output = {one.target.id for one in _class(place / "sample/output.py", "SamplerOutput").body
              if isinstance(one, ast.AnnAssign)}
    assert "logprobs_tensors" in output
    runner = ast.unparse(_class(place / "model_runner.py", "GPUModelRunner"))
    room = ("self.max_num_reqs", "self.max_model_len", "self.device")
    for name in ("self.sampler(logits, input_batch)", *room):
        assert name in runner
    first = ast.unparse(_class(place.parent / "gpu_model_runner.py", "GPUModelRunner"))
    for name in ("self.sampler(logits=logits, sampling_metadata=sampling_metadata)",
                 "start_idx = self.input_batch.num_tokens_no_spec[req_idx]", *room):
        assert name in first


def test_the_installed_vllm_hands_over_log_probs_by_field():
    from vllm.v1.outputs import LogprobsTensors

    fields = getattr(LogprobsTensors, "_fields", None) or [one.name for one in dataclasses.fields(LogprobsTensors)]
    assert "logprobs" in fields


def _class(file: Path, name: str) -> ast.ClassDef:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return next(one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name)
