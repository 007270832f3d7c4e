"""The tables of kills, as printed and as written to docs/kills.md."""

import json
from collections import Counter
from pathlib import Path

from tabulate import tabulate

COLUMNS = ("equal", "different", "hung")


def kills_of(results: Path) -> list[dict]:
    if not results.exists():
        return []
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]


def result(kill: dict) -> str:
    return kill["result"] if kill["result"] in COLUMNS else "different"  # processes were left


def write_report(results: Path) -> None:
    print(table(kills_of(results)))


def table(kills: list[dict]) -> str:
    """Kills by configuration and killed process."""
    rows = []
    for case in dict.fromkeys(one["case"] for one in kills):
        for victim in sorted({one["victim"] for one in kills if one["case"] == case}):
            mine = [one for one in kills if (one["case"], one["victim"]) == (case, victim)]
            counts = Counter(map(result, mine))
            rows.append((case, victim, len(mine), sum(one["random"] for one in mine), *(counts[c] for c in COLUMNS)))
    total = [sum(row[i] for row in rows) for i in range(2, 7)]
    return tabulate([*rows, ("all", "", *total)], ["configuration", "killed", "kills", "at random times", *COLUMNS])
