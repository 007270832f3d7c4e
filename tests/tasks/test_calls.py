"""calls_reward gives what bfcl_eval's own checker gives: on every row, to its answer and to changed ones."""

import copy
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ouroboros.operators.calls import solves
from ouroboros.operators.task_packages import CALL_SETS
from ouroboros.pipeline.store import packages
from tests.tasks.rows import rows

pytestmark = pytest.mark.tasks
VALUES = (0, 1, -2, 1.5, True, "x", "", [], [1], ["x"], [1.5], {}, {"x": 1}, [{}], [[1]], None)


def first(allowed: Any) -> Any:
    """A value that is allowed, of several the first that is not the mark of what may be absent."""
    return allowed if not isinstance(allowed, list) else next((one for one in allowed if one != ""), "")


def plain(value: Any) -> Any:
    """An allowed value with the first of the values of each of its keys."""
    if isinstance(value, dict):
        return {key: plain(first(one)) for key, one in value.items() if first(one) != ""}
    return [plain(one) for one in value] if isinstance(value, list) else value


def changed(calls: list[dict]) -> Iterator[list[dict]]:
    """Calls that differ from those of an answer in one thing each."""
    yield calls
    yield calls[::-1]
    yield calls[1:]
    yield [*calls, calls[0]]
    yield [{f"{name}_": given for name, given in one.items()} for one in calls]
    for at, one in enumerate(calls):
        [(name, given)] = one.items()
        for key, value in given.items():
            others = [value.upper(), f"{value}?", f" {value}-"] if isinstance(value, str) else []
            if isinstance(value, int | float):
                others += [float(value), value + 1, str(value)]
            if isinstance(value, list):
                others += [value[::-1], [*value, *value[:1]], tuple(value), [str(item) for item in value]]
            if isinstance(value, dict):
                others += [{**value, "more": 1}, dict(list(value.items())[1:]), [value]]
            for other in (*others, *VALUES):
                yield [*calls[:at], {name: given | {key: other}}, *calls[at + 1:]]
            yield [*calls[:at], {name: {k: v for k, v in given.items() if k != key}}, *calls[at + 1:]]
        yield [*calls[:at], {name: given | {"more": 1}}, *calls[at + 1:]]


@pytest.mark.parametrize("name", CALL_SETS)
def test_the_verdict_is_that_of_the_package(name):
    asked, ours = [], []
    for row in rows("bfcl-eval", name):
        truth = json.loads(row["answer"])
        own = [{one: {key: plain(first(allowed)) for key, allowed in given.items() if first(allowed) != ""}
                for one, given in call.items()} for call in truth["calls"]]
        for at, calls in enumerate(changed(own)):
            asked.append(json.dumps([truth["functions"], repr(calls), truth["calls"], name]))
            found = solves([(one, copy.deepcopy(given)) for call in calls for one, given in call.items()],
                           row["answer"])
            ours.append((at, found, calls, row["question"]))
    place = packages.folder("bfcl-eval")
    done = subprocess.run([sys.executable, Path(__file__).with_name("bfcl_verdicts.py")], input="\n".join(asked),
                          capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(place)})
    theirs = [json.loads(line) for line in done.stdout.splitlines()]
    differ = [(one, said) for one, said in zip(ours, theirs, strict=True) if isinstance(said, bool) and said != one[1]]
    print(name, Counter(str(said)[:60] for said in theirs), len(differ))
    assert not differ, differ[:3]
