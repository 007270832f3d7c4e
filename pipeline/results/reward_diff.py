"""`ouro reward diff`: the stored responses of a stage under corrected rewards, without a model."""

import json
import tempfile
from pathlib import Path
from typing import Any

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose.axes import key_of, word_of
from ouroboros.pipeline.job import rewarding
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.results.query import aligned
from ouroboros.pipeline.results.view import Node, View
from ouroboros.pipeline.settings.reward_rules import unrepeatable
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.errors import DataError, nearest

MOST = 10  # tasks, and rows, that are listed
SHOWN = 60  # characters of a response
# an attempt: its reward is in each of its rows; an id has the name of the stage that made it, which may be another one
ATTEMPTS = """CREATE TABLE attempts AS
    SELECT stored.experience_id, step, stored.taskset, stored.task_id, stored.response,
           stored.reward AS before, made.reward AS after, stored.accuracy AS solved, made.accuracy AS solves,
           stored.reward_components AS parts, made.reward_components AS new_parts, made.reason,
           before IS DISTINCT FROM after OR solved IS DISTINCT FROM solves AS differs
    FROM {stored} stored JOIN {made} made USING (step, slot, turn) WHERE turn = 0"""
# key of the answer -> question; the first has one row
QUESTIONS = {
    "attempts": """SELECT count(*) AS attempts, count_if(differs) AS changed, count_if(after > before) AS higher,
        count_if(after < before) AS lower, count(*) FILTER (solves > solved) AS newly_solved,
        count(*) FILTER (solves < solved) AS no_longer_solved,
        count_if(before IS NOT NULL AND after IS NULL) AS newly_failed,
        avg(before) AS mean_before, avg(after) AS mean_after, min(step) FILTER (differs) AS first_explorer_step
        FROM attempts""",
    "components": """SELECT component, count_if(one.value IS DISTINCT FROM other.value) AS changed,
        avg(one.value) AS mean_before, avg(other.value) AS mean_after
        FROM (SELECT experience_id, unnest(map_entries(parts), recursive := true) FROM attempts)
             one(experience_id, component, value)
        FULL JOIN (SELECT experience_id, unnest(map_entries(new_parts), recursive := true) FROM attempts)
             other(experience_id, component, value) USING (experience_id, component)
        GROUP BY component ORDER BY changed DESC, component""",
    "tasks": """SELECT taskset, task_id, count(*) AS attempts, count_if(differs) AS changed, avg(before) AS mean_before,
        avg(after) AS mean_after FROM attempts GROUP BY ALL HAVING changed > 0
        ORDER BY changed DESC, taskset, task_id LIMIT {most}""",
    "rows": """SELECT experience_id, before, after, coalesce(reason, response[:{shown}]) AS "reason or response"
        FROM attempts WHERE differs
        ORDER BY abs(after - before) DESC NULLS FIRST, step, experience_id LIMIT {most}""",
}


def choose(shown: View, name: str | None) -> Node:
    """Returns the stage of that name, or the run's last one with rollouts. Raises DataError without one."""
    able = [stage for stage in shown.stages
            if stage.kind.explores and tables.steps_present(stage.directory, "rollouts")]
    found = [stage for stage in able if name in (None, stage.name)]
    if not found:
        names = [stage.name for stage in able]
        raise DataError(f"{shown.run} has no stage '{name}' with rollouts.{nearest(name, names)} It has: "
                        f"{', '.join(names)}." if names else f"{shown.run} has no stage with rollouts.")
    return found[-1]


def diff(shown: View, stage: Node, overrides: list[str]) -> dict[str, Any]:
    """Returns the rewards of a stage's stored responses as they are and under overrides of its run, or under what its
    functions are by now: counts of attempts, tables by component, task and row, the first explorer step with another
    reward and the first trainer step with other advantages. Raises DataError where they cannot be computed."""
    frozen = [] if "recipe" in map(key_of, overrides) else [word_of("recipe", shown.path / "config.yaml")]
    planned = make_plan(compose([*frozen, word_of("checkpoint_root_dir", shown.path.parents[2]), *overrides]))
    new = next((one for one in planned.stages if one.name == stage.name), None)
    if new is None:
        raise DataError(f"the recipe has no stage '{stage.name}': {', '.join(one.name for one in planned.stages)}.")
    if words := unrepeatable(new.config):
        raise DataError(f"stage '{stage.name}' cannot be rewarded again: {words}.")
    if not files.is_complete(tasks := new.inputs["tasks"]):
        raise DataError(f"the tasks with these answers are not made yet: {tasks}. `ouro run` with the same words makes "
                        "them, and `--until` of snakemake ends it there.")
    own = files.read_json(stage.directory / "stage.json")["inputs"]["model"]  # the tokenizer of its responses
    spec = new.specification() | {"run": shown.run, "inputs": new.inputs | {"model": own}}
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / stage.directory.name
        answer = rewarding.ask(stage.directory, spec, out, whole=True)
        if answer["unlike"]:
            raise DataError(f"stage '{stage.name}' cannot be compared: {answer['unlike']}.")
        return {"run": shown.run, "stage": stage.name, **_counted(stage.directory, out),
                "first_trainer_step": answer.get("trained"), "certain": answer.get("certain", True)}


def _counted(stored: Path, made: Path) -> dict[str, Any]:
    sources = {name: tables.source(tables.step_file(place, "experience", step)
                                   for step in tables.steps_present(made, "experience"))
               for name, place in (("stored", stored), ("made", made))}
    session = tables.connect()
    session.execute(ATTEMPTS.format(**sources))
    found = {}
    for key, question in QUESTIONS.items():
        answer = session.execute(question.format(most=MOST, shown=SHOWN))
        names = [column[0] for column in answer.description]
        found[key] = [dict(zip(names, row, strict=True)) for row in answer.fetchall()]
    return found.pop("attempts")[0] | found


def text(found: dict[str, Any]) -> str:
    """Returns the answer of `diff` for a terminal."""
    head = {key: value for key, value in found.items() if not isinstance(value, list)}
    lines = [f"{found['run']}, stage {found['stage']}: {found['changed']} of {found['attempts']} attempts would be "
             f"rewarded otherwise: {found['higher']} higher, {found['lower']} lower; {found['newly_solved']} newly "
             f"solved, {found['no_longer_solved']} no longer; {found['newly_failed']} without a reward"]
    if found["changed"]:
        step, least = head["first_trainer_step"], "" if head["certain"] else "at the earliest "
        lines.append(f"the first is of explorer step {head['first_explorer_step']}; "
                     + (f"the first trainer step with other advantages is {least}{step}" if step else
                        "no trainer step has other advantages"))
    for key in ("components", "tasks", "rows") if found["changed"] else ("components",):
        if found[key]:
            lines += ["", aligned(list(found[key][0]), [list(row.values()) for row in found[key]])]
    return "\n".join(lines)


def as_json(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=2, ensure_ascii=False)
