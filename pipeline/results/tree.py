"""`ouro tree`: training stages of runs that begin alike, the trunk first, and below it what branches from it."""

from ouroboros.pipeline.results import query
from ouroboros.pipeline.results.compare import last_scores, metric_of
from ouroboros.pipeline.results.view import View
from ouroboros.pipeline.settings.secrets import mask
from ouroboros.pipeline.store import files, tables


def tree(runs: list[View]) -> query.Answer:
    """Returns a row for each training stage that branches, or that another one branches from: its run, indented below
    its trunk, what it changed last, the steps that it has made and the run's score.

    Stages begin alike if their trunks have equal settings (plan/identity.py).
    """
    metric, groups = metric_of(runs), {}
    for run in runs:
        score = next((one.value for one in last_scores(run) if one.metric == metric), None)
        for stage in (one for one in run.stages if one.kind.trains and (one.directory / "stage.json").exists()):
            spec = files.read_json(stage.directory / "stage.json")
            given = [(int(step), ", ".join(f"{key}={value}" for key, value in sorted(mask(values).items())))
                     for step, values in spec["config"].get("changes", {}).items()]
            steps = max(tables.steps_present(stage.directory, "steps"), default=0)
            groups.setdefault(spec.get("trunk", {}).get("settings"), []).append(
                (sorted(given), run.run, stage.name, steps, score))
    branching = [sorted(group, key=lambda one: one[:2]) for group in groups.values() if any(one[0] for one in group)]
    return query.Answer(["run", "stage", "changes", "steps", "value", "metric"], [
        ("  " * len(given) + run, name, "".join(f"@{step} {words}" for step, words in given[-1:]), steps, score, metric)
        for group in branching for given, run, name, steps, score in group])
