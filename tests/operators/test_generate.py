import json
from collections import Counter

import pytest

from ouroboros.operators.generate import DIRT, GENERATORS, countdown, countdown_key, expressions, is_solvable
from ouroboros.operators.reward import countdown_reward
from ouroboros.pipeline.store.errors import ConfigError
from tests.golden.messages import refuses


def test_expressions_of_three_numbers_by_hand():
    # 9 = 5 + 7 - 3: the minus belongs to the 3, so one of 5 and 7 comes first and the other two in either order
    assert expressions([3, 5, 7], 9) == ["5+7-3", "5-3+7", "7+5-3", "7-3+5"]
    assert expressions([3, 5, 7], 15) == ["3+5+7", "3+7+5", "5+3+7", "5+7+3", "7+3+5", "7+5+3"]
    assert expressions([2, 2, 2], 2) == ["2+2-2", "2-2+2"]
    assert expressions([3, 5, 7], 8) == []


@pytest.mark.parametrize(("given", "target", "expected"), [
    ([3, 5, 7], 9, True),
    ([3, 5, 7], 1, True),  # 3 + 5 - 7
    ([3, 5, 7], 2, False),  # every sum of 3, 5, 7 with signs is odd
    ([3, 5, 7], -15, False),  # all minus: no expression begins with a minus
    ([3, 5, 7], -9, True),  # 3 - 5 - 7
    ([4], 4, True),
    ([0, 5], -5, True)])  # 0 - 5
def test_is_solvable(given, target, expected):
    assert is_solvable(given, target) is expected
    assert bool(expressions(given, target)) is expected


def test_key_is_the_same_for_every_order():
    assert countdown_key([7, 3, 5], 9) == countdown_key([3, 5, 7], 9) == "9=3 5 7"


def test_clean_rows_are_distinct_solvable_and_in_the_exact_form():
    rows = list(countdown(1, tasks=60, demonstrations=40, dirt=0))
    assert [row.row for row in rows] == list(range(100))
    assert Counter(row.solution is None for row in rows) == {True: 60, False: 40}
    assert len({(row.question, row.solution) for row in rows}) == 100
    for row in rows:
        truth = json.loads(row.answer)
        assert row.question == f"{truth['target']}={' '.join(map(str, truth['numbers']))}"
        assert row.question.isascii()
        assert len(row.question) <= 20
        assert 0 <= truth["target"] <= 99
        assert is_solvable(truth["numbers"], truth["target"])
        if row.solution:
            assert " " not in row.solution
            assert countdown_reward(row.solution, row.answer)["accuracy"] == 1


def test_pairs_have_a_valid_and_a_wrong_solution_and_leave_the_other_rows_as_they_are():
    rows = list(countdown(1, tasks=20, demonstrations=10, dirt=0, pairs=200))
    pairs = [row for row in rows if row.chosen is not None]
    assert len({(row.question, row.chosen, row.rejected) for row in pairs}) == 200
    for row in pairs:
        assert countdown_reward(row.chosen, row.answer)["accuracy"] == 1
        assert countdown_reward(row.rejected, row.answer)["accuracy"] == 0
    others = {(row.question, row.solution) for row in rows if row.chosen is None}
    assert others == {(row.question, row.solution) for row in countdown(1, 20, 10, 0)}


def test_same_seed_same_rows_other_seed_other_rows():
    first, again, other = (list(countdown(seed, 30, 30, 0.2)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_dirt_comes_on_top_of_the_clean_rows_and_has_every_fault():
    clean, dirty = list(countdown(3, 50, 50, 0)), list(countdown(3, 50, 50, 0.2))
    assert len(dirty) == 120
    questions = [row.question for row in dirty]
    assert None in questions
    assert any(row.answer is None for row in dirty)
    assert any(q is not None and not q.strip() for q in questions)
    assert any(q and len(q) > 30 for q in questions)
    assert any(q and "\u00d7" in q for q in questions)
    assert any(q and q.strip() and q != q.strip() for q in questions)
    assert len({(r.question, r.answer, r.solution) for r in dirty}) < 120
    assert len(DIRT) == 10
    assert {r.question for r in clean} <= set(questions)


def test_asking_for_more_than_exists_says_how_many_there_are():
    # two numbers of 1..2: 1 1 = 0, 2; 2 2 = 0, 4; 1 2 = 1, 3; 2 1 = 1, 3
    assert len(list(countdown(1, 8, 0, 0, numbers=2, low=1, high=2))) == 8
    with refuses(ConfigError, "tasks=9", "8 distinct"):
        list(countdown(1, 9, 0, 0, numbers=2, low=1, high=2))


def test_targets_that_no_numbers_reach_are_refused():
    with refuses(ConfigError, "Raise largest_target"):
        list(countdown(1, 1, 0, 0, low=200, high=300, largest_target=0))


def test_table():
    assert GENERATORS["countdown"] is countdown
