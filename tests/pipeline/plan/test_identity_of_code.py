"""What of the user's code and of ours changes a stage's identity, and code and reward models that are not there."""

import importlib
import shutil
from pathlib import Path

import pytest

from ouroboros.commands.run.outcome import made_again
from ouroboros.pipeline.plan import identity
from ouroboros.pipeline.settings.config import AuxiliaryModel
from ouroboros.pipeline.store import digests
from ouroboros.pipeline.store.errors import ConfigError, DataError
from tests.configs import element
from tests.golden.messages import refuses
from tests.plans import AFTER_SFT, EVALS, identities, planned


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """(path of a module in the user's project, its dotted name)"""
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    path = tmp_path / "project" / "ouro_test_rewards.py"
    path.parent.mkdir()
    path.write_text("def mine(response, answer):\n    return {'accuracy': 1.0}\n")
    importlib.invalidate_caches()
    return path, "ouro_test_rewards:mine"


@pytest.mark.parametrize(("key", "others", "expected"), [
    ("buffer.explorer_input.default_reward_fn_type", [], AFTER_SFT),
    ("buffer.explorer_input.default_reward_fn_type", ["format_reward"], AFTER_SFT),
    (f"{EVALS}.0.default_reward_fn_type", [], {"evaluate_sft", "evaluate_rft", "report"})])
def test_an_edited_reward_function_is_another_stage_where_it_is_named(tmp_path, user_module, key, others, expected):
    path, name = user_module
    values = {key: [*others, name] if others else name}
    first = identities(tmp_path, values)
    path.write_text(path.read_text().replace("1.0", "0.5"))
    assert {stage for stage, identity in identities(tmp_path, values).items() if identity != first[stage]} == expected


def with_judge(directory: Path, **settings) -> dict:
    """A reward model for rft and the evaluations, as the schema reads it."""
    (directory / "weights").parent.mkdir(exist_ok=True)
    (directory / "weights").touch()
    return {"explorer.auxiliary_models": [element(AuxiliaryModel, {"model_path": str(directory), **settings})]}


def test_a_reward_model_counts_by_content_and_what_it_makes_not_by_how_it_runs(tmp_path):
    first = identities(tmp_path, with_judge(tmp_path / "judge"))

    def changed_by(values: dict) -> set[str]:
        return {name for name, identity in identities(tmp_path, values).items() if identity != first[name]}

    shutil.copytree(tmp_path / "judge", tmp_path / "elsewhere")
    assert changed_by(with_judge(tmp_path / "elsewhere")) == set()
    assert changed_by(with_judge(tmp_path / "judge", engine_num=2, max_token_len=99)) == set()
    assert changed_by(with_judge(tmp_path / "judge", dtype="bfloat16")) == AFTER_SFT
    (tmp_path / "elsewhere" / "weights").write_text("others")
    assert changed_by(with_judge(tmp_path / "elsewhere")) == AFTER_SFT
    stage = next(s for s in planned(tmp_path, with_judge(tmp_path / "judge", engine_num=2)).stages if s.name == "rft")
    assert stage.config.explorer.auxiliary_models[0].model_path == str(tmp_path / "judge")
    assert stage.config.explorer.auxiliary_models[0].engine_num == 2


def test_a_reward_model_that_is_not_there_is_named(tmp_path):
    values = with_judge(tmp_path / "judge")
    shutil.rmtree(tmp_path / "judge")
    with refuses(DataError, "judge"):
        planned(tmp_path, values)


@pytest.mark.parametrize(("text", "counts"), [
    ("# why\n\ndef mine(response, answer):  # what\n\n    return 1   \n", False),
    ('def mine(response, answer):\n    """Of a function."""\n    return 1\n', True),
    ("def mine(response, answer):\n    return '# ' + 1\n", True),
    ("def mine(response, answer):\n        return 1\n", True)])
def test_comments_and_blank_lines_of_user_code_do_not_count_and_docstrings_do(user_module, text, counts):
    path, name = user_module
    path.write_text("def mine(response, answer):\n    return 1\n")
    first = digests.digest_code(name)
    path.write_text(text)
    assert (digests.digest_code(name) != first) == counts


@pytest.mark.parametrize("name", ["nowhere_at_all:f", "nowhere.at.all:f", "sys:exit", "pipeline..x:f"])
def test_code_that_is_not_there_is_named(tmp_path, name):
    with refuses(ConfigError, f"'{name}'", "PYTHONPATH"):
        planned(tmp_path, {"buffer.explorer_input.default_reward_fn_type": name})


def test_a_function_that_is_not_in_the_module_is_named(tmp_path, user_module):
    path, name = user_module
    planned(tmp_path, {"buffer.explorer_input.default_reward_fn_type": name})
    with refuses(ConfigError, "'mime'", "'mine'"):
        planned(tmp_path, {"buffer.explorer_input.default_reward_fn_type": "ouro_test_rewards:mime"})
    path.write_text("from elsewhere import *\nimport other as mime\n")
    planned(tmp_path, {"buffer.explorer_input.default_reward_fn_type": name})  # it may come with the star
    path.write_text("def mine(:\n")
    with refuses(ConfigError, "ouro_test_rewards.py", "line 1"):
        planned(tmp_path, {"buffer.explorer_input.default_reward_fn_type": name})


def test_a_text_with_a_colon_is_no_code(tmp_path):
    plan = planned(tmp_path, {"buffer.explorer_input.system_prompt": "Answer:briefly"})
    assert plan.config.buffer.explorer_input.system_prompt == "Answer:briefly"


def test_arguments_of_user_code_may_have_the_names_of_our_settings(tmp_path):
    given = {"generator": 3, "sample_strategy": "a]\nb", "engine_type": [None]}
    changed = identities(tmp_path, {"buffer.explorer_input.taskset.workflow_args": given})
    assert changed["rft"] != identities(tmp_path)["rft"]


def test_what_is_made_again_for_other_code_is_named_and_not_what_a_setting_changed(tmp_path, monkeypatch):
    first = planned(tmp_path)
    first.freeze()
    for stage in first.stages:
        (Path(stage.directory) / "manifest.json").write_text("{}")
    assert made_again(planned(tmp_path)) == made_again(planned(tmp_path, {"seed": 2})) == []
    of_code = identity.code_of
    monkeypatch.setattr(identity, "code_of", lambda kind, *rest: "edited" if kind == "train" else of_code(kind, *rest))
    assert made_again(planned(tmp_path, {"name": "another"})) == []  # a new run makes nothing again
    (line,) = made_again(planned(tmp_path))
    assert [word.split("-")[0] for word in line.split(": ")[1].split(", ")] == [
        "sft", "evaluate_sft", "rft", "evaluate_rft"]
    (line,) = made_again(planned(tmp_path, {"stages.rft.algorithm.repeat_times": 4}))
    assert "rft-" not in line.replace("evaluate_rft-", "")
