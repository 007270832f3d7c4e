"""Kills runs until every configuration has its number of kills; goes on where it was interrupted, for each commit.

    python -m tests.kills [--only PATTERN] [--minutes N] [--place DIR] [--results FILE]
"""

import argparse
import dataclasses
import json
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from pipeline.job.context import commit
from pipeline.plan.plan import Plan
from tests.kills.cases import CASES, Case
from tests.kills.chain import Chain, Kill, any_kill, choose, differences, leading_to
from tests.kills.faults import try_all
from tests.kills.report import history, kills_of, write_report
from tests.kills.shim import Operation

PER_CHAIN = 8
TRIES = 4  # launches that do not come to a write point before it is given up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a pattern: configurations in whose name it occurs")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--place", type=Path, default=Path(".kills"), help="results, and runs while they are needed")
    parser.add_argument("--results", type=Path, help="JSON lines to append to; default: a file for each commit")
    words = parser.parse_args()
    place, deadline = words.place.resolve(), time.monotonic() + 60 * words.minutes
    results = words.results or place / f"kills-{commit()}.jsonl"
    source = upstream(place)
    sessions = [Session(case, place, results, source) for case in CASES if re.search(words.only, case.name)]
    while time.monotonic() < deadline and (waiting := [one for one in sessions if one.left() > 0]):
        max(waiting, key=lambda one: (one.few() / one.case.kills, one.left())).chain(deadline)
    faults = place / f"faults-{commit()}.json"
    if not faults.exists() and time.monotonic() < deadline and not words.only:
        faults.write_text(json.dumps(try_all(place / "faults", source)))
    write_report(results, json.loads(faults.read_text()) if faults.exists() else [],
                 {one.case.name: sorted(one.known) for one in sessions})


def upstream(place: Path) -> Plan:
    """Complete stages for the others to begin with."""
    case = Case("upstream", 0, ("buffer.total_steps=1",), "")
    root = place / "upstream"
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
        self.missed: Counter[Operation] = Counter()
        self.origins: dict[Operation, list[Kill]] = {}  # the kills after which a run came to a point
        self.before = {Operation(*point) for point in history()["hit"]}
        if self.points.exists():  # of an earlier call
            self._add({Operation(*words): count for *words, count in json.loads(self.points.read_text())})

    def few(self) -> int:
        """How many kills its number is short of."""
        return max(0, self.case.kills - sum(one["case"] == self.case.name for one in kills_of(self.results)))

    def left(self) -> int:
        """How many kills are needed: at least one while a write point was not hit."""
        return max(self.few(), len(self.known.keys() - self._done()))

    def _done(self) -> set[Operation]:
        """Write points that were hit, in any configuration and commit, or that some launches did not come to."""
        hit = self.before | {Operation(one["process"], one["operation"], one["kind"]) for one in kills_of(self.results)
               if not one["random"]}
        return hit | {point for point, count in self.missed.items() if count > TRIES}

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
        expected = self.undisturbed()
        found = Chain(self.case, self.place / f"killed-{int(time.time())}", self.source)
        number = min(PER_CHAIN, self.left())
        others = number // 4 if self.few() else 0  # at any place and time
        kills = self._at_points(expected, number - others)
        for _ in range(min(others, number - len(kills))):
            kill = any_kill(self.known, self.case, expected.seconds, self.dice)
            kills.insert(self.dice.randint(0, len(kills)), kill)
        code = None
        for kill in kills:
            if time.monotonic() < deadline and code != 0:
                code = found.launch(kill)
                if kill.point and not (found.kills and not found.kills[-1].random
                                       and found.kills[-1].launch == found.launches):
                    self.missed[kill.point] += 1
        if code != 0:
            code = found.launch(None)
        words = differences(self.case, found, expected) if code == 0 else [
            f"exit code {code}: {found.output()[-600:]}"]
        self._learn(found)
        self._append(found, words)
        if not words and not any(one.ended for one in found.kills):
            shutil.rmtree(found.root)
        else:
            print(f"kept for inspection: {found.root}", flush=True)

    def _at_points(self, expected: Chain, number: int) -> list[Kill]:
        """Kills at points that were not hit: of an undisturbed run, and if these are few, some that kills lead to."""
        order, done = list(expected.traces), self._done()
        always = Counter({point: self.known[point] for point in order if point in self.known})
        found = [[kill] for kill in choose(always, done, number, self.dice)]
        later = [point for point in self.known if point not in done and point not in always]
        counts = Counter({point: expected.traces.get(point, 1) for point in self.known})
        found += [leading_to(point, counts, self.origins, expected.seconds, self.dice)
                  for point in self.dice.sample(later, min(len(later), -(-(number - len(found)) // 3)))]
        place = {point: index for index, point in enumerate(order)}
        return [kill for kills in sorted(found, key=lambda kills: place.get(kills[0].point, 0)) for kill in kills]

    def _learn(self, chain: Chain) -> None:
        """Adds the write points of a chain: some come only when a stage resumes."""
        self._learn_origins(chain)
        self._add(chain.traces)
        self.points.write_text(json.dumps([(*point, count) for point, count in self.known.items()]))

    def _add(self, points: Mapping[Operation, int]) -> None:
        chosen = re.compile(self.case.points)
        self.known |= Counter({point: n for point, n in points.items() if chosen.fullmatch(point.process)})

    def _learn_origins(self, chain: Chain) -> None:
        """Remembers the kills of the two launches before one that came to a point of no undisturbed run."""
        if self.expected is None or chain is self.expected:
            return
        kills = {one.launch: Kill("self", Operation(one.process, one.operation, one.kind), one.count)
                 for one in chain.kills if not one.random and one.victim == one.process}
        for launch, seen in enumerate(chain.seen, 1):
            for point in seen - self.expected.traces.keys() - self.origins.keys():
                if launch - 1 in kills:
                    self.origins[point] = [kills[one] for one in (launch - 2, launch - 1) if one in kills]

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
