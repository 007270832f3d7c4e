"""The class Algorithm: a user's subclasses have the rights of ours, and take from their type what they do not say."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

from ouroboros.operators.algorithm import Algorithm
from ouroboros.operators.losses.covariance import KlCov
from ouroboros.pipeline.settings.algorithms import DATA, ours
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.objective import Objective
from tests.configs import TINY, overridden
from tests.factories import advantage_batch
from tests.golden.messages import refuses

OWN = "algorithm.algorithm_type=tests.operators.own_algorithms:"


def made(name: str, *words: str) -> Algorithm:
    return Algorithm.of(overridden(*TINY, OWN + name, *words))


class Learner:
    """Writes down what an algorithm asks for."""

    def __init__(self):
        self.asked = []

    def policy(self, batch, trains=True):
        self.asked.append(("policy", trains))
        return "measured"

    def critic(self, batch):
        self.asked.append(("critic", True))
        return "values"


@pytest.mark.parametrize(("name", "like"), [("OwnPpo", "grpo"), ("OwnKlCov", "grpo"), ("OwnChord", "grpo"),
                                            ("OwnGkd", "gkd"), ("OwnRewardModel", "reward_model")])
def test_what_a_class_does_not_say_is_that_of_its_type(name, like):
    mine, theirs = (overridden(*TINY, word) for word in (OWN + name, f"algorithm.algorithm_type={like}"))
    assert mine.kind == theirs.kind
    assert mine.algorithm.but("algorithm_type", like) == theirs.algorithm
    assert (mine.algorithm.data, mine.algorithm.scores_responses) == (theirs.algorithm.data, like == "reward_model")


def test_a_second_network_has_its_steps_where_the_class_wants_them():
    algorithm = made("OwnPpo")
    assert algorithm.estimates == {"values"}
    assert algorithm.settings.has_critic
    learner = Learner()
    for step in (1, 2):
        assert algorithm.update(learner, SimpleNamespace(step=step)) == ("measured", "values")
    assert learner.asked == [("critic", True), ("critic", True), ("policy", False),
                             ("critic", True), ("critic", True), ("policy", True)]


def test_ours_trains_a_critic_alone_while_it_warms_up():
    algorithm = Algorithm.of(overridden(*TINY, "algorithm.algorithm_type=ppo", "trainer.critic_warmup=1"))
    learner = Learner()
    for step in (1, 2):
        algorithm.update(learner, SimpleNamespace(step=step))
    assert learner.asked == [("critic", True), ("policy", False), ("critic", True), ("policy", True)]
    learner = Learner()
    assert Algorithm.of(overridden(*TINY)).update(learner, None) == ("measured", None)
    assert learner.asked == [("policy", True)]


def test_tokens_chosen_over_the_batch_are_those_of_the_formula():
    """As kl_cov, which keeps one token: three tokens in two rows, the covariances 4/9, 1/9 and 1/9."""
    config = overridden(*TINY, OWN + "OwnKlCov")
    objective = Objective(config)
    rows = [Row("a", [1, 2, 3], 1, [1, 1], {"advantages": [1.0, 0.0], "old_logprobs": [-2.0, -1.0]}),
            Row("b", [1, 2], 1, [1], {"advantages": [0.0], "old_logprobs": [-1.0]})]
    measured = [np.array([[0.0, 0.5], [-1.0, 0.5]], np.float32), np.array([[-1.0, 0.5]], np.float32)]
    assert objective.chooses
    objective.choose(rows, measured)
    assert [list(row.columns["held"]) for row in rows] == [[1, 0], [0]]
    assert objective.row_columns == ("advantages", "held", "old_logprobs")
    given = {"logprobs": torch.tensor([0.0, -1.0, -1.0]), "old_logprobs": torch.tensor([-2.0, -1.0, -1.0]),
             "advantages": torch.tensor([1.0, 0.0, 0.0])}
    loss, _ = objective({**given, "held": torch.tensor([1.0, 0.0, 0.0])})
    wanted, _ = KlCov()(**given)
    assert loss.tolist() == pytest.approx(wanted.tolist())
    assert loss.tolist() == pytest.approx([2 - np.exp(2), 0, 0])


def test_rows_of_two_kinds_are_selected_averaged_and_weighed_by_step():
    """mu rises to 1 in four steps: 1/2 at step 2. Two rollouts of one token each, and one demonstration of two."""
    algorithm = made("OwnChord")
    table = pa.table({"experience_id": ["x", "y"]})
    assert algorithm.select(1, table, 3) == (["x", "y"], [0, 1, 2])
    assert algorithm.by_kind
    assert algorithm.weights(np.array([1, 1, 2]), np.array([False, False, True])).tolist() == [0.5, 0.5, 0.5]
    columns = {"logprobs": torch.tensor([-1.0, -3.0]), "old_logprobs": torch.tensor([-1.0, 0.0]),
               "advantages": torch.tensor([2.0, 0.0]), "is_expert": torch.tensor([False, True]),
               "rows": torch.tensor([0, 1]), "step": torch.tensor(2), "rollout_logprobs": torch.tensor([-1.0, 0.0])}
    assert algorithm.loss(columns)[0].tolist() == pytest.approx([-1.0, 1.5])


def test_a_teachers_distributions_are_in_the_loss():
    """Student (1/4, 3/4), teacher (1/2, 1/2): KL = 1/4 log(1/2) + 3/4 log(3/2)."""
    algorithm = made("OwnGkd")
    assert {"teacher_top_ids", "teacher_top_logprobs"} <= set(algorithm.row_columns)
    assert algorithm.estimates == {"teacher_logprobs"}
    ours, theirs = torch.tensor([[0.25, 0.75]]).log(), torch.tensor([[0.5, 0.5]]).log()
    loss, _ = algorithm.loss({"top_logprobs": ours, "teacher_top_logprobs": theirs})
    assert loss.item() == pytest.approx(0.25 * np.log(0.5) + 0.75 * np.log(1.5))


def test_scores_of_pairs_with_a_state_that_a_checkpoint_keeps():
    """Margins 1/2 and 2: losses 1/2 and 0. The mean score is 3/4, half of it counts; then half of that and the next."""
    algorithm = made("OwnRewardModel")
    scores = {"scores": torch.tensor([0.5, 0.0, 2.0, 0.5])}
    assert algorithm.loss(scores)[0].tolist() == [0.5, 0.5, 0.0, 0.0]
    assert algorithm.weights(np.array([1, 1, 1, 1]), np.zeros(4, bool)).tolist() == [0.25] * 4
    assert algorithm.saved()["mean"] == pytest.approx(0.375)
    resumed = Algorithm.of(algorithm.config, algorithm.saved())
    resumed.loss(scores)
    assert resumed.saved()["mean"] == pytest.approx(0.1875 + 0.375)


def test_an_advantage_of_the_users_is_handed_the_batch_alone():
    algorithm = Algorithm.of(overridden(*TINY, "algorithm.advantage_fn=tests.operators.own_algorithms:own_rewards"))
    assert algorithm.advantages(advantage_batch(reward=[2.0]))["advantage"].to_pylist() == [2.0]


def test_priorities_are_an_expression_of_the_settings():
    key = "buffer.trainer_input.experience_buffer.replay_buffer"
    algorithm = Algorithm.of(overridden(*TINY, f"{key}.enable=true", f"{key}.priority_fn_args={{decay: 3.0}}"))
    assert algorithm.priority() == "(weights_version - 3.0::DOUBLE * use_count)"


def test_an_adapted_coefficient_is_part_of_the_state():
    words = ("algorithm.kl_loss_fn=k2", "algorithm.kl_loss_fn_args={kl_coef: 0.5, adaptive: true, target_kl: 1.0, "
             "horizon: 10}")
    algorithm = Algorithm.of(overridden(*TINY, *words))
    algorithm.kl.steer(2.0, 5)  # 0.5 (1 + 0.2 * 5 / 10), the error clipped at 0.2
    assert algorithm.saved() == {"kl_loss_fn": pytest.approx(0.55), "kl_penalty_fn": 0.001}
    assert Algorithm.of(overridden(*TINY, *words), algorithm.saved()).kl.kl_coef == pytest.approx(0.55)


@pytest.mark.parametrize("name", ours())
def test_every_type_of_ours_makes_one(name):
    algorithm = Algorithm.of(overridden(*TINY, f"algorithm.algorithm_type={name}"))
    assert type(algorithm) is Algorithm
    assert algorithm.settings.on_rollouts == (name not in DATA)


def test_a_class_that_is_not_there_is_refused():
    with refuses(ConfigError, "Absent"):
        made("Absent")
