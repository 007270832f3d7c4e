"""Ten steps that learn nothing, a first step and first scores without a difference: which reason is named, and when
nothing is said. A batch has 4 groups of 8 rows."""

import re

import pytest

from ouroboros.pipeline.job.no_signal import base_accuracies, no_signals
from ouroboros.pipeline.results.query import ask, session
from ouroboros.pipeline.results.view import Node, state
from ouroboros.pipeline.settings.kinds import ONLINE
from ouroboros.pipeline.store import tables
from ouroboros.pipeline.store.evaluation_records import Score
from ouroboros.pipeline.store.records import Step
from tests.factories import row
from tests.fake_run import FakeRun
from tests.golden.messages import wording

FLAT = {"lr": 1e-3, "grad_norm": 0.0, "reward": 0.0, "zero_variance_groups": 4, "trained_rows": 32, "failed_rows": 0,
        "response_tokens_mean": 7.5}


def steps(count=10, first=2, **changed) -> list[Step]:
    return [row(Step, step=first + index, **(FLAT | changed)) for index in range(count)]


@pytest.fixture
def said(settings):
    """said(steps, "key=value", ...): the sentences; responses may have 12 tokens."""
    return lambda found, *overrides: no_signals(found, settings("algorithm.repeat_times=8", *overrides), "toy/first")


@pytest.mark.parametrize(("changed", "reason", "look_at"), [
    ({}, "all rewards equal", "select reward, reward_components"),
    ({"reward": 1.0}, "all rewards equal", "too easy"),
    ({"lr": 0.0, "grad_norm": 2.0, "zero_variance_groups": 0}, "learning rate 0", "algorithm.optimizer.lr"),
    ({"lr": 0.0}, "learning rate 0", "algorithm.optimizer.lr"),
    ({"failed_rows": 33}, "most rows failed", "reason, count(*)"),
    ({"response_tokens_mean": 12.0}, "all responses truncated", "model.max_response_tokens"),
    ({"zero_variance_groups": 3}, "gradient 0", "max(advantage)"),
    ({"reward": None, "zero_variance_groups": None}, "gradient 0", "algorithm.policy_loss_fn")])
def test_the_reason_is_named_with_what_to_look_at(said, changed, reason, look_at):
    (line,) = said(steps(**changed))
    wording(line, "2 to", "11 taught", reason)
    assert look_at in line


@pytest.mark.parametrize(("overrides", "says"), [
    ((), True), (("algorithm.advantage_fn=asymre",), False), (("algorithm.advantage_fn=reinforce",), False),
    (("algorithm.policy_loss_fn=sft",), False)])
def test_a_gradient_of_the_kl_alone_teaches_nothing(said, overrides, says):
    """Where an advantage is 0 for equal rewards, and the loss reads it."""
    assert len(said(steps(grad_norm=0.1, kl_loss=0.2), *overrides)) == says


def test_each_reason_is_said_once(said):
    """Steps 2 to 12 flat, 13 learns, 14 to 23 flat again; 24 to 33 have no learning rate."""
    found = [*steps(11), *steps(1, 13, grad_norm=0.5), *steps(10, 14), *steps(10, 24, lr=0.0)]
    assert [line.partition(" taught")[0].split()[1::2] for line in said(found)] == [["2", "11"], ["24", "33"]]


@pytest.mark.parametrize("found", [
    steps(9), [], [*steps(9), *steps(1, 11, grad_norm=1e-9, zero_variance_groups=3), *steps(9, 12)],
    steps(1, 1, grad_norm=0.5, zero_variance_groups=3),
    steps(30, grad_norm=0.1, zero_variance_groups=3),
    [*steps(5, lr=0.0), *steps(20, 6, grad_norm=1.0, zero_variance_groups=3)],  # a warmup that begins at 0
    steps(30, lr=0.0, critic_lr=1e-4, reward=None),  # trainer.critic_warmup
    [*steps(5, lr=0.0, critic_lr=1e-4), *steps(9, 6)]])
def test_a_stage_that_learns_or_has_only_begun_is_not_warned_about(said, found):
    assert said(found) == []


def test_what_a_stage_does_not_know_is_not_judged_by():
    """A stage on pairs has neither repeats nor a longest response."""
    (line,) = no_signals(steps(response_tokens_mean=12.0), None, "toy/first")
    assert "gradient 0" in line


@pytest.mark.parametrize(("solved", "way"), [
    (0.0, "system_prompt"), (None, "reward function"), (0.5, "reward function"), (1.0, "harder")])
def test_a_first_step_without_a_difference_is_said_at_once(said, solved, way):
    (line,) = said(steps(1, 1, grad_norm=0.1, solve_rate=solved))
    wording(line, "temperature", way)
    assert said(steps(1, 1), "algorithm.policy_loss_fn=sft") == []


def test_a_base_model_that_solves_no_task_or_all_is_told(said):
    """Only by sampled accuracy, and only of weights that are not trained here."""
    scores = [row(Score, taskset=name, metric=metric, step=step, value=value) for name, metric, step, value in (
        ("a", "sampled_accuracy", 0, 0.0), ("b", "sampled_accuracy", 0, 1.0), ("c", "sampled_accuracy", 0, 0.01),
        ("d", "sampled_accuracy", 8, 1.0), ("e", "greedy_accuracy", 0, 0.0), ("f", "sampled_reward", 0, 1.0))]
    never, always = base_accuracies(scores)
    wording(never, "on a", "0%", "system_prompt", "sft", "temperature")
    wording(always, "on b", "100%", "harder")


def test_the_questions_can_be_asked(said):
    cases = [{}, {"failed_rows": 33}, {"response_tokens_mean": 12.0}, {"zero_variance_groups": 3}]
    lines = [line for case in cases for line in said(steps(**case))]
    (differ,) = said([row(Step, step=step, **(FLAT | {"reward": step / 10})) for step in range(2, 12)])
    wording(differ, "variance")
    lines.append(differ)
    questions = [found for line in lines for found in re.findall(r'ouro sql "(.*)"', line)]
    assert len(questions) == 5
    assert all(len(ask(session([]), question).columns) > 1 for question in questions)


def test_status_shows_it(tmp_path):
    made = FakeRun(tmp_path)
    directory = made.stage("rft", "rft", complete=False)
    for step in steps(12, stage=directory.name):
        tables.write(tables.step_file(directory, "steps", step.step), Step, [step])
    node = Node("rft", ONLINE, directory)
    wording(state(node).warning, "4 to", "13 taught", "gradient 0")
