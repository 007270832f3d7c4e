"""Kills runs until every configuration has its number of kills; goes on where it was interrupted, for each commit.

    python -m tests.kills [--only PATTERN] [--minutes N] [--place DIR] [--results FILE]
"""

import argparse
import dataclasses
import json
import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Mapping
from datetime import date
from functools import cache
from pathlib import Path

from ouroboros.pipeline.job.context import commit
from ouroboros.pipeline.plan.plan import Plan
from ouroboros.pipeline.store import files
from tests.kills.cases import CASES, Case
from tests.kills.chain import Chain, Kill, any_kill, differences, near
from tests.kills.faults import try_all
from tests.kills.report import history, kills_of, write_report
from tests.kills.shim import Operation
from tests.toy.conftest import SMALL

PER_CHAIN = 10
FRUITLESS = 8  # chains one after the other that hit no new write point: the rest is not reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a pattern: configurations in whose name it occurs")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--place", type=Path, default=Path(".kills"), help="results, and runs while they are needed")
    parser.add_argument("--results", type=Path, help="JSON lines to append to; default: a file for each commit")
    words = parser.parse_args()
    place, deadline = words.place.resolve(), time.monotonic() + 60 * words.minutes
    results = words.results or place / f"kills-{commit()}.jsonl"
    sessions = [Session(case, place, results, upstream(place, case.settings)) for case in CASES
                if re.search(words.only, case.name)]
    while time.monotonic() < deadline and (waiting := [one for one in sessions if one.left() > 0]):
        max(waiting, key=lambda one: (one.few() / one.case.kills, one.left())).chain(deadline)
    faults = place / f"faults-{commit()}.json"
    if not faults.exists() and time.monotonic() < deadline and not words.only:
        faults.write_text(json.dumps(try_all(place / "faults", upstream(place, tuple(SMALL)))))
    write_report(results, json.loads(faults.read_text()) if faults.exists() else [],
                 {one.case.name: sorted(one.known) for one in sessions})


@cache
def upstream(place: Path, settings: tuple[str, ...]) -> Plan:
    """Complete stages for configurations of these settings to begin with."""
    case = Case("upstream", 0, ("buffer.total_steps=1",), "", settings=settings)
    root = place / f"upstream-{files.hash_json(settings)[:8]}"
    if not (root / "complete").exists():
        made = Chain(case, root, None)
        assert made.launch(None) == 0, made.output()
        (root / "complete").touch()
    return case.plan(root, None)


class Session:
    """The kills of one configuration."""

    def __init__(self, case: Case, place: Path, results: Path, source: Plan):
        self.case, self.results, self.source = case, results, source
        self.place = place / case.name.replace(",", "").replace(" ", "-")
        self.dice = random.Random(f"{case.name} {len(kills_of(results))} {time.time()}")
        self.expected: Chain | None = None
        self.points = place / f"points-{self.place.name}.json"
        self.known: Counter[Operation] = Counter()
        self.fruitless = 0
        self.before = {Operation(*point) for point in history()["hit"]}
        if self.points.exists():  # of an earlier call
            self._add({Operation(*words): count for *words, count in json.loads(self.points.read_text())})

    def few(self) -> int:
        """How many kills its number is short of."""
        return max(0, self.case.kills - sum(one["case"] == self.case.name for one in kills_of(self.results)))

    def left(self) -> int:
        """How many kills are needed: those that its number is short of, and one for each write point."""
        points = len(self._unhit()) if self.known else 1  # of a run that was not traced yet
        return max(self.few(), points if self.fruitless < FRUITLESS else 0)

    def _hit(self, here: bool = False) -> set[Operation]:
        """The write points that were hit, in any configuration and commit; here: in this one and commit."""
        return (set() if here else self.before) | {
            Operation(one["process"], one["operation"], one["kind"]) for one in kills_of(self.results)
            if not one["random"] and (not here or one["case"] == self.case.name)}

    def _unhit(self) -> set[Operation]:
        return self.known.keys() - self._hit()

    def undisturbed(self) -> Chain:
        if self.expected is None:
            self.expected = Chain(self.case, self.place / "whole", self.source)
            code = self.expected.launch(None)
            assert code == 0, self.expected.output()
            self._learn(self.expected)
            print(f"{self.case.name}: undisturbed {self.expected.seconds:.0f} s, {len(self.known)} kinds of write "
                  "points", flush=True)
        return self.expected

    def chain(self, deadline: float) -> None:
        """Kills a run at every write point that was not hit, as it comes to them, until it ends or was killed often.

        Where an undisturbed run has none left, another kill comes first: it leaves files that the next launch removes.
        While kills are short of the configuration's number, the run is also killed where only others were.
        """
        expected, before = self.undisturbed(), len(self._hit())
        unhit, again = self._unhit(), self._again(expected)
        found = Chain(self.case, self.place / f"killed-{int(time.time())}", self.source)
        kills = [] if unhit & expected.traces.keys() else [self._first(expected, unhit)]
        code = None
        while code != 0 and found.launches < PER_CHAIN and time.monotonic() < deadline:
            hit = (self._hit() - again) | {Operation(one.process, one.operation, one.kind) for one in found.kills}
            code = found.launch(kills.pop() if kills else Kill(hit=frozenset(hit)))
        if code != 0:
            code = found.launch(None)
        words = differences(self.case, found, expected) if code == 0 else [f"exit code {code}: {found.output()[-600:]}"]
        self._learn(found)
        self._append(found, words)
        self.fruitless = 0 if len(self._hit()) > before else self.fruitless + 1
        if not words and not any(one.ended for one in found.kills):
            shutil.rmtree(found.root)
        else:
            print(f"kept for inspection: {found.root}", flush=True)

    def _again(self, expected: Chain) -> set[Operation]:
        """Write points of an undisturbed run that were hit in other configurations and not in this one: by chance, as
        many as a chain has kills and the configuration's number needs."""
        elsewhere = self._hit() - self._hit(here=True)
        others = [point for point in expected.traces if point in self.known and point in elsewhere]
        return set(self.dice.sample(others, min(len(others), self.few(), PER_CHAIN)))

    def _first(self, expected: Chain, unhit: set[Operation]) -> Kill:
        always = Counter({point: n for point, n in expected.traces.items() if point in self.known})
        way = self.dice.random()
        if not unhit or way < 0.2:
            return any_kill(always, self.case, expected.seconds, self.dice)
        if way < 0.5:
            return Kill("self", self.dice.choice(list(always)))
        point = self.dice.choice(sorted(unhit))
        if ".error" in point.kind:  # written when something ends early
            name, how = self.dice.choice([("stage", signal.SIGTERM), ("trainer", signal.SIGTERM),
                                          ("explorer", signal.SIGTERM), ("ouro", signal.SIGTERM)])
            return Kill(name, after=self.dice.uniform(0.2, 1.0) * expected.seconds, signal=how,
                        hit=frozenset(self._hit()))
        return near(point, always, self.dice)

    def _learn(self, chain: Chain) -> None:
        """Adds the write points of a chain: some come only when a stage resumes."""
        self._add(chain.traces)
        self.points.write_text(json.dumps([(*point, count) for point, count in self.known.items()]))

    def _add(self, points: Mapping[Operation, int]) -> None:
        self.known |= Counter({point: n for point, n in points.items()
                               if point.process.startswith(self.case.processes)})

    def _append(self, found: Chain, words: list[str]) -> None:
        self.results.parent.mkdir(parents=True, exist_ok=True)
        with open(self.results, "a", encoding="utf-8") as file:
            for one in found.kills:
                row = {"case": self.case.name, "engine": self.case.engine, "date": str(date.today()),
                       "commit": commit(), "chain": found.root.name,
                       "result": one.ended or ("different" if words else "equal"),
                       "differences": words, **dataclasses.asdict(one)}
                file.write(json.dumps(row) + "\n")
                print(f"{self.case.name}: {one.victim} killed, {one.process} {one.operation} {one.path}: "
                      f"{row['result']}", flush=True)
        for line in words:
            print(f"  DIFFERENT {line}", flush=True)


if __name__ == "__main__":
    main()
