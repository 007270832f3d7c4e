"""Intervals and pass@k against known values."""

import itertools
import math

import numpy as np
import pytest

from ouroboros.operators import statistics
from tests.golden.messages import refuses


def test_intervals_by_hand_of_few_and_of_many_tasks():
    """1 0 and the two more, 1 0: middle 1/2, variance 4 * 0.25 / 3, standard error 0.288675, t of 3 degrees of freedom
    3.182446: 0.5 -+ 0.918693, cut to 0 and 1. Eight 1 and two 0 with both: middle 9/12, variance (9 * 0.0625 +
    3 * 0.5625) / 11 = 0.204545, standard error 0.130558, t of 11 degrees 2.200985: 0.75 -+ 0.287356."""
    assert statistics.mean_interval([1.0, 0.0]) == (0.5, 0.0, 1.0)
    assert statistics.mean_interval([1.0] * 8 + [0.0] * 2) == pytest.approx((0.8, 0.462644, 1.0), abs=1e-6)
    # 256 tasks, half 0.4 and half 0.6, with the two more: variance (256 * 0.01 + 2 * 0.25) / 257 = 0.0119066, standard
    # error 0.00679334, t of 257 degrees of freedom 1.969237: half an interval 0.0133777.
    mean, low, high = statistics.mean_interval([0.4, 0.6] * 128)
    assert (mean, low, high) == pytest.approx((0.5, 0.4866223, 0.5133777), abs=1e-7)


def test_none_solved_and_hardly_any_have_intervals_alike():
    """0 of 35 tasks and one of their 560 responses: 1/37 -+ 2.028094 / 37, and hardly more."""
    none, one = statistics.mean_interval([0.0] * 35), statistics.mean_interval([0.0] * 34 + [1 / 16])
    assert none == pytest.approx((0.0, 0.0, 3.028094 / 37), abs=1e-6)
    assert one == pytest.approx((0.0017857, 0.0, 0.084), abs=5e-4)


@pytest.mark.parametrize("count", [1, 2, 25, 50, 100, 256])
@pytest.mark.parametrize("value", [0.0, 1 / 3, 0.999, 1.0])
def test_tasks_that_all_agree_leave_doubt_around_the_estimate(count, value):
    mean, low, high = statistics.mean_interval([value] * count)
    assert mean == pytest.approx(value, abs=1e-15)
    assert 0.0 <= low <= mean <= high <= 1.0
    assert high - low >= 1 / count
    assert not 0 < low < 1e-9


def test_pass_at_k_by_hand_and_as_the_share_of_draws_with_a_right_one():
    """4 responses, 2 right: two drawn are both wrong with chance 1/6.  8, 1, 4: 35/70."""
    assert statistics.pass_at_k(4, 2, 2) == pytest.approx(5 / 6)
    assert statistics.pass_at_k(8, 1, 4) == pytest.approx(0.5)
    assert statistics.pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert statistics.pass_at_k(8, 5, 4) == 1.0  # only 3 are wrong
    assert statistics.pass_at_k(8, 0, 8) == 0.0
    for responses, solved in ((5, 2), (6, 1), (7, 4)):
        for k in range(1, responses + 1):
            draws = list(itertools.combinations([1] * solved + [0] * (responses - solved), k))
            assert statistics.pass_at_k(responses, solved, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize(("responses", "k"), [(4, 5), (4, 0), (0, 1)])
def test_pass_at_k_of_more_than_there_are(responses, k):
    with refuses(ValueError, f"pass@{k} from {responses}"):
        statistics.pass_at_k(responses, 0, k)


@pytest.mark.parametrize("tasks", [2, 5, 10, 20, 40, 100, 256])
def test_the_interval_of_a_proportion_covers_every_rate(tasks):
    """Exactly: the chances of the outcomes whose interval holds the rate, for rates a two-hundredth apart."""
    ends = [statistics.mean_interval([1.0] * solved + [0.0] * (tasks - solved)) for solved in range(tasks + 1)]
    rates = [i / 200 for i in range(1, 200)]
    covered = [sum(math.comb(tasks, solved) * p**solved * (1 - p) ** (tasks - solved)
                   for solved, (_, low, high) in enumerate(ends) if low <= p <= high) for p in rates]
    print(f"{tasks} tasks: coverage {min(covered):.3f} to {max(covered):.3f}")
    assert min(covered) >= 0.93


@pytest.mark.parametrize("tasks", [5, 10, 40, 256])
@pytest.mark.parametrize("spread", [0.3, 1.0, 10.0])
def test_the_interval_of_a_mean_of_shares_covers_the_rate(tasks, spread):
    """8 responses to each of tasks whose own rates are Beta(spread * rate, spread * (1 - rate)): from tasks that are
    either solved or not to tasks that are about equally hard. 0.01 is over two standard errors of 1500 draws."""
    draw = np.random.default_rng(tasks)
    for rate in (0.01, 0.05, 0.2, 0.5, 0.8, 0.99):
        solved = draw.binomial(8, draw.beta(spread * rate, spread * (1 - rate), (1500, tasks))) / 8
        found = [statistics.mean_interval(values) for values in solved.tolist()]
        covered = np.mean([low <= rate <= high for _, low, high in found])
        print(f"{tasks} tasks, spread {spread}, rate {rate}: coverage {covered:.3f}")
        assert covered >= 0.93
        assert all(0.0 <= low <= mean <= high <= 1.0 for mean, low, high in found)


def test_an_interval_of_differences_by_hand():
    """Four of 0, with -1 and 1: standard error sqrt(2 / 5 / 6), t of 5 degrees 2.570582. Two of 1: middle 1/2, standard
    error 1/2, t of 3 degrees 3.18: cut to -1 and 1."""
    assert statistics.difference_interval([0.0] * 4) == pytest.approx((0.0, -0.663721, 0.663721), abs=1e-6)
    assert statistics.difference_interval([1.0] * 2) == (1.0, -1.0, 1.0)
    (_, low, high), (_, other_low, other_high) = (statistics.difference_interval([x, x, 0.25 * x]) for x in (0.5, -0.5))
    assert (low, high) == pytest.approx((-other_high, -other_low))


def outcomes(tasks: int):
    """Every (better, worse) of one response per task: counts [K, 2], interval ends [K, 2], log of the orders [K]."""
    counts = np.array([(a, b) for a in range(tasks + 1) for b in range(tasks + 1 - a)])
    ends = np.array([statistics.difference_interval([1.0] * a + [-1.0] * b + [0.0] * (tasks - a - b))[1:]
                     for a, b in counts])
    logs = np.array([math.lgamma(tasks + 1) - math.lgamma(a + 1) - math.lgamma(b + 1) - math.lgamma(tasks - a - b + 1)
                     for a, b in counts])
    return counts, ends, logs


@pytest.mark.parametrize("tasks", [2, 3, 4, 5, 7, 10, 20, 40, 100])
def test_the_interval_of_differences_covers_and_decides_falsely_in_a_twentieth_at_most(tasks):
    """Exactly: chances of all outcomes, where tasks become solved (p) or unsolved (q). Where both models solve a task
    independently at one rate r, p = q = r (1 - r), a quarter at most."""
    counts, ends, logs = outcomes(tasks)
    same = tasks - counts.sum(1)
    decided, covered, false = (ends[:, 0] > 0) | (ends[:, 1] < 0), [], []
    for p in (0.002, 0.01, 0.05, 0.1, 0.2, 0.25, 0.4, 0.5, 0.7, 0.9):
        for q in (q for q in (0.002, 0.01, 0.05, 0.1, 0.2, 0.25, 0.4, 0.5) if p + q < 1):
            chances = np.exp(logs + counts @ np.log([p, q]) + same * np.log(1 - p - q))
            covered.append(chances[(ends[:, 0] <= p - q) & (p - q <= ends[:, 1])].sum())
            false += [chances[decided].sum()] if p == q <= 0.25 else []
    print(f"{tasks} tasks: coverage from {min(covered):.3f}, false verdicts up to {max(false):.3f}")
    assert min(covered) >= 0.93
    assert max(false) <= 0.05


@pytest.mark.parametrize("tasks", [2, 10, 40, 256, 500])
def test_the_interval_of_differences_of_shares_covers(tasks):
    """8 responses of either model to tasks with rates from a Beta; 0.01 is over two standard errors of 1500 draws."""
    draw = np.random.default_rng(tasks)
    for rate, gain in ((0.01, 0.0), (0.2, 0.0), (0.5, 0.0), (0.2, 0.3), (0.05, 0.9)):
        rates = draw.beta(rate, 1 - rate, (1500, tasks))
        before, after = (draw.binomial(8, r) / 8 for r in (rates, rates + gain * (1 - rates)))
        ends = np.array([statistics.difference_interval(values)[1:] for values in (after - before).tolist()])
        covered = np.mean((ends[:, 0] <= gain * (1 - rate)) & (gain * (1 - rate) <= ends[:, 1]))
        assert covered >= 0.93
        assert gain or 1 - covered <= 0.06


@pytest.mark.parametrize("tasks", [10, 40])
@pytest.mark.parametrize("kind", ["standard_normal", "standard_cauchy", "laplace"])
def test_rewards_of_ten_tasks_or_more_are_decided_falsely_in_a_twentieth_at_most(tasks, kind):
    """Differences of rewards of one distribution; two standard errors of 6000 draws are 0.0056."""
    draws = getattr(np.random.default_rng(tasks), kind)(size=(6000, tasks))
    ends = np.array([statistics.reward_interval(values)[1:] for values in draws.tolist()])
    assert np.mean((ends[:, 0] > 0) | (ends[:, 1] < 0)) <= 0.0556


@pytest.mark.parametrize(("differences", "value"), [
    ([], 1.0), ([0.0, 0.0, 0.0], (0.25 / 3.25) ** 0.5),  # nothing is no evidence
    ([0.2, 0.2, 0.2], 13.0),                             # sqrt(1/13) 13^(3/2)
    ([-0.2, -0.2, -0.2], 13.0),
    # TtestGaussianMixtureMartingale(prior_precision=0.5) of the package expectation 0.6.1
    ([0.03, 0.05, 0.02], 3.34138845), ([0.1, -0.05, 0.02, 0.08, 0.07], 0.72373605),
    ([0.031, 0.028, 0.035, 0.022, 0.03], 184.47891732)])
def test_evidence(differences, value):
    assert statistics.evidence(differences) == pytest.approx(value, rel=1e-8)


def test_evidence_of_no_difference_is_rarely_large_however_often_one_looks():
    """Of 4,000 sequences of 30 normal values around 0: a twentieth, and three standard errors."""
    draws = np.random.default_rng(0).normal(0, 0.03, (4000, 30))
    large = sum(any(statistics.evidence(row[:count]) >= 20 for count in range(1, 31)) for row in draws.tolist())
    assert large / 4000 <= 0.05 + 3 * (0.05 * 0.95 / 4000) ** 0.5


def test_the_clustered_interval_by_hand():
    """Mean 0.15. Sums of seeds 0, 0; of tasks -0.2, 0.2; squares 0.0025, 0.0025, 0.0225, 0.0225. By seed 0; by task
    2 x 0.08 / 16 = 0.01; alone 4/3 x 0.05 / 16 = 0.0042: the larger, by task, with one degree of freedom (12.7062)."""
    found = statistics.clustered_interval([[0.1, 0.2], [0.0, 0.3]])
    assert found == pytest.approx((0.15, 0.15 - 1.27062, 0.15 + 1.27062), abs=1e-5)
    assert statistics.clustered_interval([[0.1, 0.1], [0.1, 0.1]]) == pytest.approx((0.1, 0.1, 0.1))


def test_the_clustered_interval_covers_where_seeds_differ():
    """6 seeds that shift all 50 tasks together: intervals over tasks alone would be far too narrow."""
    draw = np.random.default_rng(3)
    of_seeds, of_tasks = draw.normal(0.05, 0.03, (400, 6, 1)), draw.normal(0, 0.1, (400, 1, 50))
    values = of_seeds + of_tasks + draw.normal(0, 0.2, (400, 6, 50))
    ends = np.array([statistics.clustered_interval(one)[1:] for one in values.tolist()])
    assert np.mean((ends[:, 0] <= 0.05) & (ends[:, 1] >= 0.05)) >= 0.93
