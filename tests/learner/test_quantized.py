"""QLoRA: what 4 bits make of weights, and that trainer, engines and files have the same ones."""

import logging

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.stages import quantized as stage
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.engine.quantized import Frozen, Linear4bit, dequantized, hold, layers, quantized
from ouroboros.stages.learner.engine.snapshot import written
from ouroboros.stages.learner.objective import Objective
from ouroboros.stages.model_size import measure
from ouroboros.workflows.protocol.engine import Request
from tests.configs import TINY, lora, overridden
from tests.golden.messages import refuses
from tests.learner.ranks import rows

SFT = ("algorithm.algorithm_type=sft",)
ADAPTER = {"lora_rank": 4, "lora_alpha": 8}


def settings(*overrides):
    return overridden(*TINY, *SFT, *overrides).but("model.lora_configs", [lora(**ADAPTER)])


def write(model, directory, dtype: str):
    directory.mkdir()
    made = Context("toy/one", "quantized", "quantized", directory, overridden(*TINY, f"model.dtype={dtype}"),
                   {"model": model}, logging.getLogger("tests"))
    stage.work(made)
    return directory


@pytest.fixture(scope="module")
def base(tiny_model, tmp_path_factory):
    """The tiny model with the weights of its 4 bits."""
    return write(tiny_model, tmp_path_factory.mktemp("store") / "quantized", "float32")


@pytest.fixture
def begin(base, process):
    """begin("key=value", ...): a policy with a new adapter on a base in 4 bits."""
    return lambda *words: Actor(base, settings("model.load_in_4bit=true", *words), process, keep_initial=True)


def plain(path) -> dict:
    return AutoModelForCausalLM.from_pretrained(path, local_files_only=True).state_dict()


def test_a_block_by_hand():
    """The largest of 64 is 2. Of 1 / 2 the nearest values are 0.4407 and 0.5626, 0.059 and 0.063 away; of -0.3 / 2
    -0.1848 and -0.0911, 0.035 and 0.059. So 0.8814 and -0.3695; -2 and 2 stay, and a block of zeros stays zero."""
    weight = torch.zeros(2, 64)
    weight[0, :4] = torch.tensor([2.0, 1.0, -0.3, -2.0])
    packed, scales = quantized(weight)
    assert (packed.numel(), scales.tolist()) == (64, [2.0, 0.0])
    found = dequantized(packed, scales, [2, 64])
    assert found[0, :4].tolist() == pytest.approx([2.0, 0.8814, -0.3695, -2.0], abs=1e-4)
    assert not found[0, 4:].any()
    assert not found[1].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_quantized_once_stays_as_it_is(dtype):
    torch.manual_seed(1)
    weight = torch.randn(96, 192).to(dtype)
    packed, scales = quantized(weight)
    first = dequantized(packed, scales, [96, 192])
    again = quantized(first)
    assert scales.dtype == first.dtype == dtype
    assert torch.equal(again[0], packed)
    assert torch.equal(again[1], scales)
    assert 0.05 < (first - weight).float().abs().mean() < 0.1  # of weights whose mean is 0.8


def test_the_operator_is_a_linear_layer_with_the_gradient_of_its_input():
    torch.manual_seed(1)
    linear = nn.Linear(64, 96)
    held = Linear4bit(linear, torch.device("cpu"))
    x, y = (torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(2), requires_grad=True) for _ in range(2))
    found, expected = held(x), functional.linear(y, held.weight, linear.bias)
    assert torch.equal(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, atol=1e-5, rtol=0)
    torch.library.opcheck(torch.ops.ouroboros.linear_4bit.default,
                          (x, held.packed, held.scales, linear.bias.detach(), held.shape))
    assert not held.state_dict().keys() - {"bias"}


def test_the_stage_writes_the_text_below_the_head_as_its_4_bits_have_it(base, tiny_model):
    """7 linear layers in each of 2; embedding and norms are those of the model."""
    before, after = plain(tiny_model), plain(base)
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert len(changed) == 14
    assert all(name.endswith("_proj.weight") for name in changed)
    for name in changed:
        packed, scales = quantized(before[name])
        assert torch.equal(after[name], dequantized(packed, scales, list(before[name].shape)))
    assert "quantization_config" not in AutoConfig.from_pretrained(base).to_dict()


def test_a_policy_in_4_bits_is_one_on_the_weights_that_they_stand_for(begin, base, process):
    """Bit for bit: log-probs, steps, the reference, and what is merged; and transformers' log-probs of that base."""
    actor, whole = begin(), Actor(base, settings(), process, keep_initial=True)
    held = [module for module in actor.zero.module.modules() if isinstance(module, Linear4bit)]
    assert len(held) == 14
    row = rows()[2]
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(base, local_files_only=True)(torch.tensor([row.tokens])).logits[0]
    expected = logits[:-1].log_softmax(-1).gather(-1, torch.tensor(row.tokens[1:])[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(actor.score(row.tokens)), expected, atol=1e-5, rtol=0)
    loss, start = Objective(settings()), actor.score_rows(rows())
    steps = [[one.step(rows(), loss, 1e-2, 1).loss for _ in range(2)] for one in (actor, whole)]
    assert steps[0] == steps[1]
    assert all((a == b).all() for a, b in zip(start, actor.reference_logprobs(rows()), strict=True))
    states = [one.full_state() for one in (actor, whole)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


@pytest.mark.parametrize("zero_stage", [1, 2])
def test_a_resumed_policy_goes_on_bit_for_bit_and_a_checkpoint_has_no_4_bits(begin, tmp_path, zero_stage):
    way, loss = f"trainer.zero_stage={zero_stage}", Objective(settings())
    actor = begin(way)
    actor.step(rows(), loss, 1e-2, 1)
    written(actor.zero.save(tmp_path))
    assert torch.load(tmp_path / "masters" / "mp_rank_00_model_states.pt", weights_only=False)["module"] == {}
    resumed = begin(way)
    resumed.zero.load(tmp_path)
    assert actor.step(rows(), loss, 1e-2, 2).loss == resumed.step(rows(), loss, 1e-2, 2).loss
    states = [one.full_state() for one in (actor, resumed)]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


@pytest.mark.parametrize("engine_type", ["transformers", pytest.param("vllm", marks=pytest.mark.slow)])
def test_an_engine_on_the_written_base_answers_as_the_trainer(begin, base, tmp_path, engine_type):
    from ouroboros.workflows.engines.open import open_engine

    actor = begin()
    actor.step(rows(), Objective(settings()), 1e-2, 1)
    actor.write_adapter(actor.trainable_state(), tmp_path)
    engine = open_engine(base, overridden(*TINY, f"explorer.rollout_model.engine_type={engine_type}"), [1],
                         adapter=lora(**ADAPTER))
    try:
        engine.load_weights(tmp_path)
        tokens = rows()[2].tokens
        (found,) = engine.generate([Request(tokens[:8], 16, 1.0, 1.0, -1, 7)])
        scored = actor.score([*tokens[:8], *found.tokens])[7:]
    finally:
        engine.close()
    assert found.logprobs == pytest.approx(scored, abs=1e-4 if engine_type == "transformers" else 1e-3)


def test_weights_that_leave_come_back_as_they_were_with_the_next_forward(begin):
    actor = begin()
    expected, frozen = actor.score_rows(rows()), Frozen(actor.zero.module)
    frozen.leave()
    places = [one.data_ptr() for one in frozen.kept]
    assert [one.data_ptr() for one in frozen.tensors] == places
    assert actor.full_state().keys() == begin().full_state().keys()  # a checkpoint is made while they are away
    assert all((a == b).all() for a, b in zip(expected, actor.score_rows(rows()), strict=True))
    assert not frozen.away
    learning = {id(p) for p in actor.zero.module.parameters() if p.requires_grad}
    assert not learning & {*map(id, frozen.tensors)}


def test_a_base_of_another_type_is_refused(tiny_model, tmp_path):
    """Rounded to bfloat16, a value is not the one that its code stands for in float32."""
    directory = write(tiny_model, tmp_path / "other", "bfloat16")
    assert load_file(directory / "model.safetensors")["model.embed_tokens.weight"].dtype == torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, dtype=torch.float32)
    with refuses(ModelError, "model.dtype"):
        hold(model, torch.device("cpu"), str(directory))


@pytest.mark.parametrize(("changes", "words"), [
    ({"intermediate_size": 100}, "100 inputs"), ({"model_type": "lfm2", "block_multiple_of": 64,
                                              "layer_types": ["conv", "full_attention"]}, "conv.conv"),
    ({"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}, "experts")])
def test_weights_that_have_no_blocks_are_named(tiny_model, changes, words):
    config = AutoConfig.from_pretrained(tiny_model).to_dict()
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config | changes))
    assert words in measure(model).unheld  # by `ouro config check`
    with refuses(ModelError, "model.load_in_4bit", words):
        layers(model, "it")
