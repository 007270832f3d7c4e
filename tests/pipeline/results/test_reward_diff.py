"""What `ouro reward diff` counts, on four attempts before and after."""

import pytest

from ouroboros.pipeline.results import reward_diff
from ouroboros.pipeline.store import records, tables
from tests.factories import row

BEFORE = {"a": (0.0, 0.0, {"digits": 0.0}), "b": (1.0, 1.0, {"digits": 1.0}), "c": (1.0, 1.0, {"digits": 1.0}),
          "d": (0.25, None, {"digits": 0.25})}
AFTER = {"a": (1.0, 1.0, {"digits": 0.5, "form": 0.5}), "b": (0.5, 0.0, {"digits": 0.5}), "c": (None, None, {}),
         "d": BEFORE["d"]}


@pytest.fixture
def found(tmp_path):
    """a is of explorer step 1, b and c are of 2, d of 3; c fails under the new function. a was taken of another stage,
    whose name it has."""
    for directory, rewards in (("stored", BEFORE), ("made", AFTER)):
        maker = "first" if directory == "stored" else "rft"
        for step, names in {1: "a", 2: "bc", 3: "d"}.items():
            tables.write(tables.step_file(tmp_path / directory, "experience", step), records.Experience, [
                row(records.Experience, experience_id=f"{maker if name == 'a' else 'rft'}/{name}", step=step, slot=slot,
                    taskset="t", task_id="1" if name < "c" else name, response=f"said by {name}", reward=reward,
                    accuracy=solved, reward_components=list(parts.items()), reason="boom" if reward is None else None,
                    status="reward_failed" if reward is None else "ok")
                for slot, name in enumerate(names) for reward, solved, parts in [rewards[name]]])
    return reward_diff._counted(tmp_path / "stored", tmp_path / "made")


def test_attempts_are_counted_by_what_changes(found):
    assert {key: value for key, value in found.items() if not isinstance(value, list)} == {
        "attempts": 4, "changed": 3, "higher": 1, "lower": 1, "newly_solved": 1, "no_longer_solved": 1,
        "newly_failed": 1, "mean_before": 2.25 / 4, "mean_after": 1.75 / 3, "first_explorer_step": 1}


def test_components_tasks_and_rows_that_change_most_are_first(found):
    assert [(one["component"], one["changed"]) for one in found["components"]] == [("digits", 3), ("form", 1)]
    assert [(one["task_id"], one["attempts"], one["changed"]) for one in found["tasks"]] == [("1", 2, 2), ("c", 1, 1)]
    assert [tuple(one.values()) for one in found["rows"]] == [
        ("rft/c", 1.0, None, "boom"), ("first/a", 0.0, 1.0, "said by a"), ("rft/b", 1.0, 0.5, "said by b")]


@pytest.mark.parametrize(("step", "certain", "figure"), [
    (7, True, " 7"), (7, False, "earliest 7"), (None, True, "no ")])
def test_the_text_has_the_first_steps(found, step, certain, figure):
    text = reward_diff.text({"run": "p/r", "stage": "rft", **found, "first_trainer_step": step, "certain": certain})
    assert figure in text.splitlines()[1]
    assert "boom" in text
