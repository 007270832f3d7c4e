"""Programs in Harbor tasks: what they reach from inside, and their rewards; mini-SWE-agent with its own command."""

import json
import shutil
import socket

import pytest

from ouroboros.operators.generate import GENERATORS
from ouroboros.pipeline.store import locked, records
from ouroboros.pipeline.store.files import HOME
from ouroboros.pipeline.store.harbor import read_task
from ouroboros.workflows.attempts.isolated import host
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.protocol.outcomes import Sampling
from ouroboros.workflows.single_turn import load_workflow
from ouroboros.workflows.task_at_hand import TaskAtHand, bound
from tests.factories import row
from tests.harbor_kit import write_task
from tests.workflows.test_endpoint import EOS, Scripted, tokens
from tests.workflows.test_harbor import confined
from tests.workflows.test_retry import rated
from tests.workflows.test_tool_workflows import TOKENIZER, call

ROOT = HOME / ".frameworks"
ASK = """
python3 - "$OPENAI_BASE_URL/chat/completions" <<'END'
import json, os, subprocess, sys, urllib.request
body = json.dumps({"model": os.environ["MODEL"], "messages": [{"role": "user", "content": os.environ["INSTRUCTION"]}]})
asked = urllib.request.Request(sys.argv[1], body.encode(), {
    "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"})
said = json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"]
sys.exit(subprocess.run(["bash", "-c", said]).returncode)
END
"""
# every address that this machine has, and a name
REACH = """
python3 - <<'END'
import json, socket
found = {}
for host, port in %s:
    try:
        socket.create_connection((host, port), 2).close()
        found[host] = "reached"
    except OSError as error:
        found[host] = type(error).__name__
json.dump([found, [name for _, name in socket.if_nameindex()]], open("reached.json", "w"))
END
"""
ALONE = """#!/bin/bash
if grep -q reached reached.json; then echo 0
elif grep -q Refused reached.json && grep -qF '["lo"]' reached.json; then echo 1
else echo 0.5
fi > /logs/verifier/reward.txt
"""
MINI = """
export MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors MSWEA_GLOBAL_CONFIG_DIR=/tmp
export LITELLM_LOCAL_MODEL_COST_MAP=True
harness minisweagent.run.mini -y --exit-immediately -l 0 -o /tmp/mini.json -m "openai/$MODEL" -t "$INSTRUCTION"
"""
DONE = call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")


@pytest.fixture
def attempt(settings, tmp_path):
    """attempt(truth, replies, command=…): the outcome and the engine of one attempt."""
    host.cache_clear()

    def run(truth, replies, **arguments):
        config = settings("model.max_prompt_tokens=20000", "model.max_response_tokens=2000",
                          "model.max_model_len=40000", "explorer.tool_call_parser=hermes",
                          f"checkpoint_root_dir={ROOT}")
        task = TaskAtHand(row(records.Task, task_id="t", question="Do it.", answer=truth), rated(), TOKENIZER, config)
        engine = Scripted(*replies)
        own = bound(load_workflow("harness_agent", arguments, 300.0), lambda: task)
        return roll_out(engine, [own], [[5]], [7], [Sampling(1.0, 1.0, -1, 30000, 2000, 40000)])[0], engine

    return run


def truth_of(place, **changed):
    return read_task(write_task(place / "task", **changed)).record()["answer"]


@confined
@pytest.mark.parametrize(("said", "reward"), [("echo 7 > sum.txt", 1.0), ("echo 8 > sum.txt", 0.0)])
def test_a_program_asks_the_endpoint_and_the_tests_reward_its_files(attempt, tmp_path, said, reward):
    outcome, engine = attempt(truth_of(tmp_path), [said], command=ASK)
    assert (outcome.reason, outcome.components) == (None, {"accuracy": reward})
    assert engine.prompts[0].startswith("Do it.\n")
    assert outcome.trajectory.response_tokens == [*tokens(said), EOS]


@confined
def test_it_reaches_the_endpoint_and_nothing_else(attempt, tmp_path):
    """A server of this machine, listening on all its addresses, is not reached under any of them."""
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        own = [one[4][0] for one in socket.getaddrinfo(socket.gethostname(), port, type=socket.SOCK_STREAM)]
        places = [[one, port] for one in {"127.0.0.1", "localhost", "example.org", *own}]
        truth = truth_of(tmp_path, tests__test_dot_sh=ALONE)
        outcome, _ = attempt(truth, ["true"], command=REACH % json.dumps(places) + ASK)
    assert (outcome.reason, outcome.components) == (None, {"accuracy": 1.0})


@confined
def test_its_packages_and_the_endpoint_are_gone_at_verification(attempt, tmp_path):
    tests = "#!/bin/bash\nif ls /.harness/*/* || env | grep -q OPENAI; then echo 0; else echo 1; fi " \
            "> /logs/verifier/reward.txt\n"
    truth = truth_of(tmp_path, tests__test_dot_sh=tests)
    outcome, _ = attempt(truth, ["true"], command="touch /.harness/python/mine; " + ASK)
    assert (outcome.reason, outcome.components) == (None, {"accuracy": 1.0})


@confined
def test_a_program_that_asks_nothing_is_a_failed_row(attempt, tmp_path):
    outcome, _ = attempt(truth_of(tmp_path), [], command="true")
    assert outcome.status == "workflow_failed"


@confined
def test_a_program_that_fails_is_a_failed_row_with_what_it_printed(attempt, tmp_path):
    outcome, _ = attempt(truth_of(tmp_path), ["true"], command=f"{ASK}\necho no such model; exit 3")
    assert outcome.status == "workflow_failed"
    assert "code 3: no such model" in outcome.reason


@confined
def test_a_program_has_the_python_of_the_harness_and_its_commands_the_image_s(attempt, tmp_path):
    """The module `this` prints what is not empty; commands have no variable for Python."""
    seen = 'test -z "$PYTHONPATH$PYTHONHOME" && [[ $PATH != *harness* ]] && echo 7 > sum.txt'
    command = f'harness this | grep -q Zen && harness ssl && {ASK.strip()}'
    outcome, _ = attempt(truth_of(tmp_path), [seen], command=command)
    assert (outcome.reason, outcome.components) == (None, {"accuracy": 1.0})


def test_the_lock_of_a_stage_is_that_of_its_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lock = tmp_path / "environments" / "mini" / "requirements.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text(f"{locked.HEADER}{locked.PYTHON}: mini==1\n")
    hashed = locked.digest("mini")
    workflow = load_workflow("harness_agent", {"command": "true", "locked_environment": "mini"})
    lock.write_text(f"{locked.HEADER}{locked.PYTHON}: mini==2\n")
    assert workflow.function.keywords["locked_environment"] == hashed != locked.digest("mini")


@confined
@pytest.mark.frameworks
@pytest.mark.skipif(not shutil.which("uv"), reason="needs uv")
def test_mini_swe_agent_does_three_tasks_as_it_is(attempt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    locked.lock("mini", ["mini-swe-agent==2.4.6"])
    locked.install("mini", ROOT)
    for task in GENERATORS["terminal"](1, 3, 0):
        work = call("bash", command=json.loads(task.answer)["files"]["solution/solve.sh"])
        done, engine = attempt(task.answer, [work, DONE], command=MINI, locked_environment="mini")
        idle, _ = attempt(task.answer, [DONE], command=MINI, locked_environment="mini")
        assert (done.reason, done.components, idle.components) == (None, {"accuracy": 1.0}, {"accuracy": 0.0})
        ((_, trained, _),) = done.turns
        assert sum(trained.action_mask) == sum(len(tokens(one)) + 1 for one in (work, DONE))
        assert len(engine.prompts) == 2
