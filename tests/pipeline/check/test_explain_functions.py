"""`ouro config explain` of functions: the choices, and the arguments of the chosen ones."""

import subprocess
import sys

import pytest

from ouroboros.commands import cli
from ouroboros.operators.terms import KLTerm
from ouroboros.pipeline.check.explain import explain, function_choices
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.settings.arguments.terms import Kl
from ouroboros.pipeline.settings.declared import TABLES
from ouroboros.pipeline.store.errors import ConfigError
from tests.configs import changed, composed
from tests.golden.messages import refuses, wording


def told(key: str, **values) -> str:
    return explain(changed({name.replace("__", "."): value for name, value in values.items()}), key, [])


@pytest.mark.parametrize("part", TABLES)
def test_every_choice_has_a_line(part):
    lines = function_choices(part)
    assert len(lines) == len(TABLES[part])
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)


def test_a_part_lists_its_choices():
    wording(told("algorithm.policy_loss_fn"), "optimisation")
    assert "Group sequence" not in told("algorithm.optimizer.lr")


def test_arguments_are_told_with_default_value_and_meaning():
    lines = told("algorithm.policy_loss_fn_args", algorithm__algorithm_type="dapo").splitlines()
    wording(lines, "stage", "PPO's", "old_logprobs")  # not in sft, which has one loss
    (line,) = [line for line in lines if line.startswith("    clip_range_high=null, here 0.28    ")]
    wording(line, "clip_range ", "least 0")


def test_the_arguments_of_every_kl_are_those_of_the_term(settings):
    """Defaults as the trainer has them."""
    term = KLTerm("k3")
    assert Kl().model_dump() == {name: getattr(term, name) for name in Kl.model_fields}
    assert "adaptive=false" in told("algorithm.kl_loss_fn_args", algorithm__kl_loss_fn="k3")


@pytest.mark.parametrize(("key", "words"), [
    ("buffer.explorer_input.taskset.reward_fn_args", "format_score=0.1"),
    ("data_processor.task_pipeline.generator_args", "tasks=(needed), here 2500"),
    ("buffer.trainer_input.experience_buffer.replay_buffer.priority_fn_args", "decay=2.0  versions of age"),
    ("buffer.explorer_input.taskset.workflow_args", "arguments  none"),
    ("algorithm.policy_loss_fn_args.clip_ratio_c", "clip_ratio_c=3.0"),
    ("algorithm.sample_strategy_args", "max_staleness=inf")])
def test_other_functions_and_one_argument_are_told_too(key, words):
    assert words in told(key, algorithm__sample_strategy="staleness_control")


def test_a_users_function_is_told(tmp_path, monkeypatch):
    (tmp_path / "told_losses.py").write_text(
        'def mine(logprobs, advantages, sharpness=2):\n    """A loss of mine. sharpness: how sharp."""\n')
    monkeypatch.chdir(tmp_path)
    found = told("algorithm.policy_loss_fn_args", algorithm__policy_loss_fn="told_losses:mine")
    wording(found, "told_losses:mine", "logprobs", "sharpness=2", "sharpness")


def test_nothing_heavy_is_imported():
    code = ("import sys; from ouroboros.commands.cli import main; "
            "main(['config', 'explain', 'algorithm.policy_loss_fn_args']); "
            "assert 'torch' not in sys.modules")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_without_arguments_there_is_nothing_to_tell():
    assert explain(composed(), "monitor.monitor_args", []).count("is given") == 0
    assert compose([]).algorithm.policy_loss_fn_args == {}


def test_an_argument_that_no_function_has_is_refused():
    with refuses(ConfigError, "zzz': 'ppo'", "'zzz'", "clip_range"):
        explain(compose([]), "algorithm.policy_loss_fn_args.zzz", [])
    with refuses(ConfigError, "'kl_coef'"):
        explain(compose([]), "algorithm.kl_loss_fn_args.kl_cof", [])
    assert "kl_coef" in explain(compose([]), "algorithm.kl_loss_fn_args.kl_coef", [])


def test_what_is_wrong_is_explained_all_the_same(capsys):
    """mix without its buffer: what its arguments are, and then what is wrong."""
    assert cli.main(["config", "explain", "algorithm.sample_strategy_args", "algorithm=mix"]) == 2
    out, err = capsys.readouterr()
    assert "sft_dataset_name=sft_dataset" in out
    wording(err, "buffer")


def test_an_override_in_place_of_a_key_is_told():
    with refuses(ConfigError, "'algorithm=gspo'"):
        told("algorithm=gspo")
