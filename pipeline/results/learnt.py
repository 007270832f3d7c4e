"""What a run learnt: scores, the change from the first to the last evaluated model, failed attempts, last lines.

Both models answer the same tasks, so their change is the mean of the differences per task: its interval is narrower
than the two intervals of the scores, which include how much the tasks differ from one another.
"""

import math
from dataclasses import dataclass, replace

from ouroboros.operators.statistics import difference_interval, reward_interval
from ouroboros.pipeline.job.progress import PAIRED, SAMPLED, duration, interval, is_reward, leak_words, task_words
from ouroboros.pipeline.results import doctor
from ouroboros.pipeline.results.view import Node, View
from ouroboros.pipeline.settings.kinds import REPORT
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.records import Score

# rewards have no bounds, so that fewer pairs (of other tasks: tasks of either model) say nothing about their spread
FEWEST_REWARDS = 10

# what the responses to a task count in a metric, on average; as in workflows/evaluation.py
OF_TASKS = {
    "sampled_accuracy": "avg((coalesce(accuracy, 0) >= 1)::INT) FILTER (accuracy IS NOT NULL OR status <> 'ok')",
    "sampled_reward": "avg(reward) FILTER (status = 'ok')",
}


@dataclass(frozen=True)
class Change:
    """First and last model's score on one evaluation set.

    tasks: how many were paired; 0 if the models answered different ones. value, low, high: mean difference of these
    tasks with its 95% interval, which is infinite for one task; of unpaired scores their difference, and those of the
    opposite ends of their intervals. Rewards of fewer than FEWEST_REWARDS tasks have an infinite interval.
    """

    first: Score
    last: Score
    tasks: int
    value: float
    low: float
    high: float

    @property
    def too_few(self) -> bool:
        """Whether these are rewards of too few tasks for a verdict."""
        count = self.tasks or min(self.first.tasks, self.last.tasks)
        return is_reward(self.last.metric) and count < FEWEST_REWARDS

    @property
    def verdict(self) -> str:
        if self.too_few:
            return "too few"
        return "better" if self.low > 0 else "worse" if self.high < 0 else "no clear change"

    def words(self) -> str:
        """Formats `better by 4.1 points [1.0, 7.2] over 50 paired tasks`; without pairs the verdict and why."""
        if not self.tasks and not self.too_few:
            return f"{self.verdict}, by the two intervals alone: the models did not answer the same tasks"
        scale, form, unit = (1, "+z.3f", "") if is_reward(self.last.metric) else (100, "+z.1f", " points")
        value, low, high = (format(scale * number, form) for number in (self.value, self.low, self.high))
        if self.too_few:
            over = f"{self.tasks} paired tasks" if self.tasks else "other tasks than before"
            return f"{self.verdict}: {value}{unit} over {over}; a verdict on rewards needs {FEWEST_REWARDS}"
        if self.tasks == 1:
            return f"{self.verdict}: {value}{unit} on one paired task, too few for an interval"
        few = ", too few to see one" * (self.tasks < FEWEST_REWARDS and self.verdict == "no clear change")
        return f"{self.verdict}: {value}{unit} [{low}, {high}] over {self.tasks} paired tasks{few}"


def scores(view: View, benched: bool = False) -> list[Score]:
    """Returns every score of the run's complete evaluations, in the order of its stages.

    Reward models are evaluated by the stage that trains them. benched: those of the intermediate checkpoints of a model
    (mode=bench).
    """
    done = [s.directory for s in view.stages if files.is_complete(s.directory) and (
        s.kind.benches == benched if s.kind.evaluates else s.kind.learns_from_given and not benched)]
    return [score for directory in done for step in tables.steps_present(directory, "scores")
            for score in tables.read_scores(directory, step)]


def evaluated(found: list[Score]) -> list[tuple[Score, ...]]:
    """Returns each model's sampled accuracy or reward per evaluation set, in order; sets with one model are omitted.

    Uses each model's first evaluation: a bench may have evaluated it again with different sampling.
    """
    by_set: dict[tuple[str, str], dict[str, Score]] = {}
    for score in found:
        if score.metric in SAMPLED:
            by_set.setdefault((score.taskset, score.metric), {}).setdefault(score.model, score)
    groups = (list(group.values()) for group in by_set.values())
    return [tuple(group) for group in groups if len(group) > 1]


def changes(view: View) -> list[Change]:
    """Returns the change from first to last model on each evaluation set that two models of the run answered, then the
    last stage's own change on each that more did."""
    return _changes(view, scores(view))


def _changes(view: View, found: list[Score]) -> list[Change]:
    sets = evaluated(found)
    return _between(view, [*((models[0], models[-1]) for models in sets),
                           *((models[-2], models[-1]) for models in sets if len(models) > 2)])


def against(first: View, other: View, pairs: list[tuple[Score, Score]]) -> list[Change]:
    """Returns the change from a run's score to another run's, each on one evaluation set and by one metric: paired over
    tasks, where both answered the same ones."""
    sessions = [tables.connect((run.run, stage.directory) for stage in run.stages) for run in (first, other)]
    return [_change(a, b, of_tasks(sessions[0], a), of_tasks(sessions[1], b)) for a, b in pairs]


def _between(view: View, pairs: list[tuple[Score, Score]]) -> list[Change]:
    session = tables.connect((view.run, stage.directory) for stage in view.stages)
    return [_change(first, last, of_tasks(session, first), of_tasks(session, last)) for first, last in pairs]


def of_tasks(session, score: Score) -> dict[str, float | None]:
    """Maps each task behind a score to its value; null where it has none."""
    return dict(session.execute(
        f"SELECT task_id, {OF_TASKS[score.metric]} FROM samples WHERE stage = ? AND model = ? AND step = ? "
        "AND taskset = ? AND decoding = 'sampled' GROUP BY task_id ORDER BY task_id",
        [score.stage, score.model, score.step, score.taskset]).fetchall())


def _change(first: Score, last: Score, before: dict[str, float | None], after: dict[str, float | None]) -> Change:
    same = before.keys() == after.keys()
    pairs = [(before[task], after[task]) for task in before if None not in (before[task], after[task])] if same else []
    if pairs:
        interval_of = reward_interval if is_reward(last.metric) else difference_interval
        found = Change(first, last, len(pairs), *interval_of([b - a for a, b in pairs]))
    else:
        found = Change(first, last, 0, last.value - first.value, last.low - first.high, last.high - first.low)
    return replace(found, low=-math.inf, high=math.inf) if found.too_few or found.tasks == 1 else found


def failures(view: View) -> list[str]:
    """Returns a line for each stage with failed attempts: how many, the most frequent reason, a query for all."""
    session = tables.connect((view.run, stage.directory) for stage in view.stages)
    return [line for s in view.stages if s.kind.attempts if (line := _failed(session, view, s, s.kind.attempts))]


def _failed(session, view: View, stage: Node, table: str) -> str:
    rows = f"FROM {table} WHERE stage ~ '{stage.name}-[0-9a-f]+' AND status <> 'late'" + (  # rows that it took, too
        " AND turn = 0" * (table == "experience"))
    failed = f"{rows} AND reward IS NULL"
    reasons = session.execute(f"SELECT reason, count(*) {failed} GROUP BY reason ORDER BY 2 DESC, reason").fetchall()
    if not reasons:
        return ""
    count, kinds, reason = sum(n for _, n in reasons), len(reasons), reasons[0][0]
    total = session.execute(f"SELECT count(*) {rows}").fetchone()[0]
    last = f"{reason}".strip().splitlines()[-1] + f" (and {kinds - 1} more reasons)" * (kinds > 1)
    return (f"{stage.name}: {count} of {total} attempts failed: {last}\n"
            f'  ouro sql "SELECT reason, count(*) {failed} GROUP BY 1 ORDER BY 2 DESC" {view.words}')


def summary(view: View) -> str:
    """Returns the last lines of a run: scores with intervals, what was learnt, failed attempts, the report's path."""
    with tables.blamed(*(stage.directory for stage in view.stages)):
        return _summary(view)


def _summary(view: View) -> str:
    benched = [(s, f"{s.model}, step {s.step},") for s in scores(view, benched=True)]
    found_scores = scores(view)
    lines = [_noted(f"{name} on {s.taskset}: sampled {'accuracy ' * (not is_reward(s.metric))}{interval(s)}, "
                    f"{task_words(s.tasks, s.rows)} x {s.runs}", s)
             for s, name in [*benched, *((s, s.model) for s in found_scores)] if s.metric in SAMPLED]
    lines += [f"{s.model} on {s.taskset}: {interval(s)} of held-out pairs ranked right, {s.rows} pairs of {s.tasks} "
              "prompts" for s in found_scores if s.metric == PAIRED]
    found = _changes(view, found_scores)
    sets = {change.last.taskset for change in found}
    for change in found:
        first, last = change.first, change.last
        lines.append(_noted(
            f"learnt: {interval(first)} after {first.model} -> {interval(last)} after {last.model}"
            + f" ({last.taskset})" * (len(sets) > 1) + f"; {change.words()}", last))
    if not (lines or any(s.kind.evaluates for s in view.stages)):
        lines.append("no evaluation in this run: buffer.explorer_input.eval_tasksets names tasks to measure it by")
    lines += failures(view)
    if findings := doctor.found(doctor.of_run(view)):
        lines.append(f"`ouro doctor {view.words}` finds {', '.join(rule.name for rule in findings)}")
    done = [s for s in view.stages if files.is_complete(s.directory)]
    seconds = sum(files.read_json(s.directory / files.MANIFEST).get("seconds", 0) for s in done if s.kind != REPORT)
    lines.append(f"{view.run}: {len(done)} of {len(view.stages)} stages complete, {duration(seconds)} of work")
    if view.report.exists():
        lines.append(f"report: {view.report}")
    return "\n".join(lines)


def _noted(words: str, score: Score) -> str:
    """Appends the number of the score's tasks that are in the training data."""
    return "; ".join(filter(None, [words, leak_words(score)]))
