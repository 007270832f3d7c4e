"""docs/examples/one_step.py: the program runs, learns, and is a step of ours."""

import runpy

import numpy as np
import pytest
import torch

from ouroboros.pipeline.store.files import HOME


@pytest.fixture(scope="module")
def program() -> dict:
    """The names of the program after it ran."""
    threads = torch.get_num_threads()
    made = runpy.run_path(str(HOME / "docs/examples/one_step.py"))
    torch.set_num_threads(threads)
    return made


def test_the_reward_rises(program):
    """Of 99 tokens 12 count: about 0.1 at random; fifteen steps later most of a response are digits or signs."""
    assert program["rewards"][0] < 0.2
    assert np.mean(program["rewards"][-3:]) > 0.5


def test_engine_and_trainer_score_a_response_alike(program):
    row = program["explore"](100)[0]
    assert program["logprobs"](row).tolist() == pytest.approx(row["rollout_logprobs"], abs=1e-4)


def test_the_advantages_of_a_group_are_its_standardised_rewards(program):
    """Rewards 0 0 0 1: mean 1/4, standard deviation 1/2: -1/2, three times, and 3/2."""
    rows = [{"experience_id": str(n), "group_id": "g", "reward": float(n == 3)} for n in range(4)]
    assert program["advantages"](rows) == pytest.approx([-0.5, -0.5, -0.5, 1.5], abs=1e-4)
