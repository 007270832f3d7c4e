"""Rules on batches and steps: what fills them, how they are sampled, and steps that learn nothing or come in vain."""

import math
from dataclasses import replace
from typing import Any

from ouroboros.pipeline.check.sources import most_rows
from ouroboros.pipeline.check.workload import workload
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.job.no_signal import FEW
from ouroboros.pipeline.job.schedule import Schedule, rft_schedule
from ouroboros.pipeline.settings.algorithm import Algorithm, Optimizer
from ouroboros.pipeline.settings.algorithms import MIXED_LOSSES
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import EXPERTS, ReplayBuffer
from ouroboros.pipeline.settings.train_batch import REPLAY, expert_buffer, given_batch, rows_of_step, train_batch
from ouroboros.pipeline.settings.trainer import EXPLORER_DRIVEN, is_driven
from ouroboros.pipeline.store.errors import ConfigError, Problem, nearest

STRATEGY = "algorithm.sample_strategy"
MOST_NAMED = 4  # evaluated versions listed in a message


def unfit_batch(c: Config) -> list[Problem]:
    """Lists what is wrong with how a stage's train batch is sampled. c: its settings."""
    kind = c.kind
    if not kind.is_online:
        return _offline(c) if kind.is_offline else []
    found = _mixture(c) + _with_baseline(c)
    if rows_of_step(c) < 1:  # explorer.over_rollout.ratio=1, a separate problem
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
    """Checks batches of recorded experience; check/stage.py computes their sizes."""
    strategy = c.algorithm.sample_strategy
    found = [] if strategy == "mix" else _without_experts(c.algorithm)
    if strategy == "mix":
        found.append(Problem(STRATEGY, "mixes demonstrations with new rollouts, and with mode=train there are none.",
                             "Train on the demonstrations in a separate stage, algorithm_type=sft.", found="mix"))
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
    return [Problem(f"algorithm.{part}", "needs demonstrations in addition to the rollouts.",
                    f"Set {STRATEGY}=mix, or another function.", found=getattr(algorithm, part))
            for part, needs in parts.items() if needs]


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


def unfillable_steps(recipe: Recipe) -> list[Problem]:
    """Lists optimizer steps that can never be filled."""
    found = {name: _short_of_given(settings) for name, settings in recipe.settings.items()
             if recipe.kinds[name].learns_from_given}
    for name, kind in recipe.kinds.items():
        if kind.is_offline and (source := recipe.explored[name]):
            found[name] = _short_of_explored(recipe.settings[name], recipe.settings[source], source)
    return [problem.of([name]) for name, problem in found.items() if problem]


def _short_of_given(settings: Config) -> Problem | None:
    (key, batch), rows = given_batch(settings.buffer), most_rows(settings, generated=True)
    if not rows or batch <= rows:  # stages without any are reported by other checks
        return None
    what = "pairs" if settings.algorithm.on_pairs else "demonstrations"
    return Problem(key, f"a step takes as many {what}, each once, and before curation there are at most {rows:,}: "
                   f"{batch - rows:,} short.", "Lower it.", found=f"{batch:,}")


def _short_of_explored(settings: Config, explored: Config, source: str) -> Problem | None:
    made, batch = workload(explored), settings.buffer.train_batch_size
    rows = None if made.explorer_steps is None else made.explorer_steps * made.explored
    if not batch or rows is None or batch <= rows:
        return None
    return Problem("buffer.train_batch_size", f"a step takes as many experiences, each once, and '{source}' explores "
                   f"at most {rows:,}: {batch - rows:,} short.", f"Lower it, or let {source} make more steps.",
                   found=f"{batch:,}")


def _batches(settings: Config) -> list[Problem]:
    """Returns the warning about a stage whose explorer steps or batches exceed its total number of tasks."""
    kind, buffer = settings.kind, settings.buffer
    tasks = most_rows(settings, generated=True) if kind.explores else None
    if not tasks:
        return []
    if buffer.batch_size > tasks:
        return [Problem("buffer.batch_size", f"there are at most {tasks:,} tasks, so every explorer step asks each of "
                        f"them {_readable(buffer.batch_size / tasks)} times, in as many groups.", "Lower it, or "
                        "give more tasks, if that is not meant.", found=f"{buffer.batch_size:,}")]
    fresh = train_batch(settings).fresh if kind.is_online else 0
    passes = fresh / (tasks * (settings.algorithm.repeat_times or 1))
    return [Problem("buffer.train_batch_size", f"one optimizer step takes the rollouts of {_readable(passes)} passes "
                    f"over all tasks (at most {tasks:,}).", "Lower it if that is not intended.",
                    found=f"{buffer.train_batch_size:,}")] if passes > 1 else []


def _readable(number: float) -> str:
    """Formats a number: `1.5`, `20`, `625,000`."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def notes(config: Config) -> list[Problem]:
    """Lists every warning about a stage's steps and batches. config: its settings (`recipe.effective`)."""
    kind, steps = config.kind, workload(config).trainer_steps
    of_length = [*_few(config, steps), *_warmups(config, steps)] if kind.trains and steps else []
    found = [*_idle(config), *of_length] if kind.trains else []
    if kind.is_online and not is_driven(config):  # else no step numbers say which weights come
        schedule = rft_schedule(config.but("buffer.total_steps", steps or 1), 1)
        found += [*(_sync(schedule, steps) if steps else []), *_evaluations(config, schedule, steps)]
    return [*found, *_batches(config)]


def _optimizers(config: Config) -> dict[str, Optimizer]:
    """Maps the sections of the optimizers of a stage to them: of the policy, and of a critic where it has one."""
    critic = {"trainer.critic.optimizer": config.trainer.critic.optimizer}
    return {"algorithm.optimizer": config.algorithm.optimizer} | (critic if config.algorithm.has_critic else {})


def _idle(config: Config) -> list[Problem]:
    """Warns of learning rates of 0, and of bounds that leave out tokens on which engine and trainer agree."""
    return [*(Problem(f"{key}.lr", "its weights stay as they are.", found=one.lr)
              for key, one in _optimizers(config).items() if not one.lr),
            *(Problem(f"algorithm.rollout_rejection.{name}", "leaves out what engine and trainer agree on, or nearly: "
                      "their ratio is 1.", "For bounds around it set one below and one above 1.", found=pair)
              for name in ("token_k1", "seq_sum_k1", "seq_mean_k1")
              if (pair := getattr(config.algorithm.rollout_rejection, name)) and not pair[0] < 1 < pair[1])]


def _few(config: Config, steps: int) -> list[Problem]:
    """Warns of a stage that is over before it can learn much."""
    name = "total_steps" if config.buffer.total_steps else "total_epochs"
    most = "at most " if workload(config).most else ""
    return [Problem(f"buffer.{name}", f"optimizer steps of the stage: {most}{steps}; fewer than {FEW} seldom teach "
                    "anything.", "Raise it, or lower the batch, unless this is a trial.",
                    found=getattr(config.buffer, name))] * (steps < FEW)


def _warmups(config: Config, steps: int) -> list[Problem]:
    """Warns of warmups that do not end within the stage's steps."""
    notes = [Problem(f"{key}.lr_warmup_steps", f"the stage makes {steps} optimizer steps, so the learning rate never "
                     f"rises above {steps / warmup:.0%} of lr={one.lr:g}.", "Lower it, or set "
                     "lr_warmup_steps_ratio.", found=warmup)
             for key, one in _optimizers(config).items() if (warmup := one.lr_warmup_steps) > steps]
    waits = config.trainer.critic_warmup
    if config.algorithm.has_critic and waits >= steps:
        notes.append(Problem("trainer.critic_warmup", f"the stage makes {steps} optimizer steps, in all of which the "
                             "critic learns alone: the policy never does.", "Lower it.", found=waits))
    return notes


def _sync(schedule: Schedule, steps: int) -> list[Problem]:
    """Warns if all rollouts of a stage with several explorer steps come from its initial weights."""
    if schedule.explorer_steps == 1 or schedule.weights_version(schedule.explorer_steps):
        return []
    return [Problem("synchronizer.sync_interval", f"with sync_offset={schedule.sync_offset}: none of the {steps} "
                    "optimizer steps of the stage passes its weights to the explorer in time, so all "
                    f"{schedule.explorer_steps} explorer steps use the initial model.", "Lower them.",
                    found=schedule.sync_interval)]


def _evaluations(config: Config, schedule: Schedule, steps: int | None) -> list[Problem]:
    """Warns if explorer.eval_interval is not aligned with the steps at which weights are synchronized. steps: None
    where their number is unknown, and with it the last weights that the explorer receives."""
    every, last = config.explorer.eval_interval, schedule.weights_version(schedule.explorer_steps) if steps else None
    versions = evaluated_versions(every, schedule, last) if every else []
    if not versions:
        return [Problem("explorer.eval_interval", f"the last weights that the explorer receives are those of step "
                        f"{last}, so nothing is evaluated on the way.", "Lower it, or set null.",
                        found=every)] if every else []
    if versions == [every * (i + 1) for i in range(len(versions))]:
        return []
    handed = schedule.sync_interval
    fits = math.lcm(handed, max(schedule.rows_per_explorer_step // schedule.rows_per_trainer_step, 1))
    values = [str(value) for value in (every // fits * fits, every // fits * fits + fits)
              if value and (last is None or value <= last)]
    advice = f"For equal distances set {' or '.join(values)}." if values else ""
    more = "" if len(versions) < MOST_NAMED else ", ..."
    return [Problem("explorer.eval_interval", f"weights are synchronized at multiples of synchronizer.sync_interval="
                    f"{handed}, after whole explorer steps, so those of step{'s' * (len(versions) > 1)} "
                    f"{', '.join(map(str, versions))}{more} are evaluated.", advice, found=every)]


def evaluated_versions(every: int, schedule: Schedule, last: int | None) -> list[int]:
    """Returns the first MOST_NAMED versions of the weights that an rft stage evaluates during training.

    For each multiple of `every`: the first weights synchronized to the explorer (at a multiple of sync_interval, after
    a whole explorer step) that have reached it, each once. last: the last weights that it receives, None where unknown.
    """
    explored, fresh, handed = schedule.rows_per_explorer_step, schedule.rows_per_trainer_step, schedule.sync_interval
    versions = []
    for target in range(every, every * (MOST_NAMED + 1), every):
        due = -(-target // handed) * handed
        explorer_step = -(-due * fresh // explored)
        versions.append(explorer_step * explored // fresh // handed * handed)
    return [version for version in dict.fromkeys(versions) if last is None or version <= last]
