"""verifiers 0.4 by its own server: four small packages, against verifiers' own evaluation at the same endpoint."""

import json
import shutil
from contextlib import chdir

import pytest

from ouroboros.pipeline.plan import packaged_tasks
from ouroboros.pipeline.settings.data import Taskset
from ouroboros.pipeline.store import locked, records
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.files import HOME
from ouroboros.workflows.attempts.isolated import host
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.protocol.outcomes import Sampling
from ouroboros.workflows.single_turn import load_workflow
from ouroboros.workflows.task_at_hand import TaskAtHand, bound
from tests.configs import element
from tests.factories import row
from tests.golden.messages import refuses
from tests.wheels import wheel
from tests.workflows.test_endpoint import EOS, Scripted, tokens
from tests.workflows.test_retry import rated
from tests.workflows.test_tool_workflows import TOKENIZER, call

pytestmark = [pytest.mark.frameworks, pytest.mark.skipif(not shutil.which("uv"), reason="needs uv")]

KIT, ROOT = HOME / "tests" / "verifiers_kit", HOME / ".frameworks"
GAMES = {  # taskset -> its seats, replies of the policy, rewards worked out by hand
    "sums-env": (["agent"], ["0"], {"exact": 2.0}),
    "lamps-env": (["agent"], [call("store_count", item="lamp"), "12"], {"exact": 1.0}),
    "guess-env": (["player"], ["5", "8", "7"], {"found": 1 / 3}),
    "duel-env": (["left", "right"], ["1", "2", "5", "4"], {"left/rounds": 1.0, "right/rounds": 1.0}),
}


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """A project whose environment `kit` is installed below .frameworks/."""
    place = tmp_path_factory.mktemp("project")
    with chdir(place):
        wheels = [wheel(one, place) for one in sorted(KIT.glob("*_env.py"))]
        locked.lock("kit", ["verifiers==0.4.0", *(f"./{one.name}" for one in wheels)])
        locked.install("kit", ROOT)
    return place


@pytest.fixture
def attempt(project, settings, monkeypatch):
    """attempt(taskset, replies, workflow=…, limit=…): the outcome and the engine of one attempt at its first task."""
    monkeypatch.chdir(project)
    monkeypatch.setenv("PYTHONPATH", str(HOME))
    host.cache_clear()  # the process that forks attempts has the environment of its start

    def run(name, replies, workflow="verifiers_workflow", limit=300.0, **arguments):
        one = element(Taskset, {"path": f"verifiers://kit/{name}", "split": "all"})
        with open(packaged_tasks._made(one, str(ROOT))) as file:
            answer = json.loads(file.readline())["answer"]
        config = settings("model.max_prompt_tokens=4000", "model.max_response_tokens=500", "model.max_model_len=8000",
                          "explorer.tool_call_parser=hermes", f"checkpoint_root_dir={ROOT}",
                          f"explorer.max_timeout={limit}")
        task = TaskAtHand(row(records.Task, task_id="t", question="?", answer=answer), rated(), TOKENIZER, config)
        engine = Scripted(*replies)
        own = bound(load_workflow(workflow, arguments, limit), lambda: task)
        return roll_out(engine, [own], [[5]], [7], [Sampling(0.0, 1.0, -1, 6000, 500, 8000)])[0], engine

    return run


@pytest.mark.parametrize("name", GAMES)
def test_messages_and_rewards_are_those_of_verifiers_own_evaluation(attempt, name):
    seats, replies, rewards = GAMES[name]
    ours, engine = attempt(name, replies)
    own, same = attempt(name, replies, "tests.verifiers_kit.own:evaluated", root=str(ROOT), agents=seats)
    assert (ours.reason, own.reason) == (None, None)
    assert (engine.prompts, engine.texts) == (same.prompts, [])
    assert ours.components == pytest.approx(rewards)
    assert sum(own.components.values()) == pytest.approx(ours.reward)


def test_metrics_are_notes(attempt):
    outcome, _ = attempt("sums-env", ["999"])
    assert (outcome.reward, outcome.notes) == (0.0, {"letters": "3.0"})


def test_what_the_environment_says_has_mask_0(attempt):
    outcome, _ = attempt("guess-env", ["5", "8", "7"])
    ((_, trained, _),) = outcome.turns
    table = [("5", 1), (EOS, 1), ("more:", 0), ("8", 1), (EOS, 1), ("less:", 0), ("7", 1), (EOS, 1)]
    spelt = [(token, acts) for text, acts in table for token in ([text] if text == EOS else tokens(text))]
    assert TOKENIZER.decode(trained.prompt_tokens) == "0 to 9?:"
    assert list(zip(trained.response_tokens, trained.action_mask, strict=True)) == spelt
    assert [value for value, acts in zip(trained.logprobs, trained.action_mask, strict=True) if acts] == [0, -1] * 3


@pytest.mark.parametrize(("said", "named"), [("nan", "nan"), ("text", "no number"), ("die", "ended"), ("hang", "10")])
def test_what_goes_wrong_is_a_failed_row_and_the_next_attempt_goes_on(attempt, said, named):
    attempt("sums-env", ["0"], limit=10.0)  # the server is there
    failed, _ = attempt("sums-env", [said], limit=10.0)
    assert failed.status == "workflow_failed"
    assert named in failed.reason
    if said == "hang":
        failed, _ = attempt("sums-env", ["0"], limit=10.0)  # until the server notices it
    assert said == "hang" or attempt("sums-env", ["0"], limit=300.0)[0].reward == 2.0


def test_a_package_that_cannot_be_imported_is_said_while_planning(project, monkeypatch):
    monkeypatch.chdir(project)
    one = element(Taskset, {"path": "verifiers://kit/absent-env", "split": "all"})
    with refuses(DataError, "absent_env"):
        packaged_tasks._made(one, str(ROOT))
