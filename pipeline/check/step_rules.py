"""Warnings about steps that learn nothing, and about settings counted in optimizer steps, compared with the number of
steps of the stage.

Where the number of steps is known only after curation, checks that depend on it are skipped.
"""

import math

from ouroboros.pipeline.check.workload import workload
from ouroboros.pipeline.job.schedule import Schedule, rft_schedule
from ouroboros.pipeline.settings.algorithm import Optimizer
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.trainer import is_driven
from ouroboros.pipeline.store.errors import Problem

MOST_NAMED = 4  # evaluated versions listed in a message


def step_notes(config: Config) -> list[Problem]:
    """Lists every warning about a stage's steps. config: its settings (`recipe.effective`)."""
    kind, steps = config.kind, workload(config).trainer_steps
    notes = [*_idle(config), *(_warmups(config, steps) if steps else [])] if kind.trains else []
    if not kind.is_online or is_driven(config):  # then no step numbers say which weights come
        return notes
    return [*notes, *_sync(config, steps), *_evaluations(config)]


def _optimizers(config: Config) -> dict[str, Optimizer]:
    """Maps the sections of the optimizers of a stage to them: of the policy, and of a critic where it has one."""
    critic = {"trainer.critic.optimizer": config.trainer.critic.optimizer}
    return {"algorithm.optimizer": config.algorithm.optimizer} | (
        critic if config.algorithm.has_critic else {})


def _idle(config: Config) -> list[Problem]:
    """Warns of learning rates of 0, and of bounds that leave out tokens on which engine and trainer agree."""
    return [*(Problem(f"{key}.lr", "its weights stay as they are.", found=one.lr)
              for key, one in _optimizers(config).items() if not one.lr),
            *(Problem(f"algorithm.rollout_rejection.{name}", "leaves out what engine and trainer agree on, or nearly: "
                      "their ratio is 1.", "For bounds around it set one below and one above 1.", found=pair)
              for name in ("token_k1", "seq_sum_k1", "seq_mean_k1")
              if (pair := getattr(config.algorithm.rollout_rejection, name)) and not pair[0] < 1 < pair[1])]


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


def _sync(config: Config, steps: int | None) -> list[Problem]:
    """Warns if all rollouts of a stage with several explorer steps come from its initial weights."""
    if not steps:
        return []
    schedule = _schedule(config)
    if schedule.explorer_steps == 1 or schedule.weights_version(schedule.explorer_steps):
        return []
    return [Problem("synchronizer.sync_interval", f"with sync_offset={schedule.sync_offset}: none of the {steps} "
                    "optimizer steps of the stage passes its weights to the explorer in time, so all "
                    f"{schedule.explorer_steps} explorer steps use the initial model.", "Lower them.",
                    found=schedule.sync_interval)]


def _evaluations(config: Config) -> list[Problem]:
    """Warns if explorer.eval_interval is not aligned with the steps at which weights are synchronized."""
    every, handed = config.explorer.eval_interval, config.synchronizer.sync_interval
    if not every:
        return []
    versions, last = evaluated_versions(config), _last_version(config)
    if not versions:
        return [Problem("explorer.eval_interval", f"the last weights that the explorer receives are those of step "
                        f"{last}, so nothing is evaluated on the way.", "Lower it, or set null.", found=every)]
    if versions == [every * (i + 1) for i in range(len(versions))]:
        return []
    explored, fresh = _rows(config)
    fits = math.lcm(handed, max(explored // fresh, 1))
    values = [str(value) for value in (every // fits * fits, every // fits * fits + fits)
              if value and (last is None or value <= last)]
    advice = f"For equal distances set {' or '.join(values)}." if values else ""
    more = "" if len(versions) < MOST_NAMED else ", ..."
    return [Problem("explorer.eval_interval", f"weights are synchronized at multiples of synchronizer.sync_interval="
                    f"{handed}, after whole explorer steps, so those of step{'s' * (len(versions) > 1)} "
                    f"{', '.join(map(str, versions))}{more} are evaluated.", advice, found=every)]


def evaluated_versions(config: Config) -> list[int]:
    """Returns the first MOST_NAMED versions of the weights that an rft stage evaluates during training.

    For each multiple of eval_interval: the first weights synchronized to the explorer (at a multiple of sync_interval,
    after a whole explorer step) that have reached it, each once.
    """
    every, handed = config.explorer.eval_interval, config.synchronizer.sync_interval
    explored, fresh = _rows(config)
    last, versions = _last_version(config), []
    for target in range(every, every * (MOST_NAMED + 1), every):
        due = -(-target // handed) * handed
        explorer_step = -(-due * fresh // explored)
        versions.append(explorer_step * explored // fresh // handed * handed)
    return [version for version in dict.fromkeys(versions) if last is None or version <= last]


def _last_version(config: Config) -> int | None:
    """Returns the last weights synchronized to the explorer of an rft stage; None where its length is unknown."""
    if workload(config).trainer_steps is None:
        return None
    schedule = _schedule(config)
    return schedule.weights_version(schedule.explorer_steps)


def _rows(config: Config) -> tuple[int, int]:
    """Returns the rows of an explorer step, and the new rows that an optimizer step takes."""
    schedule = _schedule(config)
    return schedule.rows_per_explorer_step, schedule.rows_per_trainer_step


def _schedule(config: Config) -> Schedule:
    steps = workload(config).trainer_steps or 1  # the checks do not depend on a length that is unknown
    return rft_schedule(config.but("buffer.total_steps", steps), 1)
