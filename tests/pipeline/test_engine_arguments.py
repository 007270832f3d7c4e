"""Arguments of vLLM that other settings decide are refused, with that setting."""

import pytest

from pipeline.settings.config import Config
from pipeline.settings.explorer import OWN_ENGINE_ARGS
from tests.configs import changed, check, lora, overridden
from workflows.engines.vllm_engine import _arguments

KEY = "explorer.rollout_model.extra_engine_args"


@pytest.mark.parametrize("name", OWN_ENGINE_ARGS)
def test_what_another_setting_decides_is_refused_with_its_name(name):
    (problem,) = check(changed({KEY: {name: "raw_logprobs"}}))
    assert (problem.key, problem.found) == (f"{KEY}.{name}", "raw_logprobs")
    assert problem.do == (f"Set {OWN_ENGINE_ARGS[name]}." if OWN_ENGINE_ARGS[name] else "Leave it out.")


def test_all_that_are_refused_are_problems_of_their_own():
    assert [one.key for one in check(changed({KEY: {"seed": 1, "dtype": "half", "quantization": "fp8"}}))] == [
        f"{KEY}.dtype", f"{KEY}.seed"]


@pytest.mark.parametrize("gpu", [True, False])
def test_the_list_has_every_argument_that_an_engine_is_started_with(gpu, tiny_model):
    config = overridden()
    own = _arguments(tiny_model, config, gpu, True, lora(lora_rank=8)).keys()
    assert own - {"enable_chunked_prefill"} <= OWN_ENGINE_ARGS.keys()  # a user may set that beside a GPU
    assert "enable_chunked_prefill" not in own or not gpu


def test_the_settings_that_it_names_exist():
    named = {word.strip(",()") for use in OWN_ENGINE_ARGS.values() if use for word in use.split() if "." in word}
    for key in named:
        section = Config
        for part in key.partition("=")[0].split("."):
            assert part in section.model_fields, key
            section = section.model_fields[part].annotation
