"""judge_reward: rubrics, comparisons, failures, limits and cache, with a local server as the judge."""

import json

import pytest
import yaml
from starlette.responses import JSONResponse

from ouroboros.pipeline.settings.arguments.judging import rubric_of
from ouroboros.pipeline.settings.data import Taskset
from ouroboros.pipeline.store.errors import ConfigError, StageError
from ouroboros.stages.model import character_tokenizer
from ouroboros.workflows.engines import remote
from ouroboros.workflows.judge import _rated
from ouroboros.workflows.protocol.engine import BatchEngine, Reply
from ouroboros.workflows.protocol.outcomes import Outcome, add_rewards
from ouroboros.workflows.protocol.trajectory import Trajectory
from ouroboros.workflows.rewards import Rewards
from tests.golden.messages import refuses, wording
from tests.house.test_docs import BLOCKS
from tests.servers import chat_app, serving

RUBRIC = [{"name": "correct", "question": "Right?", "weight": 3},
          {"name": "tone", "question": "Polite?", "choices": ["rude", "plain", "polite"]}]
GOOD = {"correct": {"reason": "it is", "choice": "yes"}, "tone": {"reason": "so so", "choice": "plain"}}
TOKENIZER = character_tokenizer(4000)
USER = [{"role": "user", "content": "1+1"}]


@pytest.fixture
def judged(monkeypatch, settings):
    """judged(answer, responses, ...): the outcomes of responses to one prompt, rewarded by a judge with that answer."""
    monkeypatch.setattr(remote, "LONGEST_PAUSE", 0.01)

    def run(answer, *responses, truth="2", prompts=None, groups=None, **arguments):
        outcomes = [Outcome("ok", trajectory=Trajectory([1], [2], [0.0], [1], "stop"), response=one)
                    for one in responses]
        with serving(chat_app(answer)) as address:
            given = {"judge_url": f"{address}/v1", "judge_model": "m", "judge_retries": 1, **arguments}
            taskset = Taskset(name="t", default_reward_fn_type="judge_reward", reward_fn_args=given)
            functions = Rewards(settings()).of(taskset)
            add_rewards(outcomes, prompts or [USER] * len(outcomes), [truth] * len(outcomes), functions, groups)
        return outcomes

    return run


def test_a_rubric_is_weighted_and_its_reasons_are_kept(judged):
    bodies = []

    def answer(body, headers):
        bodies.append(body)
        return f"Here it is:\n```json\n{json.dumps(GOOD)}\n```"

    (outcome,) = judged(answer, "2", rubric=RUBRIC)
    assert outcome.components == {"correct": 0.75, "tone": 0.125}  # 3/4 x 1 and 1/4 x 1/2
    assert outcome.reward == 0.875
    assert outcome.notes == {"correct": "yes: it is", "tone": "plain: so so"}
    schema = bodies[0]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["tone"]["properties"]["choice"] == {"enum": ["rude", "plain", "polite"]}
    assert all(text in bodies[0]["messages"][1]["content"] for text in ("1+1", "<truth>\n2\n", "<answer>\n2\n"))


class Judging(BatchEngine):
    """Answers with these texts, in order; keeps what it was asked, and by how many calls."""

    def __init__(self, *texts):
        super().__init__()
        self.texts, self.asked, self.calls = list(texts), [], 0

    def answer(self, requests):
        self.calls += 1
        self.asked += requests
        said = [TOKENIZER(self.texts.pop(0), add_special_tokens=False)["input_ids"] for _ in requests]
        return [Reply(tokens, [0.0] * len(tokens), "stop") for tokens in said]


@pytest.fixture
def self_judged(settings):
    def run(engine, *responses, longest=4000, **arguments):
        rewards = Rewards(settings(f"model.max_model_len={longest}", "model.max_prompt_tokens=900",
                                   "model.max_response_tokens=90"))
        taskset = Taskset(name="t", default_reward_fn_type="judge_reward", reward_fn_args=arguments)
        functions = rewards.of(taskset)
        outcomes = [Outcome("ok", trajectory=Trajectory([1], [2], [0.0], [1], "stop"), response=one)
                    for one in responses]
        with rewards.judged_by(engine, TOKENIZER):
            add_rewards(outcomes, [USER] * len(outcomes), ["2"] * len(outcomes), functions)
        return outcomes, functions

    return run


def test_without_a_server_the_policy_judges_in_one_call(self_judged):
    """The second judgement is nonsense at first, and asked for again by a sample."""
    bad = GOOD | {"correct": {"reason": "no", "choice": "no"}}
    engine = Judging(json.dumps(GOOD), "well", json.dumps(GOOD), json.dumps(bad))
    outcomes, _ = self_judged(engine, "2", "3", "4", rubric=RUBRIC, max_tokens=400)
    assert [outcome.reward for outcome in outcomes] == [0.875, 0.125, 0.875]
    assert engine.calls == 2
    assert [(one.temperature, one.seed) for one in engine.asked] == [(0.0, 0)] * 3 + [(1.0, 1)]
    assert {one.max_tokens for one in engine.asked} == {400}
    schema = json.loads(engine.asked[0].schema)
    assert schema["properties"]["tone"]["properties"]["choice"] == {"enum": ["rude", "plain", "polite"]}
    assert "<answer>\n3\n</answer>" in TOKENIZER.decode(engine.asked[3].prompt_tokens)
    engine = Judging(json.dumps(GOOD))
    self_judged(engine, "2", rubric=RUBRIC, structured=False)
    assert engine.asked[0].schema is None


def test_a_judgement_without_room_and_a_policy_that_is_busy(self_judged):
    (outcome,), functions = self_judged(Judging(), "2" * 900, longest=1000, rubric=RUBRIC)
    assert outcome.status == "reward_failed"
    wording(outcome.reason, "1000")
    with refuses(StageError, "asked"):
        functions[0]([USER], ["2"], ["2"], [1])


@pytest.mark.parametrize("wrong", [{"judge_url": "http://127.0.0.1:1/v1"}, {"judge_model": "m"},
                                   {"judge_cache": "somewhere"}])
def test_a_judge_is_a_server_with_its_model_or_the_policy(self_judged, wrong):
    with refuses(ConfigError, "judge_"):
        self_judged(Judging(), "2", rubric=RUBRIC, **wrong)


def test_a_task_may_have_its_own_rubric_as_its_truth(judged):
    (outcome,) = judged(lambda *_: json.dumps(GOOD), "2", truth=json.dumps(RUBRIC))
    assert outcome.reward == 0.875
    (outcome,) = judged(lambda *_: json.dumps(GOOD), "2", truth="2")
    assert (outcome.status, outcome.reward) == ("reward_failed", None)
    assert "no rubric" in outcome.reason


@pytest.mark.parametrize(("said", "reason"), [
    ("I like it", "no JSON"), ("[1]", "no JSON"), ('{"correct": 1}', "nothing on 'correct'"),
    (json.dumps(GOOD | {"tone": {"reason": "x", "choice": "great"}}), "great"), ("{" * 5000, "no JSON")])
def test_nonsense_is_asked_for_again_and_then_the_reason_of_a_failed_row(judged, said, reason):
    asked = []

    def answer(body, headers):
        asked.append((body["seed"], body["temperature"]))
        return said

    (outcome,) = judged(answer, "2", rubric=RUBRIC)
    assert (outcome.status, outcome.reward, asked) == ("reward_failed", None, [(0, 0.0), (1, 1.0), (2, 1.0)])
    assert reason in outcome.reason


@pytest.mark.parametrize("structured", [True, False])
def test_a_judge_that_says_the_same_at_temperature_0_can_say_something_else(judged, structured):
    """As a greedy model does: its nonsense is the same for every seed."""
    asked = []

    def answer(body, headers):
        asked.append(body["seed"])
        return json.dumps(GOOD) if body["temperature"] > 0 and body["seed"] == 2 else "well"

    given = {"rubric": RUBRIC, "structured": structured}
    (outcome,) = judged(answer, "2", **given)
    assert (outcome.status, outcome.reward, asked) == ("ok", 0.875, [0, 1, 2])
    assert {"correct", "tone", "judge_reward"} == outcome.notes.keys()
    assert "seed 2" in outcome.notes["judge_reward"]


def test_a_judge_that_fails_for_one_answer_leaves_the_others(judged):
    def answer(body, headers):
        if "bad" in body["messages"][1]["content"]:
            return JSONResponse({"error": {"message": "policy"}}, 400)
        return json.dumps(GOOD)

    fine, failed = judged(answer, "good", "bad", rubric=RUBRIC)
    assert (fine.reward, failed.reward, failed.status) == (0.875, None, "reward_failed")
    assert "policy" in failed.reason


def test_ruler_compares_the_answers_of_each_group(judged):
    """Two groups of the same prompt are two comparisons, and a group is one whatever its prompts."""
    def answer(body, headers):
        text = body["messages"][1]["content"]
        scores = (0.25, 1) if "<answer 1>\na\n" in text else (0.5, 0)
        return json.dumps({str(i): {"reason": f"r{i}", "score": score} for i, score in enumerate(scores, 1)})

    other = [{"role": "user", "content": "2+2"}]
    found = judged(answer, "a", "c", "b", "d", "e", prompts=[USER, USER, USER, other, USER],
                   groups=["0", "1", "0", "1", "2"], compare=True)
    assert [one.reward for one in found] == [0.25, 0.5, 1.0, 0.0, None]
    assert found[2].notes == {"ruler": "r2"}
    assert "at least two" in found[4].reason


def test_equal_requests_are_answered_from_the_cache(monkeypatch, settings, tmp_path):
    asked = []

    def answer(body, headers):
        asked.append(body)
        return json.dumps(GOOD)

    with serving(chat_app(answer)) as address:
        given = {"judge_url": f"{address}/v1", "judge_model": "m", "rubric": RUBRIC,
                 "judge_cache": str(tmp_path / "cache")}
        taskset = Taskset(name="t", default_reward_fn_type="judge_reward", reward_fn_args=given)
        for response, count in (("a", 1), ("a", 1), ("b", 2)):
            [function] = Rewards(settings()).of(taskset)
            assert function([USER], [response], ["2"], [1]) == [{"correct": 0.75, "tone": 0.125}]
            assert len(asked) == count


@pytest.mark.parametrize("rubric", [
    [], [{"name": "a"}], [{"name": "a", "question": "?"}] * 2, [{"name": "a", "question": "?", "choices": ["one"]}],
    [{"name": "a", "question": "?", "weight": 0}], [{"name": "a b", "question": "?"}], "[", {"name": "a"}])
def test_rubrics_that_cannot_be_used(rubric):
    with refuses(ValueError):
        rubric_of(rubric)


def test_arguments_are_judged_before_a_run(judged):
    with refuses(ConfigError, "rubric"):
        judged(lambda *_: "", "2", rubric=[])


def test_the_recipe_of_the_documentation_judges(judged):
    block = yaml.safe_load(next(text for text in BLOCKS.values() if "judge_reward" in text))
    given = block["buffer"]["explorer_input"]["taskset"]["reward_fn_args"]
    for name in ("judge_url", "judge_model", "judge_cache"):
        del given[name]
    (outcome,) = judged(lambda *_: json.dumps(GOOD), "2", **given)
    assert outcome.reward == 0.875


def test_rubrics_as_rewards_are_criteria_and_a_fault_has_a_negative_weight():
    """Weights 3 and -1 are shares of 3/4 and 1/4: a yes to the first and a no to the fault are all of it."""
    criteria = rubric_of([{"title": "Cause", "description": "Names the cause.", "weight": 3},
                          {"description": "Leaves the dose out.", "weight": -1}])
    assert [(one.name, one.question) for one in criteria] == [
        ("criterion_1", "Names the cause."), ("criterion_2", "Leaves the dose out.")]
    for said, parts in (("no", {"criterion_1": 0.75, "criterion_2": 0.25}), ("yes", {
            "criterion_1": 0.75, "criterion_2": 0.0})):
        found = {"criterion_1": {"reason": "", "choice": "yes"}, "criterion_2": {"reason": "", "choice": said}}
        assert dict(_rated(found, criteria)) == parts
    with pytest.raises(ValueError, match="weight"):
        rubric_of([{"name": "a", "question": "?", "weight": 0}])
