"""The memory estimate against what the trainer's own forward and backward pass hold, counted without a GPU.

`Policy` runs on tensors without storage (torch's fake tensors); a dispatch mode adds up the bytes of what is alive.
"""

import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ouroboros.pipeline.check.memory import activations
from ouroboros.pipeline.settings.config import Config, Lora
from ouroboros.stages.learner.engine import attention
from ouroboros.stages.learner.engine.adapter import inject
from ouroboros.stages.learner.engine.policy import Policy
from ouroboros.stages.learner.engine.sharing import Segments
from ouroboros.stages.learner.engine.tiled import tile
from ouroboros.stages.learner.engine.way import Way
from ouroboros.stages.model_size import measure

TOKENS, ACTIONS, CHUNK = 8192, 6144, 1024
SMALL = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2,
         "intermediate_size": 1536, "vocab_size": 4000, "tie_word_embeddings": True}

EXPERTS = {"moe_intermediate_size": 384, "num_experts_per_tok": 4}
OTHERS = {  # what a kind's config says besides
    "qwen3": {"head_dim": 64},
    "qwen3_moe": {"head_dim": 64, "num_experts": 16, **EXPERTS},
    "deepseek_v3": {"num_key_value_heads": 8, "n_routed_experts": 16, "n_shared_experts": 1, "n_group": 1, **EXPERTS,
                    "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 192, "kv_lora_rank": 128,
                    "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64},
}


class Alive(TorchDispatchMode):
    """Bytes of the storages that operations have made, while they live."""

    def __init__(self, besides):
        super().__init__()
        self.known = {t.untyped_storage()._cdata for t in besides}
        self.bytes = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.known:
                self._add(tensor.untyped_storage())
        return made

    def _add(self, storage) -> None:
        self.known.add(storage._cdata)
        self.bytes += storage.nbytes()
        self.peak = max(self.peak, self.bytes)
        weakref.finalize(storage, self._drop, storage._cdata, storage.nbytes())

    def _drop(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.bytes -= size


class Kernel(torch.autograd.Function):
    """What a variable-length attention kernel keeps: query, key, value, output, a log-normalizer a head."""

    @staticmethod
    def forward(ctx, query, key, value):
        out = torch.empty_like(value)
        ctx.save_for_backward(query, key, value, out, torch.empty(query.shape[:2], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx, gradient):
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors[:3])


def varlen(module, query, key, value, attention_mask, scaling=None, dropout=0.0, *, cu_seq_lens_q, longest, **_):
    """As stages/learner/engine/attention.py prepares its own kernel's inputs."""
    q = query[0].transpose(0, 1).contiguous()
    k, v = (attention._repeat(x, q.shape[1]).contiguous() for x in (key, value))
    return Kernel.apply(q, k, v)[None], None


ADAPTER = Lora(lora_rank=64, lora_alpha=64)


def with_adapter(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """peft's layers, made in the model's dtype at once: tensors without storage cannot be converted in place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Module, "to", lambda module, *_, **__: module)
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        inject(model, Path(), ADAPTER, 1)
        torch.set_default_dtype(before)


def measured(kind: str, shape: dict, dtype: torch.dtype, recompute: bool, lora: bool, shards: int) -> float:
    """Peak bytes of a forward and a backward pass beside weights and gradients."""
    from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

    AttentionInterface.register("tests_varlen", varlen)
    config = AutoConfig.for_model(kind, **shape)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="tests_varlen").train()
        if recompute:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if shards > 1:
            tile(model, shards)
        if lora:
            with_adapter(model, dtype)
        policy = Policy(model, Way("varlen"), 1.0, CHUNK)
        learning = [p for p in policy.parameters() if p.requires_grad]
        for parameter in learning:
            parameter.grad = torch.empty_like(parameter)
        long = {"dtype": torch.long}
        flat, actions = torch.zeros(TOKENS, **long), torch.zeros(ACTIONS, **long)
        with Alive([*policy.parameters(), *(p.grad for p in learning)]) as alive:
            segments = Segments(np.array([0, TOKENS], np.int32), np.array([-1]))
            logprobs, _ = policy(flat, flat, segments, actions, actions)
            logprobs.sum().backward()
    return alive.peak


@pytest.mark.parametrize(("kind", "dtype", "recompute", "vocabulary", "lora", "shards"), [
    ("qwen2", torch.bfloat16, False, 4000, False, 1),
    ("qwen2", torch.bfloat16, True, 40000, False, 1),  # the head is the highest
    ("qwen2", torch.bfloat16, True, 400, False, 1),  # a recomputed layer is: bounded from above
    ("qwen2", torch.float32, False, 4000, False, 1), ("qwen3", torch.bfloat16, False, 4000, False, 1),
    ("qwen3_moe", torch.bfloat16, True, 400, False, 1), ("deepseek_v3", torch.bfloat16, False, 4000, False, 1),
    ("qwen2", torch.bfloat16, False, 4000, True, 1), ("qwen2", torch.bfloat16, True, 40000, True, 1),
    ("qwen2", torch.bfloat16, False, 4000, False, 8), ("qwen2", torch.bfloat16, True, 400, False, 8)])
def test_the_estimate_is_what_a_step_of_ours_holds(kind, dtype, recompute, vocabulary, lora, shards):
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {**SMALL, "vocab_size": vocabulary, **OTHERS.get(kind, {})}
    settings = Config.partial({
        "trainer": {"max_token_len_per_gpu": TOKENS, "attention": "varlen", "logprob_chunk_tokens": CHUNK,
                    "compile": False, "zero_stage": 1, "tiled_mlp_num_shards": shards,
                    "enable_gradient_checkpointing": recompute}, "model": {"lora_configs": [ADAPTER] if lora else []}})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape))
    estimate = activations(measure(model, ADAPTER if lora else None), settings, dtype.itemsize)
    assert 0.98 < estimate / measured(kind, shape, dtype, recompute, lora, shards) < 1.16
