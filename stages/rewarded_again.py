"""Rewards the stored responses of a stage under other settings, and compares: `ouro reward diff`, and stages that take
the steps of one that differs in its rewards alone (pipeline/job/rewarding.py, which starts it).

    python -m ouroboros.stages.rewarded_again request.json answer.json

The answer has `equal`, the number of first explorer steps of which every row has the reward that is stored; `first`,
the first row with another, in words; `unlike`, why nothing can be compared, alone where that is an error; and
`evaluated`, whether evaluations are rewarded again, with `unevaluated`, the error that ended it. Of explorer steps with
a new reward, and with `whole` of all, the files are written as the explorer would have. With `whole` also `trained`,
the first trainer step whose batch has other advantages, null if none has, and `certain`: false where advantages need
what models compute, or a state of the algorithm, so that it is the first step that reads another reward.
"""

import logging
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from ouroboros.operators.algorithm import Algorithm
from ouroboros.operators.reward import load_reward
from ouroboros.pipeline.job.activity import Activity
from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.schedule import rft_schedule
from ouroboros.pipeline.job.tasksets import read_train
from ouroboros.pipeline.job.watchdog import CALL_SECONDS
from ouroboros.pipeline.settings import secrets
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import Taskset, reward_functions
from ouroboros.pipeline.settings.reward_rules import repeatable_evaluations
from ouroboros.pipeline.store import files, hashes, records, tables
from ouroboros.pipeline.store.errors import OuroError, StageError, message
from ouroboros.stages.rescore import Scorer
from ouroboros.workflows.evaluation import publish, read_sets, rewarded
from ouroboros.workflows.protocol.hugging_face import import_light
from ouroboros.workflows.protocol.outcomes import check_failures

REWARDED = ("reward", "reward_components", "accuracy", "notes", "token_rewards", "status", "reason", "task_id")
ANSWER = {"task_id": "", "answer": "", "columns": None}  # of a task, what no prompt has


class Alarm(Activity):
    """Ends this process where a reward function does not return: nothing else watches it."""

    def alive(self) -> None:
        super().alive()
        signal.alarm(int(CALL_SECONDS))

    @staticmethod
    def ring(*_: Any) -> None:
        print(f"a reward function has not returned for {CALL_SECONDS:g} s", file=sys.stderr, flush=True)
        os._exit(1)


def answer(request: dict[str, Any], activity: Activity) -> dict[str, Any]:
    """activity: that of the calls of reward functions."""
    donor, spec = Path(request["donor"]), request["spec"]
    theirs = files.read_json(donor / "stage.json")
    config = Config.of_stage(spec["kind"], secrets.reveal(spec["config"]))
    inputs = {role: Path(place) for role, place in spec["inputs"].items()} | {"experience": donor}
    found: dict[str, Any] = {"equal": 0, "first": "",
                             "unlike": _marked(config, config.buffer.explorer_input.train_places)}
    if found["unlike"]:
        return found
    import_light()
    scorer = Scorer(Context(spec["run"], spec["name"], spec["identity"], Path(request["out"]), config, inputs,
                            logging.getLogger("ouro.rewards"), activity=activity))
    if any(task.choices for tasks in scorer.tasks.values() for task in tasks.values()):
        return found | {"unlike": "its rows name workflows or reward functions"}
    renamed = _renamed(scorer, Path(theirs["inputs"]["tasks"]), Config.of_stage(theirs["kind"], theirs["config"]),
                       inputs["tasks"])
    if renamed is None:
        return found | {"unlike": "prompts or the order of its tasks are others"}
    seen, last = 0, None
    for step in tables.steps_present(donor, "rollouts"):
        (record,) = tables.read_steps(donor, "rollouts", [step])
        if last is not None and record.weights_version > last and not request["whole"]:
            break  # by weights that are not taken
        begin, stored = time.perf_counter(), scorer.read(step)
        rows = [_placed(*pair, renamed) for pair in zip(stored, scorer.rewarded(stored), strict=True)]
        words = next(filter(None, map(_difference, stored, rows)), "")
        if words and last is None:
            found["first"], last = words, _trained(config, step)
        found["equal"] += last is None
        if not request["whole"] and _fails(rows, config):
            break  # a run from nothing ends here, and says so
        if words or request["whole"]:
            tables.write(tables.step_file(scorer.context.directory, "experience", step), records.Experience, rows)
            tables.write(tables.step_file(scorer.context.directory, "rollouts", step), records.Rollout,
                         [scorer.record(step, rows, begin)])
        seen += len(stored)
        if request["rows"] and (seen >= request["rows"] or words):
            break
    if not request["whole"]:
        try:
            found["evaluated"] = _evaluated(scorer, math.inf if last is None else last, bool(request["rows"]))
        except (OuroError, OSError) as error:
            found |= {"evaluated": False, "unevaluated": _words(error)}
    signal.alarm(0)
    if last is not None and request["whole"] and config.kind.is_online:
        found["trained"], found["certain"] = _other_batch(scorer.context, donor, last + 1)
    return found


def _evaluated(scorer: Scorer, last: float, tried: bool) -> bool:
    """Writes the evaluations of weights up to trainer step `last` with new rewards, and returns whether it could.
    tried: returns whether the first one comes out as it is stored, and writes nothing."""
    context, donor = scorer.context, scorer.source
    steps = [step for step in tables.steps_present(donor, "scores") if step <= last]
    if not steps or not repeatable_evaluations(context.config) or _marked(
            context.config, context.config.buffer.explorer_input.eval_places):
        return False
    sets = read_sets(context, scorer.tokenizer, scorer.opener)
    tasks = {(held.taskset.name, task.task_id): task for held in sets for task in held.tasks}
    for step in steps:
        file = tables.step_file(donor, "samples", step)
        stored = [records.Sample(**row) for row in tables.read(file, records.Sample).to_pylist()]
        if any(task is None or task.choices for task in (tasks.get((one.taskset, one.task_id)) for one in stored)):
            return False
        made = [rewarded(context, scorer.tokenizer, held, [one for one in stored if one.taskset == held.taskset.name])
                for held in sets]
        if tried:
            own = {"stage": context.id, "model": context.id}
            return [replace(one, **own) for one in stored] == [*chain(*made)]
        publish(context, sets, made, step)
    return True


def _fails(rows: list[records.Experience], config: Config) -> bool:
    try:
        check_failures([one for one in rows if one.turn == 0], config.explorer.max_failed_ratio)
    except StageError:
        return True
    return False


def _other_batch(context: Context, donor: Path, since: int) -> tuple[int | None, bool]:
    """The first trainer step from `since` on whose rows have other advantages under the new rewards, and whether that
    is certain. context: its directory has the explorer steps with new rewards."""
    from ouroboros.stages.counterfactual import linked
    from ouroboros.stages.learner.batches.rollouts import Rollouts

    made = [step for step in tables.steps_present(donor, "steps") if step >= since]
    algorithm = Algorithm.of(context.config)
    replays = context.config.buffer.trainer_input.experience_buffer.replay_buffer.enable
    if algorithm.estimates or algorithm.keeps_state or replays:  # the state at step `since` is not here
        return next(iter(made), None), False
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / donor.name
        copy.mkdir()
        linked(donor, copy)
        for step in tables.steps_present(context.directory, "experience"):
            place = tables.step_file(copy, "experience", step)
            hashes.remove(place)
            place.symlink_to(tables.step_file(context.directory, "experience", step).resolve())
        source = Rollouts(replace(context, directory=copy), algorithm)
        for step in made:
            trained = tables.read(tables.step_file(donor, "trained", step), records.Trained).to_pylist()
            stored = {_bare(row["experience_id"]): row["advantage"] for row in trained if not row["is_expert"]}
            try:
                rows = source.with_advantages(source.cut(step)).rows
            except StageError:  # no row is left
                return step, True
            now = {_bare(row.id): row.advantage for row in rows if row.origin}
            if now.keys() != stored.keys() or any(not math.isclose(now[one], stored[one], abs_tol=1e-9) for one in now):
                return step, True
    return None, True


def _bare(name: str) -> str:
    """An id without the name of the stage that made the row: of rows that were taken, another one."""
    return name.partition("/")[2]


def _marked(config: Config, sets: list[tuple[str, Taskset]]) -> str:
    """Why rewards of these sets are not to be computed again: a function of the user whose `repeatable` is false."""
    names = [name for _, one in sets for name in reward_functions(one, config.buffer.explorer_input) if ":" in name]
    return next((f"{name}.repeatable is false" for name in names if not getattr(load_reward(name), "repeatable", True)),
                "")


def _renamed(scorer: Scorer, curated: Path, config: Config, own: Path) -> dict[str, str] | None:
    """Maps the ids of the tasks that were asked to those of the same tasks with their new answers, which the scorer
    then knows by both; None where the tasks are others. curated, config: of the stage that asked; own: the new."""
    if curated == own:
        return {}
    asked, now = (read_train(place, of.buffer.explorer_input)
                  for place, of in ((curated, config), (own, scorer.context.config)))
    made: dict[str, str] = {}
    if [len(tasks) for _, tasks in asked] != [len(tasks) for _, tasks in now]:
        return None
    for (_, old), (one, new) in zip(asked, now, strict=True):
        tasks, functions = scorer.tasks[one.name], scorer.rewards[one.name]
        for before, after in zip(old, new, strict=True):
            if replace(before, **ANSWER) != replace(after, **ANSWER):
                return None
            made[before.task_id] = after.task_id
            tasks[before.task_id], functions[before.task_id] = after, functions[after.task_id]
    return made


def _placed(stored: records.Experience, row: records.Experience, renamed: dict[str, str]) -> records.Experience:
    """The row that was rewarded, as the explorer would have it: replaced groups remain so."""
    kept = {"status": stored.status, "reason": stored.reason} if (
        stored.status == "no_variance" and row.status == "ok") else {}
    return replace(row, task_id=renamed.get(row.task_id, row.task_id), **kept)


def _difference(stored: records.Experience, row: records.Experience) -> str:
    """What a row has other than the stored one, in words; empty if nothing."""
    before, after = (dict(zip(REWARDED, _rewarded(one), strict=True)) for one in (stored, row))
    if before == after:
        return ""
    shown = next((name for name in ("reason", *REWARDED) if before[name] != after[name] and after[name] is not None),
                 "reward")
    return f"{stored.experience_id} has {shown} {str(after[shown])[:200]} where {str(before[shown])[:200]} is stored"


def _rewarded(row: records.Experience) -> Iterator[Any]:
    return (dict(getattr(row, name)) if name == "reward_components" else getattr(row, name) for name in REWARDED)


def _trained(config: Config, explored: int) -> int:
    """The last trainer step that reads none of explorer step `explored` and of those after it."""
    if not config.kind.is_online:
        return 0
    return rft_schedule(config, 1).last_trainer_step(explored - 1)  # the number of tasks decides only its end


def _words(error: OuroError | OSError) -> str:
    return message(error).removeprefix("ouro: ").removesuffix(".")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    signal.signal(signal.SIGALRM, Alarm.ring)
    try:
        found = answer(files.read_json(Path(sys.argv[1])), Alarm())
    except (OuroError, OSError) as error:
        found = {"unlike": _words(error)}
    files.write_json(Path(sys.argv[2]), found)
