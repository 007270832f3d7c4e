"""Chat models of explorer.auxiliary_models, asked by judge_reward and by workflows; copies share an address."""

import asyncio
import subprocess
import sys

import pytest

from ouroboros.pipeline.settings.arguments.judging import JudgeReward
from ouroboros.pipeline.settings.config import AuxiliaryModel
from ouroboros.pipeline.settings.data import Taskset
from ouroboros.pipeline.store.errors import ConfigError, StageError
from ouroboros.workflows.engines import auxiliary
from ouroboros.workflows.judge import Judge
from ouroboros.workflows.protocol.outcomes import Outcome, add_rewards
from ouroboros.workflows.protocol.trajectory import Trajectory
from ouroboros.workflows.rewards import Rewards
from ouroboros.workflows.single_turn import load_workflow
from ouroboros.workflows.task_at_hand import TaskAtHand, bound
from tests.configs import element
from tests.golden.messages import refuses
from tests.workflows.test_isolated import roll
from tests.workflows.test_retry import TASK, Characters

PLAY = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def asked(tiny_model):
    """The tiny model, twice, as the judge of a run; it ends with the tests."""
    yield [element(AuxiliaryModel, {
        "name": "small", "model_path": str(tiny_model), "engine_type": "transformers", "engine_num": 2,
        "max_prompt_tokens": 700, "max_response_tokens": 40})]
    for one in auxiliary._served.values():
        one.process.kill()
        one.process.wait()
    auxiliary._served.clear()


@pytest.fixture
def consulting(settings, asked):
    config = settings()
    config.explorer.auxiliary_models = asked
    return config


@pytest.mark.slow
def test_a_judge_and_workflows_ask_the_copies_of_one_model(consulting):
    """The judgements of a random model, which the mask makes JSON, are cut off before their end."""
    given = {"judge_model": "small", "rubric": [{"name": "fine", "question": "?"}], "max_tokens": 12}
    taskset = Taskset(name="t", default_reward_fn_type="judge_reward", reward_fn_args=given)
    functions = Rewards(consulting).of(taskset)
    outcomes = [Outcome("ok", trajectory=Trajectory([1], [2], [0.0], [1], "stop"), response=one) for one in "ab"]
    add_rewards(outcomes, [PLAY] * 2, ["2"] * 2, functions)
    assert [one.status for one in outcomes] == ["reward_failed"] * 2
    assert all("""'{"fine":""" in one.reason for one in outcomes)
    found = []
    for name in ("consults", "consults_async"):
        workflow = load_workflow(f"tests.agents:{name}")
        assert workflow.consults
        found += roll([bound(workflow, lambda: TaskAtHand(TASK, functions, Characters(), consulting))] * 2, [[1], [2]])
    assert [one.status for one in found] == ["ok"] * 4
    assert len({tuple(one.trajectory.response_tokens) for one in found}) == 1  # the judge is asked greedily
    assert len(auxiliary._served) == 1


def test_a_name_that_no_chat_model_has_is_a_mistake(consulting):
    with refuses(ConfigError, "judge_model=large"):
        auxiliary.served(consulting, "large")


def test_a_server_that_has_ended_is_not_asked_again():
    """A judge and a workflow tell it at once, the judge without its retries, which would take minutes."""
    says = 'print(\'{"base_url": "http://127.0.0.1:9/v1", "model": "m"}\', flush=True); input()'
    process = subprocess.Popen([sys.executable, "-c", says], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    one = auxiliary.Served("explorer.auxiliary_models.0", process, "token")
    given = JudgeReward(judge_model="small", judge_retries=9, rubric=[{"name": "fine", "question": "?"}])

    async def rated():
        judge = Judge(given, None, one)
        process.kill()
        process.wait()
        return await judge.rate(PLAY, "a", "2")

    with pytest.raises(StageError) as of_judge:
        asyncio.run(rated())
    with pytest.raises(StageError) as of_workflow:
        _ = one.endpoint
    for said in (str(of_judge.value), str(of_workflow.value)):
        assert one.name in said
        assert "SIGKILL" in said
    process.stdin.close()
    process.stdout.close()
