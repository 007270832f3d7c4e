"""An environment of OpenEnv behind its own server, played by scripted replies."""

import shutil
import socket
import subprocess
import time
from contextlib import chdir
from urllib.request import urlopen

import pytest

from ouroboros.pipeline.store import locked
from ouroboros.pipeline.store.files import HOME
from ouroboros.workflows.attempts.isolated import host
from tests.wheels import wheel
from tests.workflows.test_tool_workflows import call, roll  # noqa: F401

pytestmark = [pytest.mark.frameworks, pytest.mark.skipif(not shutil.which("uv"), reason="needs uv")]

ROOT, CLASS = HOME / ".frameworks", "ouroboros.workflows.environments.openenv:OpenEnv"


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    place = tmp_path_factory.mktemp("doors")
    with chdir(place):
        one = wheel(HOME / "tests" / "openenv_kit" / "doors_env.py", place)
        locked.lock("doors", ["openenv==0.10.0", f"./{one.name}"])
        return locked.install("doors", ROOT) / "bin" / "python"


@pytest.fixture
def server(python, monkeypatch):
    """The server of doors_env, whose address tools are told."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([python, "-m", "doors_env", str(port)]) as process:
        monkeypatch.setenv("OPENENV_URL", f"http://127.0.0.1:{port}")
        host.cache_clear()  # the process that forks tools has the environment of its start
        for _ in range(600):
            try:
                urlopen(f"http://127.0.0.1:{port}/schema").close()
                break
            except OSError:
                time.sleep(0.1)
        yield process
        process.kill()


def played(roll, doors, answer='{"prize": 3}'):  # noqa: F811
    return roll("tool_call_workflow", [*doors, "done"], answer=answer, environment_class=CLASS, longest=20000,
                environment=["OPENENV_URL"])


def opened(door):
    return call("step", action={"door": door})


@pytest.mark.parametrize(("doors", "reward"), [([1, 3], 0.9), ([1, 2], -0.2), ([3], 1.0)])
def test_the_reward_is_the_sum_of_the_steps(server, roll, doors, reward):  # noqa: F811
    outcome, engine = played(roll, map(opened, doors))
    assert outcome.reason is None
    assert outcome.reward == pytest.approx(reward)
    assert "doors 1 to 3" in engine.prompts[0]
    assert '"door"' in engine.prompts[0]
    assert ("the episode is over" in engine.prompts[-1]) is (3 in doors)


def test_a_wrong_action_is_an_error_that_the_model_sees(server, roll):  # noqa: F811
    outcome, engine = played(roll, [call("step", action={"window": 1}), opened(3)])
    assert (outcome.reason, outcome.reward) == (None, 1.0)
    assert "error:" in engine.prompts[1]


def test_an_error_of_the_environment_fails_the_attempt(server, roll):  # noqa: F811
    outcome, _ = played(roll, [opened(14), opened("?"), opened(3)])
    assert outcome.status == "workflow_failed"
    assert "stuck" in outcome.reason


def test_a_server_that_dies_and_one_that_is_not_there_fail_the_attempt(server, roll):  # noqa: F811
    died, _ = played(roll, [opened(13)])
    assert died.status == "workflow_failed"
    server.wait()
    assert played(roll, [opened(1)])[0].status == "workflow_failed"
