"""Rules for the composition of a train batch: sample strategies, replay, off-policy (expert) rows."""

from dataclasses import replace
from typing import Any

from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.job.schedule import Schedule, rft_schedule
from ouroboros.pipeline.settings.algorithm import Algorithm
from ouroboros.pipeline.settings.algorithms import MIXED_LOSSES
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import EXPERTS, ReplayBuffer
from ouroboros.pipeline.settings.train_batch import REPLAY, expert_buffer, rows_of_step
from ouroboros.pipeline.settings.trainer import EXPLORER_DRIVEN, is_driven
from ouroboros.pipeline.store.errors import ConfigError, Problem, nearest

STRATEGY = "algorithm.sample_strategy"


def unfit_batch(c: Config) -> list[Problem]:
    """Lists what is wrong with how a stage's train batch is sampled. c: its settings."""
    kind = c.kind
    if not kind.is_online:
        return _offline(c) if kind.is_offline else []
    found = _mixture(c) + _with_baseline(c)
    if rows_of_step(c) < 1:  # explorer.over_rollout.ratio=1, a problem of its own
        return found
    try:
        schedule = rft_schedule(c, 1)
    except ConfigError as error:
        return [*found, *error.problems]
    limit = c.algorithm.sample_strategy_args.get("max_staleness") if (
        c.algorithm.sample_strategy == "staleness_control") else None
    return found + (_unbounded(c, schedule, limit) if is_driven(c) else _too_old(schedule, limit))


def _with_baseline(c: Config) -> list[Problem]:
    if not (c.algorithm.greedy_baseline and c.data_processor.experience_pipeline.operators):
        return []
    return [Problem("data_processor.experience_pipeline.operators", "judge and reward sampled responses alone, and "
                    f"{c.algorithm.advantage_fn} compares them with the reward of a greedy one.", "Leave them out, or "
                    "choose an algorithm with algorithm.greedy_baseline=false.")]


def _offline(c: Config) -> list[Problem]:
    """Checks batches of recorded experience; check/mode_rules.py computes their sizes."""
    strategy = c.algorithm.sample_strategy
    found = [] if strategy == "mix" else _without_experts(c.algorithm)
    if strategy == "mix":
        found.append(Problem(STRATEGY, "mixes demonstrations with new rollouts, and with mode=train there are none.",
                             "Train on the demonstrations in a stage of their own, algorithm_type=sft.", found="mix"))
    if strategy == "staleness_control":
        found.append(Problem(STRATEGY, "with mode=train: recorded rollouts grow older with every step, so that soon "
                             "none would be left.", "Set default.", found=strategy))
    if _replay(c).enable:
        found.append(Problem(f"{REPLAY}.enable", "with mode=train: every rollout is there from the beginning, and "
                             "buffer.total_epochs says how often each is trained on.", "Set it to false.", found=True))
    return found


def _without_experts(algorithm: Algorithm) -> list[Problem]:
    """Lists components that need the column is_expert, which only batches with expert rows have."""
    parts = {"policy_loss_fn": "is_expert" in algorithm.loss.columns,
             "entropy_loss_fn": algorithm.entropy_loss_fn == "mix"}
    return [Problem(f"algorithm.{part}", "needs demonstrations beside the rollouts.", f"Set {STRATEGY}=mix, or another "
                    "function.", found=getattr(algorithm, part)) for part, needs in parts.items() if needs]


def _mixture(c: Config) -> list[Problem]:
    algorithm, buffers = c.algorithm, c.buffer.trainer_input.auxiliary_buffers
    loss = algorithm.policy_loss_fn
    if algorithm.sample_strategy != "mix":
        return _without_experts(algorithm)
    found = []
    if loss and loss not in MIXED_LOSSES and ":" not in loss:
        found.append(Problem("algorithm.policy_loss_fn", f"with {STRATEGY}=mix: demonstrations have no advantage, and "
                             f"would teach nothing; needed {' or '.join(MIXED_LOSSES)}.", found=loss))
    name = expert_buffer(algorithm)
    if name not in buffers:
        found.append(Problem(
            f"{STRATEGY}_args.sft_dataset_name", f"no buffer of that name in {EXPERTS}.{nearest(str(name), buffers)} "
            f"Known: {', '.join(buffers) or 'none'}.", f"Give {EXPERTS}.{name} a path, or {{}} for the demonstrations "
            "of data_processor.task_pipeline.", found=name))
    return found


def _replay(c: Config) -> ReplayBuffer:
    return c.buffer.trainer_input.experience_buffer.replay_buffer


def _too_old(schedule: Schedule, limit: Any) -> list[Problem]:
    """Reports a staleness limit under which a step gets no row, or no step a whole batch."""
    if not _is_limit(limit):
        return []  # null: no limit; the function rejects other values
    kept = {step: sum(rows for age, rows in schedule.staleness(step).items() if age <= limit)
            for step in schedule.typical_steps}
    fewest, needed = min(kept, key=kept.get), schedule.rows_per_trainer_step
    oldest = max(max(schedule.staleness(step)) for step in kept)
    if kept[fewest] and max(kept.values()) == needed:
        return []
    return [Problem(f"{STRATEGY}_args.max_staleness", f"by the schedule trainer step {fewest} has {kept[fewest]} of "
                    f"its {needed} rows left, {needed - kept[fewest]} short, and such steps recur: rollouts are up to "
                    f"{oldest} trainer steps old.", f"Needed at least {_least(schedule, limit)}, or a lower "
                    "synchronizer.sync_interval or sync_offset.", found=limit)]


def _unbounded(c: Config, schedule: Schedule, limit: Any) -> list[Problem]:
    """Reports a staleness that no weights in time can have, or under which a step may get no row. c: with a sync_style
    other than fixed."""
    bound, every = c.synchronizer.max_staleness, c.synchronizer.sync_interval
    every = 1 if c.synchronizer.sync_style == EXPLORER_DRIVEN else every
    newest = replace(schedule, sync_offset=0, sync_interval=every)
    least = max(max(newest.staleness(step)) for step in newest.typical_steps)
    found = []
    if bound is not None and bound < least:
        found.append(Problem("synchronizer.max_staleness", "the newest weights that an explorer step can begin with "
                             f"are up to {least} trainer steps behind when its last row is trained on: it would wait "
                             "for ever.", f"Needed at least {least}.", found=bound))
    if _is_limit(limit) and (bound is None or bound > limit):
        found.append(Problem("synchronizer.max_staleness", f"with {STRATEGY}_args.max_staleness={limit:g}: a train "
                             "step may find older rows alone, and end the stage.", f"Needed at most {limit:g}.",
                             found=bound))
    return found


def _is_limit(limit: Any) -> bool:
    return not isinstance(limit, bool) and isinstance(limit, int | float) and limit >= 0


def _least(schedule: Schedule, limit: float) -> int:
    """Returns the lowest limit under which every step has a row, and some step a whole batch."""
    ages = [schedule.staleness(step) for step in schedule.typical_steps]
    return max(max(min(of_step) for of_step in ages), min(max(of_step) for of_step in ages))


def unread_sampling(recipe: Recipe) -> list[Problem]:
    """Lists train batch settings of a whole run that none of its stages reads."""
    stages = recipe.settings.values()
    rollouts = [c for c in stages if c.kind.is_online]
    found = []
    if any(c.data_processor.experience_pipeline.operators for c in stages) and not any(
            c.kind.makes_experience for c in stages):
        found.append(Problem("data_processor.experience_pipeline.operators", "no stage explores or scores, so there is "
                             "no experience.", "Leave them out."))
    if any(_replay(c).enable for c in stages) and not any(_replay(c).enable for c in rollouts):
        found.append(Problem(f"{REPLAY}.enable", "no stage explores and trains, so nothing is replayed: given "
                             "responses are repeated by buffer.total_epochs.", "Set it to false.", found=True))
    if any(c.buffer.trainer_input.auxiliary_buffers for c in stages) and not any(
            c.algorithm.sample_strategy == "mix" for c in rollouts):
        found.append(Problem(EXPERTS, "no stage takes rows from them.", f"Set {STRATEGY}=mix (algorithm_type mix or "
                             "mix_chord), or leave them out."))
    margin = next((c.data_processor.task_pipeline.format.margin_key for c in stages), None)
    if margin is not None and not any(c.kind.trains and c.algorithm.scores_responses and
                                      c.buffer.trainer_input.experience_buffer.path is None for c in stages):
        found.append(Problem("data_processor.task_pipeline.format.margin_key", "no stage trains a reward model on "
                             "pairs of the pool.", "Leave it out.", found=margin))
    return found
