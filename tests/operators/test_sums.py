"""Sums in words: what they ask, that none is asked twice in another order, and that they are split by content."""

import re

import pytest

from ouroboros.operators.generate import sums
from ouroboros.pipeline.store.errors import ConfigError
from tests.golden.messages import refuses


@pytest.mark.parametrize(("terms", "low", "high"), [(2, 10, 99), (3, 1, 20), (4, 5, 9)])
def test_each_question_is_one_of_its_terms(terms, low, high):
    rows = list(sums(1, 60, terms, low, high))
    asked = [re.fullmatch(r"What is (\d+(?: [+-] \d+)*)\?", row.question)[1] for row in rows]
    signed = [[int(one) for one in re.findall(r"[+-]\d+", "+" + text.replace(" ", ""))] for text in asked]
    assert all(row.answer == str(sum(one)) and sum(one) >= 0 for row, one in zip(rows, signed, strict=True))
    assert all(len(one) == terms and low <= min(map(abs, one)) and max(map(abs, one)) <= high for one in signed)
    assert len({tuple(sorted(one)) for one in signed}) == len(rows) == 60
    assert {one[1] > 0 for one in signed} == {True, False}
    assert [row.row for row in rows] == list(range(60))


def test_the_seed_decides():
    first, again, other = (list(sums(seed, 20)) for seed in (1, 1, 2))
    assert first == again != other


def test_all_that_exist_and_no_more():
    asked = {row.question.removeprefix("What is ") for row in sums(1, 6, 2, 1, 2)}
    assert asked == {"1 + 1?", "1 - 1?", "2 + 1?", "2 - 1?", "2 + 2?", "2 - 2?"}
    with refuses(ConfigError, "tasks=7"):
        list(sums(1, 7, 2, 1, 2))
