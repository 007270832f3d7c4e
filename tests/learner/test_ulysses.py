"""Ranks that share micro-batches compute what one rank computes, in attention of each kind."""

import pytest

from tests import families
from tests.learner.test_ranks import trained

ALLOWED = {"float64": 1e-6, "float32": 1e-4}  # of a log-prob and of a gradient
KINDS = {"qwen2": "float64", "gemma2": "float64",  # windows and capped scores
         "gpt_oss": "float32"}  # sinks of each head; transformers multiplies experts in no float64


@pytest.mark.slow
def test_two_ranks_have_the_log_probs_and_gradients_of_one(tmp_path):
    for family in KINDS:
        families.make(family, tmp_path / family)
    given = [f"{family}={dtype}" for family, dtype in KINDS.items()]
    found = trained(tmp_path, tmp_path / "found.json", 2, given, "tests.learner.sequences")
    for family, dtype in KINDS.items():
        logprob, gradient, largest = found[family]
        assert logprob < ALLOWED[dtype], family
        assert gradient < ALLOWED[dtype] < largest, family
