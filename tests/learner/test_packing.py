"""Packing: budgets, ranks and weights, with a micro-batch written out by hand."""

import random

import numpy as np
import pytest

from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.stages.learner.engine.packing import Aggregation, Fill, Row, bins, by_length, pack
from tests.golden.messages import refuses

COLUMNS = ("advantages", "old_logprobs")
A = Row("a", [1, 2, 3, 4], 2, [1, 1], {"advantages": 0.5, "old_logprobs": [-0.1, -0.2]})
B = Row("b", [5, 6, 7], 1, [0, 1], {"advantages": -1.0, "old_logprobs": [-0.3, -0.4]})


def test_two_rows_end_to_end():
    """A is predicted at its 2nd and 3rd token, B at its 2nd, the flat positions 1, 2 and 4 + 1."""
    (micro,) = pack([A, B], 7, 0, 1, COLUMNS)
    assert micro.input_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert micro.positions.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert micro.segments.bounds.tolist() == [0, 4, 7]
    assert micro.segments.contexts.tolist() == [-1, -1]
    assert micro.source.tolist() == [1, 2, 5]
    assert micro.targets.tolist() == [3, 4, 7]
    assert micro.weights.tolist() == pytest.approx([1 / 3] * 3)
    assert micro.columns["advantages"].tolist() == [0.5, 0.5, -1.0]
    assert micro.columns["old_logprobs"].tolist() == pytest.approx([-0.1, -0.2, -0.4])
    assert micro.row_of.tolist() == [0, 0, 1]
    assert micro.rows == [0, 1]
    types = [getattr(micro, n).dtype for n in ("input_ids", "positions", "source", "weights")]
    assert types == [np.int64, np.int64, np.int64, np.float32]
    assert micro.segments.bounds.dtype == np.int32


def test_a_column_has_one_number_a_token_or_one_for_all():
    """B's first response token is not its own act, so of [-2, -3] only -3 counts."""
    b = Row("b", B.tokens, 1, B.mask, {"advantages": [-2.0, -3.0]})
    (micro,) = pack([A, b], 7, 0, 1, ("advantages",))
    assert micro.columns["advantages"].tolist() == [0.5, 0.5, -3.0]
    assert micro.columns["advantages"].dtype == np.float32
    assert b.spread(np.array([7.0])).tolist() == [0.0, 7.0]


@pytest.mark.parametrize(("mode", "normalizer", "expected"), [
    ("token-mean", None, [1 / 3, 1 / 3, 1 / 3]), ("seq-mean-token-sum", None, [1 / 2, 1 / 2, 1 / 2]),
    ("seq-mean-token-mean", None, [1 / 4, 1 / 4, 1 / 2]), ("seq-mean-token-sum-norm", 8.0, [1 / 16, 1 / 16, 1 / 16])])
def test_token_weights_of_an_aggregation(mode, normalizer, expected):
    """Rows of 2 and 1 action tokens. However they are cut, the weights are those of the whole batch."""
    (together,) = pack([A, B], 7, 0, 1, (), Aggregation(mode, normalizer))
    assert together.weights.tolist() == pytest.approx(expected)
    apart = [pack([A, B], 7, rank, 2, (), Aggregation(mode, normalizer))[0] for rank in (0, 1)]
    assert np.concatenate([micro.weights for micro in apart]).tolist() == pytest.approx(expected)
    assert together.share == apart[0].share == 1 / 3


def test_a_row_or_a_pair_over_the_budget_is_refused():
    with refuses(ConfigError, "7 tokens"):
        pack([A, B], 6, 0, 1, (), Aggregation(unit=2))
    with refuses(ConfigError, "trainer.max_token_len_per_gpu"):
        pack([A, B], budget=3, rank=0, ranks=1)


def test_bins_longest_first_into_the_emptiest_are_nearly_equal():
    """5 4 3 2 into two of 7: 5 | 4, then 3 to the 4 and 2 to the 5."""
    assert bins([5, 4, 3, 2], budget=7, count_multiple=2) == [[0, 3], [1, 2]]
    assert bins([5, 4, 3, 2], budget=14, count_multiple=1) == [[0, 1, 2, 3]]
    assert bins([3, 3, 3], budget=5, count_multiple=1) == [[0], [1], [2]]  # 9 tokens need 2 bins, but no two rows fit
    assert bins([3], budget=3, count_multiple=2) == [[0], []]
    source = random.Random(1)
    lengths = [source.randint(2, 24) for _ in range(200)]
    loads = [sum(lengths[i] for i in chosen) for chosen in bins(lengths, 256, 2)]
    assert max(loads) - min(loads) <= max(lengths)


@pytest.mark.parametrize(("multiple", "single", "wanted"), [
    (1, False, [[0, 1], [2, 3]]), (3, False, [[2, 3], [0], [1]]), (2, True, [[0], [1], [2], [3]])])
def test_padded_rows_are_filled_up_longest_first(multiple, single, wanted):
    """5 4 3 2 with 10 tokens: 2 x 5, and 2 x 3. For a third one the first is halved."""
    assert by_length([5, 4, 3, 2], 10, multiple, single, "sequence") == wanted


@pytest.mark.parametrize(("fill", "rows"), [(Fill.PADDED, [[0, 1]]), (Fill.SINGLE, [[0], [1]])])
def test_a_micro_batch_of_padded_rows_or_of_one(fill, rows):
    assert [micro.rows for micro in pack([A, B], 8, 0, 1, fill=fill)] == rows


def test_a_rank_without_rows_runs_one_without_weight():
    busy, idle = (pack([A], 100, rank, 2)[0] for rank in (0, 1))
    assert busy.rows == [0]
    assert idle.rows == []
    assert len(idle.weights) > 0
    assert not idle.weights.any()
    assert not idle.shares.any()
    assert (busy.share, busy.shares.tolist(), idle.share) == (1 / 2, [1 / 2, 1 / 2], 0)  # of the reported entropy


@pytest.mark.parametrize(("budget", "scored"), [(4, [3, 3, 3]), (6, [3, 6]), (8, [3, 6]), (9, [9])])
def test_the_head_has_a_position_for_each_action_token_of_shared_rows(budget, scored):
    """Three equal rows are 4 tokens together, and 9 action tokens: as many are in one as the budget has for those."""
    rows = [Row(name, [1, 2, 3, 4], 1, [1, 1, 1], {}) for name in "abc"]
    assert sorted(len(micro.source) for micro in pack(rows, budget, 0, 1, fill=Fill.SHARED)) == scored


def test_what_nothing_could_be_learnt_from_is_our_mistake():
    with refuses(AssertionError, "without"):
        pack([Row("a", [1, 2], 1, [0])], 9, 0, 1)
    with refuses(AssertionError, "without a prompt"):
        pack([Row("a", [1, 2], 0, [1, 1])], 9, 0, 1)
