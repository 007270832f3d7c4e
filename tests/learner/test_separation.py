"""Rows packed together do not touch one another, or the stage does not start."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.stages import learn
from ouroboros.stages.learner import separation
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.critic import Critic
from ouroboros.stages.learner.engine import attention, packing, policy, recurrent
from ouroboros.stages.learner.engine.sharing import Segments
from ouroboros.stages.learner.objective import Objective
from ouroboros.stages.learner.teacher import Teacher
from tests import families, zoo
from tests.configs import TINY, composed, overridden
from tests.factories import TEXT, row
from tests.golden.messages import refuses
from tests.learner.test_actor import rows

SMALL = {"vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1, "intermediate_size": 128, "max_position_embeddings": 64, "initializer_range": 0.2}
HYBRIDS = {
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16,
              "mamba_chunk_size": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 8, "mamba_dt_rank": 4,
              "use_mamba_kernels": False},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16,
                  "mamba_chunk_size": 8},
    "nemotron_h": {"layers_block_type": ["mamba", "attention"], "mamba_num_heads": 4, "mamba_head_dim": 32,
                   "ssm_state_size": 16, "n_groups": 1, "chunk_size": 8, "use_mamba_kernels": False, "head_dim": 32},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
}
LEAKS = "needed exactly 0"


def made(family: str, directory):
    """A random model of a family whose refusal is of another test."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    settings = SMALL | HYBRIDS.get(family, {})
    AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings)).save_pretrained(directory)
    return directory


def loaded(path, dtype, process):
    """What `prove_policy` reads of an actor."""
    settings = composed().trainer.merged({"enable_gradient_checkpointing": True})
    return SimpleNamespace(process=process, zero=SimpleNamespace(
        module=policy.load(path, "cpu", dtype, settings, 1.0, 64)))


def asked(packing="packed", longest=64):
    """The settings that a proof reads."""
    return overridden(*TINY, f"trainer.packing={packing}", "model.max_prompt_tokens=24",
                      f"model.max_response_tokens={longest - 24}")


@pytest.fixture
def unrefused(monkeypatch):
    """Models of any architecture are packed."""
    from transformers import PreTrainedModel

    monkeypatch.setattr(policy, "unpacked", lambda *_: None)
    monkeypatch.setattr(PreTrainedModel, "_supports_attention_backend", True)


@pytest.fixture
def unbounded(monkeypatch):
    """Attention that takes a packed micro-batch for one row."""
    bounded = attention.layout
    monkeypatch.setattr(attention, "layout", lambda segments, *more: bounded(
        Segments(segments.bounds[[0, -1]], segments.contexts[:1]), *more))


@pytest.fixture
def uncut(monkeypatch):
    """Layers that carry a state get neither bounds nor rows of their own."""
    monkeypatch.setattr(recurrent, "keep_to_bounds", lambda _: True)


@pytest.fixture
def kernels(monkeypatch, uncut):
    """Kernels that keep to the bounds of rows, as those of causal-conv1d and flash-linear-attention do on a GPU."""
    from transformers.models.lfm2 import modeling_lfm2 as lfm2
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    def convolve(states, *more, seq_idx=None, own=None, **how):
        return torch.cat([own(one, *more, **how) for one in states.split(
            seq_idx[0].bincount().tolist(), -1)], -1) if seq_idx is not None else own(states, *more, **how)

    def scan(*states, cu_seqlens=None, own=qwen.torch_chunk_gated_delta_rule, g, beta, **how):
        if cu_seqlens is None:
            return own(*states, g=g, beta=beta, **how)
        parts = [one.split(cu_seqlens.diff().tolist(), 1) for one in (*states, g, beta)]
        return torch.cat([own(q, k, v, g=g, beta=beta, **how)[0] for q, k, v, g, beta in zip(*parts, strict=True)],
                         1), None

    for module in (lfm2, qwen):
        monkeypatch.setattr(module, "causal_conv1d_fn", partial(convolve, own=module.causal_conv1d_fn))
    monkeypatch.setattr(qwen, "torch_chunk_gated_delta_rule", scan)


@pytest.mark.parametrize(("family", "given", "packing", "way"), [
    *((family, "kernels", "packed", "packed") for family in ("lfm2", "qwen3_next")),
    *((family, "uncut", "auto", "rows") for family in ("qwen3_next", "granitemoehybrid"))])
def test_kernels_get_the_bounds_of_rows_or_are_found(tmp_path, process, request, family, given, packing, way):
    request.getfixturevalue(given)
    families.make(family, tmp_path)
    actor = loaded(tmp_path, torch.float32, process)
    separation.prove_policy(actor, asked(packing), TEXT)
    assert actor.zero.module.way.name == way


def test_hybrids_go_by_rows_where_ranks_gather_weights_and_are_refused_where_they_split_rows(tmp_path):
    families.make("granitemoehybrid", tmp_path)

    def read(sequence=None, **trainer):
        return policy.read(tmp_path, "cpu", torch.float32, composed().trainer.merged(trainer), 64, sequence=sequence)[1]

    assert read(zero_stage=2).name == "packed"
    assert read(zero_stage=3).name == "rows"
    with refuses(ModelError, "trainer.packing"):
        read(zero_stage=3, packing="packed")
    with refuses(ModelError, "trainer.ulysses_sequence_parallel_size"):
        read(SimpleNamespace(size=2))


def test_rows_of_similar_lengths_are_padded_together():
    """Rows of 5, 2, 8 and 1 tokens at 0, 5, 7 and 15: 5 and 8 in one group, 2 and 1 alone."""
    groups, back = recurrent.padded_groups(Segments(np.array([0, 5, 7, 15, 16], np.int32), np.full(4, -1)))
    assert [group.tolist() for group in groups] == [
        [[15]], [[5, 6]], [[0, 1, 2, 3, 4, 0, 0, 0], [7, 8, 9, 10, 11, 12, 13, 14]]]
    assert back.tolist() == [3, 4, 5, 6, 7, 1, 2, 11, 12, 13, 14, 15, 16, 17, 18, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", HYBRIDS)
def test_a_state_that_runs_from_row_to_row_is_found_in_either_type(tmp_path, process, unrefused, uncut, family, dtype):
    with refuses(ModelError, f"{tmp_path} ({family}):", LEAKS):
        separation.prove_policy(loaded(made(family, tmp_path), dtype, process), asked(), TEXT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_of_attention_within_rows_the_gradient_is_exactly_zero(tmp_path, process, family, dtype):
    zoo.make(family, tmp_path)
    actor = loaded(tmp_path, dtype, process)
    separation.prove_policy(actor, asked(), TEXT)
    assert actor.zero.module.way.name == "packed"


@pytest.mark.parametrize(("factor", "rounded", "differs"), [(1.0, 0.0, True), (1.0, 2.0, False), (1.05, 2.0, True)])
def test_a_deep_model_may_differ_as_far_as_two_right_ways_in_its_precision(tmp_path, process, monkeypatch, factor,
                                                                           rounded, differs):
    """32 layers of large weights in bfloat16: log-probs of unlikely tokens differ by over 0.02 in the mean. Those a
    twentieth too large are refused all the same."""
    monkeypatch.setitem(SMALL, "num_hidden_layers", 32)
    monkeypatch.setitem(SMALL, "initializer_range", 0.6)
    monkeypatch.setattr(separation, "ROUNDED", rounded)
    module = loaded(made("qwen2", tmp_path), torch.bfloat16, process).zero.module
    unlikely = np.random.default_rng(0).integers(0, 99, 80).tolist()
    proof = separation._Proof(process, module.model, module.way, asked(), unlikely,
                              lambda micro: factor * module(**micro.inputs("cpu"))[0])
    assert bool(proof._difference(partial(separation._own_logprobs, module))) is differs


def gemma(directory):
    """In bfloat16, with windows of 16 tokens in two of three layers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma3_text", **SMALL | {
        "num_hidden_layers": 3, "sliding_window": 16, "head_dim": 32, "attn_logit_softcapping": None,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}))
    made.to(torch.bfloat16).save_pretrained(directory)
    return directory


def wider(by):
    window = attention._window
    return {"_window": lambda length, size, *others: window(length, size and size + by, *others)}


def misplaced(monkeypatch, place):
    inputs = packing.MicroBatch.inputs

    def shifted(self, device):
        given = inputs(self, device)
        return given | {"positions": given["positions"] + (given["positions"] >= place).long()}

    monkeypatch.setattr(packing.MicroBatch, "inputs", shifted)


@pytest.mark.parametrize(("fault", "words"), [
    (None, None), ("window + 1", "2 of 3 layers attend"), ("window - 1", "2 of 3 layers attend"),
    ("positions + 1", "do not count from 0"), ("positions + 1 from 8", "do not count from 0"),
    ("scores times 1.02", "in float32 differ"), ("no cap", "in float32 differ")])
def test_faults_smaller_than_the_rounding_of_bfloat16_are_found(tmp_path, process, monkeypatch, fault, words):
    actor = loaded(gemma(tmp_path), torch.bfloat16, process)
    module = actor.zero.module
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    kinds = [tensor.dtype for tensor in module.buffers()]
    if fault and fault.startswith("window"):
        for name, function in wider(int(fault.replace(" ", "")[6:])).items():
            monkeypatch.setattr(attention, name, function)
    elif fault and fault.startswith("positions"):
        misplaced(monkeypatch, 8 if "8" in fault else 0)
    elif fault == "scores times 1.02":
        attend = torch.nn.functional.scaled_dot_product_attention
        monkeypatch.setattr(attention.functional, "scaled_dot_product_attention", lambda *given, scale, **more: attend(
            *given, scale=scale * 1.02 if more.get("is_causal") is not None and len(given) == 4 else scale, **more))
    elif fault:
        module.cap = 30.0  # that the model's own forward has not: as if that had one and the trainer none
    if words is None:
        separation.prove_policy(actor, asked(), TEXT)
    else:
        with refuses(ModelError, words):
            separation.prove_policy(actor, asked(), TEXT)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in module.state_dict().items())
    assert [tensor.dtype for tensor in module.buffers()] == kinds
    assert (module.model.dtype, module.way.packed) == (torch.bfloat16, "padded")


@pytest.mark.parametrize(("other", "words"), [
    ("a layer that is never called", "KeyError: 3"), ("embeds twice", "2 calls"), ("positions", "'position_ids'")])
def test_a_model_that_is_called_otherwise_goes_by_rows_and_is_as_it_was(tmp_path, process, other, words):
    actor = loaded(gemma(tmp_path), torch.bfloat16, process)
    module, decoder = actor.zero.module, actor.zero.module.model.model

    def enter(_, given, named):
        if other == "embeds twice":
            decoder.embed_tokens(named["input_ids"])
        return given, {name: value for name, value in named.items() if (other, name) != ("positions", "position_ids")}

    def state():
        return [(one.training, len(one._forward_hooks), len(one._forward_pre_hooks)) for one in module.modules()]

    decoder.register_forward_pre_hook(enter, with_kwargs=True)
    if other == "a layer that is never called":
        decoder.layers.append(type(decoder.layers[0])(decoder.config, 0).to(torch.bfloat16))
    before = state()
    separation.prove_policy(actor, asked("auto"), TEXT)
    assert (module.way.name, words in module.way.why, state()) == ("rows", True, before)


@pytest.mark.parametrize(("former", "packing", "way"), [
    ("rows", "auto", "rows"), ("packed", "auto", "packed"), (None, "auto", "packed"), ("rows", "packed", "packed")])
def test_rows_go_on_as_those_of_the_checkpoint(tiny_model, process, former, packing, way):
    """Also where they could be packed now."""
    actor = loaded(tiny_model, torch.float32, process)
    separation.prove_policy(actor, asked(packing), TEXT, former)
    assert actor.zero.module.way.name == way


@pytest.mark.parametrize("temperature", [0.01, 1.0])
def test_what_is_allowed_is_of_logits_however_cold_they_are_sampled(tmp_path, process, temperature):
    """Logits that differ by 3e-5 are log-probs that differ by 3e-3 at temperature 0.01: rounding. 1e-3 is none."""
    module = loaded(made("qwen2", tmp_path), torch.float32, process).zero.module
    module.temperature = temperature
    for by, differs in ((3e-5, False), (1e-3, True)):
        proof = separation._Proof(process, module.model, module.way, asked(), TEXT,
                                  lambda micro, by=by: module(**micro.inputs("cpu"))[0] + by / temperature, temperature)
        assert bool(proof._difference(partial(separation._own_logprobs, module))) is differs


def test_weights_of_which_ranks_hold_parts_are_not_compared_in_float32_and_the_log_has_it(tmp_path, process):
    actor = loaded(gemma(tmp_path), torch.bfloat16, process)
    next(actor.zero.module.model.parameters()).ds_tensor = torch.zeros(1)
    separation.prove_policy(actor, asked(), TEXT)
    assert "zero_stage" in actor.zero.module.way.unproved
    assert actor.zero.module.way.unproved in str(actor.zero.module.way)


def test_a_model_in_float32_is_compared_in_it_however_its_weights_are_held(tmp_path, process):
    actor = loaded(made("qwen2", tmp_path), torch.float32, process)
    next(actor.zero.module.model.parameters()).ds_tensor = torch.zeros(1)
    separation.prove_policy(actor, asked(), TEXT)
    assert actor.zero.module.way.unproved == ""


def test_one_layer_at_a_time_is_in_float32_and_all_are_as_before(tmp_path, process):
    module = loaded(made("qwen2", tmp_path), torch.bfloat16, process).zero.module
    proof = separation._Proof(process, module.model, module.way, asked(), TEXT, None)
    before, seen = {name: one.data for name, one in module.model.named_parameters()}, []

    def note(*_):
        seen.append([next(layer.parameters()).dtype for layer in module.model.model.layers])

    for layer in module.model.model.layers:
        layer.self_attn.register_forward_hook(note)
    with proof._in_float32(), proof._own_forward(), torch.no_grad():
        found = separation._own_logprobs(module, torch.tensor(TEXT[:20]))
    assert found.dtype == torch.float32
    assert seen == [[torch.float32, torch.bfloat16], [torch.bfloat16, torch.float32]]
    assert all(one.data.data_ptr() == before[name].data_ptr() for name, one in module.model.named_parameters())


@pytest.mark.parametrize(("some", "others", "differs"), [
    ([0.5, 1e-3, 0.0], [0.5, 2e-3, 0.0], False), ([0.5, 1e-9, 0.0], [0.5, 0.0, 0.0], True),
    ([0.5, 0.0, 0.0], [0.5, 0.0, 1e-9], True), ([0.5, 1e-38, 0.0], [0.5, 0.0, 0.0], False)])
def test_layers_reach_alike_where_gradients_are_zero_alike_but_for_the_end_of_the_range(some, others, differs):
    assert separation.reach_differs(torch.tensor(some), torch.tensor(others)) is differs


@pytest.mark.parametrize(("family", "window", "bounds"), [("qwen2", None, [28]), ("llama", None, []),
                                                          ("mistral", 16, [16])])
def test_lengths_of_a_configuration_are_no_switches_and_no_zeros(tmp_path, process, monkeypatch, family, window,
                                                                 bounds):
    """Each configuration has chunk_size_feed_forward=0, and that of Qwen2 use_sliding_window=False."""
    monkeypatch.setitem(SMALL, "sliding_window", window)
    module = loaded(made(family, tmp_path), torch.float32, process).zero.module
    assert separation._Proof(process, module.model, module.way, asked(), TEXT, len).bounds == bounds


def test_the_mean_and_the_95th_percentile_of_differences():
    """Twenty differences from 0.0 to 1.9: the 95th percentile lies at place 18.05."""
    some = np.arange(20) / 10
    assert separation.apart(some, np.zeros(20)) == (pytest.approx(0.95), pytest.approx(1.805))
    assert np.isnan(separation.apart(np.array([0.0, np.nan]), np.zeros(2))).all()


def test_another_rounding_changes_a_third_of_the_numbers_of_layers_and_gives_random_numbers_back():
    layers = torch.nn.ModuleList([torch.nn.Identity()])
    states = torch.rand(10_000).to(torch.bfloat16) + 1
    before = torch.get_rng_state()
    with separation.rounded_again(layers):
        moved = (layers[0](states) != states).float().mean().item()
    assert 0.1 < moved < 0.5
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(layers[0](states), states)
    with pytest.raises(KeyError), separation.rounded_again(layers):
        raise KeyError
    assert torch.equal(layers[0](states), states)


def test_a_step_has_the_bits_that_it_has_without_the_proof(tiny_model, process):
    config = overridden(*TINY, "algorithm.algorithm_type=sft")
    steps = []
    for proves in (False, True):
        actor = Actor(tiny_model, config, process)
        torch.manual_seed(7)
        if proves:
            separation.prove_policy(actor, asked(), TEXT)
        drawn = torch.rand(1).item()
        result = actor.step(rows(), Objective(config), 1e-3, 1)
        steps.append((drawn, result.loss, result.grad_norm, actor.full_state()))
    assert steps[0][:3] == steps[1][:3]
    assert all(torch.equal(tensor, steps[1][3][name]) for name, tensor in steps[0][3].items())


def test_random_numbers_that_a_model_draws_in_training_are_given_back(tmp_path, process, monkeypatch, unrefused):
    """PhiMoE's router draws noise."""
    monkeypatch.setitem(HYBRIDS, "phimoe", {"num_local_experts": 4, "router_jitter_noise": 0.1})
    actor = loaded(made("phimoe", tmp_path), torch.float32, process)
    before = torch.get_rng_state()
    separation.prove_policy(actor, asked(), TEXT)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(("value", "words"), [(0.0, "is 0; needed"), (float("nan"), "is nan; needed")])
def test_weights_that_hide_what_touches_are_refused(tiny_model, process, value, words):
    actor = loaded(tiny_model, torch.float32, process)
    torch.nn.init.constant_(actor.zero.module.model.model.norm.weight, value)
    with refuses(ModelError, words):
        separation.prove_policy(actor, asked(), TEXT)


def test_a_critic_is_judged_by_its_hidden_states_because_its_head_begins_at_zero(tiny_model, process, unbounded):
    critic = Critic(tiny_model, overridden(*TINY, "algorithm.algorithm_type=ppo"), process)
    with refuses(ModelError, LEAKS):
        separation.prove_critic(critic, asked(), TEXT)


def test_a_critic_whose_rows_are_separate_passes_and_keeps_no_hook(tiny_model, process):
    critic = Critic(tiny_model, overridden(*TINY, "algorithm.algorithm_type=ppo"), process)
    hooks = [len(module._forward_hooks) for module in critic.zero.module.modules()]
    separation.prove_critic(critic, asked(), TEXT)
    assert [len(module._forward_hooks) for module in critic.zero.module.modules()] == hooks


def test_a_teacher_is_judged_too(tmp_path, context_of, tiny_model, process, monkeypatch):
    teacher = Teacher(context_of(tmp_path, *TINY, teacher=tiny_model), tiny_model, process)
    separation.prove_teacher(teacher, asked(), TEXT)
    monkeypatch.setattr(separation._Proof, "_largest_gradients", lambda *_: torch.tensor([0.5, 1.0, 0.0]).numpy())
    with refuses(ModelError, "0.5"):
        separation.prove_teacher(teacher, asked(), TEXT)


@pytest.mark.parametrize(("every", "loses", "shares"), [(True, False, True), (False, False, True),
                                                        (False, True, False), (True, True, None)])
def test_attention_over_shared_prefixes_is_proved_too(tiny_model, process, monkeypatch, every, loses, shares):
    """loses: attention sees nothing before a segment; every: trainer.share_prompts=true, which is refused then."""
    actor = loaded(tiny_model, torch.float32, process)
    way = actor.zero.module.way
    way.share, way.every = True, every
    layout = attention.layout
    if loses:
        monkeypatch.setattr(attention, "layout", lambda segments, *more: layout(
            Segments(segments.bounds, np.full_like(segments.contexts, -1)), *more))
    if shares is None:
        with refuses(ModelError, "share_prompts=true"):
            separation.prove_policy(actor, asked("auto"), TEXT)
        return
    separation.prove_policy(actor, asked("auto"), TEXT)
    assert (way.packed is not None, way.share, bool(way.unshared)) == (True, shares, not shares)


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_a_stage_whose_rows_touch_does_not_start(tmp_path, context_of, tiny_model, process, monkeypatch, unbounded,
                                                 kind):
    """Nor are reference log-probs of DPO computed before."""
    monkeypatch.setattr(learn, "Process", SimpleNamespace(start=lambda *_: process))
    monkeypatch.setattr(learn.References, "add", lambda *_: pytest.fail("scored"))
    given = {"split": "sft", "solution": "1"} if kind == "sft" else {"split": "preference", "chosen": "1",
                                                                    "rejected": "2"}
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task,
                 [row(records.Task, task_id=f"t{i}", row=i, question=f"{i}", **given) for i in range(4)])
    words = ("algorithm.algorithm_type=sft",) if kind == "sft" else (
        "algorithm.algorithm_type=dpo", "algorithm.policy_loss_fn=dpo", "algorithm.policy_loss_fn_args={}",
        "algorithm.kl_loss_fn=none", "algorithm.entropy_loss_fn=none")
    context = context_of(tmp_path / kind, *TINY, *words, "buffer.batch_size=2", "trainer.packing=packed",
                         tasks=tmp_path / "curate", model=tiny_model)
    with refuses(ModelError, LEAKS):
        learn.Trainer(context)
