"""Twenty drawn edits of rewards, their arguments and answers: a stage that takes what it can of the one before the edit
equals one from nothing in another root, evaluations too. What may be taken follows from the rows of these two. And
faults that are planted in the comparison are found."""

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks import equality
from ouroboros.operators.generate import GENERATORS
from ouroboros.pipeline.job import rewarding
from ouroboros.pipeline.job.activity import Activity
from ouroboros.pipeline.store import files, launch, records
from ouroboros.pipeline.store.errors import StageError
from ouroboros.stages import rewarded_again
from tests.branches.conftest import parts_from
from tests.factories import row
from tests.toy.conftest import table

pytestmark = pytest.mark.branches
STEPS, SETS = 6, "buffer.explorer_input.taskset"
ON = (f"buffer.total_steps={STEPS}", "trainer.save_interval=1", "explorer.eval_interval=2",
      "buffer.explorer_input.default_reward_fn_type=mine_rewards:score", "explorer.max_failed_ratio=0.9")
TASKSETS = {"countdown": ("countdown_reward", {"dirt": 0.0}), "products": ("accuracy_reward", {"guesses": 0.0})}
DECIDING = {  # rewards decide what is explored
    "dynamic sampling": ("algorithm.max_resample_rounds=1",),
    "selector": (f"{SETS}.data_selector.selector_type=solve_rate_pools",)}
SHAPES = {"": (), **DECIDING, "greedy baseline": ("algorithm.algorithm_type=remax",),
          "late groups": ("explorer.over_rollout.ratio=0.5", "explorer.over_rollout.wait_after_min=60")}
EDITS = ("component", "accuracy", "renamed", "noted", "fails", "argument", "answer")
NEVER = 2**60
# explorer step 4 is by the weights of step 2, and reads the rates of step 3
BEHIND = ("synchronizer.sync_interval=2", f"{SETS}.data_selector.kwargs={{hard: 0.3, hard_weight: 0.001, solved: 1.0, "
          "unseen_weight: 0.001}")
MODULE = '''
import hashlib

from ouroboros.operators.reward import Judgement, load_reward


def score(response, answer, parts=PARTS):
    digest = int(hashlib.sha256(response.encode()).hexdigest(), 16)
    edit = "EDIT" if digest % parts == 1 or answer in HELD else ""
    assert edit != "fails"
    found = dict(load_reward("RIGHT")(response, answer))
    found["accuracy"] = float((found["accuracy"] or digest % 3 == 0) != (edit == "accuracy"))
    found["close" if edit == "renamed" else "near"] = len(set(response) & set(answer)) / max(len(response), 1) + (
        0.5 if edit in ("component", "argument") else 0)
    return Judgement(found, {"near": "chosen"} if edit == "noted" else {})
'''


class Case(NamedTuple):
    """step: the first explorer step with a response that the edit is of; of an answer, that of the last task. Where the
    source is edited, it is also of the responses of evaluations. words: further settings."""

    tasks: str
    shape: str
    offset: int
    edit: str
    step: int
    words: tuple[str, ...] = ()


def drawn() -> dict[str, Case]:
    """Shapes and edits in equal shares, each with a set, an offset and a step, from a fixed seed."""
    source, shapes, edits = random.Random(29), [*SHAPES] * 4, [*EDITS] * 3
    source.shuffle(shapes)
    source.shuffle(edits)
    cases = [Case(source.choice([*TASKSETS]), shape, source.choice((0, 1)), edit, source.randint(2, STEPS))
             for shape, edit in zip(shapes, edits, strict=False)]
    return {f"{number}. {one.tasks}{one.shape and ', '}{one.shape}, {('in turns', 'one step ahead')[one.offset]}: "
            f"{one.edit}": one for number, one in enumerate(cases, 1)}


CASES = drawn()


def tasks_of(name: str) -> list[records.Task]:
    made = GENERATORS[name](seed=1, tasks=9, demonstrations=0, **TASKSETS[name][1])
    return [row(records.Task, task_id=f"t{one.row}", row=one.row, split="train" if one.row < 7 else "test",
                question=one.question, answer=one.answer) for one in made]


def answered(tasks: list[records.Task], donor: Path) -> list[records.Task]:
    """The tasks with another answer to the one that was asked last, or whose groups were all late."""
    asked = table(donor, "experience")
    late = {one["task_id"] for one in asked} - {one["task_id"] for one in asked if one["status"] != "late"}
    chosen = min(late, default=[*dict.fromkeys(one["task_id"] for one in asked)][-1])
    other = next(one.answer for one in tasks if one.task_id != chosen)
    return [replace(one, task_id="new", answer=other) if one.task_id == chosen else one for one in tasks] + [
        replace(tasks[-1], task_id="p", row=60, split="preference")]


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """The stage that compares is called here, where faults are planted, and imports once."""

    def ask(donor, spec, out, rows=None, whole=False):
        with monkeypatch.context() as patch:
            if rows:
                patch.syspath_prepend(donor / launch.CODE)
            sys.modules.pop("mine_rewards", None)
            found = rewarded_again.answer(
                {"donor": donor, "spec": spec, "out": out, "rows": rows, "whole": whole}, Activity())
            sys.modules.pop("mine_rewards", None)
            return found

    monkeypatch.setattr(rewarding, "ask", ask)


@pytest.fixture
def edited(planned, run, module):
    """edited(case): a stage before the edit, and the edited one in the same root and in another. plant: called before
    the former of these begins."""

    def make(case: Case, plant=lambda: None) -> tuple[Path, Path, Path]:
        tasks = tasks_of(case.tasks)
        words = (*ON, *SHAPES[case.shape], *case.words, f"synchronizer.sync_offset={case.offset}")
        held = [one.answer for one in tasks if one.split == "test" and case.edit != "fails"]
        source = MODULE.replace("EDIT", case.edit).replace("RIGHT", TASKSETS[case.tasks][0])
        module(source.replace("PARTS", str(NEVER)).replace("HELD", "()"))
        donor = run(planned("here", *words, tasks=tasks))
        parts = parts_from(donor, case.step)
        if case.edit == "answer":
            tasks = answered(tasks, donor)
        elif case.edit == "argument":
            words += (f"{SETS}.reward_fn_args={{parts: {parts}}}",)
        else:
            module(source.replace("PARTS", str(parts)).replace("HELD", repr(held)))
        plant()
        return donor, *(run(planned(root, *words, tasks=tasks)) for root in ("here", "other"))

    return make


def first_other(donor: Path, alone: Path) -> int:
    """The first explorer step of which any row is rewarded otherwise; after the last without one."""
    ours, theirs = (equality.rows(stage, "experience") for stage in (donor, alone))
    return next((one["step"] for one, other in zip(ours, theirs, strict=False) if one != other), STEPS + 1)


@pytest.mark.parametrize("name", CASES)
def test_a_drawn_edit_ends_as_from_nothing(name, edited, record_property):
    case = CASES[name]
    donor, mended, alone = edited(case)
    assert list(equality.differences(mended, alone, evaluated=case.edit != "answer")) == []
    first = first_other(donor, alone)
    ahead = case.offset if case.shape in DECIDING and first <= STEPS else 0  # its weights are of a step before
    taken = max(first - 1 - ahead, 0)
    assert files.read_json(mended / files.MANIFEST).get("taken", {}) == ({donor.name: taken} if taken else {})
    record_property(name, f"{taken} of {STEPS} steps, the first other row in explorer step {first}"
                    if first <= STEPS else f"{taken} of {STEPS} steps, no other row")


def without(column: str):
    return lambda patch: patch.setattr(rewarded_again, "REWARDED", tuple(
        name for name in rewarded_again.REWARDED if name != column))


def late_rows_left_out(patch):
    found = rewarded_again._difference
    patch.setattr(rewarded_again, "_difference", lambda stored, row: stored.status != "late" and found(stored, row))


FAULTS = {  # -> what is planted, a case, the tables in which it is seen; of rows of no task, that the stage ends
    "a late row is left out": (late_rows_left_out, Case("countdown", "late groups", 0, "answer", 2), {"refused"}),
    "a renamed component is not seen": (without("reward_components"), Case("countdown", "", 0, "renamed", 4),
                                        {"experience"}),
    "another note is not seen": (without("notes"), Case("products", "", 0, "noted", 4), {"experience"}),
    "a selector that reads rates is taken for none": (
        lambda patch: patch.setattr(rewarding, "decide", lambda config: False),
        Case("countdown", "selector", 0, "accuracy", 3, BEHIND), {"selection"}),
    "an evaluation of before is kept": (lambda patch: patch.setattr(rewarded_again, "_evaluated", lambda *_: True),
                                        Case("products", "", 0, "accuracy", 5), {"samples", "scores"})}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault, edited, monkeypatch):
    plant, case, places = FAULTS[fault]
    try:
        _, mended, alone = edited(case, lambda: plant(monkeypatch))
        found = {line.partition(":")[0] for line in equality.differences(mended, alone)}
    except StageError:
        found = {"refused"}
    assert places <= found
