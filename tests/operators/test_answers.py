"""Marks of final answers: a table as a teacher marks it, where a response gives its answer, and hostile answers."""

import threading
from pathlib import Path

import pytest
import yaml

from ouroboros.operators.reward import accuracy_reward
from ouroboros.workflows.attempts.user_reward import Rule

TABLE = [(found, truth, expected)
         for truth, *marks in yaml.safe_load(Path(__file__).with_name("answers.yaml").read_text(encoding="utf-8"))
         for expected, answers in zip((1, 0), marks, strict=True) for found in answers]


RESPONSES = [(response, truth, expected)
             for truth, *marks in yaml.safe_load(
                 Path(__file__).with_name("responses.yaml").read_text(encoding="utf-8"))
             for expected, responses in zip((1, 0), marks, strict=True) for response in responses]


def test_the_tables_are_large():
    assert min(len(TABLE), len(RESPONSES)) >= 300


@pytest.mark.parametrize(("response", "truth", "expected"), [
    ("\\boxed{34 + 50}", "84", 1), ("#### 84/1", "84", 1), ("<answer>34 + 50</answer>", "84", 1),
    ("\\boxed{\\sqrt{8}}", "2\\sqrt{2}", 1), ("34 + 50", "84", 0), ("<think>a</think>34 + 50", "84", 0),
    ("\\boxed{34 + 51}", "84", 0)])
def test_operations_that_are_left_count_where_they_are_asked_for_but_never_in_prose(response, truth, expected):
    assert accuracy_reward(response, truth, allow_unevaluated=True)["accuracy"] == expected


@pytest.mark.parametrize(("found", "truth", "expected"), TABLE)
def test_a_boxed_answer(found, truth, expected):
    assert accuracy_reward(f"So \\boxed{{{found}}}.", truth)["accuracy"] == expected


@pytest.mark.parametrize(("response", "truth", "expected"), [
    *RESPONSES, ("#### Step 1: add\n40+2=42\n\n\\boxed{42}", "42", 1), ("#### Final Answer\n42", "42", 1),
    ("#### Answer\n\\boxed{42}", "42", 1), ("#### 1. Add 40\nso \\boxed{42}", "42", 1),
    ("#### Solution:\n\\boxed{42}\n#### 42", "42", 1), ("\\boxed{41}\n#### 42", "42", 1),
    ("\\boxed{42}\n#### 41", "42", 0), ("#### 41\n\\boxed{42}", "42", 0), ("#### 41\n#### 42", "42", 1),
    ("#### 42\n#### Check of the result\n40+3", "42", 1), ("#### \\frac{3}{4}", "3/4", 1),
    ("#### $\\frac34$", "3/4", 1), ("#### B", "B", 1), ("#### (B)", "B", 1), ("#### Paris", "Paris", 1),
    ("#### New York", "New York", 1), ("#### **42**", "42", 1), ("#### 42 apples", "42", 1),
    ("##### 42\n\\boxed{41}", "42", 0), ("\\boxed{42} of \\boxed{41", "42", 1), ("\\boxed{\\{1,2\\}}", "\\{1,2\\}", 1),
    ("The answer is \\frac{3}{4}", "4", 0), ("The answer is \\frac{3}{4}", "3/4", 1), ("2^{10}", "10", 0),
    ("2^{10}", "1024", 0), ("x_1 = 3, x_2", "2", 0), ("\\boxed{42", "42", 0), ("The answer is −5", "5", 0),
    ("The answer is −5", "-5", 1), ("It is $x = 3$.", "3", 1), ("It is $\\frac{3}{4}$.", "4", 0), ("at 12:30", "30", 0),
    ("at 12:30", "12:30", 1), ("It is 3 1/2.", "3.5", 1), ("It is 1e-05.", "0.00001", 1), ("It is 50%.", "0.5", 1),
    ("Paris", "Paris", 1), ("Paris\n", "Paris", 1), ("B", "B", 1), ("Yes", "Yes", 1), ("Yes", "No", 0),
    ("It is not Paris", "Paris", 0), ("A", "B", 0), ("", "B", 0), ("sum\n#### 42", "steps\n#### 42", 1),
    ("#### Approach\n\\boxed{42}", "42", 1), ("#### Lösung\n\\boxed{42}", "42", 1), ("#### 解答\n\\boxed{42}", "42", 1),
    ("#### Paris\n\\boxed{London}", "London", 0), ("It is (3, 4).", "(3,4)", 1), ("It is (3, 4).", "4", 0),
    ("x \\in [1, 6]", "[1,6]", 1), ("x \\in [1, 6]", "6", 0), ("C(5, 2)", "2", 0), ("It is 5 + 37", "42", 0),
    ("It is 5 + 37", "37", 0), ("It is 6 * 7", "7", 0), ("\\sqrt 2", "2", 0), ("log_2 8", "8", 0), ("x < 5", "5", 0),
    ("It is 2 x 10^5", "200000", 1), ("It is 45 678", "45678", 1), ("It is 45 678", "678", 0), ("It is 2 \\pi", "2", 0),
    ("minus 5", "5", 0), ("minus 5", "-5", 1), ("- 5", "-5", 1), ("Both:\n- 4\n- 5", "5", 1), ("36 cm^2", "36", 1),
    ("x²", "2", 0), ("12 \\text{ cm}", "12", 1), ("5 choose 2", "2", 0)])
def test_where_a_response_gives_its_answer(response, truth, expected):
    assert accuracy_reward(response, truth)["accuracy"] == expected


# never compared by value: beyond the bounds, for which no process is asked
BOUNDED = [
    "9^{9^9}", "9^9^9", "9**9**9", "1000000!", "(10^6)!", "((9!)!)!", "2^{10000000}", "10^{(10^{10})}", "x^{9^{9^9}}",
    "(9^{60})^{60}", "(x+y+z)^{500}", "9" * 400 + "+1", "1e999999999", "1/2004!-1/2006!", "{" * 400, "(" * 500,
    "(" * 60 + "x" + ")" * 60, "x^{" * 20 + "2" + "}" * 20, "(x+1)^{64}(y+1)^{64}", "\\sqrt[3]{" * 40 + "2" + "}" * 40,
    "\\frac{1}{" * 13 + "x" + "}" * 13, "10^{10^{10}}=x", "2^{64}^{64}", "1" + "0" * 80 + "^{2}", "x" * 10_000,
    "\\frac{1}{2}+" * 60, "\\log(" * 15 + "5" + ")" * 15, "\\sum_{i=1}^{10^9} i", "\\prod_{i=1}^{100000} i",
    "\\sum_{i=1}^{1000000} \\frac{1}{i}", "\\left(" * 65]
# of these a process is asked, unless they are plainly something else
HOSTILE = [
    "\\binom{10^9}{5*10^8}", "\\binom{100000}{50000}", "\\int",
    "\\int_0^\\infty \\frac{\\sin(x^{63})}{\\ln(x+\\sqrt{x})} dx",
    "\\int \\int \\sin(\\cos(\\tan(x))) dx dy", "\\sqrt{" * 12 + "2" + "}" * 12, "-" * 400 + "1", "1+" * 250 + "1",
    "\\log(" * 9 + "5" + ")" * 9, "|" * 40 + "x" + "|" * 40, "\\infty-\\infty", "0^{0}", "\\frac{1}{0}", "\\frac{0}{0}",
    "\\lim_{x \\to 0} \\frac{\\sin x}{x}", "\\tan(10^{59})", "\\pi^{64}" * 40, "e^{x}" * 60,
    "\\overline{" * 12 + "1" + "}" * 12,
    "\\begin{pmatrix}" + "\\\\".join(["x&y&z"] * 9) + "\\end{pmatrix}^{-1}", "{" * 12 + "x" + "}" * 12, "x=1," * 100,
    "\\{" + ",".join(map(str, range(150))) + "\\}", "&" * 200, "\\" * 301, "#" * 300, "\x00\x01", "𝟗" * 100, "\ud800",
    "\\sum_{n=0}^{\\infty} \\frac{x^n}{n+1}", "\\prod_{n=1}^{\\infty} (1-\\frac{1}{n^2})", "i^{i}", "\\boxed{" * 20_000]


@pytest.mark.parametrize("answer", BOUNDED, ids=lambda answer: answer[:20])
def test_an_answer_beyond_the_bounds_is_wrong_at_once_with_a_note(answer, monkeypatch):
    monkeypatch.setattr("ouroboros.operators.answers.WORKERS", None)
    is_closed = answer.count("{") == answer.count("}")
    found = accuracy_reward(f"\\boxed{{{answer}}}" if is_closed else f"#### {answer}", "42")
    assert found == {"accuracy": 0.0}
    assert found.notes == {"accuracy": "limit"}


@pytest.mark.slow
def test_hostile_answers_end_in_time_in_every_thread():
    found: list = []
    rule = Rule(accuracy_reward, {"timeout_seconds": 1}, retries=0)
    rows = [f"\\boxed{{{answer}}}" for answer in BOUNDED + HOSTILE]
    for truth in ("42", "\\sqrt{x}+1"):  # a number, and no number
        other = threading.Thread(target=lambda: found.extend(
            rule([[]] * len(rows), rows, [truth] * len(rows), [1] * len(rows))), daemon=True)  # noqa: B023
        other.start()
        other.join(300)
    assert found == [{"accuracy": 0.0}] * 2 * len(rows)
