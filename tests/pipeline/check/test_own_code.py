"""Functions of the user's that cannot be called, told before anything runs."""

import re
import time

import pytest

from ouroboros.pipeline.check import preflight, user_code
from ouroboros.pipeline.check.named_functions import wrong_arguments
from ouroboros.pipeline.check.user_code import imported, wrong_code
from ouroboros.pipeline.compose.recipe import effective
from ouroboros.pipeline.store.errors import ConfigError
from tests.configs import changed, overridden
from tests.golden.messages import refuses, wording

MODULES = {
    "mine/__init__.py": "", "mine/raises.py": "raise RuntimeError('boom')\ndef f(logprobs): ...\n",
    "mine/absent.py": "'Doc.'\nimport no_such_package.inner as x\ndef f(logprobs): ...\n",
    "mine/deep.py": "from . import absent\nfrom .absent import f\n",
    "mine/careful.py": "try:\n    import no_such_package\nexcept ImportError: ...\ndef f(logprobs): ...\n",
    "mine/later.py": "import sys\nsys.path.append('elsewhere')\nimport no_such_package\ndef f(logprobs): ...\n",
    "mine/within.py": "import json, numpy\ndef f(logprobs):\n    import no_such_package\n",
    "mine/ends.py": "import os\nos._exit(3)\ndef f(logprobs): ...\n",
    "mine/leaves.py": "import sys\nsys.exit(0)\ndef f(logprobs): ...\n",
    "mine/child.py": "import os, time\nif not os.fork():\n    time.sleep(60)\ndef f(logprobs): ...\n",
    "mine/slow.py": "import time\ntime.sleep(60)\n",
    "mine/parts.py": "const = 3\nnames: list = ['a']\nasync def later(logprobs): ...\ndef f(logprobs, cap=1.0): ...\n"
                     "def posonly(logprobs, /): ...\nlazy = lambda logprobs, colour: 0\nmade = int('3')\n"
                     "again = 3\nagain = lambda logprobs: 0\n",
    "mine/yields.py": "def turns(prompt, task):\n    reply = yield prompt\n    return []\n",
    "mine/rewards.py": "import functools\ndef one(response): ...\ndef none(): ...\n"
                       "def named(response, *, answer): ...\n"
                       "def two(response, /, answer): ...\ndef more(response, answer, scale=1.0): ...\n"
                       "def every(*texts): ...\nof_one = lambda response: {}\nof_two = lambda response, answer: {}\n"
                       "def pair(f):\n    return functools.wraps(f)(lambda *texts: f(texts))\n"
                       "@pair\ndef wrapped(texts): ...\nasync def later(response, answer): ...\n"
                       "def batch(completions, **more): ...\n"
                       "def trl(prompts, completions, truth, scale): ...\n"}


def stages(*names: str) -> list[dict]:
    return [overridden(f"algorithm.policy_loss_fn='{name}'") for name in names]


def lines(*names: str) -> list[str]:
    """What is wrong with losses of these names, after they were imported."""
    configs = stages(*names)
    functions, wrong = imported(configs)
    return [*wrong, *(line for config in configs for line in wrong_arguments(config, functions))]


def test_functions_that_cannot_be_called_are_found_by_importing_them(project):
    told = {"const": "is of type int", "names": "is of type list", "made": "is of type int", "later": "async def",
            "lazy": "'colour'", "posonly": "logprobs"}
    found = lines(*(f"mine.parts:{name}" for name in (*told, "f", "again")))
    assert len(found) == len(told)
    for name, words in told.items():
        (line,) = [one for one in found if re.search(rf"mine\.parts:{name}\b", one)]
        assert words in line


def rewarding(name: str) -> dict:
    return overridden(f"buffer.explorer_input.default_reward_fn_type='mine.rewards:{name}'")


def test_a_reward_function_is_called_with_a_response_and_its_truth(project):
    """Those with too few parameters, and how many they have by position; the others fit."""
    few = {"one": 1, "none": 0, "named": 1, "of_one": 1}
    configs = {name: effective(rewarding(name), rewarding(name).stages[1])
               for name in (*few, "two", "more", "every", "wrapped", "later", "batch")}
    functions, wrong = imported(list(configs.values()))
    assert wrong == []
    for name, config in configs.items():
        said = [line for line in wrong_arguments(config, functions) if line.key == f"'mine.rewards:{name}'"]
        assert [(line.key, f"has {few.get(name)} parameters" in line) for line in said] == (
            [(f"'mine.rewards:{name}'", True)] if name in few else [])


def test_an_async_function_is_no_loss(project):
    (line,) = lines("mine.rewards:later")
    wording(line, "`async def`")


def test_what_a_function_of_all_responses_is_not_given_is_a_column_that_a_generator_lacks(project):
    config = effective(rewarding("trl"), rewarding("trl").stages[1])
    said = wrong_arguments(config, imported([config])[0])
    taken = ("truth", "scale", "prompts", "completions")
    assert [name for name in taken if any(f"'{name}'" in line for line in said)] == ["truth", "scale"]


def test_a_users_algorithm_is_a_class_derived_from_ours():
    names = [f"tests.operators.own_algorithms:{name}" for name in ("OwnPpo", "chord_mu")]
    functions, wrong = imported([overridden(f"algorithm.algorithm_type={name}") for name in names])
    assert (list(functions), [names[1] in line for line in wrong]) == (names[:1], [True])


def test_arguments_of_a_users_function_are_judged_once_it_is_imported(project):
    config = overridden("algorithm.policy_loss_fn='mine.parts:f'", "algorithm.policy_loss_fn_args={cop: 2}")
    (line,) = wrong_arguments(config, imported([config])[0])
    wording(line, "'mine.parts:f'", "'cop'", "'cap'")
    assert wrong_arguments(config) == []  # --no-data: nothing of the user's is run


@pytest.mark.parametrize(("key", "name", "told"), [
    ("workflow", "yields:turns", False), ("reward_fn", "yields:turns", True), ("workflow", "rewards:none", True),
    ("workflow", "rewards:every", True)])
def test_a_workflow_takes_a_task_and_may_be_a_generator(project, key, name, told):
    config = overridden(f"buffer.explorer_input.default_{key}_type='mine.{name}'")
    functions, wrong = imported([config])
    assert bool(wrong + wrong_arguments(effective(config, config.stages[1]), functions)) == told


def test_a_module_that_is_no_python_is_left_to_the_import(project):
    (project / "mine/broken.py").write_text("def f(:\n")
    rewarded = overridden("buffer.explorer_input.default_reward_fn_type='mine.broken:f'")
    for config in (*stages("mine.broken:f"), rewarded):
        _, (line,) = imported([config])
        wording(line, "'mine.broken:f'", "SyntaxError")


def test_a_package_that_is_not_installed_is_found_by_the_import(project):
    (line,) = lines("mine.deep:f")
    wording(line, "'mine.deep:f'", "ModuleNotFoundError", "'no_such_package'")
    assert "mine/absent.py" in line
    assert lines("mine.careful:f", "mine.within:f") == []


def test_every_module_is_imported_once_in_a_process_of_its_own(project):
    """The third ends the process; the one behind it is asked all the same. `lazy` can only be judged by import."""
    names = ("mine.raises:f", "mine.leaves:f", "mine.ends:f", "mine.parts:lazy", "mine.parts:f")
    found = lines(*names)
    words_of = "boom", "SystemExit: 0 (mine/leaves.py:2 in <module>)", "exit code 3", "'colour'"
    for name, words, line in zip(names, words_of, found, strict=False):
        assert name in line
        assert words in line
    assert len(found) == 4


def test_what_is_told_already_and_what_is_ours_starts_no_process(project, monkeypatch):
    monkeypatch.setattr(user_code, "_ask", None)
    assert imported(stages("mine.raises:f"), "'mine.raises:f' cannot be imported") == ({}, [])
    assert imported([overridden()]) == ({}, [])


@pytest.mark.parametrize("limit", ["WAIT", "IDLE"])
def test_an_import_that_does_not_end_or_reads_nothing_any_more_is_told(project, monkeypatch, limit):
    monkeypatch.setattr(user_code, limit, 2)
    _, (line,) = imported(stages("mine.slow:f"))
    wording(line, "'mine.slow:f'", "2 s")


def test_what_an_import_leaves_running_is_not_waited_for(project):
    begin = time.monotonic()
    found, wrong = imported(stages("mine.child:f"))
    assert (list(found), wrong) == (["mine.child:f"], [])
    assert time.monotonic() - begin < 50


@pytest.mark.usefixtures("without_preview")
def test_a_run_does_not_begin_with_a_module_that_does_not_import(project):
    config = changed({"algorithm.policy_loss_fn": "mine.raises:f"})
    assert not any("boom" in line for line in preflight.check(config).problems)
    with refuses(ConfigError, "boom"):
        preflight.judged_plan(config)
    assert any("boom" in line for line in preflight.check(config, elsewhere=True, code=True).unjudged)


@pytest.mark.parametrize("name", [
    "os:system", "builtins:eval", "shutil:rmtree", "mine.borrowed:score", "mine.own:Judge"])
def test_functions_of_python_and_classes_are_refused_before_they_are_called(project, name):
    (project / "mine/borrowed.py").write_text("from os import system as score\n")
    (project / "mine/own.py").write_text("class Judge:\n    def __init__(self, response, answer): ...\n")
    source = changed({"buffer.explorer_input.default_reward_fn_type": name})
    found = wrong_code(source) or imported([source])[1]
    assert len(found) == 1
    assert name in found[0]
    assert "needed a function" in found[0] or "of Python itself" in found[0]


def test_a_module_of_the_project_may_have_a_name_of_pythons(project):
    (project / "statistics.py").write_text("def score(response, answer): ...\n")
    assert not user_code.of_python("statistics:score")
