"""An advantage for several players: the reward less what the role usually earns in the game."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ouroboros.operators.advantages.attempts import attempts
from ouroboros.operators.advantages.query import require, require_finite
from ouroboros.pipeline.settings.arguments.base import Advantage
from ouroboros.pipeline.store.lazy import np, pa

NEEDED = ("position", "taskset", "role", "is_candidate", "use_count")


class Rae(Advantage):
    """Role-conditioned advantage estimation: the reward less a running mean of the role in the game.

    SPIRAL, Liu et al. 2025, arXiv:2506.24119, sec. 3.3. Over the new attempts in their order
    b = decay b + (1 - decay) r, then A = r - b, with a b for each role (column role) of each taskset, the game; it
    begins at 0, and checkpoints keep it. A seat that has the better side of a game is not rewarded for that, as it is
    with a baseline over all seats. Replayed rows leave b as it is. Assumes that tasks of a set are about equally hard:
    none has a baseline. Equal rewards: A falls to 0 with every attempt.
    """
    keeps_state = True
    decay: float = Field(0.95, ge=0, lt=1, description="share of a baseline that an attempt leaves")

    def __call__(self, batch: pa.Table, state: dict[str, Any] | None = None) -> pa.Table:
        """state: of the algorithm, with the baselines; None: begins with none."""
        state = {} if state is None else state
        require(batch, *NEEDED)
        require_finite(batch, "reward")
        found = attempts(batch)
        last, made = batch.take(pa.array(found.last)), np.zeros(len(found.last))
        rows = list(zip(*(last[name].to_pylist() for name in (*NEEDED, "reward")), strict=True))
        for place in np.argsort(last["position"].to_numpy(), kind="stable"):
            _, game, role, is_candidate, uses, reward = rows[place]
            key = f"rae/{game}/{role}"
            if is_candidate and not uses:
                state[key] = self.decay * state.get(key, 0.0) + (1 - self.decay) * reward
            made[place] = reward - state.get(key, 0.0)
        return pa.table({"experience_id": batch["experience_id"], "advantage": made[found.of]})
