"""`enable_gradient_checkpointing=auto` in the settings that each kind of training stage is handed."""

from types import SimpleNamespace

import bitsandbytes  # noqa: F401  (an adapter's layers import it, and it looks then for a GPU)
import pytest
import torch

from ouroboros.pipeline.check.memory import GIB, training
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.settings.explorer import AuxiliaryModel
from ouroboros.stages.model_size import build, measure
from ouroboros.stages.recompute import needed, resolve
from tests import zoo
from tests.configs import TINY, element, lora, overridden
from tests.golden.messages import wording

ADAPTER = {"model.lora_configs": [lora(lora_rank=4)]}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return zoo.make("qwen2", tmp_path_factory.mktemp("qwen2"))


@pytest.fixture
def resolved(tmp_path, model, monkeypatch):
    """resolved(stage, gib, settings): (setting, line) of a stage of the default plan on a GPU of `gib`."""

    def run(stage: str, gib: float, settings=None):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gib > 0)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gib * GIB))
        config = overridden(f"checkpoint_root_dir={tmp_path}")
        for key, value in (settings or {}).items():
            config = config.but(key, value)
        config = next(one for one in make_plan(config).stages if one.name == stage).config
        line = resolve(config, model, False)
        return config.trainer.enable_gradient_checkpointing, line

    return run


@pytest.mark.parametrize("adapter", [{}, ADAPTER])
@pytest.mark.parametrize("stage", ["sft", "rft"])
def test_auto_is_off_where_the_estimate_fits_and_on_where_it_does_not(resolved, stage, adapter):
    """The bucket of gradients alone takes 5e8 entries of 2 bytes, 0.93 GiB: 0.9 of 1 GiB is too little, of 80 not."""
    assert resolved(stage, 80.0, adapter)[0] is False
    chosen, line = resolved(stage, 1.0, adapter)
    assert chosen is True
    wording(line, "about 1")


def test_the_boundary_is_nine_tenths_of_the_memory(resolved, model, tmp_path):
    config = next(one for one in make_plan(overridden(f"checkpoint_root_dir={tmp_path}")).stages
                  if one.name == "rft").config
    needed = training(measure(build(str(model))), config, 2).peak / GIB
    assert [resolved("rft", needed / 0.9 * share)[0] for share in (1.001, 0.999)] == [False, True]


def test_reward_models_on_the_same_gpu_let_it_recompute(resolved, model):
    judge = {"explorer.auxiliary_models": [element(AuxiliaryModel, {"model_path": str(model)})]}
    assert resolved("rft", 80.0, {"mode": "colocate", **judge})[0] is True
    assert resolved("rft", 80.0, {"mode": "both", **judge})[0] is False


def test_a_choice_of_the_user_and_a_cpu_ask_nothing(resolved):
    assert resolved("rft", 1.0, {"trainer.enable_gradient_checkpointing": False}) == (False, None)
    assert resolved("sft", 80.0, {"trainer.enable_gradient_checkpointing": True}) == (True, None)
    assert resolved("rft", 0.0) == (False, None)


def test_a_tower_counts_where_tasks_have_images_and_its_moments_where_it_is_trained(seeing_model):
    frozen, trained = (overridden(*TINY, f"trainer.freeze_vision_tower={value}") for value in ("true", "false"))
    text, seen = (needed(frozen, seeing_model, images) for images in (False, True))
    assert text < seen < needed(trained, seeing_model, True)
