"""Advantages of agents in turns: two runs of one task, two turns each, by hand."""

import math
from itertools import product

import numpy as np
import pytest

from ouroboros.operators.advantages import steps
from ouroboros.pipeline.settings.declared import ADVANTAGES
from ouroboros.pipeline.store.errors import DataError
from tests.factories import advantage_batch, called
from tests.golden.messages import refuses

gigpo, step_wise_grpo = map(called, (steps.Gigpo, steps.StepWiseGrpo))

HALF = 1 / math.sqrt(2)


def runs(*rows):
    """rows: (group, run, turn, state, reward, step reward)"""
    names = ("group_id", "run_index", "turn", "state_hash", "reward", "step_reward")
    return advantage_batch(**dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def answers(function, batch, **given):
    made = function(batch, **given)
    found = dict(zip(made["experience_id"].to_pylist(), made["advantage"].to_pylist(), strict=True))
    return [found.get(id_) for id_ in batch["experience_id"].to_pylist()]


# run 0 goes s, u and ends well; run 1 goes s, u and does not
TWO = (("g", 0, 0, "s", 9.0, 0.0), ("g", 0, 1, "u", 1.0, 1.0), ("g", 1, 0, "s", 9.0, 0.0), ("g", 1, 1, "u", 0.0, 0.0))


def test_step_wise_grpo_counts_runs_and_not_turns():
    """Run 0 takes three turns, run 1 one: the mean of 1 and 0 is 1/2 all the same. The turns come in any order."""
    found = answers(step_wise_grpo, runs(("g", 0, 2, "s", 1.0, None), ("g", 0, 0, "s", 0.0, None),
                                         ("g", 0, 1, "s", 0.0, None), ("g", 1, 0, "s", 0.0, None)), epsilon=1.0)
    scale = 0.5 / (HALF + 1)
    assert found == pytest.approx([scale, scale, scale, -scale])
    # Runs 1 0 and 3 3: mean 7/4, std 3/2 (see grpo).
    rows = [*TWO, ("h", 0, 0, "s", 3.0, None), ("h", 1, 0, "s", 3.0, None)]
    assert answers(step_wise_grpo, runs(*rows), std_cal_level="batch") == pytest.approx(
        [1 / 3, 1 / 3, -1 / 3, -1 / 3, 0, 0], abs=1e-6)


def test_step_wise_grpo_of_one_run_teaches_nothing_and_may_be_left_out():
    rows = runs(*TWO, ("h", 0, 0, "s", 5.0, None))
    assert answers(step_wise_grpo, rows)[4] == 0
    assert answers(step_wise_grpo, rows, std_threshold=0)[4] is None
    assert answers(step_wise_grpo, rows, std_threshold=0.8) == [None] * 5


def test_gigpo_adds_the_comparison_of_equal_states():
    """gamma 1/2. Episodes 1 and 0: +-1/2. Gains: run 0 (1/2, 1), run 1 (0, 0). Bucket s: +-1/4, bucket u: +-1/2."""
    assert answers(gigpo, runs(*TWO), gamma=0.5) == pytest.approx([0.75, 1.0, -0.75, -1.0])
    assert answers(gigpo, runs(*TWO), gamma=0.5, omega=0) == pytest.approx([0.5, 0.5, -0.5, -0.5])
    assert answers(gigpo, runs(*TWO), gamma=0) == pytest.approx([0.5, 1.0, -0.5, -1.0])  # gains (0, 1) and (0, 0)


def test_gigpo_divided_by_std_with_epsilon_added_to_each():
    """Two values always come to +-1/sqrt 2: one for the episode, one for the state."""
    found = answers(gigpo, runs(*TWO), gamma=0.5, fnorm="std")
    assert found == pytest.approx([2 * HALF] * 2 + [-2 * HALF] * 2, abs=1e-5)
    # Episodes 1 and 0, bucket u 1 and 0: std 1/sqrt 2. Bucket s 1/2 and 0: half of that. epsilon 1/2.
    episode, s = 0.5 / (HALF + 0.5), 0.25 / (HALF / 2 + 0.5)
    found = answers(gigpo, runs(*TWO), gamma=0.5, fnorm="std", epsilon=0.5)
    assert found == pytest.approx([episode + s, 2 * episode, -episode - s, -2 * episode])


def test_gigpo_compares_states_of_one_task_that_are_met_twice():
    """Task h is seen in the same state s, with a gain of 100: g does not notice; h, alone, learns nothing."""
    rows = [*TWO, ("h", 0, 0, "s", 100.0, 100.0)]
    assert answers(gigpo, runs(*rows), gamma=0.5) == pytest.approx([0.75, 1.0, -0.75, -1.0, 0.0])
    rows = [TWO[0], ("g", 0, 1, "only here", 1.0, 1.0), *TWO[2:]]
    assert answers(gigpo, runs(*rows), gamma=0.5) == pytest.approx([0.75, 0.5, -0.75, -0.5])


def test_gigpo_without_rewards_of_turns_takes_the_last_one_of_the_run():
    """Then s of run 0 gains 1/2 and u 1, as above; the 9 of a turn in between is not read."""
    rows = [(*row[:5], None) for row in TWO]
    assert answers(gigpo, runs(*rows), gamma=0.5) == pytest.approx([0.75, 1.0, -0.75, -1.0])
    assert answers(gigpo, runs(*rows).drop_columns("step_reward"), gamma=0.5) == pytest.approx([0.75, 1.0, -0.75, -1.0])


def test_gigpo_refuses_a_reward_that_is_no_number():
    with refuses(DataError, "'step_reward'", "e1"):
        gigpo(runs(TWO[0], ("g", 0, 1, "u", 1.0, math.nan)))


GO, WIN, STOPPED = 0.5, 0.5, 0.25  # chance to go on, to win then, and what stopping earns
RUNS = {"stop": (1 - GO, STOPPED, [-GO]), "win": (GO * WIN, 1.0, [1 - GO, 1 - WIN]),
        "lose": (GO * (1 - WIN), 0.0, [1 - GO, -WIN])}
"""Of an attempt that may stop at its first turn: chance, reward, and d log p / d logit of the act of each turn."""


def expected_gradient(advantage, **arguments):
    """The mean of sum over turns of A d log p over two attempts, by all nine outcomes: for the logits of both turns."""
    total = np.zeros(2)
    for outcomes in product(RUNS, repeat=2):
        chance = math.prod(RUNS[one][0] for one in outcomes)
        turns = [(run, turn, RUNS[one][1]) for run, one in enumerate(outcomes) for turn in range(len(RUNS[one][2]))]
        batch = advantage_batch(
            group_id=["g"] * len(turns), run_index=[run for run, *_ in turns], turn=[turn for _, turn, _ in turns],
            state_hash=[str(turn) for _, turn, _ in turns], reward=[reward for *_, reward in turns])
        found = ADVANTAGES[advantage](**arguments)(batch).to_pylist()
        given = {one["experience_id"]: one["advantage"] for one in found}
        for place, (run, turn, _) in enumerate(turns):
            total[turn] += chance / 2 * given[f"e{place}"] * RUNS[outcomes[run]][2][turn]
    return total


@pytest.mark.parametrize(("advantage", "arguments", "first", "second"), [
    ("reinforce", {}, 1, 1), ("rloo", {}, 1, 1),
    ("dr_grpo", {}, 1 / 2, 1 / 2),  # the attempt is in its own baseline: (n - 1) / n of both
    ("gigpo", {"fnorm": "none", "omega": 0.0}, 1 / 2, 1 / 2),
    ("gigpo", {"fnorm": "none"}, 1, 3 / 4),  # of attempts in the second turn one is compared with none by chance 1/2
    # two different rewards give +-0.707, however far apart: {stop, win} and {stop, lose} cancel
    ("grpo", {"epsilon": 1e-12}, 0, 1.0607),
    ("step_wise_grpo", {"epsilon": 1e-12, "enable_step_norm": False}, 0, 1.0607),
    ("step_wise_grpo", {"epsilon": 1e-12, "enable_step_norm": True}, 0, 0.5303)])
def test_credit_of_turns_where_the_policy_decides_when_to_stop(advantage, arguments, first, second):
    """The expected reward is (1 - g) / 4 + g w: its gradient is g (1 - g) (w - 1/4) = 1/16, and g w (1 - w) = 1/8."""
    expected = first / 16, second / 8
    assert expected_gradient(advantage, **arguments) == pytest.approx(expected, abs=1e-4)
