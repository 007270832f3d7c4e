"""Rules for the composition of a train batch: sample strategies, replay, off-policy (expert) rows."""

from typing import Any

from pipeline.compose.stage_settings import effective
from pipeline.job.context import namespace
from pipeline.job.schedule import Schedule, rft_schedule
from pipeline.plan.modes import kind_of, planned
from pipeline.settings.algorithms import GIVEN, MIXED_LOSSES
from pipeline.settings.data import EXPERTS
from pipeline.settings.train_batch import REPLAY, expert_buffer
from pipeline.store.errors import ConfigError, nearest

STRATEGY = "algorithm.sample_strategy"


def sample_problems(c: dict[str, Any]) -> list[str]:
    """Lists every broken rule, one line each. c: the settings of a stage that trains on rollouts (rft, offline)."""
    if kind_of(c) == "offline":
        return _offline(c)
    problems = _mixture(c)
    try:
        schedule = rft_schedule(namespace(c), 1)
    except ConfigError as error:
        return [*problems, str(error)]
    if c["algorithm"]["sample_strategy"] == "staleness_control":
        problems += _too_old(schedule, c["algorithm"]["sample_strategy_args"].get("max_staleness"))
    return problems


def _offline(c: dict) -> list[str]:
    """Checks batches of recorded experience; pipeline/plan/modes.py computes their sizes."""
    problems, strategy = [], c["algorithm"]["sample_strategy"]
    if strategy != "mix":
        problems += _without_experts(c["algorithm"])
    if strategy == "mix":
        problems.append(f"mode=train: {STRATEGY}=mix mixes rows of an expert with new rollouts, and there are none. "
                        "Train on the demonstrations in a stage of their own, algorithm_type=sft.")
    if strategy == "staleness_control":
        problems.append(f"mode=train: {STRATEGY}=staleness_control: recorded rollouts grow older with every step, so "
                        "that soon none would be left. Set default.")
    if _replay(c)["enable"]:
        problems.append(f"mode=train: {REPLAY}.enable: every rollout is there from the beginning, and "
                        "buffer.total_epochs says how often each is trained on. Set it to false.")
    return problems


def _without_experts(algorithm: dict) -> list[str]:
    """Lists components that need the column is_expert, which only batches with expert rows have."""
    parts = {"policy_loss_fn": algorithm["policy_loss_fn"] in MIXED_LOSSES,
             "entropy_loss_fn": algorithm["entropy_loss_fn"] == "mix"}
    return [f"algorithm.{part}={algorithm[part]} needs rows of an expert beside the rollouts. Set {STRATEGY}=mix, or "
            "another function." for part, needs in parts.items() if needs]


def _mixture(c: dict) -> list[str]:
    algorithm, buffers = c["algorithm"], c["buffer"]["trainer_input"]["auxiliary_buffers"]
    loss = algorithm["policy_loss_fn"]
    if algorithm["sample_strategy"] != "mix":
        return _without_experts(algorithm)
    problems = []
    if loss and loss not in MIXED_LOSSES and ":" not in loss:
        problems.append(f"{STRATEGY}=mix with algorithm.policy_loss_fn={loss}: rows of an expert have no advantage, "
                        f"and would teach nothing. Needed {' or '.join(MIXED_LOSSES)}.")
    name = expert_buffer(algorithm)
    if name not in buffers:
        problems.append(f"{STRATEGY}_args.sft_dataset_name={name}: no buffer of that name in {EXPERTS}."
                        f"{nearest(str(name), buffers)} There: {', '.join(buffers) or 'none'}. Give {EXPERTS}.{name} "
                        "a path, or {} for the demonstrations of data_processor.task_pipeline.")
    return problems


def _replay(c: dict) -> dict:
    return c["buffer"]["trainer_input"]["experience_buffer"]["replay_buffer"]


def _too_old(schedule: Schedule, limit: Any) -> list[str]:
    """Reports a staleness limit under which a step gets no row, or no step a whole batch."""
    if isinstance(limit, bool) or not isinstance(limit, int | float) or limit < 0:
        return []  # null: no limit; the function rejects other values
    kept = {step: sum(rows for age, rows in schedule.staleness(step).items() if age <= limit)
            for step in schedule.typical_steps}
    fewest, needed = min(kept, key=kept.get), schedule.rows_per_trainer_step
    oldest = max(max(schedule.staleness(step)) for step in kept)
    if kept[fewest] and max(kept.values()) == needed:
        return []
    return [f"{STRATEGY}_args.max_staleness={limit}: by the schedule trainer step {fewest} has {kept[fewest]} of its "
            f"{needed} rows left, {needed - kept[fewest]} short, and such steps come again and again: rollouts are up "
            f"to {oldest} trainer steps old. Needed at least {_least(schedule, limit)}, or a lower "
            "synchronizer.sync_interval or sync_offset."]


def _least(schedule: Schedule, limit: float) -> int:
    """Returns the lowest limit under which every step has a row, and some step a whole batch."""
    ages = [schedule.staleness(step) for step in schedule.typical_steps]
    return max(max(min(of_step) for of_step in ages), min(max(of_step) for of_step in ages))


def unread_sampling(config: dict) -> list[str]:
    """Lists train batch settings of a whole run that none of its stages reads."""
    stages = [effective(config, entry) for entry in planned(config)]
    rollouts = [c for c in stages if c["algorithm"]["algorithm_type"] not in GIVEN and kind_of(c) == "rft"]
    problems = []
    if any(_replay(c)["enable"] for c in stages) and not any(_replay(c)["enable"] for c in rollouts):
        problems.append(f"{REPLAY}.enable: no stage explores and trains, so nothing is replayed: given responses are "
                        "repeated by buffer.total_epochs. Set it to false.")
    if any(c["buffer"]["trainer_input"]["auxiliary_buffers"] for c in stages) and not any(
            c["algorithm"]["sample_strategy"] == "mix" for c in rollouts):
        problems.append(f"{EXPERTS}: no stage takes rows from them. Set {STRATEGY}=mix (algorithm_type mix or "
                        "mix_chord), or leave them out.")
    return problems
