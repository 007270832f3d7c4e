"""The scorers of a package, in a sandbox: what stands in <answer>, no harm by an answer, and no result that it made."""

import pytest

from ouroboros.pipeline.settings.arguments.answers import REWARDS
from ouroboros.workflows.attempts.packaged_rewards import extracted, reasoning_gym_reward
from tests.task_package import fetched
from tests.workflows.test_harbor import confined


@pytest.mark.parametrize(("response", "truth", "answer"), [
    ("<think>2?</think> <answer> 5 </answer>", "4", "5"),
    ("<answer>3</answer> no: <answer>4</answer>", "7", "4"),
    ("It is 3, and so the answer is 12.", "12", "12"),
    ("so \\boxed{a b}", "c", "a b"),
    ("LEFT\nRIGHT", "", "LEFT\nRIGHT")])
def test_an_answer_stands_in_its_tags_or_is_the_final_one(response, truth, answer):
    assert extracted(response, truth).rstrip(".") == answer


@confined
def test_the_scorer_judges_each_answer_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fetched(tmp_path)
    hostile = "__import__('os')._exit(0)"
    answers = ["42", "41 + 1", "41", hostile, f"open({str(tmp_path / 'made')!r}, 'w')", "long", "42"]
    about = {"generator": "sums", "arguments": {}, "n": 41}
    found = reasoning_gym_reward([f"<answer>{one}</answer>" for one in answers], ["42"] * 7, [about] * 7, 0.5)
    assert tuple(found[0]) == REWARDS["reasoning_gym_reward"].components
    assert [one["accuracy"] for one in found] == [1, 1, 0, 0, 0, 0, 1]
    assert [one["partial_credit"] for one in found] == [0, 0, 0.125, 0, 0.125, 0, 0]  # a file of the sandbox
    assert [one.notes for one in found if one.notes] == [{"accuracy": "limit"}] * 2
    assert not (tmp_path / "made").exists()
