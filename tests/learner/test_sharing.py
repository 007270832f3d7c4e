"""Shared prompts: where their tokens are, which rows share them, and the results of separate rows in float64."""

import random
from types import SimpleNamespace

import pytest
import torch

from stages.learner.critic import ValueModel
from stages.learner.engine import attention, continued, policy
from stages.learner.engine.batch import Row
from stages.learner.engine.packing import Aggregation, Fill, pack
from stages.learner.engine.way import Way
from tests import zoo

CPU = torch.device("cpu")


def row(name: str, prompt: list[int], response: list[int], mask: list[int] | None = None) -> Row:
    return Row(name, prompt + response, len(prompt), mask or [1] * len(response), {"advantages": 1.0})


def grouped(groups: int, each: int, seed: int, longest: int = 12) -> list[Row]:
    source = random.Random(seed)
    made = []
    for group in range(groups):
        prompt = [source.randrange(3, 90) for _ in range(source.randint(1, longest))]
        for _ in range(each):
            response = [source.randrange(3, 90) for _ in range(source.randint(1, longest))]
            mask = [source.randint(0, 1) for _ in response[1:]] + [1]
            made.append(row(f"g{group}", prompt, response, mask))
    return made


def test_a_shared_prompt_is_followed_by_its_responses():
    """a and c share [5, 6]: 5 6 | 7 8 | 9, then b as it is. Both are first predicted at position 1."""
    some = [row("a", [5, 6], [7, 8]), row("b", [4], [3]), row("c", [5, 6], [9])]
    (micro,) = pack(some, 20, 0, 1, fill=Fill.SHARED)
    assert micro.input_ids.tolist() == [5, 6, 7, 8, 9, 4, 3]
    assert micro.positions.tolist() == [0, 1, 2, 3, 2, 0, 1]
    assert micro.segments.bounds.tolist() == [0, 2, 4, 5, 7]
    assert micro.segments.contexts.tolist() == [-1, 0, 0, -1]
    assert micro.source.tolist() == [1, 2, 5, 1]
    assert micro.targets.tolist() == [7, 8, 3, 9]
    assert micro.row_of.tolist() == [0, 0, 1, 2]
    places = attention.layout(micro.segments, CPU, "varlen")
    found = {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in places.items()}
    assert found == {"cu_seq_lens_q": [0, 2, 4, 5, 7], "longest": 2, "queries": [2, 3, 4], "cu_queries": [0, 3],
                     "keys": [0, 1], "cu_keys": [0, 2], "longest_queries": 3, "longest_keys": 2}
    padded = attention.layout(micro.segments, CPU, "padded")
    assert padded["gather"].tolist() == [[0, 1, 2, 3], [0, 1, 4, 0], [5, 6, 0, 0]]
    assert padded["scatter"].tolist()[2:] == [2, 3, 6, 8, 9]
    assert padded["scatter"].tolist()[:2] in ([0, 1], [4, 5])


@pytest.mark.parametrize(("budget", "ranks", "unit"), [
    (24, 1, 1), (30, 2, 1), (48, 2, 2), (60, 5, 1), (1000, 1, 1), (1000, 3, 2), (1000, 16, 1)])
def test_every_row_is_in_one_micro_batch_within_the_budget(budget, ranks, unit):
    some = grouped(4, 6, seed=budget)
    packed = [pack(some, budget, rank, ranks, ("advantages",), Aggregation(unit=unit), fill=Fill.SHARED)
              for rank in range(ranks)]
    assert len({len(micros) for micros in packed}) == 1
    micros = [micro for of_rank in packed for micro in of_rank]
    assert sorted(index for micro in micros for index in micro.rows) == list(range(24))
    assert all(len(micro.input_ids) <= budget for micro in micros)
    for micro in micros:
        assert all(micro.rows[i + 1] == micro.rows[i] + 1 for i in range(0, len(micro.rows), unit) if unit == 2)
        for index in micro.rows:
            mine = micro.row_of == index
            wanted = some[index]
            acts = [place + wanted.prompt_length for place, act in enumerate(wanted.mask) if act]
            assert micro.targets[mine].tolist() == [wanted.tokens[act] for act in acts]
            assert micro.input_ids[micro.source[mine]].tolist() == [wanted.tokens[act - 1] for act in acts]
            assert micro.positions[micro.source[mine]].tolist() == [act - 1 for act in acts]


def test_groups_are_divided_where_ranks_would_wait():
    """Two groups of 4 rows, prompts of 10 and responses of 5 tokens. One rank: 2 x (10 + 4 x 5). Four ranks: each half
    a group, 10 + 2 x 5; as separate rows they would have 2 x 15."""
    some = [row("r", [group] * 10, [3] * 5) for group in (1, 2) for _ in range(4)]
    assert [len(micro.input_ids) for micro in pack(some, 100, 0, 1, fill=Fill.SHARED)] == [60]
    for rank in range(4):
        assert [len(micro.input_ids) for micro in pack(some, 100, rank, 4, fill=Fill.SHARED)] == [20]
    assert sum(len(micro.input_ids) for micro in pack(some, 15, 0, 1, fill=Fill.SHARED)) == 8 * 15


class Norm(torch.nn.Module):
    """RMSNorm in the dtype of its input; that of transformers rounds to float32."""

    def __init__(self, other: torch.nn.Module):
        super().__init__()
        self.weight, self.eps = other.weight, other.variance_epsilon

    def forward(self, x):
        return self.weight * x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt()


def in_float64(model: torch.nn.Module) -> torch.nn.Module:
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                setattr(module, name, Norm(child))
    return model


def learnt(model: torch.nn.Module, some: list[Row], share: bool, budget: int):
    """Results by row, and the gradients of all parameters."""
    results = {}
    for micro in pack(some, budget, 0, 1, fill=Fill.SHARED if share else Fill.FLAT):
        found = model(**micro.inputs(CPU))
        outputs = found if isinstance(found, tuple) else (found,)
        factors = torch.from_numpy(micro.targets % 7 - 3).double()
        sum((output.double() * factors).sum() for output in outputs if output.requires_grad).backward()
        results |= micro.by_row(outputs[0])
    return results, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("family", "critic", "dtype", "far"), [
    ("qwen2", False, torch.float64, 1e-11), ("qwen2", True, torch.float64, 1e-11), ("phi", False, torch.float64, 1e-11),
    ("mixtral", False, torch.float32, 1e-5)])  # its experts have no float64
def test_results_and_gradients_are_those_of_separate_rows(tmp_path, family, critic, dtype, far):
    """With grouped and single rows, in one micro-batch and in several. far: of the gradient, relative to its norm."""
    zoo.make(family, tmp_path)
    settings = SimpleNamespace(attention="padded", compile=False, enable_gradient_checkpointing=critic,
                               logprob_chunk_tokens=64, zero_stage=1, share_prompts=True, packing="auto",
                               tiled_mlp_num_shards=1)
    some = [*grouped(3, 4, seed=1), *grouped(2, 1, seed=2)]
    found = []
    for share, budget in ((False, 1000), (True, 1000), (True, 70)):
        torch.manual_seed(0)
        model = in_float64(policy.load(tmp_path, "cpu", dtype, settings, 0.8, 64))
        if critic:
            model = ValueModel(model.model.model, Way("padded"))
            torch.nn.init.normal_(model.head.weight)
        found.append(learnt(model, some, share, budget))
    (wanted, gradients), *others = found
    for results, more in others:
        assert results.keys() == wanted.keys()
        assert all(abs(results[key] - wanted[key]).max() < 1e-5 for key in wanted)  # rounded to float32
        assert more.keys() == gradients.keys()
        for name, gradient in gradients.items():
            assert (more[name] - gradient).norm() <= far * gradient.norm()


class Exact:
    """The kernels' interface in plain torch: each packed sequence by itself, gradients from output and log-sum-exp."""

    @staticmethod
    def scores(q, k, begin, end, first, last, piece, scale):
        found = torch.einsum("qhd,khd->hqk", q[begin:end], k[first:last]) * scale
        ahead = torch.ones(end - begin, last - first).triu(1).bool()
        return found.masked_fill(ahead, -torch.inf) if piece.causal else found

    @staticmethod
    def forward(q, k, v, piece, scale):
        out, lse = torch.empty_like(q), q.new_empty(q.shape[1], q.shape[0])
        for begin, end, first, last in bounds(piece):
            found = Exact.scores(q, k, begin, end, first, last, piece, scale)
            lse[:, begin:end] = found.logsumexp(-1)
            out[begin:end] = torch.einsum("hqk,khd->qhd", found.softmax(-1), v[first:last])
        return out, lse

    @staticmethod
    def backward(grad, q, k, v, out, lse, piece, scale):
        made = [torch.zeros_like(x) for x in (q, k, v)]
        for begin, end, first, last in bounds(piece):
            chances = (Exact.scores(q, k, begin, end, first, last, piece, scale) - lse[:, begin:end, None]).exp()
            of_chances = torch.einsum("qhd,khd->hqk", grad[begin:end], v[first:last])
            delta = (grad[begin:end] * out[begin:end]).sum(-1).T[..., None]
            of_scores = chances * (of_chances - delta) * scale
            made[0][begin:end] += torch.einsum("hqk,khd->qhd", of_scores, k[first:last])
            made[1][first:last] += torch.einsum("hqk,qhd->khd", of_scores, q[begin:end])
            made[2][first:last] += torch.einsum("hqk,qhd->khd", chances, grad[begin:end])
        return tuple(made)


def bounds(piece):
    queries, keys = piece.cu_queries.tolist(), piece.cu_keys.tolist()
    return zip(queries[:-1], queries[1:], keys[:-1], keys[1:], strict=True)


def test_two_kernel_calls_are_the_attention_over_prompt_and_response(monkeypatch):
    """Output and gradients of q, k, v in float64 against the padded attention of the same segments."""
    monkeypatch.setitem(continued.KERNELS, "exact", Exact)
    (micro,) = pack([*grouped(3, 3, seed=5), *grouped(1, 1, seed=6)], 1000, 0, 1, fill=Fill.SHARED)
    torch.manual_seed(1)
    states = [torch.randn(1, 2, len(micro.input_ids), 4, dtype=torch.float64) for _ in range(4)]
    found = []
    for name in ("padded", "exact"):
        q, k, v = (x.clone().requires_grad_() for x in states[:3])
        if name == "padded":
            out, _ = attention.padded(None, q, k, v, None, 0.3, **attention.layout(micro.segments, CPU, "padded"))
        else:
            places = attention.layout(micro.segments, CPU, "varlen")
            flat = (x[0].transpose(0, 1) for x in (q, k, v))
            out = continued.continued("exact", *flat, places.pop("cu_seq_lens_q"), places.pop("longest"),
                                      places.pop("queries"), 0.3, places)[None]
        (out * states[3].transpose(1, 2)).sum().backward()
        found.append([out, q.grad, k.grad, v.grad])
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-12)
