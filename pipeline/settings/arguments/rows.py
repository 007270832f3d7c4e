"""Arguments of what makes and chooses rows: generators of tasks, sample strategies, priorities of a replay."""

import math

from pydantic import Field, ValidationInfo, field_validator

from ouroboros.pipeline.settings.arguments.base import Arguments, Selector, described
from ouroboros.pipeline.settings.arguments.worlds import Folder, FrozenLake, Shop, Sudoku, Terminal


class Countdown(Arguments):
    """Countdown: reach a target with all of the given numbers, by + and -; with demonstrations and faulty rows."""
    tasks: int = Field(ge=0, le=10_000_000, description="distinct rows without a solution")
    demonstrations: int = Field(ge=0, le=10_000_000, description="distinct rows with a random valid solution")
    dirt: float = Field(ge=0, le=1, description="rows with one fault each, as a share of the others, on top of them")
    numbers: int = Field(3, ge=2, le=6, description="number of numbers in a task")
    low: int = Field(1, ge=0, le=999, description="smallest number")
    high: int = Field(9, ge=0, le=999, validate_default=True, description="largest number")
    largest_target: int = Field(99, ge=0, le=9999, description="targets are 0 up to this")
    pairs: int = Field(0, ge=0, le=10_000_000, description="distinct pairs of a valid and a wrong solution")

    @field_validator("high")
    @classmethod
    def _not_below_low(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("low", value):
            raise ValueError(f"needed a number at least low={info.data['low']}")
        return value


class Products(Arguments):
    """Products of two numbers, and demonstrations with and without calls of a calculator."""
    tasks: int = Field(ge=0, le=1_000_000, description="distinct rows without a solution")
    demonstrations: int = Field(ge=0, le=1_000_000, description="distinct products that are demonstrated")
    guesses: float = Field(ge=0, le=1, description="share of demonstrations that guess, without the calculator")
    digits: int = Field(2, ge=1, le=6, description="digits of each factor")
    tool: str = Field("calc", description="name of the calculator in the calls")
    argument: str = Field("e", description="name of the calculator's argument, an expression")


class Sums(Arguments):
    """Sums and differences, asked for in words."""
    tasks: int = Field(ge=0, le=1_000_000, description="distinct rows without a solution")
    terms: int = Field(3, ge=2, le=9, description="numbers of a task")
    low: int = Field(1, ge=0, le=99_999, description="smallest number")
    high: int = Field(20, ge=0, le=99_999, validate_default=True, description="largest number")

    _not_below_low = Countdown._not_below_low


class Digits(Arguments):
    """Images of handwritten digits: to read each, and sums of two."""
    tasks: int = Field(ge=0, le=1_000_000, description="sums without a solution, to train on")
    tests: int = Field(ge=0, le=1_000_000, description="sums of digits that are held out")
    demonstrated: int = Field(200, ge=0, le=1_000_000, description="sums with their solution")


class Mix(Arguments):
    """What the schedule offers, and rows of an auxiliary buffer besides."""
    expert_data_ratio: float = Field(0.5, gt=0, le=1, description="share of expert rows in a train batch, rounded up")
    sft_dataset_name: str = Field("sft_dataset", description="name in buffer.trainer_input.auxiliary_buffers")


class StalenessControl(Arguments):
    """What the schedule offers, without rows that are too old."""
    max_staleness: float = Field(math.inf, ge=0, allow_inf_nan=True, description="trainer steps that weights may lag")


class LinearDecay(Arguments):
    """Version of the weights less decay times the number of uses."""
    decay: float = Field(2.0, description="versions of age that one use counts like")


class DecayLimitRandomization(LinearDecay):
    """linear_decay with noise, and no use after a limit."""
    use_count_limit: int = Field(3, description="uses after which a group never comes again; 0: no limit")
    sigma: float = Field(0.0, ge=0, description="standard deviation of the noise, in versions")
    seed: int = Field(0, description="seed of the noise")


GENERATORS = {"countdown": Countdown, "products": Products, "sums": Sums, "digits": Digits,
              "folder": Folder, "frozen_lake": FrozenLake, "shop": Shop, "sudoku": Sudoku, "terminal": Terminal,
              "kuhn": described(Arguments, "The deals of Kuhn poker, and every move in every information set.")}
SAMPLE_STRATEGIES = {
    "default": described(Arguments, "What the schedule offers, in its order and however old."),
    "mix": Mix, "staleness_control": StalenessControl,
}
PRIORITIES = {
    "decay_limit_randomization": DecayLimitRandomization, "linear_decay": LinearDecay,
    "linear_decay_use_count_control_randomization": DecayLimitRandomization,  # its name in the guide
}

# what the priority of a task is made of -> the weight that the Trinity-RFT guide gives it
PRIORITY_WEIGHTS = {"difficulty": -0.7, "diversity": 0.8, "quality": 1.0, "usage_frequency": -0.5}


class DifficultyBased(Selector):
    """Tasks with an estimated solve rate near a target: two feature_keys, rates of a weak and a strong model."""
    feature_keys = (2, 2)
    reads_rates = True
    m: int = Field(16, ge=1, description="attempts that one measured rate counts as")
    lamb: float = Field(0.2, ge=0, le=1, description="share of an estimate that each measured step forgets")
    rho: float = Field(0.2, ge=0, le=1, description="weight of the rate interpolated between the features next to the "
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
