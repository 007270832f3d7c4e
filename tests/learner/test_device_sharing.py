"""`trainer.overlap`: what `auto` chooses by the memory of a GPU, and what `true` refuses."""

from types import SimpleNamespace

import pytest
import torch

from ouroboros.pipeline.check.memory import GIB, kept_logprobs
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.explorer import AuxiliaryModel
from ouroboros.pipeline.settings.trainer import may_overlap
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.stages import device_sharing, recompute
from ouroboros.stages.recompute import needed
from tests import zoo
from tests.configs import element, overridden
from tests.golden.messages import refuses
from tests.plans import planned

AHEAD = ("mode=colocate", "synchronizer.sync_offset=1", "explorer.rollout_model.gpu_memory_utilization=0.5")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return zoo.make("qwen2", tmp_path_factory.mktemp("qwen2"))


@pytest.fixture
def resolved(model, monkeypatch):
    """resolved(gib, "key=value", ...): the setting on a GPU of `gib`; 0: on CPU. early: whether engines open then."""

    def run(gib: float, *overrides: str, judge=False, early=False) -> bool:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gib > 0)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gib * GIB))
        config = overridden(*AHEAD, "trainer.enable_gradient_checkpointing=false", *overrides)
        if judge:
            config = config.but("explorer.auxiliary_models", [element(AuxiliaryModel, {"model_path": str(model)})])
        device_sharing.resolve(config, model, False)
        return device_sharing.opens_early(config, model, False) if early else config.trainer.overlap

    return run


def test_auto_is_true_where_half_of_the_memory_and_the_trainer_leave_a_tenth(resolved, model):
    """Engines hold half of the GPU, and 90% may be used: the trainer may need up to four tenths."""
    trainer = needed(overridden(*AHEAD), model, False) / GIB
    kept = 0.05  # the log-probs that engines keep beside their half
    assert resolved((trainer + kept) / 0.4 * 1.01) is True
    assert resolved(trainer / 0.4 * 0.99) is False


def test_true_is_refused_where_they_do_not_fit(resolved, model):
    trainer = needed(overridden(*AHEAD), model, False) / GIB
    with refuses(ConfigError, "trainer.overlap"):
        resolved(trainer / 0.4 * 0.99, "trainer.overlap=true")
    assert resolved(80, "trainer.overlap=true") is True


@pytest.mark.parametrize(("gib", "overrides", "judge"), [
    (80, ("trainer.overlap=false",), False), (80, ("explorer.rollout_model.engine_type=transformers",), False),
    (80, (), True), (0, (), False)])
def test_they_take_turns_where_it_is_asked_for_or_the_memory_is_not_known(resolved, gib, overrides, judge):
    assert resolved(gib, *overrides, judge=judge) is False


@pytest.mark.parametrize(("overrides", "expected"), [
    ((), True), (("synchronizer.sync_offset=0",), False), (("mode=both",), False), (("trainer.overlap=false",), False)])
def test_only_an_explorer_on_the_same_devices_that_runs_ahead_may(overrides, expected):
    given = {one.partition("=")[0] for one in overrides}
    kept = [one for one in AHEAD if one.partition("=")[0] not in given]
    assert may_overlap(overridden(*kept, *overrides)) is expected


def test_a_stage_that_knows_no_syncs_shares_nothing(tmp_path, model, monkeypatch):
    """Of its stage.json, which has only the settings that its kind reads; of both, what a GPU decides."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80 * GIB))
    plan = planned(tmp_path, {"mode": "colocate", "synchronizer.sync_offset": 1, "trainer.overlap": "auto",
                              "explorer.rollout_model.gpu_memory_utilization": 0.5})
    read = {one.name: Config.of_stage(one.kind, one.specification()["config"]) for one in plan.stages}
    assert {name: may_overlap(read[name]) for name in ("sft", "evaluate_sft", "rft", "curate")} == {
        "sft": False, "evaluate_sft": False, "rft": True, "curate": False}
    for name, shares in (("sft", False), ("rft", True)):
        recompute.resolve(read[name], model, False)
        device_sharing.resolve(read[name], model, False)
        assert (read[name].trainer.overlap, device_sharing.opens_early(read[name], model, False)) == (shares, shares)


TURNS, ONE, SIZED = "synchronizer.sync_offset=0", *(f"explorer.rollout_model.{one}" for one in (
    "engines_per_gpu=1", "kv_cache_mib=64"))  # two engines have a half each of what is theirs, one measures
TOLD = ("cluster.gpu_per_node=1", "cluster.gpu_memory_gib=80")


@pytest.mark.parametrize(("gib", "overrides", "judge", "expected"), [
    (80, (), False, True), (80, (TURNS, *TOLD), False, True), (80, (TURNS, ONE, *TOLD), False, False),
    (80, (TURNS,), False, False),  # the explorer, which is not told the memory, opens one
    (80, (TURNS, ONE, SIZED), False, True), (80, ("explorer.rollout_model.gpu_memory_utilization=0.9",), False, False),
    (80, (), True, False), (80, ("mode=both",), False, False), (0, (), False, False),
    (80, ("explorer.rollout_model.engine_type=transformers",), False, False)])
def test_engines_open_while_the_trainer_starts_where_both_fit(resolved, gib, overrides, judge, expected):
    assert resolved(gib, *overrides, judge=judge, early=True) is expected


@pytest.mark.parametrize(("length", "proof"), [(8192, 0.034), (65536, 0.223)])
def test_the_proof_of_rows_must_fit_with_engines(resolved, model, length, proof):
    """In float32 of 8,192 tokens, three copies of 4 bytes of each logit over 364 words: 0.033 GiB, and the weights. Of
    the whole row 10 bytes of each logit: 0.222 GiB. Engines hold half of the GPU."""
    long = f"model.max_model_len={length}"
    config = overridden(*AHEAD, long)
    trainer = (needed(config, model, False) + kept_logprobs(config)) / GIB
    assert resolved((trainer + proof - 0.002) / 0.4, long) is True
    assert resolved((trainer + proof - 0.002) / 0.4, long, early=True) is False
    assert resolved((trainer + proof + 0.002) / 0.4, long, early=True) is True
