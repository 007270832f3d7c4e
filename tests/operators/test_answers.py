"""Marks of final answers: a table as a teacher marks it, where a response gives its answer, and hostile answers."""

import threading
from pathlib import Path

import pytest
import yaml

from operators.reward import accuracy_reward

TABLE = [(found, truth, expected)
         for truth, *marks in yaml.safe_load(Path(__file__).with_name("answers.yaml").read_text(encoding="utf-8"))
         for expected, answers in zip((1, 0), marks, strict=True) for found in answers]


def test_the_table_is_large():
    assert len(TABLE) >= 300


@pytest.mark.parametrize(("found", "truth", "expected"), TABLE)
def test_a_boxed_answer(found, truth, expected):
    assert accuracy_reward(f"So \\boxed{{{found}}}.", truth)["accuracy"] == expected


@pytest.mark.parametrize(("response", "truth", "expected"), [
    ("#### Step 1: add\n40+2=42\n\n\\boxed{42}", "42", 1), ("#### Final Answer\n42", "42", 1),
    ("#### Answer\n\\boxed{42}", "42", 1), ("#### 1. Add 40\nso \\boxed{42}", "42", 1),
    ("#### Solution:\n\\boxed{42}\n#### 42", "42", 1), ("\\boxed{41}\n#### 42", "42", 1),
    ("\\boxed{42}\n#### 41", "42", 0), ("#### 41\n\\boxed{42}", "42", 0), ("#### 41\n#### 42", "42", 1),
    ("#### 42\n#### Check of the result\n40+3", "42", 1), ("#### \\frac{3}{4}", "3/4", 1),
    ("#### $\\frac34$", "3/4", 1),
    ("#### B", "B", 1), ("#### (B)", "B", 1), ("#### Paris", "Paris", 1), ("#### New York", "New York", 1),
    ("#### **42**", "42", 1), ("#### 42 apples", "42", 1), ("##### 42\n\\boxed{41}", "42", 0),
    ("\\boxed{42} of \\boxed{41", "42", 1), ("\\boxed{\\{1,2\\}}", "\\{1,2\\}", 1),
    ("The answer is \\frac{3}{4}", "4", 0), ("The answer is \\frac{3}{4}", "3/4", 1), ("2^{10}", "10", 0),
    ("2^{10}", "1024", 1), ("x_1 = 3, x_2", "2", 0), ("\\boxed{42", "42", 0), ("The answer is −5", "5", 0),
    ("The answer is −5", "-5", 1), ("It is $x = 3$.", "3", 1), ("It is $\\frac{3}{4}$.", "4", 0), ("at 12:30", "30", 0),
    ("at 12:30", "12:30", 1), ("It is 3 1/2.", "3.5", 1), ("It is 1e-05.", "0.00001", 1), ("It is 50%.", "0.5", 1),
    ("Paris", "Paris", 1), ("Paris\n", "Paris", 1), ("B", "B", 1), ("Yes", "Yes", 1), ("Yes", "No", 0),
    ("It is not Paris", "Paris", 0), ("A", "B", 0), ("", "B", 0), ("sum\n#### 42", "steps\n#### 42", 1),
])
def test_where_a_response_gives_its_answer(response, truth, expected):
    assert accuracy_reward(response, truth)["accuracy"] == expected


@pytest.mark.parametrize("answer", [
    "9^{9^9}", "9^9^9", "9**9**9", "1000000!", "(10^6)!", "((9!)!)!", "2^{10000000}", "10^{(10^{10})}", "x^{9^{9^9}}",
    "(9^{60})^{60}", "(x+y+z)^{500}", "9" * 400 + "+1", "1e999999999", "1/2004!-1/2006!", "{" * 400, "\\frac{1}{0}",
    "(" * 500, "\\boxed{" * 20_000], ids=lambda answer: answer[:20])
def test_a_hostile_answer_is_wrong_at_once_in_every_thread(answer):
    marks: list[float] = []
    other = threading.Thread(
        target=lambda: marks.append(accuracy_reward(f"\\boxed{{{answer}}}", "42")["accuracy"]), daemon=True)
    other.start()
    other.join(10)
    assert marks == [0.0]  # within 10 s, though no signal ends a call there
