"""Reward functions by name, alone and together: components are summed, a judge that fails is no reward of 0."""

import math

import pytest

from ouroboros.pipeline.settings.arguments.answers import REWARDS
from ouroboros.pipeline.settings.config import AuxiliaryModel
from ouroboros.pipeline.store import records
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.pictures import Picture
from ouroboros.workflows import rewards
from ouroboros.workflows.protocol.outcomes import Outcome, add_rewards, decode
from ouroboros.workflows.protocol.prompts import turns_of
from ouroboros.workflows.rewards import Rewards
from ouroboros.workflows.single_turn import Trajectory
from tests.configs import element
from tests.factories import row
from tests.golden.messages import refuses
from tests.models import classifier

QUESTIONS = [turns_of(question, "Add.") for question in ("1+1", "2+2", "3+3")]
RESPONSES, ANSWERS = ["#### 2", "#### 5", "hm"], ["2", "4", "6"]


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    return classifier(tmp_path_factory.mktemp("judge"))


class Scorer:
    """In place of a reward model: `scores` are its answers."""

    def __init__(self, *scores):
        self.scores, self.calls = list(scores), []

    def score(self, prompts, responses):
        self.calls.append((list(prompts), list(responses)))
        return self.scores[: len(prompts)]


@pytest.mark.parametrize("names", ["reward_model", ["accuracy_reward", "reward_model"]])
def test_a_reward_model_is_not_asked_about_images_that_it_does_not_see(settings, names):
    config = settings()
    taskset = config.buffer.explorer_input.taskset.model_copy(update={"default_reward_fn_type": names})
    text, image = row(records.Task, task_id="t"), row(records.Task, task_id="i", pictures=["a"])
    with refuses(ConfigError, "reward_model", "images", "i"):
        Rewards(config).by_task(taskset, [text, image])
    own = row(records.Task, task_id="i", pictures=["a"], choices='{"reward_fn": ["accuracy_reward"]}')
    assert len(Rewards(config).by_task(taskset.model_copy(update={"default_reward_fn_type": "accuracy_reward"}),
                                       [text, own])) == 2


@pytest.fixture
def opened(settings, monkeypatch):
    """opened(names, arguments, scorer): the functions of the train set."""

    def make(names, arguments=None, scorer=None):
        config = settings()
        taskset = config.buffer.explorer_input.taskset
        taskset.default_reward_fn_type, taskset.reward_fn_args = names, arguments or {}
        monkeypatch.setattr(Rewards, "model", lambda self, name: scorer)
        return Rewards(config).of(taskset)

    return make


def rewarded(functions, answers=ANSWERS):
    outcomes = [Outcome("ok", trajectory=Trajectory([1], [2], [-1.0], [1], "stop"), response=r) for r in RESPONSES]
    add_rewards(outcomes, QUESTIONS, answers, functions)
    return outcomes


def test_a_rule_and_a_model_are_summed_and_the_model_sees_all_at_once(opened):
    scorer = Scorer(2.0, -1.0, 0.5)
    outcomes = rewarded(opened(["accuracy_reward", "reward_model"], {"weight": 0.5}, scorer))
    assert [o.components for o in outcomes] == [{"accuracy": 1.0, "reward_model": 1.0},
                                               {"accuracy": 0.0, "reward_model": -0.5},
                                               {"accuracy": 0.0, "reward_model": 0.25}]
    assert [o.reward for o in outcomes] == [2.0, -0.5, 0.25]
    assert scorer.calls == [(QUESTIONS, RESPONSES)]


def test_a_reward_model_has_no_score_of_an_attempt_that_saw_images(opened):
    """Of three attempts the second saw one in an earlier turn, the third in its last; a rule alone rewards all."""
    plain, seeing = (Trajectory([1], [2], [-1.0], [1], "stop", pictures=shown) for shown in ((), (Picture("", "a"),)))
    for names, status in (("reward_model", "reward_failed"), ("accuracy_reward", "ok")):
        outcomes = [Outcome("ok", trajectory=last, response="2", earlier=[(first, "")])
                    for first, last in ((plain, plain), (seeing, plain), (plain, seeing))]
        add_rewards(outcomes, QUESTIONS, ANSWERS, opened(names, {}, Scorer(1.0, 1.0, 1.0)))
        assert [one.status for one in outcomes] == ["ok", status, status]
        assert [bool(one.components) for one in outcomes] == [True, *[status == "ok"] * 2]


def test_a_response_that_the_model_cannot_score_has_no_reward(opened):
    outcomes = rewarded(opened(["reward_model", "accuracy_reward"], {}, Scorer(2.0, "too long", math.nan)))
    assert [o.status for o in outcomes] == ["ok", "reward_failed", "reward_failed"]
    assert [o.reason for o in outcomes] == [None, "too long", "reward_model returned reward_model=nan"]
    assert [o.reward for o in outcomes] == [3.0, None, None]
    assert [o.components for o in outcomes][1:] == [{}, {}]  # what the rule says of them is left out too


@pytest.mark.parametrize("name", [name for name, one in REWARDS.items() if one.components and name not in (
    "calls_reward", "code_reward", "evals_reward", "reasoning_gym_reward")])  # whose truths have forms of their own
def test_components_are_those_that_a_check_expects(opened, name):
    truths = ['{"numbers": [1, 1], "target": 2}'] * 3 if name == "countdown_reward" else ANSWERS
    (first, *_) = rewarded(opened([name], {}, Scorer(1.0, 2.0, 3.0)), truths)
    assert tuple(first.components) == REWARDS[name].components


def test_each_function_takes_the_arguments_it_has(opened):
    """weight is the model's, score the format's: -0.25 x 1 and 3 x 2."""
    functions = opened(["format_reward", "reward_model"], {"weight": 3, "score": 0.25}, Scorer(2.0, 2.0, 2.0))
    assert rewarded(functions)[0].components == {"format_score": -0.25, "reward_model": 6.0}
    with refuses(ConfigError, "'reward_model'", "'wieght'", "'weight'"):
        opened("reward_model", {"wieght": 1}, Scorer())
    assert opened(["tests.workflows.test_rewards:takes_all", "reward_model"], {"anything": 1}, Scorer())


def takes_all(response, answer, **more):
    return {"more": float(len(more))}


def test_the_last_tokens_of_a_long_response_cost_and_foreign_ones_do_not_count(opened):
    """At most 10 tokens, the last 4 dear: 6 cost nothing, 8 half of 0.5, 10 all of it; of 9 one is foreign."""
    functions = opened(["accuracy_reward", "overlong_penalty"],
                       {"max_response_length": 10, "cache_length": 4, "penalty_factor": 0.5})
    masks = [[1] * 6, [1] * 8, [1] * 10, [1] * 8 + [0]]
    outcomes = [Outcome("ok", trajectory=Trajectory([1], [2] * len(m), [-1.0] * len(m), m, "stop"), response="2")
                for m in masks]
    add_rewards(outcomes, QUESTIONS[:1] * 4, ["2"] * 4, functions)
    assert [o.components["overlong_penalty"] for o in outcomes] == [0.0, -0.25, -0.5, -0.25]
    assert [o.reward for o in outcomes] == [1.0, 0.75, 0.5, 0.75]


def test_without_arguments_the_last_fifth_of_the_longest_response_costs(opened):
    """The default recipe's 12 tokens: 2 of them, so the 11th costs 1/2 and the 12th all."""
    (function,) = opened("overlong_penalty")
    assert function([], [], [], [10, 11, 12]) == [{"overlong_penalty": -p} for p in (0.0, 0.5, 1.0)]
    with refuses(ConfigError, "cache_length=12", "0 and", "max_response_length=12"):
        opened("overlong_penalty", {"cache_length": 12})


def test_two_components_of_one_name_are_refused(opened):
    with refuses(ConfigError, "'accuracy'"):
        rewarded(opened(["accuracy_reward", "tests.workflows.test_rewards:also_accurate"]))


def also_accurate(response, answer):
    return {"accuracy": 1.0}


def test_numbers_of_several_functions_are_components_by_their_names_and_none_is_left_out(opened):
    """Answers 2, 4, 6: the first function applies to the first and last response, the second to all but the last."""
    mine = "tests.workflows.test_rewards"
    outcomes = rewarded(opened([f"{mine}:of_ends", f"{mine}:of_all"]))
    assert [o.components for o in outcomes] == [{"of_ends": 1.0, "of_all": 0.5}, {"of_all": 0.5}, {"of_ends": 1.0}]
    assert [o.reward for o in outcomes] == [1.5, 0.5, 1.0]


def of_ends(response, answer):
    return None if answer == "4" else 1


def of_all(completions, answers):
    return [None if answer == "6" else 0.5 for answer in answers]


def test_a_model_that_several_sets_ask_is_loaded_once(settings, judge, monkeypatch):
    config = settings()
    config.explorer.auxiliary_models = [settings_of(judge, "first"), settings_of(judge, "second")]
    made = []

    def remember(directory, own, devices, trust):
        made.append((own.name, devices))
        return Scorer()

    monkeypatch.setattr(rewards, "RewardModel", remember)
    opener = Rewards(config)
    assert opener.model("second") is opener.model("second")
    opener.model(None)
    assert made == [("second", ["cpu"]), ("first", ["cpu"])]


def settings_of(judge, name):
    return element(AuxiliaryModel, {"model_path": str(judge), "name": name})


def test_auxiliary_models_have_gpus_of_their_own_behind_the_engines(settings, judge, monkeypatch):
    """Two engines of two GPUs: 0 to 3. Then two copies of the first model, and the second."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = settings("explorer.rollout_model.engine_num=2", "explorer.rollout_model.tensor_parallel_size=2")
    config.explorer.auxiliary_models = [settings_of(judge, "first"), settings_of(judge, "second")]
    config.explorer.auxiliary_models[0].engine_num = 2
    assert [rewards._devices(config, index) for index in (0, 1)] == [["cuda:4", "cuda:5"], ["cuda:6"]]
    config.mode = "colocate"
    assert [rewards._devices(config, index) for index in (0, 1)] == [["cuda:0", "cuda:1"], ["cuda:2"]]


@pytest.mark.parametrize(("accuracy", "kept"), [(0, True), (0.5, True), (1.0, True), (2.0, False), (-0.1, False)])
def test_an_accuracy_is_a_share_and_anything_else_fails_its_row(accuracy, kept):
    rule = rewards.Rule(lambda response, answer: {"accuracy": accuracy, "style": 3.0}, {}, 0)
    (found,) = rule([[]], ["r"], ["a"], [1])
    assert isinstance(found, dict) == kept
    assert kept or f"accuracy={accuracy};" in found


class Characters:
    def batch_decode(self, sequences, skip_special_tokens):
        return ["".join(map(chr, tokens)) for tokens in sequences]


@pytest.mark.parametrize(("prompt", "response", "score"), [
    ("1+1?<think>\n", "a</think><answer>b</answer>", 0.1),
    ("1+1?<think>\n", "<think>a</think><answer>b</answer>", -0.1),  # opened twice
    ("1+1?<think>\n", "a<answer>b</answer>", -0.1),  # never closed
    ("1+1?", "a</think><answer>b</answer>", -0.1),
    ("<think>\n\n</think>\n\n", "<think>a</think><answer>b</answer>", 0.1),
    ("Write <think> first", "<think>a</think><answer>b</answer>", 0.1)])
def test_the_tag_that_a_prompt_opens_counts_as_form_alone(opened, prompt, response, score):
    tokens = [ord(c) for c in response]
    outcome = Outcome("ok", trajectory=Trajectory(
        [ord(c) for c in prompt], tokens, [-1.0] * len(tokens), [1] * len(tokens), "stop"))
    decode([outcome], Characters())
    add_rewards([outcome], QUESTIONS[:1], ["2"], opened("format_reward"))
    assert outcome.components == {"format_score": score}
    assert outcome.response == response
