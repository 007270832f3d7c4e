"""Functions of the user's that cannot be called, told before anything runs."""

import pytest

from pipeline.check import preflight, user_code
from pipeline.check.references import PARTS, wrong_arguments, wrong_code
from pipeline.check.user_code import absent_packages, by_position, import_problems, wrong_function
from pipeline.compose.stage_settings import effective
from pipeline.store.errors import ConfigError
from tests.configs import changed, overridden

MODULES = {
    "mine/__init__.py": "", "mine/raises.py": "raise RuntimeError('boom')\ndef f(logprobs): ...\n",
    "mine/absent.py": "'Doc.'\nimport no_such_package.inner as x\ndef f(logprobs): ...\n",
    "mine/deep.py": "from . import absent\nfrom .absent import f\n",
    "mine/careful.py": "try:\n    import no_such_package\nexcept ImportError: ...\ndef f(logprobs): ...\n",
    "mine/later.py": "import sys\nsys.path.append('elsewhere')\nimport no_such_package\ndef f(logprobs): ...\n",
    "mine/within.py": "import json, numpy\ndef f(logprobs):\n    import no_such_package\n",
    "mine/ends.py": "import sys\nsys.exit(3)\ndef f(logprobs): ...\n",
    "mine/slow.py": "import time\ntime.sleep(60)\n",
    "mine/parts.py": "const = 3\nnames: list = ['a']\nasync def later(logprobs): ...\ndef f(logprobs, cap=1.0): ...\n"
                     "def posonly(logprobs, /): ...\nlazy = lambda logprobs, colour: 0\nmade = int('3')\n"
                     "again = 3\nagain = lambda logprobs: 0\n",
    "mine/rewards.py": "import functools\ndef one(response): ...\ndef none(): ...\n"
                       "def named(response, *, answer): ...\n"
                       "def two(response, /, answer): ...\ndef more(response, answer, scale=1.0): ...\n"
                       "def every(*texts): ...\nof_one = lambda response: {}\nof_two = lambda response, answer: {}\n"
                       "def pair(f):\n    return functools.wraps(f)(lambda *texts: f(texts))\n"
                       "@pair\ndef wrapped(texts): ...\nasync def later(response, answer): ...\n"
                       "def batch(completions, **more): ...\n"
                       "def trl(prompts, completions, truth, scale): ...\n"}


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stages(*names: str) -> list[dict]:
    return [overridden(f"algorithm.policy_loss_fn='{name}'") for name in names]


@pytest.mark.parametrize(("name", "words"), [
    ("const", "'mine.parts:const' is 3; needed a function."), ("names", "'mine.parts:names' is ['a']; needed a"),
    ("later", "'mine.parts:later' is an `async def`, and nobody awaits it"),
    ("f", None), ("lazy", None), ("made", None), ("again", None), ("posonly", None)])
def test_what_is_no_function_is_read_from_the_source(project, name, words):
    said = wrong_function(f"mine.parts:{name}")
    assert said is None if words is None else said.startswith(words)


def rewarding(name: str) -> dict:
    return overridden(f"buffer.explorer_input.default_reward_fn_type='mine.rewards:{name}'")


@pytest.mark.parametrize(("name", "words"), [
    ("one", "has 1 parameters by position (response); it is called with 2, the response and its truth: needed "
            "f(response, answer, ...)."),
    ("none", "has 0 parameters by position (none)"), ("named", "has 1 parameters by position (response)"),
    ("two", None), ("more", None), ("every", None), ("of_one", None), ("wrapped", None), ("later", None),
    ("batch", None)])
def test_a_reward_function_is_called_with_a_response_and_its_truth(project, name, words):
    """What the source does not say, of a lambda or below a decorator, is left to the import."""
    config = rewarding(name)
    said = wrong_arguments(effective(config, config["stages"][1]))
    assert len(said) == (words is not None)
    assert all(line.startswith(f"'mine.rewards:{name}' {words}") for line in said)


def test_an_async_function_is_a_reward_and_no_loss(project):
    assert wrong_code(rewarding("later")) == []
    (line,) = wrong_code(stages("mine.rewards:later")[0])
    assert "is an `async def`, and nobody awaits it" in line


def test_a_function_of_all_responses_is_not_asked_for_what_it_is_given(project):
    (line,) = wrong_arguments(effective(rewarding("trl"), rewarding("trl")["stages"][1]))[:1]
    assert line.endswith("'mine.rewards:trl' needs the argument 'scale'.")


def test_a_reward_function_that_the_source_does_not_tell_is_judged_by_import(project):
    names = ("of_one", "of_two", "wrapped", "one")
    (line,) = import_problems([rewarding(name) for name in names], [*PARTS])
    assert line.startswith("'mine.rewards:of_one' has 1 parameters by position (response)")


def test_a_module_that_is_no_python_is_left_to_the_import(project):
    (project / "mine/broken.py").write_text("def f(:\n")
    rewarded = overridden("buffer.explorer_input.default_reward_fn_type='mine.broken:f'")
    for config in (*stages("mine.broken:f"), rewarded):
        (line,) = import_problems([config], [*PARTS])
        assert line.startswith("'mine.broken:f' cannot be imported: SyntaxError")


def test_columns_are_handed_over_by_name(project):
    (line,) = by_position("policy_loss_fn", "mine.parts:posonly")
    assert line.startswith("algorithm.policy_loss_fn=mine.parts:posonly takes logprobs by position alone")
    assert by_position("policy_loss_fn", "mine.parts:f") == by_position("advantage_fn", "mine.parts:posonly") == []


def test_a_package_that_is_not_installed_is_told_without_running_anything(project):
    (line,) = absent_packages("mine.absent:f")
    assert line == (f"'mine.absent:f' cannot be imported: {project}/mine/absent.py, line 2, imports "
                    "no_such_package.inner, and no no_such_package is installed here.")
    (line,) = absent_packages("mine.deep:f")
    assert "mine/absent.py, line 2" in line


@pytest.mark.parametrize("name", ["careful", "later", "within", "raises", "parts"])
def test_imports_that_a_module_may_do_without_are_not_judged(project, name):
    assert absent_packages(f"mine.{name}:f") == []


def test_every_module_is_imported_once_in_a_process_of_its_own(project):
    """The third ends the process; the one behind it is asked all the same. `lazy` can only be judged by import."""
    names = ("mine.raises:f", "mine.parts:made", "mine.ends:f", "mine.parts:lazy", "mine.parts:f")
    first, second, third, fourth = import_problems(stages(*names), [*PARTS])
    assert first.startswith("'mine.raises:f' cannot be imported: RuntimeError: boom")
    assert second == "'mine.parts:made' is a int; needed a function."
    assert third == "'mine.ends:f' cannot be imported: the process that tried ended with exit code 3."
    assert fourth.startswith("algorithm.policy_loss_fn=mine.parts:lazy asks for a column 'colour'")


def test_what_is_told_already_and_what_is_ours_starts_no_process(project, monkeypatch):
    monkeypatch.setattr(user_code, "_ask", None)
    assert import_problems(stages("mine.raises:f"), [*PARTS], "'mine.raises:f' cannot be imported") == []
    assert import_problems([overridden()], [*PARTS]) == []


def test_an_import_that_does_not_end_is_told(project, monkeypatch):
    monkeypatch.setattr(user_code, "WAIT", 2)
    (line,) = import_problems(stages("mine.slow:f"), [*PARTS])
    assert line == "'mine.slow:f' cannot be imported: the process that tried had not ended after 2 s."


def test_a_run_does_not_begin_with_a_module_that_does_not_import(project):
    config = changed({"algorithm.policy_loss_fn": "mine.raises:f"})
    assert not any("boom" in line for line in preflight.check(config).problems)
    with pytest.raises(ConfigError, match="boom"):
        preflight.judged_plan(config)
    assert any("boom" in line for line in preflight.check(config, elsewhere=True, code=True).unjudged)


@pytest.mark.parametrize("name", [
    "os:system", "builtins:eval", "shutil:rmtree", "mine.borrowed:score", "mine.own:Judge"])
def test_functions_of_python_and_classes_are_refused_before_they_are_called(project, name):
    (project / "mine/borrowed.py").write_text("from os import system as score\n")
    (project / "mine/own.py").write_text("class Judge:\n    def __init__(self, response, answer): ...\n")
    source = changed({"buffer.explorer_input.default_reward_fn_type": name})
    found = wrong_code(source) or import_problems([source], list(PARTS))
    assert len(found) == 1
    assert name in found[0]
    assert "needed a function" in found[0] or "of Python itself" in found[0]


def test_a_module_of_the_project_may_have_a_name_of_pythons(project):
    (project / "statistics.py").write_text("def score(response, answer): ...\n")
    assert not user_code.of_python("statistics:score")
