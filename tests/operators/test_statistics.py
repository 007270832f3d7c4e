"""Intervals and pass@k against known values."""

import itertools
import math

import pytest

from operators.statistics import mean_interval, pass_at_k, wilson


@pytest.mark.parametrize(("successes", "count", "low", "high"), [
    # Newcombe (1998), table I, Wilson's score interval without continuity correction
    (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718),
])
def test_wilson_against_published_values(successes, count, low, high):
    assert wilson(successes, count) == pytest.approx((low, high), abs=5e-5)


def test_wilson_at_the_ends():
    """0 of n: 0 to z^2 / (n + z^2) = 3.8415 / 13.8415 = 0.27753; n of n mirrors it; nothing known: 0 to 1."""
    assert wilson(0, 10) == pytest.approx((0.0, 0.277533), abs=1e-5)
    assert wilson(10, 10) == pytest.approx((0.722467, 1.0), abs=1e-5)
    assert wilson(0, 0) == (0.0, 1.0)


def test_mean_with_the_standard_error_over_tasks():
    """100 tasks, half 0.4 and half 0.6: variance 100 * 0.01 / 99, standard error sqrt(0.010101 / 100) = 0.0100504,
    half an interval 1.959964 * 0.0100504 = 0.0196984."""
    mean, low, high = mean_interval([0.4, 0.6] * 50)
    assert (mean, low, high) == pytest.approx((0.5, 0.4803016, 0.5196984), abs=1e-7)


def test_the_interval_stays_between_0_and_1():
    """0 1 0 1: variance 1/3, standard error 0.288675, half 0.565793."""
    assert mean_interval([0.0, 1.0, 0.0, 1.0]) == (0.5, 0.0, 1.0)
    mean, low, high = mean_interval([0.0, 0.0, 0.0, 1.0])
    assert (mean, low) == (0.25, 0.0)
    assert high == pytest.approx(0.25 + 1.959964 * 0.25)  # variance (3/16 + 9/16) / 3 = 1/4, standard error 1/4


def test_tasks_that_all_agree_still_leave_doubt():
    assert mean_interval([1.0] * 10) == (1.0, *wilson(10, 10))
    assert mean_interval([0.0]) == (0.0, *wilson(0, 1))


@pytest.mark.parametrize("count", [25, 50, 100, 256])
def test_rounding_is_no_agreement_without_doubt(count):
    """A third of three responses for every task: the mean is off by 1e-17, which must not pass for a variance."""
    mean, low, high = mean_interval([1 / 3] * count)
    assert mean == 1 / 3
    assert (low, high) == pytest.approx(wilson(count / 3, count))
    assert high - low > 0.1


def test_pass_at_k_by_hand():
    """4 responses, 2 right: two drawn are both wrong with chance 1/6.  8, 1, 4: 35/70."""
    assert pass_at_k(4, 2, 2) == pytest.approx(5 / 6)
    assert pass_at_k(8, 1, 4) == pytest.approx(0.5)
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert pass_at_k(8, 5, 4) == 1.0  # only 3 are wrong
    assert pass_at_k(8, 0, 8) == 0.0


def test_pass_at_k_is_the_share_of_draws_with_a_right_one():
    for responses, solved in ((5, 2), (6, 1), (7, 4)):
        for k in range(1, responses + 1):
            draws = list(itertools.combinations([1] * solved + [0] * (responses - solved), k))
            assert pass_at_k(responses, solved, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize(("responses", "k"), [(4, 5), (4, 0), (0, 1)])
def test_pass_at_k_of_more_than_there_are(responses, k):
    with pytest.raises(ValueError, match=f"pass@{k} from {responses}"):
        pass_at_k(responses, 0, k)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """Exact coverage of Wilson's interval at n = 50, p = 0.3: the chances of the outcomes whose interval holds p."""
    p, n = 0.3, 50
    inside = [k for k in range(n + 1) if wilson(k, n)[0] <= p <= wilson(k, n)[1]]
    assert 0.93 < sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in inside) < 0.97
