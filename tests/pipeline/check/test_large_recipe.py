"""The shipped recipe for a 7B model on eight GPUs of 80 GiB: it composes, fits, and says what it requests."""

import pytest

from ouroboros.pipeline.check import fit
from ouroboros.pipeline.check.judge import compose, rules_of_stage
from ouroboros.pipeline.compose.recipe import Recipe, effective
from ouroboros.pipeline.job.devices import Gpus
from ouroboros.pipeline.job.shares import held_gpus
from tests.sizes import LARGE

EIGHT_NODES = [f"stages.rft.{key}" for key in ("cluster.node_num=8", "trainer.ranks=32",
                                               "explorer.rollout_model.engine_num=32")]


@pytest.mark.parametrize(("overrides", "nodes", "gpus"), [([], 1, 8), (EIGHT_NODES, 8, 64)])
def test_half_of_the_gpus_train_and_the_others_answer(overrides, nodes, gpus):
    config = compose(["recipe=gsm8k_7b", *overrides])
    assert Recipe(config).each(rules_of_stage) == []
    rft = effective(config, config.stages[0])
    assert held_gpus(rft.kind, rft) == gpus
    assert rft.trainer.zero_stage == 3
    assert fit.beyond_memory(LARGE, rft, Gpus(8 * nodes, 80.0, True)) == []


def test_one_rank_would_not_hold_it():
    """7.6 billion parameters of 16 bytes and more; ZeRO-3 needs its four ranks."""
    config = compose(["recipe=gsm8k_7b", "trainer.ranks=1", "explorer.rollout_model.engine_num=7"])
    (problem,) = fit.beyond_memory(LARGE, effective(config, config.stages[0]), Gpus(8, 80.0, True))
    assert "trainer" in str(problem)
