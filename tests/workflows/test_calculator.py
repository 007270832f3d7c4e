"""The tool of the recipe products, and the rows that its generator makes."""

from ouroboros.operators.curation import KEYS
from ouroboros.operators.generate import products
from ouroboros.stages.curate import as_texts
from ouroboros.workflows.calculator import product


def test_the_tool_multiplies_and_says_what_is_wrong():
    assert product('{"e": "12*34"}') == "408"
    assert {product(text) for text in ('{"e": "12"}', '{"x": 1}', "[1]", "12*34", '{"e": "__import__*2"}')} == {"error"}


def test_demonstrations_call_and_repeat_or_guess():
    rows = list(products(1, 50, 100, 0.5))
    assert rows == list(products(1, 50, 100, 0.5))
    tasks = [row for row in rows if row.solution is None]
    calls = {row.question for row in rows if row.solution and row.solution.startswith("[calc(")}
    answers = [row for row in rows if row.context]
    guesses = [row for row in rows if row.solution and row.solution.isdigit() and not row.context]
    assert (len(tasks), len(calls) + len(guesses), len(answers)) == (50, 100, len(calls))
    assert not {row.question for row in tasks} & (calls | {row.question for row in guesses})
    for row in answers:
        left, right = row.context[0]["content"].split("*")
        assert row.question == row.answer == row.solution == str(int(left) * int(right))
        assert row.context[1]["content"] == f'[calc(e="{row.context[0]["content"]}")]'


def test_both_turns_of_a_demonstration_are_held_out_together():
    row = next(row for row in products(1, 5, 20, 0.0) if row.context)
    texts = as_texts({**{name: getattr(row, name) for name in (
        "row", "question", "answer", "solution", "chosen", "rejected", "split", "messages")}, "context": row.context})
    assert KEYS["first_line"](texts) == row.context[0]["content"]
