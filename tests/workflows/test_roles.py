"""Attempts of several players: whose rows there are, and what each earned."""

import json

import pytest

from ouroboros.operators.worlds.kuhn import DEALS, SETS, VALUE, exploitability, value, winnings
from ouroboros.pipeline.store import records
from ouroboros.pipeline.store.errors import StageError
from ouroboros.workflows.environments.kuhn import kuhn
from ouroboros.workflows.protocol.engine import Reply
from ouroboros.workflows.protocol.outcomes import Outcome, check_failures
from ouroboros.workflows.protocol.roles import keep, reward_of, settle
from ouroboros.workflows.protocol.trajectory import Trajectory
from ouroboros.workflows.task_at_hand import TaskAtHand
from tests.factories import row
from tests.golden.messages import refuses
from tests.workflows.test_retry import Characters, rated

UNIFORM = {known: 0.5 for sets in SETS for known in sets}


def attempt(*turns, **components):
    """turns: (role, what the turn earned)."""
    *earlier, last = (Trajectory([1], [2], [-1.0], [1], "stop", role=role, reward=earned) for role, earned in turns)
    return Outcome("ok", trajectory=last, earlier=[(one, "") for one in earlier], components=components)


def test_each_role_has_the_sum_of_what_its_turns_earned():
    outcome = attempt(("white", 0.5), ("black", None), ("white", 1.0), ("black", -2.0))
    assert settle(outcome) is None
    assert outcome.components == {"white": 1.5, "black": -2.0}
    assert reward_of(outcome, "white") == (1.5, {"reward": 1.5})
    assert reward_of(outcome, "black") == (-2.0, {"reward": -2.0})


def test_players_who_work_together_share_a_reward():
    outcome = attempt(("white", None), ("black", None), reward=3.0)
    assert settle(outcome) is None
    assert [reward_of(outcome, role)[0] for role in ("white", "black")] == [3.0, 3.0]
    later = attempt(("white", None), ("black", None))  # rewarded by reward functions
    assert settle(later) is None
    later.components = {"accuracy": 1.0, "form": 0.5}
    assert reward_of(later, "white") == (1.5, {"accuracy": 1.0, "form": 0.5})


def test_an_attempt_counts_as_solved_by_its_accuracy():
    outcome = attempt(("white", None), ("black", None), white=1.0, black=-1.0, accuracy=1.0)
    assert (settle(outcome), outcome.accuracy) == (None, 1.0)
    assert reward_of(outcome, "black") == (-1.0, {"reward": -1.0})


@pytest.mark.parametrize(("turns", "components"), [
    ((("white", None), ("black", None)), {"white": 1.0}), ((("white", None),), {"white": 1.0, "black": -1.0}),
    ((("white", None),), {"green": 1.0}), ((("white", 1.0), ("black", None)), {}), ((("white", 1.0), (None, 1.0)), {}),
    ((("reward", 1.0),), {}), ((("a b", 1.0),), {}), (((7, 1.0),), {})],
    ids=["no reward", "no rows", "another", "nothing earned", "no role", "a component", "a blank", "a number"])
def test_a_role_without_rows_or_without_a_reward_fails_the_attempt(turns, components):
    assert settle(attempt(*turns, **components))


def test_an_untrained_role_makes_no_rows():
    both, alone = attempt(("white", 1.0), ("black", -1.0), ("white", None)), attempt(("black", 2.0))
    for outcome in (both, alone):
        assert settle(outcome) is None
    keep([both, alone], ["white"], True)
    assert [turn.role for _, turn, _ in both.turns] == ["white", "white"]
    assert reward_of(both, "white")[0] == 1.0
    assert (alone.status, alone.trajectory, alone.reward) == ("not_played", None, None)


def test_a_role_that_no_attempt_has_is_refused_at_first_and_later_an_attempt_that_ended_early():
    def ended():
        return attempt(("white", -1.0), ("white", 0.0))

    with refuses(StageError, "green"):
        keep([attempt(("white", 1.0), ("black", -1.0))], ["white", "green"], True)
    keep([alone := ended()], ["white", "black"], True)  # all of the policy's games may end before black's turn
    assert (alone.status, len(alone.turns)) == ("ok", 2)
    keep([alone := ended()], ["black"], False)
    assert alone.status == "not_played"
    check_failures([row(records.Experience, status=alone.status)], 0.0)


def play(settings, deal, moves):
    """The turns of a hand in which these moves are replied, and what was asked."""
    task = TaskAtHand(row(records.Task, question=deal, answer=deal), rated(), Characters(), settings())
    hand, replies, asked = kuhn([1], task), iter(moves), []
    prompt = next(hand)
    try:
        while True:
            asked.append("".join(map(chr, prompt)))
            said = asked[-1][-1] + next(replies)
            prompt = hand.send(Reply([*map(ord, said)], [-0.1, -0.7], "stop"))
    except StopIteration as ended:
        return ended.value, asked


@pytest.mark.parametrize(("deal", "moves", "first"), [
    ("JK", "pp", -1), ("KJ", "pp", 1), ("JK", "bp", 1), ("QJ", "bb", 2), ("KQ", "pbp", -1), ("KQ", "pbb", 2)])
def test_a_hand_of_kuhn_poker(settings, deal, moves, first):
    turns, asked = play(settings, deal, moves)
    assert [one.role for one in turns] == ["first", "second", "first"][: len(moves)]
    assert asked == [moves[:place] + deal[place % 2] for place in range(len(moves))]
    outcome = Outcome("ok", trajectory=turns[-1], earlier=[(one, "") for one in turns[:-1]])
    assert settle(outcome) is None
    assert outcome.components == {"first": first, "second": -first}
    assert winnings(deal, moves) == first


def test_the_value_of_kuhn_poker_and_what_its_players_lose():
    """Kuhn 1950: the first player bets a J with a from 0 to 1/3 and a K with 3 a, and calls a Q with a + 1/3; the
    second bets a J and calls a Q with 1/3. From coins a best response wins 5/12 in one seat, and 1/2 in the other."""
    assert (len(DEALS), len(UNIFORM)) == (6, 12)
    for a in (0.0, 0.2, 1 / 3):
        best = {"J": a, "Q": 0.0, "K": 3 * a, "pbJ": 0.0, "pbQ": a + 1 / 3, "pbK": 1.0,
                "pJ": 1 / 3, "pQ": 0.0, "pK": 1.0, "bJ": 0.0, "bQ": 1 / 3, "bK": 1.0}
        assert value(best) == pytest.approx(VALUE) == pytest.approx(-1 / 18)
        assert exploitability(best) == pytest.approx(0.0, abs=1e-12)
    assert value(UNIFORM) == pytest.approx(1 / 8)
    assert exploitability(UNIFORM) == pytest.approx(11 / 24)
    assert json.dumps(sorted(UNIFORM)).count("K") == 4
