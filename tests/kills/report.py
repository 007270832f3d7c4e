"""The tables of kills and faults, as printed and as written to tests/kills/kills.md."""

import json
from collections import Counter
from pathlib import Path

from tabulate import tabulate

from ouroboros.pipeline.store import files
from tests.kills.faults import UNTESTED

PAGE = files.HOME / "tests" / "kills" / "kills.md"
HISTORY = files.HOME / "benchmarks" / "results" / "kills.json"  # of all commits: kills by configuration, points hit
RESULTS = ("equal", "different", "hung")
HEAD = """# Killed, and going on

`make test-kill` kills the processes of runs with SIGKILL and types the same command again, several times for each run,
until it ends; then it compares weights, the content of every table and the kept checkpoints with those of a run that
was left alone, and looks into MLflow for every (metric, step), once. It goes on where it was interrupted (`.kills/`)
and then writes this page. Kills between the calls of tools are in [ledger.md](ledger.md).

A library that is loaded into every process (`tests/kills/shim.c`, `LD_PRELOAD`) sees the file operations in `store/`,
in `runs/` and on MLflow's database. A process kills itself just before the first one whose write point was not hit, or
is among some by chance that only other configurations were hit at; the next launch goes on to the next. Other kills
come before a chosen operation, in the middle of a write, or at random times. A kill counts when a log shows the
process, its operation and the path, which names the step. A write point is an operation on a kind of file by a kind of
process. Not compared: measured seconds and memory, the commit, and `rollouts.probe_max_difference`: the probe is scored
whenever weights are loaded, once more by a resumed explorer, and its tokens are those of the last batch, which a
resumed trainer does not have. The engine's log-probs of agents, and what `steps` compares with them, may differ by
1e-4: which requests are computed together depends on time. Training uses the trainer's own there
(`algorithm.bypass_old_logprobs: false`), so weights and all else are compared to the bit.
"""


def kills_of(results: Path) -> list[dict]:
    if not results.exists():
        return []
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]


def history() -> dict[str, list]:
    """Returns `counts`, the kills of each configuration and commit so far, `hit`, the write points, and `faults`, the
    date and the results of the last ones that were tried."""
    return json.loads(HISTORY.read_text(encoding="utf-8")) if HISTORY.exists() else {
        "counts": [], "hit": [], "faults": ["", []]}


def result(kill: dict) -> str:
    return kill["result"] if kill["result"] in RESULTS else "different"  # processes were left


def write_report(results: Path, faults: list[list[str]], known: dict[str, list[list[str]]]) -> None:
    """Prints the tables and writes the page. known: the write points of each configuration."""
    kills = kills_of(results)
    if not kills:
        return
    made = sorted({(one["date"], one["commit"]) for one in kills})
    points = {(*point,) for found in known.values() for point in found}
    hit = {(one["process"], one["operation"], one["kind"]) for one in kills if not one["random"]}
    before = {(*point,) for point in history()["hit"]}
    days = " to ".join(dict.fromkeys((made[0][0], made[-1][0])))
    commits = " to ".join(dict.fromkeys((kills[0]["commit"], kills[-1]["commit"])))
    lines = [HEAD, f"{len(kills)} kills, {days}, of commits {commits}; {len(points & hit)} of {len(points)} write "
             f"points were hit, with earlier commits {len(points & (hit | before))}.\n", table(kills, "github"), "",
             by_operation(kills)]
    if missing := sorted(points - hit - before):
        lines += ["", "Not hit:\n", *(f"* {process}: {operation} `{kind}`" for process, operation, kind in missing)]
    if differing := [one for one in kills if result(one) != "equal"]:
        lines += ["", "Differences:\n", *dict.fromkeys(
            f"* {one['case']}, {one['chain']}: {'; '.join([one['result'], *one['differences']])}" for one in differing)]
    earlier, (day, tried) = _remember(kills, hit, [made[-1][0], faults] if faults else history()["faults"])
    if tried:
        right = sum(not words for _, words in tried)
        lines += ["", f"## Faults\n\n{len(tried)} tried, {right} right, {day}.\n", tabulate(
            [(name, words[:200] or "right") for name, words in tried], ["fault", "result"], "github")]
    lines += ["", "Untested:\n", *(f"* {words}" for words in UNTESTED)]
    if earlier:
        lines += ["", "## Earlier commits\n", _summed(earlier)]
    text = "\n".join(lines) + "\n"
    print(text.removeprefix(HEAD))
    PAGE.write_text(text, encoding="utf-8")


def _remember(kills: list[dict], hit: set[tuple], faults: list) -> tuple[list[dict], list]:
    """Adds these kills and faults to the history; returns the counts of other commits, and the faults."""
    known, commits = history(), {one["commit"] for one in kills}
    earlier = [one for one in known["counts"] if one["commit"] not in commits]
    new = []
    for case, commit in dict.fromkeys((one["case"], one["commit"]) for one in kills):
        mine = [one for one in kills if (one["case"], one["commit"]) == (case, commit)]
        counts = dict(zip(("kills", "at random times", *RESULTS), _counts(mine), strict=True))
        new.append({"date": mine[-1]["date"], "commit": commit, "configuration": case, **counts})
    points = sorted({*map(tuple, known["hit"]), *hit})
    text = json.dumps({"counts": earlier + new, "hit": points, "faults": faults}, indent=1)
    HISTORY.write_text(f"{text}\n", encoding="utf-8")
    return earlier, faults


def _summed(counts: list[dict]) -> str:
    """The kills of earlier commits by configuration, with the day of the last one."""
    names, rows = ("kills", "at random times", *RESULTS), []
    for case in dict.fromkeys(one["configuration"] for one in counts):
        mine = [one for one in counts if one["configuration"] == case]
        rows.append((case, max(one["date"] for one in mine), len({one["commit"] for one in mine}),
                     *(sum(one[name] for one in mine) for name in names)))
    total = [sum(row[place] for row in rows) for place in range(3, 3 + len(names))]
    return tabulate([*rows, ("all", "", len({one["commit"] for one in counts}), *total)],
                    ["configuration", "last", "commits", *names], "github")


def table(kills: list[dict], form: str) -> str:
    """Kills by configuration and killed process."""
    rows = []
    for case in dict.fromkeys(one["case"] for one in kills):
        for victim in sorted({one["victim"] for one in kills if one["case"] == case}):
            mine = [one for one in kills if (one["case"], one["victim"]) == (case, victim)]
            rows.append((case, victim, *_counts(mine)))
    return tabulate([*rows, ("all", "", *_counts(kills))],
                    ["configuration", "killed", "kills", "at random times", *RESULTS], form)


def by_operation(kills: list[dict]) -> str:
    """Kills at write points, by the operation that was about to be made."""
    chosen = [one for one in kills if not one["random"]]
    rows = [(operation, *_counts([one for one in chosen if one["operation"] == operation]))
            for operation in sorted({one["operation"] for one in chosen})]
    return tabulate([(name, count, *rest) for name, count, _, *rest in rows], ["before", "kills", *RESULTS], "github")


def _counts(kills: list[dict]) -> list[int]:
    counts = Counter(map(result, kills))
    return [len(kills), sum(one["random"] for one in kills), *(counts[one] for one in RESULTS)]
