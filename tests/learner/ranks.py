"""Two steps of PPO with every part, of DPO and of mix, on as many ranks as started it: what they saw, as JSON.

Two ranks also make steps in which the second runs out of memory (tests/learner/exhausted.py).

    RANK=... LOCAL_RANK=... WORLD_SIZE=... python -m tests.learner.ranks MODEL OUT key=value ...
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.stages.learner import separation
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.critic import Critic
from ouroboros.stages.learner.engine import attention
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.engine.sharing import Segments
from ouroboros.stages.learner.engine.snapshot import written
from ouroboros.stages.learner.objective import Objective
from tests.configs import TINY, overridden
from tests.factories import TEXT

PPO = ("algorithm.algorithm_type=ppo", "algorithm.policy_loss_fn=ppo", "algorithm.kl_loss_fn=k3",
       "algorithm.kl_loss_fn_args.kl_coef=0.1", "algorithm.entropy_loss_fn=default",
       "algorithm.entropy_loss_fn_args.entropy_coef=0.01", "algorithm.bypass_old_logprobs=false",
       "algorithm.loss_agg_mode=seq-mean-token-mean")
DPO = ("algorithm.algorithm_type=dpo", "algorithm.policy_loss_fn=dpo", "algorithm.policy_loss_fn_args={}",
       "algorithm.kl_loss_fn=none", "algorithm.entropy_loss_fn=none")
MIX = ("algorithm.algorithm_type=mix", "algorithm.policy_loss_fn=mix", "algorithm.policy_loss_fn_args={mu: 0.4}",
       "algorithm.kl_loss_fn=k3", "algorithm.kl_loss_fn_args.kl_coef=0.1", "algorithm.entropy_loss_fn=mix",
       "algorithm.entropy_loss_fn_args.entropy_coef=0.01", "algorithm.loss_agg_mode=seq-mean-token-mean")
KINDS = {"ppo": PPO, "dpo": DPO, "mix": MIX}


def rows() -> list[Row]:
    source, made = torch.Generator().manual_seed(1), []
    for i, (p, r) in enumerate(((5, 9), (3, 4), (20, 16), (2, 1), (7, 7), (4, 12), (6, 3), (9, 9))):
        mask = [int(k % 4 != 2) for k in range(r)]
        columns = {"advantages": (-1.0) ** i * (i + 1) / 2, "rollout_logprobs": [-4.6] * r,
                   "returns": [float(i % 2)] * r, "is_expert": i % 3 == 1, "chosen_tokens": 5.0}
        made.append(Row(f"r{i}", torch.randint(3, 99, (p + r,), generator=source).tolist(), p, mask, columns))
    return made


def seen(values) -> list:
    return [float(x) for x in values]


def train(model: Path, process: Process, settings: tuple[str, ...], with_critic: bool) -> dict:
    config = overridden(*TINY, "algorithm.optimizer.weight_decay=0.1", *settings)
    objective = Objective(config)
    actor = Actor(model, config, process, keep_initial=True)
    separation.prove_policy(actor, config, TEXT)
    critic = Critic(model, config, process) if with_critic else None
    if critic:
        separation.prove_critic(critic, config, TEXT)
    found: dict = {"losses": [], "norms": [], "statistics": []}
    for _ in range(2):
        some = rows()
        columns = {"ref_logprobs": actor.reference_logprobs(some), "old_logprobs": actor.score_rows(some)}
        columns |= {"values": critic.values(some)} if critic else {}
        for name, values in columns.items():
            for row, of_row in zip(some, values, strict=True):
                row.columns[name] = row.spread(of_row)
        result = actor.step(some, objective, 1e-3, 1)
        found["losses"].append(result.loss)
        found["norms"].append(result.grad_norm)
        found["statistics"].append(result.statistics)
        found["reference"] = [seen(values) for values in columns["ref_logprobs"]]
        if critic:
            of_values = critic.step(some, 1e-3)
            found["losses"].append(of_values.vf_loss)
            found["norms"].append(of_values.critic_grad_norm)
    found["scores"] = [seen(values) for values in actor.score_rows(rows())]
    found["values"] = [seen(values) for values in critic.values(rows())] if critic else []
    return found


def refused(model: Path, process: Process, settings: Sequence[str]) -> list[str]:
    """What each proof says where attention ignores the bounds of rows, as state-space layers do."""
    config, found = overridden(*TINY, *PPO, "trainer.packing=packed", *settings), []
    bounded = attention.layout
    attention.layout = lambda segments, *more: bounded(Segments(segments.bounds[[0, -1]], segments.contexts[:1]), *more)
    for prove, module in ((separation.prove_policy, Actor), (separation.prove_critic, Critic)):
        try:
            prove(module(model, config, process), config, TEXT)
        except ModelError as error:
            found.append(str(error))
    attention.layout = bounded
    return found


def every_kind(model: Path, process: Process, settings: Sequence[str] = ()) -> dict[str, dict]:
    return {kind: train(model, process, (*own, *settings), kind == "ppo") for kind, own in KINDS.items()}


def resumed(model: Path, process: Process, directory: Path) -> list[list[float]]:
    """Losses of two steps of a policy in bfloat16 after a checkpoint of masters, and of one that takes it up."""
    config = overridden(*TINY, "algorithm.algorithm_type=sft", "model.dtype=bfloat16")
    actors, objective = [Actor(model, config, process) for _ in range(2)], Objective(config)
    actors[0].step(rows(), objective, 1e-2, 1)
    written(actors[0].zero.save(directory))
    process.barrier()
    actors[1].zero.load(directory)
    return [[actor.step(rows(), objective, 1e-2, step).loss for step in (2, 3)] for actor in actors]


if __name__ == "__main__":
    _, path, out, *given = sys.argv
    split = overridden(*TINY, *given).trainer.ulysses_sequence_parallel_size
    group = Process.start(1, Path(f"{out}.ranks"), split)
    made = every_kind(Path(path), group, given)
    made["refused"] = refused(Path(path), group, given)
    if group.ranks == 2 and not group.sequence:
        from tests.learner import exhausted

        made["exhausted"] = {place: exhausted.train(Path(path), group, place, budget, rank=1)
                             for place, budget in (("backward", 80), ("nowhere", 40))}
        made["resumed"] = resumed(Path(path), group, Path(f"{out}.checkpoint"))
    if group.rank == 0:
        files.write_json(Path(out), made)
    group.barrier()
    group.stop()
