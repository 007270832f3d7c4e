"""Trains the shipped agents and measures the change in held-out accuracy, with 95% intervals.

    python -m benchmarks.agents --root /tmp/agents                       # four runs of each recipe, two cores each
    python -m benchmarks.agents --root /tmp/agents --only terminal       # one recipe; its rows join the saved results
    python -m benchmarks.agents --root /tmp/agents --rows                # no run: the rows of what is complete
    python -m benchmarks.agents --page                                   # the saved results as the table of the docs

Each recipe is run as it is shipped, with three seeds, and as a control with the first seed and the same warmup. The
control of `products` has no calculator. Without tools the other agents could do nothing, so theirs withholds what tools
answer, in training and in both evaluations: calls act, and return an empty text (benchmarks/blind.py). A lake is
seen whole at first, and most chores of `terminal` take one command: these two need the answers less than the others.

The difference is paired: accuracy after minus before on each held-out task, sampled at temperature 1. What is complete
is not made again; what failed or was not begun has a row that says so. `greedy` is the accuracy before and after of
greedy decoding, which has fewer of the guesses that a warmup learnt from half of its demonstrations. `tokens` are those
sampled for training, `seconds` those of all stages of a run, with the warmup that a control shares.
"""

import argparse
import sys
from contextlib import suppress
from pathlib import Path

from benchmarks.algorithms import TOKENS, trained
from benchmarks.lanes import side_by_side
from benchmarks.measurement import RESULTS, Measurement, run_or_page, table
from ouroboros.pipeline.job.progress import interval
from ouroboros.pipeline.results.learnt import changes, scores
from ouroboros.pipeline.results.view import View, find_view
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.errors import OuroError

PROJECT, SAVED = "agents", RESULTS / "agents.json"
BLIND = {"file_agent": "Folder", "frozen_lake": "FrozenLake", "sudoku": "Sudoku", "sql_agent": "Shop",
         "terminal": "Terminal"}  # recipe -> class of benchmarks.blind
RECIPES = ("products", *BLIND)
COLUMNS = ("recipe", "seed", "tools answer", "tasks", "before, 95%", "after, 95%", "points, 95%", "greedy", "steps",
           "tokens", "seconds")
NOT_RUN = "not run"

Case = tuple[str, int, bool]  # recipe, seed, whether it is the control


def words(case: Case) -> tuple[str, ...]:
    """The overrides of a run; its name excepted."""
    recipe, seed, control = case
    said = (f"recipe={recipe}", f"project={PROJECT}", f"seed={seed}", "monitor=none")
    if not control:
        return said
    blind = f"environment_class=benchmarks.blind:{BLIND[recipe]}" if recipe in BLIND else "tools=false"
    return (*said, *(f"buffer.explorer_input.{one}.workflow_args.{blind}" for one in ("taskset", "eval_tasksets.0")))


def run_name(case: Case) -> str:
    return f"{case[0]}-{case[1]}{'-control' if case[2] else ''}"


def row(root: Path, case: Case) -> list:
    """The cells of COLUMNS."""
    recipe, seed, control = case
    about = [recipe, seed, ("no" if recipe in BLIND else "no tool") if control else "yes"]
    view = None
    with suppress(OuroError):  # it was not begun
        view = find_view(root, f"{PROJECT}/{run_name(case)}")
    return about + (measured(view) if view and view.complete else [NOT_RUN, *[None] * (len(COLUMNS) - 4)])


def measured(view: View) -> list:
    """The cells of a complete run after its first three: scores and their change as `ouro run` prints them."""
    [change] = [one for one in changes(view) if one.last.metric == "sampled_accuracy"]
    greedy = [f"{one.value:.0%}" for one in scores(view) if one.metric == "greedy_accuracy"]
    cells = [change.tasks, interval(change.first), interval(change.last),
             f"{100 * change.value:+z.1f} [{100 * change.low:+z.1f}, {100 * change.high:+z.1f}]",
             " to ".join(greedy)]
    with tables.connect([("run", trained(view).directory)]) as session:
        cells += [session.execute(question).fetchone()[0] for question in ("SELECT count(*) FROM steps", TOKENS)]
    made = (files.read_json(stage.directory / files.MANIFEST)["seconds"] for stage in view.stages)
    return [*cells, round(sum(made))]


def joined(rows: list[list]) -> list[list]:
    """The saved rows with these in their places, by recipe; what was not run replaces nothing."""
    saved = files.read_json(SAVED)["result"]["rows"] if SAVED.exists() else []
    found = {tuple(one[:3]): one for one in [*(one for one in rows if one[3] == NOT_RUN), *saved]}
    found |= {tuple(one[:3]): one for one in rows if one[3] != NOT_RUN}
    return sorted(found.values(), key=lambda one: (RECIPES.index(one[0]), one[2] != "yes", one[1]))


def page() -> str:
    """The saved results as Markdown: a table, and the command that reproduces it."""
    saved, lines = files.read_json(SAVED), [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    lines += [f"| `{recipe}` | {' | '.join('' if one is None else str(one) for one in cells)} |"
              for recipe, *cells in saved["result"]["rows"]]
    on = saved["machine"]
    return "\n".join([*lines, "", f"`{saved['command']}`, commit {saved['commit']}, on {on['cpu']}, {on['cores']} "
                                  "cores, two for each run.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=RECIPES, default=RECIPES, help="these recipes alone")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rows", action="store_true", help="run nothing: measure what is complete")
    given = run_or_page(parser, page)
    if given is None:
        return
    said, root = Measurement(PROJECT, "Shipped agents: share of held-out tasks solved"), given.root.resolve()
    cases = [(recipe, seed, False) for seed in given.seeds for recipe in given.only]
    cases += [(recipe, given.seeds[0], True) for recipe in given.only]
    failed = [] if given.rows else side_by_side(root, {run_name(one): words(one) for one in cases})
    rows = [row(root, one) for one in cases]
    said.add(table(COLUMNS, sorted(rows, key=lambda one: RECIPES.index(one[0]))))
    said.save({"rows": joined(rows)})
    sys.exit(f"failed: {', '.join(failed)}; {root}/output has what they printed" if failed else 0)


if __name__ == "__main__":
    main()
