"""On a GPU: the kernel of the output head against float64, compiled families against eager ones and float32, flash-attn
against torch's kernel.

    pytest -m gpu tests/learner/test_gpu.py
"""

import importlib.util
from types import SimpleNamespace

import pytest
import torch

from ouroboros.stages.learner.engine import policy
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.compiled import GRAPHS
from ouroboros.stages.learner.engine.packing import Fill, pack
from tests import zoo

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def trainer(attention: str, compiled: bool, checkpointing: bool = False):
    return SimpleNamespace(attention=attention, compile=compiled, enable_gradient_checkpointing=checkpointing,
                           logprob_chunk_tokens=64, zero_stage=1, share_prompts=True, packing="auto",
                           tiled_mlp_num_shards=1, freeze_vision_tower=True)


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


@pytest.mark.parametrize(("rows", "words", "width", "temperature"), [
    (300, 1001, 64, 0.7), (1, 151936, 896, 1.0), (517, 151936, 896, 1.3), (130, 32000, 2048, 1.0), (700, 999, 72, 1.0)])
def test_the_kernel_computes_what_float64_does(rows, words, width, temperature):
    """Log-probs and entropy to 1e-4, their gradients, rounded to bfloat16, to 0.5%."""
    from ouroboros.stages.learner.engine.head_kernel import Score

    torch.manual_seed(rows)
    hidden, head = (torch.randn(n, width, device="cuda").bfloat16() for n in (rows, words))
    head *= 3 / width**0.5
    targets = torch.randint(0, words, (rows,), device="cuda")
    targets[-1] = words - 1
    a, b = torch.randn(2, rows, device="cuda")
    exact = [x.double().requires_grad_() for x in (hidden, head)]
    every = (exact[0] @ exact[1].T / temperature).log_softmax(-1)
    entropy, logprobs = -(every.exp() * every).sum(-1), every.gather(-1, targets[:, None])[:, 0]
    (a * logprobs + b * entropy).sum().backward()
    given = [x.clone().requires_grad_() for x in (hidden, head)]
    found, uncertain = Score.apply(*given, targets, temperature, True)
    (a * found + b * uncertain).sum().backward()
    torch.testing.assert_close(found.double(), logprobs, atol=1e-4, rtol=0)
    torch.testing.assert_close(uncertain.double(), entropy, atol=1e-4, rtol=0)
    for ours, wanted in zip(given, exact, strict=True):
        assert distance(ours.grad, wanted.grad) < 5e-3
    frozen = hidden.clone().requires_grad_()  # under an adapter; entropy is only reported
    found, uncertain = Score.apply(frozen, head, targets, temperature, False)
    assert not uncertain.requires_grad
    (a * found).sum().backward()
    (wanted,) = torch.autograd.grad((a * (exact[0] @ head.double().T / temperature).log_softmax(-1).gather(
        -1, targets[:, None])[:, 0]).sum(), exact[0])
    assert distance(frozen.grad, wanted) < 5e-3


def batches() -> list:
    """Rows of 40 to 200 tokens in two micro-batches of different lengths."""
    source, rows = torch.Generator().manual_seed(3), []
    for index, (prompt, response) in enumerate(((30, 60), (11, 29), (100, 100), (20, 150), (8, 32), (60, 71))):
        tokens = torch.randint(3, 99, (prompt + response,), generator=source).tolist()
        rows.append(Row(f"r{index}", tokens, prompt, [1] * response))
    return pack(rows, 400, 0, 1)


def groups(fill: Fill = Fill.FLAT) -> list:
    """Three groups of four responses, of which each continues a part of the one before it, and a single row, in one
    micro-batch: the same order of action tokens in both."""
    source, rows = torch.Generator().manual_seed(5), []
    for prompt, count in ((60, 4), (9, 4), (31, 4), (12, 1)):
        begin = torch.randint(3, 99, (prompt,), generator=source).tolist()
        response: list[int] = []
        for place in range(count):
            response = response[: 15 * place] + torch.randint(3, 99, (20 + 17 * place,), generator=source).tolist()
            rows.append(Row("r", begin + response, prompt, [1] * len(response)))
    return pack(rows, 4000, 0, 1, fill=fill)


def learnt(path, settings, dtype, micros=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of all action tokens, and the gradient of all parameters. Weights are rounded to bfloat16."""
    learner = policy.load(path, "cuda", dtype, settings, 1.0, 255).to("cuda")
    for parameter in learner.parameters():
        parameter.data = parameter.data.bfloat16().to(dtype)
    found = []
    for micro in micros or batches():
        logprobs, entropy = learner(**micro.inputs(torch.device("cuda")), entropy_gradient=True)
        (logprobs * torch.linspace(-1, 1, len(logprobs), device="cuda") - 0.1 * entropy).sum().backward()
        found.append(logprobs.detach())
        with torch.no_grad():
            assert distance(learner(**micro.inputs(torch.device("cuda")))[0], found[-1]) < 0.03
    gradients = [p.grad.flatten().float() for _, p in sorted(learner.named_parameters()) if p.grad is not None]
    return torch.cat(found), torch.cat(gradients)


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is None, reason="needs flash-attn")
@pytest.mark.parametrize(("family", "compiled"), [("qwen2", False), ("qwen2", True), ("llama", True), ("qwen3", True)])
def test_flash_attn_computes_what_torchs_kernel_does(tmp_path, family, compiled):
    """Log-probs and gradients of each are equally far from float32, and 1% from each other; heads of 64 and 128."""
    zoo.make(family, tmp_path)
    exact = learnt(tmp_path, trainer("padded", False), torch.float32)
    varlen = learnt(tmp_path, trainer("varlen", compiled), torch.bfloat16)
    flash = learnt(tmp_path, trainer("flash_attn", compiled), torch.bfloat16)
    far = [[distance(some, wanted) for some, wanted in zip(found, exact, strict=True)] for found in (varlen, flash)]
    print(f"{family} compiled={compiled} varlen={far[0]} flash_attn={far[1]} apart="
          f"{[distance(some, other) for some, other in zip(flash, varlen, strict=True)]}")
    assert all(ours <= 1.2 * theirs + 1e-3 for theirs, ours in zip(*far, strict=True))
    assert all(distance(some, other) < 1e-2 for some, other in zip(flash, varlen, strict=True))


@pytest.mark.parametrize(("family", "checkpointing"), [
    ("llama", False), ("qwen2", False), ("qwen2", True), ("qwen3", False), ("mistral", False), ("gemma", False),
    ("phi", False), ("phi3", False), ("qwen3_moe", False), ("mixtral", True)])
def test_compiled_families_are_no_further_from_float32_than_eager_ones(tmp_path, family, checkpointing):
    """Both round to bfloat16 at different places: at most 1.5 times the distance of the eager model, and 0.2%."""
    zoo.make(family, tmp_path)
    exact = learnt(tmp_path, trainer("padded", False), torch.float32)
    eager = learnt(tmp_path, trainer("varlen", False), torch.bfloat16)
    before = GRAPHS.count
    compiled = learnt(tmp_path, trainer("varlen", True, checkpointing), torch.bfloat16)
    far = [[distance(some, wanted) for some, wanted in zip(found, exact, strict=True)] for found in (eager, compiled)]
    made = GRAPHS.count - before
    print(f"{family} recompute={checkpointing} graphs={made} eager={far[0]} compiled={far[1]} refused={GRAPHS.refused}")
    assert 0 < made <= 12
    assert all(ours <= 1.5 * theirs + 2e-3 for theirs, ours in zip(*far, strict=True))


@pytest.mark.parametrize("attention", ["varlen", pytest.param("flash_attn", marks=pytest.mark.skipif(
    importlib.util.find_spec("flash_attn") is None, reason="needs flash-attn"))])
@pytest.mark.parametrize(("family", "compiled"), [("qwen2", False), ("qwen2", True), ("qwen3", True), ("phi", False)])
def test_shared_prefixes_change_rounding_alone(tmp_path, attention, family, compiled):
    """Log-probs and gradients are no further from float32 than those of separate rows, but for a fifth and 0.1%."""
    zoo.make(family, tmp_path)
    exact = learnt(tmp_path, trainer("padded", False), torch.float32, groups())
    apart = learnt(tmp_path, trainer(attention, compiled), torch.bfloat16, groups())
    shared = learnt(tmp_path, trainer(attention, compiled), torch.bfloat16, groups(fill=Fill.SHARED))
    far = [[distance(some, wanted) for some, wanted in zip(found, exact, strict=True)] for found in (apart, shared)]
    print(f"{family} {attention} compiled={compiled} apart={far[0]} shared={far[1]}")
    assert all(ours <= 1.2 * theirs + 1e-3 for theirs, ours in zip(*far, strict=True))
