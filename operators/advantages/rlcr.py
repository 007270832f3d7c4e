"""GRPO of a reward for calibration: what the model states as its own chance to be right is scored too."""

from __future__ import annotations

from pydantic import Field

from ouroboros.operators.advantages.attempts import attempts
from ouroboros.operators.advantages.group import Grouped, Grpo
from ouroboros.operators.advantages.query import require
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.lazy import np, pa

NEEDED = ("accuracy", "confidence")


class Rlcr(Grouped):
    """RL with calibration rewards: GRPO of correctness less the squared error of the stated confidence.

    Damani et al. 2025, arXiv:2507.16806. r = a - brier_weight (q - a)^2, a and q the components `accuracy` and
    `confidence` of the reward, both from 0 to 1: the Brier score is a proper one, so that the best q is the chance to
    be right, and with a weight of at most 1 a right answer is worth more than a wrong one at any q. A as in grpo, of r.
    The other components of the reward are not read. Assumes a reward function that reads the confidence from the
    response, such as confidence_reward. Equal r, or a group of one, give 0; q = a leaves grpo of the accuracy.
    """
    reads_components = True
    epsilon: float = Field(1e-6, gt=0, description="constant added to the standard deviation")
    brier_weight: float = Field(1.0, ge=0, le=1, description="weight of the squared error of the confidence")

    def __call__(self, batch: pa.Table) -> pa.Table:
        require(batch, "group_id", "reward_components")
        found = attempts(batch)
        ones = batch.take(pa.array(found.last))
        given = [dict(pairs) for pairs in ones["reward_components"].to_pylist()]
        for id_, one in zip(ones["experience_id"].to_pylist(), given, strict=True):
            if wrong := [name for name in NEEDED if not 0 <= one.get(name, np.nan) <= 1]:
                raise DataError(f"algorithm.advantage_fn=rlcr: component '{wrong[0]}' of the reward of row {id_} is "
                                f"{one.get(wrong[0], 'not there')}; needed a number from 0 to 1, of a reward function "
                                "that reads it from the response.")
        right, stated = np.array([[one[name] for name in NEEDED] for one in given]).reshape(len(given), 2).T
        scored = pa.array((right - self.brier_weight * np.square(stated - right))[found.of])
        others = batch.drop_columns([name for name in ("reward",) if name in batch.column_names])
        return Grpo(epsilon=self.epsilon)(others.append_column("reward", scored))
