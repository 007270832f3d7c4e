"""The penalty on length, by hand."""

import pytest

from ouroboros.operators.shaping import overlong_penalty
from ouroboros.pipeline.store.errors import ConfigError
from tests.golden.messages import refuses


@pytest.mark.parametrize(("length", "penalty"), [(0, 0), (80, 0), (85, -0.25), (90, -0.5), (100, -1), (150, -1)])
def test_the_last_tokens_cost(length, penalty):
    """At most 100 tokens, the last 20 of them dearer and dearer."""
    assert overlong_penalty(length, 100, 20) == pytest.approx(penalty)
    assert overlong_penalty(length, 100, 20, penalty_factor=0.5) == pytest.approx(penalty / 2)


@pytest.mark.parametrize("cache", [0, 100, 150, -1])
def test_a_cache_that_is_not_within_the_response_is_refused(cache):
    with refuses(ConfigError, f"cache_length={cache}", "0 and", "max_response_length=100"):
        overlong_penalty(5, 100, cache)
