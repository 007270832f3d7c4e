"""Which stages may have other rows when they are repeated, because requests of their attempts come when they come."""

import inspect

import pytest

from ouroboros.pipeline.settings.explorer import BY_THEMSELVES, asks_by_itself, because_of_time, depends_on_time
from ouroboros.pipeline.settings.kinds import KINDS
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store.signatures import Parameters, parameters_of
from ouroboros.workflows.attempts.isolated import Isolated
from ouroboros.workflows.single_turn import WORKFLOWS, load_workflow
from tests.configs import overridden
from tests.golden.messages import wording

SECTION = "buffer.explorer_input"
CODE = """
from other import agent as imported
from .inside import agent as relative

async def agent(task, *, endpoint): ...
def turns(prompt, model): ...
def generated(prompt, toolbox): yield prompt
def alone(prompt, task, limit=3): yield prompt
made = lambda prompt, model: None
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "code.py").write_text(CODE)
    (tmp_path / "package" / "inside.py").write_text("def agent(endpoint): ...")
    (tmp_path / "other.py").write_text("def agent(prompt): ...")
    (tmp_path / "broken.py").write_text("def agent(endpoint:")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("name", "by_itself"), [
    ("agent", True), ("turns", True), ("generated", True), ("alone", False), ("imported", False), ("relative", True),
    ("made", False), ("missing", False)])
def test_a_users_workflow_is_judged_by_its_parameters(project, name, by_itself):
    assert asks_by_itself(f"package.code:{name}") is by_itself


def test_a_source_that_cannot_be_read_says_nothing(project):
    assert parameters_of("broken:agent") == parameters_of("nowhere:agent") == parameters_of("math:sin") == Parameters()


def test_ours_are_those_with_processes_of_their_own():
    names = {"model", "endpoint", "toolbox"}
    assert {name for name, function in WORKFLOWS.items() if names & inspect.signature(function).parameters.keys()} == (
        set(BY_THEMSELVES))
    assert isinstance(load_workflow("react_workflow", {"tools": ["ouroboros.workflows.calculator:product"]}), Isolated)
    assert isinstance(load_workflow("ouroboros.workflows.calculator:calculate"), Isolated)
    assert asks_by_itself("ouroboros.workflows.calculator:calculate")


@pytest.mark.parametrize(("words", "rft", "evaluate"), [
    ((), [], []),
    (("default_workflow_type=react_workflow",), ["default_workflow_type"], ["default_workflow_type"]),
    (("default_workflow_type=react_workflow", "default_eval_workflow_type=simple_workflow"),
     ["default_workflow_type"], []),
    (("default_workflow_type=react_workflow", "taskset.default_workflow_type=simple_workflow"), [],
     ["default_workflow_type"]),
    (("eval_tasksets.0.default_workflow_type=tool_call_workflow",), [], ["eval_tasksets.0.default_workflow_type"])])
def test_the_setting_that_names_it_is_what_a_stage_depends_on(words, rft, evaluate):
    config = overridden(*(f"{SECTION}.{word}" for word in words))
    for kind, keys in (("rft", rft), ("rollout", rft), ("evaluate", evaluate), ("bench", evaluate), ("train", [])):
        for given in (config, plain(config)):  # as a run reads it from stage.json
            assert depends_on_time(KINDS[kind], given) == [f"{SECTION}.{key}" for key in keys]


def test_one_setting_depends_and_several_depend():
    wording(because_of_time(["a"]), "because")
    wording(because_of_time(["a", "b"]), "because")
