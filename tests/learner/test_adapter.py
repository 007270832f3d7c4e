"""LoRA: what is trained and what is not, what is handed on, and what it must not begin with."""

from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ouroboros.pipeline.settings.lora import ADAPTER, ADAPTER_CONFIG
from ouroboros.pipeline.store.checkpoints import copy_model_files, weights_hash
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.engine.adapter import Adapter, inject
from ouroboros.stages.learner.engine.snapshot import written
from ouroboros.stages.learner.objective import Objective
from ouroboros.stages.learner.reference import start_hash
from tests.configs import TINY, lora, overridden
from tests.golden.messages import refuses
from tests.learner.ranks import rows

SFT = ("algorithm.algorithm_type=sft", "algorithm.optimizer.weight_decay=0.1")


def settings(*overrides, **adapter):
    made = overridden(*TINY, *SFT, *overrides)
    return made.but("model.lora_configs", [lora(**{"lora_rank": 4, "lora_alpha": 8, **adapter})])


@pytest.fixture
def begin(tiny_model, process):
    """begin("key=value", ..., lora_rank=8): a policy with a new adapter."""
    return lambda *overrides, **adapter: Actor(tiny_model, settings(*overrides, **adapter), process, keep_initial=True)


@pytest.fixture
def loss():
    return Objective(settings())


def plain(path: Path) -> dict:
    return AutoModelForCausalLM.from_pretrained(path, local_files_only=True).state_dict()


def scores(model, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].log_softmax(-1)


class Rank1:
    r, lora_alpha = 1, 2


def test_a_merge_by_hand():
    """W = [1 2; 3 4], A = [1 1], B = [1; 2], alpha / rank = 2: W + 2 [1 1; 2 2] = [3 4; 7 8]. Nothing else changes."""
    found = Adapter(Rank1()).merged({
        "a.q_proj.base_layer.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "a.q_proj.base_layer.bias": torch.tensor([5.0, 6.0]),
        "a.q_proj.lora_A.default.weight": torch.tensor([[1.0, 1.0]]),
        "a.q_proj.lora_B.default.weight": torch.tensor([[1.0], [2.0]]), "a.norm.weight": torch.tensor([7.0])})
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "a.q_proj.weight": [[3.0, 4.0], [7.0, 8.0]], "a.q_proj.bias": [5.0, 6.0], "a.norm.weight": [7.0]}


def test_in_16_bits_a_merge_rounds_once():
    """bfloat16 has steps of 2 from 256 on. 256 + 2 x (0.5 + 0.3) = 257.6, nearest 258; rounding 0.8 to 0.8008 first and
    256 + 0.8008 to 256 in between would lose it."""
    found = Adapter(Rank1()).merged({
        "q.base_layer.weight": torch.tensor([[256.0]], dtype=torch.bfloat16),
        "q.lora_A.default.weight": torch.tensor([[0.8]], dtype=torch.bfloat16),
        "q.lora_B.default.weight": torch.tensor([[1.0]], dtype=torch.bfloat16)})
    assert (found["q.weight"].dtype, found["q.weight"].item()) == (torch.bfloat16, 258.0)


def test_only_the_adapter_learns_and_only_it_has_an_optimizer(begin, loss, tiny_model):
    """2 layers, 64 wide, queries 64, keys and values 32, MLP 256: 4 x (128 + 96 + 96 + 128 + 320 + 320 + 320) x 2."""
    actor = begin()
    before = [values.copy() for values in actor.score_rows(rows())]
    first, second = (actor.step(rows(), loss, 1e-2, 1) for _ in range(2))
    assert second.loss < first.loss
    learning = dict(actor._trainable())
    assert all(".lora_" in name for name in learning)
    assert sum(p.numel() for p in learning.values()) == 4 * 1408 * 2
    assert all(p.grad is None for name, p in actor._parameters() if name not in learning)
    assert sum(p.numel() for p in actor.zero.engine.optimizer.single_partition_of_fp32_groups) == 4 * 1408 * 2
    begun = plain(tiny_model)
    for name, tensor in actor._parameters():
        if ".base_layer." in name or "norm" in name or "embed" in name:
            assert torch.equal(tensor, begun[name.replace(".base_layer", "")]), name
    changed = {name for name, tensor in actor.full_state().items() if not torch.equal(tensor, begun[name])}
    assert len(changed) == 14  # seven of each layer
    assert max(np.abs(a - b).max() for a, b in zip(before, actor.score_rows(rows()), strict=True)) > 1e-3


def test_a_new_adapter_changes_nothing_and_depends_on_the_seed_alone(begin, tiny_model):
    torch.manual_seed(5)
    one = begin()
    torch.manual_seed(6)
    other, third = begin(), begin("seed=2")
    a = [next(p for name, p in x._trainable() if "lora_A" in name) for x in (one, other, third)]
    assert torch.equal(a[0], a[1])
    assert not torch.equal(a[0], a[2])
    begun = plain(tiny_model)
    assert all(torch.equal(tensor, begun[name]) for name, tensor in one.full_state().items())


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_reference_is_the_model_without_it_and_a_resumed_policy_goes_on_bit_for_bit(begin, loss, tmp_path, stage):
    """After a checkpoint: the next step of the actor that wrote it, and of a new one that takes it up."""
    way = f"trainer.zero_stage={stage}"
    actor = begin(way)
    reference = actor.score_rows(rows())
    for _ in range(2):
        actor.step(rows(), loss, 1e-2, 1)
    written(actor.zero.save(tmp_path))
    found = actor.reference_logprobs(rows())
    assert all((a == b).all() for a, b in zip(reference, found, strict=True))
    resumed = begin(way)
    resumed.zero.load(tmp_path)
    results = [one.step(rows(), loss, 1e-2, 1) for one in (actor, resumed)]
    assert results[0].loss == results[1].loss
    states = [one.full_state() for one in (actor, resumed)]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_a_checkpoint_has_no_weights_that_do_not_learn(begin, tmp_path):
    """Nor a tied head, which DeepSpeed takes for another weight. Those that learn are in it once, as masters."""
    written(begin().zero.save(tmp_path))
    model, optimizer = (torch.load(next((tmp_path / "masters").glob(f"*{kind}_states.pt")), weights_only=False)
                        for kind in ("model", "optim"))
    assert model["module"] == {}
    masters, = optimizer["optimizer_state_dict"]["single_partition_of_fp32_groups"]
    assert masters.numel() == 4 * 1408 * 2


@pytest.fixture
def exported(begin, loss, tiny_model, tmp_path):
    """After two steps: the adapter's directory and that of the whole model."""
    actor = begin(target_modules=["q_proj", "v_proj", "down_proj"], exclude_modules=["v_proj"])
    for _ in range(2):
        actor.step(rows(), loss, 1e-2, 1)
    copy_model_files(tiny_model, tmp_path / "model")
    written(actor.save(tmp_path))
    return actor, tmp_path / "adapter", tmp_path / "model"


def test_what_is_published_is_the_adapter_alone_in_pefts_format(exported, tmp_path):
    actor, directory, _ = exported
    (tmp_path / "version").mkdir()
    actor.write_adapter(actor.trainable_state(), tmp_path / "version")
    names = {path.name for path in (tmp_path / "version").iterdir()}
    assert {ADAPTER, ADAPTER_CONFIG} <= names <= {ADAPTER, ADAPTER_CONFIG, "README.md"}
    found, again = load_file(tmp_path / "version" / ADAPTER), load_file(directory / ADAPTER)
    assert sorted(found) == sorted(
        f"base_model.model.model.layers.{layer}.{module}.lora_{which}.weight"
        for layer in (0, 1) for module in ("self_attn.q_proj", "mlp.down_proj") for which in "AB")
    assert all(torch.equal(tensor, again[name]) for name, tensor in found.items())
    assert weights_hash(tmp_path / "version") == weights_hash(directory)


def test_base_and_adapter_in_peft_are_the_merged_model_and_the_trainer(exported, tiny_model):
    actor, adapter, merged = exported
    row = rows()[2]
    base = AutoModelForCausalLM.from_pretrained(tiny_model, local_files_only=True)
    with_adapter = scores(PeftModel.from_pretrained(base, adapter), row.tokens)
    whole = scores(AutoModelForCausalLM.from_pretrained(merged, local_files_only=True), row.tokens)
    torch.testing.assert_close(with_adapter, whole, atol=1e-5, rtol=0)
    ours = torch.tensor(actor.score(row.tokens))
    targets = torch.tensor(row.tokens[1:])[:, None]
    torch.testing.assert_close(ours, whole[:-1].gather(-1, targets)[:, 0], atol=1e-5, rtol=0)


def test_a_stage_goes_on_with_an_adapter_that_is_named(exported, begin, tiny_model):
    """Its policy and its reference are both the model with that adapter."""
    actor, directory, _ = exported
    targets = {"target_modules": ["q_proj", "down_proj"], "path": str(directory)}
    second = begin(**targets)
    expected = actor.score_rows(rows())
    for found in (second.score_rows(rows()), second.reference_logprobs(rows())):
        assert all((a == b).all() for a, b in zip(expected, found, strict=True))
    assert start_hash(tiny_model, settings()) == weights_hash(tiny_model) != start_hash(tiny_model, settings(**targets))


@pytest.mark.parametrize(("adapter", "words"), [
    ({"target_modules": ["q_prj"]}, "target_modules"), ({"target_modules": ["lm_head"]}, "'lm_head'"),
    ({"exclude_modules": ["experts"]}, "exclude_modules"),
    ({"target_modules": ["q_proj"], "exclude_modules": ["q_proj"]}, "nothing"),
    ({"path": "/nowhere"}, "adapter_config.json")])
def test_what_cannot_be_trained_is_named(tiny_model, adapter, words):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, local_files_only=True)
    with refuses(ModelError, words):
        inject(model, tiny_model, settings(**adapter).model.lora_configs[0], 1)


@pytest.mark.parametrize(("adapter", "words"), [
    ({"lora_rank": 8}, "model.lora_configs.0.lora_rank=4"), ({"lora_alpha": 1}, "lora_alpha=8"),
    ({}, "gate_proj.lora_A.weight"), ({"target_modules": ["q_proj"]}, "down_proj")])
def test_an_adapter_of_other_settings_is_refused(exported, tiny_model, adapter, words):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, local_files_only=True)
    with refuses(ModelError, words):
        inject(model, tiny_model, settings(path=str(exported[1]), **adapter).model.lora_configs[0], 1)


def test_an_adapter_of_another_model_is_refused(exported, tiny_model):
    from transformers import AutoConfig

    wider = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tiny_model, intermediate_size=128))
    targets = {"target_modules": ["q_proj", "down_proj"], "path": str(exported[1])}
    with refuses(ModelError, "down_proj.lora_A.weight", "[4, 256]", "[4, 128]"):
        inject(wider, tiny_model, settings(**targets).model.lora_configs[0], 1)
