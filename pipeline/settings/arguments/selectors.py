"""Arguments of the selectors: which tasks of a training set an explorer step attempts."""

from pydantic import Field

from ouroboros.pipeline.settings.arguments.base import Selector, described


class DifficultyBased(Selector):
    """Tasks with an estimated solve rate near a target: two feature_keys, rates of a weak and a strong model."""
    feature_keys = (2, 2)
    reads_rates = True
    m: int = Field(16, ge=1, description="attempts that one measured rate counts as")
    lamb: float = Field(0.2, ge=0, le=1, description="share of an estimate that each measured step forgets")
    rho: float = Field(0.2, ge=0, le=1, description="weight of the rate interpolated between the features beside the "
                                                    "measured one")
    adaptive_rho: bool = Field(False, description="rho is halved by each step in which interpolation was off by 0.25 "
                                                  "or more")
    do_sample: bool = Field(False, description="a rate is drawn from its Beta distribution; false: its mean")
    target_reward: float = Field(1.0, ge=0, le=1, description="solve rate of the tasks that are preferred")
    tau: float = Field(1.0, ge=0, description="temperature of the draw; 0: the nearest tasks")


class SolveRatePools(Selector):
    """Tasks drawn by the pool of their last measured solve rate: unseen, hard, medium or solved."""
    reads_rates = True
    hard: float = Field(0.1, ge=0, le=1, description="rate up to which a task is hard")
    solved: float = Field(0.9, ge=0, le=1, description="rate from which a task is solved")
    unseen_weight: float = Field(1.0, ge=0, description="weight in the draw of a task without a measured rate")
    hard_weight: float = Field(0.3, ge=0, description="weight of a hard task")
    medium_weight: float = Field(1.0, ge=0, description="weight of a task between the two")
    solved_weight: float = Field(0.1, ge=0, description="weight of a solved task")


SELECTORS = {
    "sequential": described(Selector, "As in the file, again and again."),
    "shuffle": described(Selector, "Another permutation each epoch."),
    "random": described(Selector, "Drawn again each step, none twice in a step."),
    "offline_easy2hard": described(Selector, "By feature_keys, the largest first: large is easy; again and again.",
                                   feature_keys=(1, None)),
    "difficulty_based": DifficultyBased,
    "solve_rate_pools": SolveRatePools,
}
