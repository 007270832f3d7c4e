"""Token weights, worked out for rows of 3, 1 and 0 action tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ouroboros.operators.aggregation import AGGREGATIONS, token_weights, token_weights_by_kind
from ouroboros.pipeline.store.errors import ConfigError
from tests.golden.messages import refuses

LENGTHS = [3, 1, 0]


@pytest.mark.parametrize(("mode", "normalizer", "weights"), [
    ("token-mean", None, [1 / 4, 1 / 4, 1 / 4]), ("seq-mean-token-sum", None, [1 / 3, 1 / 3, 1 / 3]),
    ("seq-mean-token-mean", None, [1 / 9, 1 / 3, 0]),  # the empty row is one of three, with a loss of 0
    ("seq-mean-token-sum-norm", None, [1 / 9, 1 / 9, 1 / 9]),  # 3 rows, the longest has 3 tokens
    ("seq-mean-token-sum-norm", 10, [1 / 30, 1 / 30, 1 / 30])])
def test_the_weight_of_a_token(mode, normalizer, weights):
    assert token_weights(mode, LENGTHS, normalizer).tolist() == pytest.approx(weights)


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_a_batch_without_tokens_weighs_nothing(mode):
    assert token_weights(mode, [0, 0]).tolist() == [0, 0]
    assert token_weights(mode, []).tolist() == []


def test_kinds_are_averaged_apart():
    """Rows of 3 and 1 tokens of one kind, of 2 of the other: 1/4 a token there, 1/2 here."""
    assert token_weights_by_kind("token-mean", [3, 2, 1], ["a", "b", "a"]).tolist() == [1 / 4, 1 / 2, 1 / 4]
    by_row = token_weights_by_kind("seq-mean-token-mean", [3, 2, 1], [0, 1, 0])
    assert by_row.tolist() == pytest.approx([1 / 6, 1 / 2, 1 / 2])
    for mode in AGGREGATIONS:
        assert token_weights_by_kind(mode, LENGTHS, [1, 1, 1]).tolist() == token_weights(mode, LENGTHS).tolist()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any), st.sampled_from(list(AGGREGATIONS)))
def test_the_weighted_sum_is_the_aggregate_of_the_definition(lengths, mode):
    """Against means written out over a list of rows, each a list of random token losses."""
    source = np.random.default_rng(len(lengths))
    rows = [source.normal(size=n) for n in lengths]
    defined = {
        "token-mean": lambda: np.concatenate(rows).mean(),
        "seq-mean-token-sum": lambda: np.mean([row.sum() for row in rows]),
        "seq-mean-token-mean": lambda: np.mean([row.mean() if len(row) else 0.0 for row in rows]),
        "seq-mean-token-sum-norm": lambda: np.mean([row.sum() for row in rows]) / max(lengths),
    }[mode]()
    weighted = sum(w * row.sum() for w, row in zip(token_weights(mode, lengths), rows, strict=True))
    assert weighted == pytest.approx(defined, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("mode", "normalizer", "words"), [
    ("seq-mean", None, "unknown algorithm.loss_agg_mode 'seq-mean'"), ("token-mean", 4, "seq-mean-token-sum-norm"),
    ("seq-mean-token-sum-norm", 0, "than 0"), ("seq-mean-token-sum-norm", float("nan"), "than 0")])
def test_what_cannot_be_meant_is_refused(mode, normalizer, words):
    with refuses(ConfigError, words):
        token_weights(mode, LENGTHS, normalizer)
