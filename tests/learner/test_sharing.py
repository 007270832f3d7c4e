"""Shared prefixes: where their tokens are, which rows share them, and the results of separate rows in float64."""

import random
from itertools import pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ouroboros.stages.learner.critic import ValueModel
from ouroboros.stages.learner.engine import attention, continued, policy
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.packing import Aggregation, Fill, pack
from ouroboros.stages.learner.engine.prefixes import MEASURED, NOTHING, Cost, runs, worthwhile
from ouroboros.stages.learner.engine.sharing import Prefixes
from ouroboros.stages.learner.engine.way import Way
from tests import families, zoo

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


def conversations(count: int, seed: int, words: int = 90, longest: int = 12) -> list[Row]:
    """Random rows, most of which fork from an earlier one: also equal rows, and rows that are the beginning of others.
    Actions are anywhere behind a prompt of any length."""
    source, made = random.Random(seed), []
    for index in range(count):
        tokens = [source.randrange(3, words) for _ in range(source.randint(2, longest))]
        if made and source.random() < 0.85:
            other = source.choice(made).tokens
            tokens = other[: source.randint(1, len(other))] + tokens[: source.choice((0, len(tokens)))]
        tokens += [3] * (2 - len(tokens))
        prompt = source.randint(1, len(tokens) - 1)
        mask = [source.randint(0, 1) for _ in tokens[prompt:]]
        mask[source.randrange(len(mask))] = 1
        made.append(row(f"c{index}", tokens[:prompt], tokens[prompt:], mask))
    return made


def test_a_shared_prompt_is_followed_by_its_responses():
    """a and c share [5, 6]: 5 6 | 9 | 7 8, behind b as it is. Both are first predicted at the 6, position 3."""
    some = [row("a", [5, 6], [7, 8]), row("b", [4], [3]), row("c", [5, 6], [9])]
    (micro,) = pack(some, 20, 0, 1, fill=Fill.SHARED)
    assert micro.input_ids.tolist() == [4, 3, 5, 6, 7, 8, 9]
    assert micro.positions.tolist() == [0, 1, 0, 1, 2, 3, 2]
    assert micro.segments.bounds.tolist() == [0, 2, 4, 6, 7]
    assert micro.segments.contexts.tolist() == [-1, -1, 1, 1]
    assert micro.source.tolist() == [3, 4, 0, 3]
    assert micro.targets.tolist() == [7, 8, 3, 9]
    assert micro.row_of.tolist() == [0, 0, 1, 2]
    assert laid_out(micro) == {
        "cu_seq_lens_q": [0, 2, 4, 6, 7], "longest": 2, "queries": [4, 5, 6], "cu_queries": [0, 3], "shared": [2, 3],
        "keys": [0, 1], "cu_keys": [0, 2], "longest_queries": 3, "longest_keys": 2}
    padded = attention.layout(micro.segments, CPU, "padded")
    assert padded["gather"].tolist() == [[0, 1, 0, 0], [2, 3, 4, 5], [2, 3, 6, 0]]
    assert padded["scatter"].tolist() == [0, 1, 8, 9, 6, 7, 10]


def laid_out(micro) -> dict:
    places = attention.layout(micro.segments, CPU, "varlen")
    return {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in places.items()}


def test_a_conversation_is_a_tree_and_each_row_has_losses_of_its_own():
    """1 2 | 3 | 4 5 (a, which has b as its beginning), 6 (c); 1 2 | 7 (d and e, equal). Turn 1 is trained in all but c.

    flat: 1 2 (0, 1), 3 (2), 4 5 (3, 4), 6 (5), 7 (6)."""
    some = [row("a", [1], [2, 3, 4, 5], [1, 0, 1, 1]), row("b", [1], [2, 3], [1, 1]), row("c", [1, 2, 3], [6]),
            row("d", [1], [2, 7]), row("e", [1, 2], [7])]
    (micro,) = pack(some, 20, 0, 1, fill=Fill.SHARED)
    assert micro.input_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert micro.positions.tolist() == [0, 1, 2, 3, 4, 3, 2]
    assert micro.segments.bounds.tolist() == [0, 2, 3, 5, 6, 7]
    assert micro.segments.contexts.tolist() == [-1, 0, 1, 1, 0]
    assert micro.targets.tolist() == [2, 4, 5, 2, 3, 6, 2, 7, 7]
    assert micro.source.tolist() == [0, 2, 3, 0, 1, 2, 0, 1, 1]
    assert micro.row_of.tolist() == [0, 0, 0, 1, 1, 2, 3, 3, 4]
    assert laid_out(micro) == {
        "cu_seq_lens_q": [0, 2, 3, 5, 6, 7], "longest": 2, "queries": [2, 6, 3, 4, 5], "cu_queries": [0, 2, 5],
        "shared": [0, 1, 2], "keys": [0, 1, 0, 1, 2], "cu_keys": [0, 2, 5], "longest_queries": 3, "longest_keys": 3}
    assert attention.layout(micro.segments, CPU, "padded")["gather"].tolist() == [
        [0, 1, 2, 3, 4], [0, 1, 2, 5, 0], [0, 1, 6, 0, 0]]
    pairs = [pack(some[first : first + 2], 20, 0, 1, fill=Fill.SHARED)[0] for first in (0, 2)]
    assert [micro.segments.continue_others for micro in pairs] == [False, True]


@pytest.mark.parametrize("fill", Fill)
@pytest.mark.parametrize(("budget", "ranks", "unit"), [
    (60, 1, 1), (70, 2, 1), (140, 2, 2), (100, 5, 1), (1000, 1, 1), (1000, 3, 2), (1000, 16, 2)])
@pytest.mark.parametrize("make", [lambda seed: grouped(4, 6, seed), lambda seed: conversations(24, seed),
                                  lambda seed: conversations(24, seed, words=6)])
def test_every_row_is_in_one_micro_batch_within_the_budget(make, budget, ranks, unit, fill):
    some = make(budget)
    packed = [pack(some, budget, rank, ranks, ("advantages",), Aggregation(unit=unit), fill=fill)
              for rank in range(ranks)]
    assert len({len(micros) for micros in packed}) == 1
    micros = [micro for of_rank in packed for micro in of_rank]
    assert sorted(index for micro in micros for index in micro.rows) == list(range(24))
    assert all(len(micro.input_ids) <= budget for micro in micros)
    assert all(len(micro.source) <= budget or len(micro.rows) == unit for micro in micros)
    assert sum(float(micro.weights.sum()) for micro in micros) == pytest.approx(1.0, abs=1e-5)
    for micro in micros:
        assert set(micro.row_in_micro.tolist()) == set(range(len(micro.rows) or unit))  # filler is a whole pair too
        assert all(micro.rows[i + 1] == micro.rows[i] + 1 for i in range(0, len(micro.rows), unit) if unit == 2)
        chains = [micro.segments.chain(segment) for segment in range(len(micro.segments.contexts))]
        for index in micro.rows:
            mine = micro.row_of == index
            wanted = some[index]
            acts = [place + wanted.prompt_length for place, act in enumerate(wanted.mask) if act]
            assert micro.targets[mine].tolist() == [wanted.tokens[act] for act in acts]
            assert micro.positions[micro.source[mine]].tolist() == [act - 1 for act in acts]
            for source, act in zip(micro.source[mine], acts, strict=True):  # what its output has attended to
                seen = micro.segments.tokens(chains[np.searchsorted(micro.segments.bounds, source, "right") - 1])
                assert micro.input_ids[seen[seen <= source]].tolist() == wanted.tokens[:act]


def test_groups_are_divided_where_ranks_would_wait():
    """Two groups of 4 rows, prompts of 10 and responses of 5 tokens. One rank: 2 x (10 + 4 x 5). Four ranks: each half
    a group, 10 + 2 x 5; as separate rows they would have 2 x 15."""
    some = [row("r", [group] * 10, [last, 3, 3, 3, 3]) for group in (1, 2) for last in range(4, 8)]
    assert [len(micro.input_ids) for micro in pack(some, 100, 0, 1, fill=Fill.SHARED)] == [60]
    for rank in range(4):
        assert [len(micro.input_ids) for micro in pack(some, 100, rank, 4, fill=Fill.SHARED)] == [20]
    assert sum(len(micro.input_ids) for micro in pack(some, 15, 0, 1, fill=Fill.SHARED)) == 8 * 15


def test_action_tokens_that_rows_share_count_for_each_row():
    """Four equal rows of 2 + 6 tokens: 8 tokens to compute, of which the output head scores 24. 12 are two rows'."""
    some = [row("r", [1, 2], [3, 4, 5, 6, 7, 8]) for _ in range(4)]
    micros = pack(some, 12, 0, 1, fill=Fill.SHARED)
    assert [(len(micro.input_ids), len(micro.source)) for micro in micros] == [(8, 12), (8, 12)]
    (micro,) = pack(some, 24, 0, 1, fill=Fill.SHARED)
    assert (len(micro.input_ids), len(micro.source)) == (8, 24)
    pairs = pack(some, 8, 0, 1, aggregation=Aggregation(unit=2), fill=Fill.SHARED)  # which stay together
    assert [(len(micro.input_ids), len(micro.source)) for micro in pairs] == [(8, 12), (8, 12)]


@pytest.mark.parametrize(("fill", "computed"), [(Fill.CHEAPEST, [18]), (Fill.GATHERED, [14, 14])])
def test_two_fifths_of_each_row_count_where_attention_gathers_rows_whole(fill, computed):
    """Eight rows of 10 + 1 tokens are 18 together; four are 14, of which three fifths count, and two fifths of 44."""
    some = [row("r", [1] * 10, [last]) for last in range(2, 10)]
    assert [len(micro.input_ids) for micro in pack(some, 26, 0, 1, fill=fill)] == computed


def test_rows_of_a_tree_are_cut_where_they_share_least():
    """Neighbours of six rows share 4 | 9 9 | 4 | 9 tokens; nothing joins the seventh."""
    assert runs(np.array([4, 9, 9, 4, 9, 0])) == [
        [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7)], [(0, 1), (1, 2), (2, 4), (4, 6), (6, 7)],
        [(0, 4), (4, 6), (6, 7)], [(0, 6), (6, 7)]]
    assert runs(np.array([1])) == [[(0, 1), (1, 2)], [(0, 2)]]


@pytest.mark.parametrize(("prompt", "response", "each", "wanted"), [
    (128, 512, 8, 0),  # saves 7 x 128 = 896; costs 8 x 512 / 4 + 0.1 x 128 = 1,037
    (256, 512, 8, 256), (2048, 512, 8, 2048), (16384, 64, 8, 16384),
    (512, 512, 2, 512), (512, 1000, 2, 0)])  # saves 512; costs 256 + 51 and 500 + 51
def test_a_prompt_is_shared_where_that_saves_more_than_it_costs(prompt, response, each, wanted):
    shared = worthwhile(np.full(each, prompt + response), np.full(each - 1, prompt), Cost(0.25, 0.1))
    assert shared.tolist() == [wanted] * (each - 1)


@pytest.mark.parametrize(("rows", "common", "cost", "wanted"), [
    *(([5, 5, 3], [4, 2], Cost(0.0, gathered), wanted)
      for gathered, wanted in ((0.4, [4, 2]), (0.6, [2, 2]), (1.9, [2, 2]), (2.1, [0, 0]))),
    ([3, 3], [1], Cost(0.2, 0.0), [1]), ([3, 3], [1], Cost(0.25, 0.0), [0])])
def test_the_keys_and_the_first_token_of_a_prefix_count(rows, common, cost, wanted):
    """Rows of 5, 5 and 3 tokens share 4 and 2. Nothing is 13, 2 alone 9 + 2g, both 2 + 2g + 2 + 4g + 3 = 7 + 6g, and
    4 alone 9 + 4g: both below 1/2, then 2 alone until 2. Two rows of 3 share one: 6 apart, 1 + 4 + 4c together."""
    assert worthwhile(np.array(rows), np.array(common), cost).tolist() == wanted


@pytest.mark.parametrize("seed", range(20))
def test_the_shared_prefixes_are_the_cheapest(seed):
    """Against all sets of nodes that may be shared."""
    rows = Prefixes(conversations(6, seed, words=5), NOTHING)
    order = [len(rows.rows[one].tokens) for one in np.argsort(rows.rank)]
    whole = np.flatnonzero(np.append(rows.shared < order[:-1], True))
    lengths, common = np.array(order)[whole], rows.shared[whole[:-1]]
    for cost in (Cost(0.05, 0.05), Cost(0.25, 0.1), Cost(1.0, 0.5)):
        found = worthwhile(lengths, common, cost)
        nodes = [(end, first, last) for end in sorted(set(common.tolist()) - {0})
                 for first, last in stretches(common, end)]
        every = [priced(lengths, [node for node, chosen in zip(nodes, some, strict=True) if chosen], cost)
                 for some in product((False, True), repeat=len(nodes))]
        kept = [(end, first, last) for end in sorted(set(found.tolist()) - {0})
                for first, last in stretches(found, end)]
        assert priced(lengths, kept, cost) == pytest.approx(min(every))


def stretches(shared, end: int) -> list[tuple[int, int]]:
    """Rows (first, behind the last) that share `end` tokens, where that is where some leave the others."""
    edges = [0, *(np.flatnonzero(shared < end) + 1).tolist(), len(shared) + 1]
    return [(first, last) for first, last in pairwise(edges) if end in shared[first : last - 1]]


def priced(lengths, nodes, cost: Cost) -> float:
    """Tokens of the nodes, behind the last node around each; then those of the rows."""
    total = 0.0
    for end, first, last in [*nodes, *((length, i, i + 1) for i, length in enumerate(lengths.tolist()))]:
        before = max((other for other, begin, behind in nodes if other < end and begin <= first and last <= behind),
                     default=0)
        total += (end - before) * (1 + cost.continued * (before > 0))
    return total + sum(cost.gathered * end for end, *_ in nodes)


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
            if hasattr(child, "variance_epsilon"):
                setattr(module, name, Norm(child))
    return model


def learnt(model: torch.nn.Module, some: list[Row], fill: Fill, budget: int):
    """Results by row, and the gradients of all parameters."""
    results = {}
    for micro in pack(some, budget, 0, 1, fill=fill):
        found = model(**micro.inputs(CPU))
        outputs = found if isinstance(found, tuple) else (found,)
        factors = torch.from_numpy((micro.targets + 3 * micro.row_of) % 7 - 3).double()
        sum((output.double() * factors).sum() for output in outputs if output.requires_grad).backward()
        flat = outputs[0].detach().double().numpy()
        results |= {row: flat[micro.row_of == row] for row in micro.rows}
    return results, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_few_tokens_in_common_are_not_shared_at_measured_cost():
    """8 rows of 400 tokens: sharing 128 saves 896 and costs 0.25 of 2,176 and 12.8, so it is worth it by itself. Of 16
    rows that is 14% of the tokens, of 256 0.9%: not worth another graph of the layers."""
    alike = [[1, *range(100, 227), *range(1000 * n, 1000 * n + 272)] for n in range(1, 9)]
    texts = (*alike, *([7 * n, *range(399)] for n in range(1, 249)))
    rows = [SimpleNamespace(pictures=(), tokens=tokens) for tokens in texts]
    assert Prefixes(rows, MEASURED).shared.sum() == 0
    assert Prefixes(rows, NOTHING).shared.sum() == Prefixes(rows[:16], MEASURED).shared.sum() == 7 * 128


@pytest.mark.parametrize(("family", "critic", "dtype", "far"), [  # a critic's values are rounded to float32
    ("qwen2", False, torch.float64, 1e-11), ("qwen2", True, torch.float64, 1e-11), ("phi", False, torch.float64, 1e-11),
    ("mistral", False, torch.float64, 1e-11),  # all of its layers have windows of 16 tokens
    ("gemma2", False, torch.float64, 1e-6),  # windows and capped scores; its norms round to float32
    ("gpt_oss", False, torch.float32, 1e-4), ("mixtral", False, torch.float32, 1e-5)])  # experts have no float64
def test_results_and_gradients_are_those_of_separate_rows(tmp_path, monkeypatch, family, critic, dtype, far):
    """With groups, trees and single rows, in one micro-batch and in several. far: of the gradient, relative to its
    norm."""
    if exact := far < 1e-10:  # logits are not rounded to float32
        monkeypatch.setattr(policy.Policy, "scaled", lambda self, logits, divisor: logits / divisor)
    (families if family in ("mistral", "gemma2", "gpt_oss") else zoo).make(family, tmp_path)
    settings = SimpleNamespace(attention="padded", compile=False, enable_gradient_checkpointing=critic,
                               logprob_chunk_tokens=64, zero_stage=1, share_prompts=True, packing="auto",
                               tiled_mlp_num_shards=1, freeze_vision_tower=True)
    some = [*grouped(2, 4, seed=1), *conversations(14, seed=3), *grouped(2, 1, seed=2), *conversations(8, 4, words=5)]
    found = []
    for fill, budget in ((Fill.FLAT, 2000), (Fill.SHARED, 2000), (Fill.SHARED, 80), (Fill.CHEAPEST, 200),
                         (Fill.GATHERED, 200)):
        torch.manual_seed(0)
        model = in_float64(policy.load(tmp_path, "cpu", dtype, settings, 0.8, 96))
        if critic:
            model = ValueModel(model.model.model, Way("padded"))
            torch.nn.init.normal_(model.head.weight)
        found.append(learnt(model, some, fill, budget))
    (wanted, gradients), *others = found
    for results, more in others:
        assert results.keys() == wanted.keys()
        apart = max(abs(results[key] - wanted[key]).max() for key in wanted)
        assert apart < (1e-10 if exact and not critic else 1e-5)
        assert more.keys() == gradients.keys()
        for name, gradient in gradients.items():
            assert (more[name] - gradient).norm() <= far * gradient.norm()


def test_many_rows_of_one_prompt_have_its_gradient_in_bfloat16(tmp_path):
    """In which a thousand ones, added one by one, are 256."""
    zoo.make("qwen2", tmp_path)
    settings = SimpleNamespace(attention="padded", compile=False, enable_gradient_checkpointing=False,
                               logprob_chunk_tokens=512, zero_stage=1, share_prompts=True, packing="auto",
                               tiled_mlp_num_shards=1, freeze_vision_tower=True)
    some, found = [row("r", [5, 9, 7, 3], [4]) for _ in range(600)], {}
    for dtype, fill in ((torch.float32, Fill.SHARED), (torch.bfloat16, Fill.FLAT), (torch.bfloat16, Fill.SHARED)):
        model = policy.load(tmp_path, "cpu", dtype, settings, 1.0, 96)
        (micro,) = pack(some, 4000, 0, 1, fill=fill)
        model(**micro.inputs("cpu"))[0].sum().backward()
        found[dtype, fill] = torch.cat([one.grad.float().flatten() for one in model.parameters()])
    exact, alone, shared = found.values()
    assert (shared - exact).norm() < 2 * (alone - exact).norm() + 0.01 * exact.norm()


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


@pytest.mark.parametrize("some", [[*grouped(3, 3, seed=5), *grouped(1, 1, seed=6)], conversations(20, seed=7),
                                  conversations(20, seed=8, words=5)])
def test_two_kernel_calls_are_the_attention_over_all_before_and_within_a_segment(monkeypatch, some):
    """Output and gradients of q, k, v in float64 against the padded attention of the same segments."""
    monkeypatch.setitem(continued.KERNELS, "exact", Exact)
    (micro,) = pack(some, 1000, 0, 1, fill=Fill.SHARED)
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
