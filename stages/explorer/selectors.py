"""Which tasks a selector prefers: estimates of solve rates, and weighted draws without replacement.

A draw without replacement by weights w is the order of log w + Gumbel noise, largest first (Gumbel-top-k; Yellott 1977,
Kool et al. 2019, arXiv:1903.06059). The noise is a function of seed and step, and the estimates one of the measured
rates in the order of their steps.
"""

from collections.abc import Mapping

import numpy as np

POOLS = ("unseen", "hard", "medium", "solved")


def by_features(features: np.ndarray) -> np.ndarray:
    """Order of tasks from easy to hard. features: [tasks, keys], large is easy, the first key decides; equal tasks keep
    their order."""
    return np.lexsort([-column for column in features.T[::-1]])


def gumbel_order(log_weights: np.ndarray, seed: int, step: int) -> np.ndarray:
    """Tasks in the order of a weighted draw without replacement; those of weight 0 (-inf) come last, in any order."""
    noise = np.random.default_rng([seed, step]).gumbel(size=len(log_weights))
    return np.lexsort((-noise, -(log_weights + noise)))


class DifficultyBased:
    """Estimates every task's solve rate by a Beta distribution, and prefers rates near a target (Trinity-RFT).

    The rate of a task that was not measured is interpolated between the features of two models by one coefficient c,
    which the measured tasks tell. Assumes that a policy improves along the line from the weak to the strong model.
    """

    def __init__(self, features: np.ndarray, seed: int, m: int, lamb: float, rho: float, adaptive_rho: bool,
                 do_sample: bool, target_reward: float, tau: float):
        """features: [tasks, 2], the solve rates of a weak and of a strong model."""
        self.weak, self.strong = features.T
        self.seed, self.m, self.lamb, self.rho, self.adaptive_rho = seed, m, lamb, rho, adaptive_rho
        self.do_sample, self.target, self.tau = do_sample, target_reward, tau
        self.alpha, self.beta = np.ones(len(features)), np.ones(len(features))
        self.c: float | None = None

    def measure(self, rates: Mapping[int, float]) -> None:
        """Takes the mean rewards, 0 to 1, of the tasks of one step, by number."""
        index, found = np.fromiter(rates, int, len(rates)), np.fromiter(rates.values(), float, len(rates))
        weak, strong = self.weak[index], self.strong[index]
        c = (found.mean() - weak.mean()) / (strong.mean() - weak.mean() + 1e-6)
        self.c = c if self.c is None else 0.9 * self.c + 0.1 * c
        expected = np.clip(self.weak + self.c * (self.strong - self.weak), 0, 1)
        if self.adaptive_rho and np.abs(expected[index] - found).mean() >= 0.25:
            self.rho /= 2
        expected[index] = found
        solved, failed = np.zeros_like(self.alpha), np.zeros_like(self.alpha)
        solved[index], failed[index] = self.m * found, self.m * (1 - found)
        kept, own, other = 1 - self.lamb, 1 - self.rho, self.rho * self.m
        self.alpha = kept * self.alpha + self.lamb + own * solved + other * expected
        self.beta = kept * self.beta + self.lamb + own * failed + other * (1 - expected)

    def order(self, step: int) -> np.ndarray:
        """The tasks in the order in which the step takes them."""
        rates = self.rates()
        if self.do_sample:
            rates = np.random.default_rng([self.seed, step, 1]).beta(self.alpha, self.beta)
        self.scores = -np.abs(self.target - rates)
        if self.tau == 0:
            return np.argsort(-self.scores, kind="stable")
        return gumbel_order(self.scores / self.tau, self.seed, step)

    def rates(self) -> np.ndarray:
        """The estimated solve rate of every task."""
        return self.alpha / (self.alpha + self.beta)

    def why(self, task: int) -> tuple[float, float, str]:
        """Estimated solve rate, score and reason of a task of the last order."""
        return float(self.rates()[task]), float(self.scores[task]), f"estimated solve rate near {self.target:g}"


class SolveRatePools:
    """Puts tasks into pools by their last measured solve rate, and draws them by the weights of the pools.

    Groups of equal rewards have no advantage: tasks that are always or never solved are drawn less often. Of no paper.
    Assumes that a rate changes slowly; solved and hard tasks keep a weight, so that they are measured again.
    """

    def __init__(self, tasks: int, seed: int, hard: float, solved: float, **weights: float):
        """weights: of each pool, as POOL_weight."""
        self.seed, self.hard, self.solved = seed, hard, solved
        self.weights = np.array([weights[f"{pool}_weight"] for pool in POOLS])
        self.measured = np.full(tasks, np.nan)

    def measure(self, rates: Mapping[int, float]) -> None:
        """Takes the mean rewards, 0 to 1, of the tasks of one step, by number."""
        for task, rate in rates.items():
            self.measured[task] = rate

    def order(self, step: int) -> np.ndarray:
        """The tasks in the order in which the step takes them."""
        with np.errstate(divide="ignore"):
            return gumbel_order(np.log(self.weights)[self.pools()], self.seed, step)

    def pools(self) -> np.ndarray:
        """The number of every task's pool in POOLS."""
        known = np.where(self.measured <= self.hard, 1, np.where(self.measured >= self.solved, 3, 2))
        return np.where(np.isnan(self.measured), 0, known)

    def why(self, task: int) -> tuple[float | None, float, str]:
        """Last measured solve rate, weight and pool of a task."""
        pool, rate = int(self.pools()[task]), float(self.measured[task])
        return None if pool == 0 else rate, float(self.weights[pool]), POOLS[pool]
