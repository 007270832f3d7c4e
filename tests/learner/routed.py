"""Two steps of GRPO with experts that are given, on as many ranks as started it: what they saw, as JSON.

    RANK=... LOCAL_RANK=... WORLD_SIZE=... python -m tests.learner.routed MODEL OUT key=value ...
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ouroboros.pipeline.store import files
from ouroboros.stages.learner import separation
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.objective import Objective
from tests.configs import TINY, overridden
from tests.factories import TEXT

GIVEN = ("algorithm.algorithm_type=grpo", "model.max_prompt_tokens=24", "model.max_response_tokens=40",
         "algorithm.enable_router_replay=true")


def rows() -> list[Row]:
    """Of 6 rows, one does not act, and none routes it. Two of four experts in each of four layers."""
    random, made = np.random.default_rng(2), []
    for i, length in enumerate((12, 5, 9, 4, 16, 7)):
        acts = [int(i != 3 and k % 3 != 1) for k in range(length)]
        experts = random.permuted(np.tile(np.arange(4), (sum(acts), 4, 1)), axis=-1)[..., :2]
        made.append(Row(f"r{i}", random.integers(5, 380, 4 + length).tolist(), 4, acts,
                        {"advantages": [1.0, -1.0][i % 2], "is_expert": False}, experts=experts if sum(acts) else None))
    return made


def train(model: Path, process: Process, settings: Sequence[str] = ()) -> dict:
    config = overridden(*TINY, *GIVEN, *settings)
    actor, found = Actor(model, config, process), {"losses": [], "norms": [], "differing": []}
    separation.prove_policy(actor, config, TEXT)
    for number in (1, 2):
        some = rows()
        for row, values in zip(some, actor.score_rows(some), strict=True):
            row.columns["old_logprobs"] = row.columns["rollout_logprobs"] = row.spread(values)
        result = actor.step(some, Objective(config), 1e-3, number)
        found["losses"].append(result.loss)
        found["norms"].append(result.grad_norm)
        found["differing"].append(result.statistics["routed_differently"])
    return found | {"scores": [values.tolist() for values in actor.score_rows(rows())]}


if __name__ == "__main__":
    _, path, out, *given = sys.argv
    group = Process.start(1, Path(f"{out}.ranks"), 1)
    made = train(Path(path), group, given)
    if group.rank == 0:
        files.write_json(Path(out), made)
    group.barrier()
    group.stop()
