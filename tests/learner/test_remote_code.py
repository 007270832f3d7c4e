"""A model with Python files of its own (model.trust_remote_code): refused, or trained and sampled from like others."""

import json

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ouroboros.pipeline.check.model import remote_code, trusted, untrusted
from ouroboros.pipeline.settings.model import Model
from ouroboros.pipeline.store.architecture import untrainable
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.stages import model_size
from ouroboros.stages.learner import separation
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.engine import policy
from ouroboros.stages.learner.objective import Objective
from ouroboros.stages.recompute import needed
from ouroboros.workflows.engines.open import open_engine
from ouroboros.workflows.protocol.engine import Request
from ouroboros.workflows.protocol.hugging_face import causal_model
from tests import zoo
from tests.configs import TINY, overridden
from tests.factories import TEXT
from tests.learner.test_families import RFT, SFT, rows

TRUST = "model.trust_remote_code=true"
CODE = '''from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class DampedConfig(LlamaConfig):
    model_type = "damped"
    damping = 0.5


class DampedNorm(nn.Module):
    def __init__(self, norm, damping):
        super().__init__()
        self.norm, self.damping = norm, damping

    def forward(self, hidden):
        return self.damping * self.norm(hidden)


class DampedForCausalLM(LlamaForCausalLM):
    config_class = DampedConfig

    def __init__(self, config):
        super().__init__(config)
        self.model.norm = DampedNorm(self.model.norm, config.damping)
        self.post_init()
'''
MAP = {"AutoConfig": "modeling_damped.DampedConfig", "AutoModelForCausalLM": "modeling_damped.DampedForCausalLM"}


@pytest.fixture
def model(tmp_path):
    """Llama, whose last hidden states are halved by code of the directory."""
    torch.manual_seed(0)
    made = LlamaForCausalLM(LlamaConfig(
        vocab_size=384, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=256, initializer_range=0.2))
    state = {name.replace("model.norm.", "model.norm.norm."): tensor for name, tensor in made.state_dict().items()}
    made.save_pretrained(tmp_path, state_dict=state)
    zoo.make_tokenizer("qwen3", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(
        config | {"model_type": "damped", "architectures": ["DampedForCausalLM"], "auto_map": MAP, "damping": 0.5}))
    (tmp_path / "modeling_damped.py").write_text(CODE)
    return tmp_path


def test_without_trust_it_is_refused_by_the_key(model):
    config = json.loads((model / "config.json").read_text())
    start = Model(model_path=str(model))
    assert untrusted(config, start).key == "model.trust_remote_code"
    assert trusted(config, start) is None
    with pytest.raises(ModelError):
        causal_model(model)


def test_with_trust_it_is_said(model):
    config = json.loads((model / "config.json").read_text())
    start = Model(model_path=str(model), trust_remote_code=True)
    assert untrusted(config, start) is None
    assert "modeling_damped.py" in trusted(config, start)
    assert untrainable(config, 64) is None
    assert model_size.measure(model_size.build(str(model), trust=True)).layers[0][0] == 2


@pytest.mark.parametrize("trust", [True, False])
def test_one_switch_holds_for_the_teacher_and_the_critic(model, tmp_path_factory, trust):
    plain = tmp_path_factory.mktemp("plain")
    LlamaConfig().save_pretrained(plain)
    config = overridden(*TINY, *RFT, f"model.trust_remote_code={str(trust).lower()}", "algorithm.algorithm_type=ppo",
                        f"model.critic_model_path={model}")
    start = Model(model_path=str(plain), trust_remote_code=trust)
    teacher = Model.model_construct(model_path=str(model), trust_remote_code=trust)
    for found in (remote_code(config, start, None), remote_code(config, start, teacher)):
        assert [len(lines) for lines in found] == ([0, 1] if trust else [1, 0])
        assert str(model) in "".join([*found[0], *found[1]])
    assert [len(lines) for lines in remote_code(overridden(*TINY, *RFT), start, None)] == [0, trust]


def test_code_that_transformers_has_needs_no_trust():
    assert untrusted({"model_type": "deepseek_v3", "auto_map": MAP}, Model(model_path="nowhere")) is None


def test_it_trains_and_the_engine_samples_from_what_was_trained(model, process):
    config = overridden(*TINY, *RFT, TRUST)
    engine = open_engine(model, config, [2])
    actor = Actor(model, config, process)
    separation.prove_policy(actor, config, TEXT)
    for words in (SFT, RFT):
        some = rows()
        before = actor.score_rows(some)
        for row, logprobs in zip(some, before, strict=True):
            row.columns["old_logprobs"] = row.columns["rollout_logprobs"] = row.spread(logprobs)
        actor.step(some, Objective(overridden(*TINY, *words, TRUST)), 1e-3, 1)
        after = actor.score_rows(some)
        assert np.abs(np.concatenate(after) - np.concatenate(before)).max() > 1e-4
    policy.export(actor.full_state(), actor.zero.module.model, model)
    trained = open_engine(model, config, [2])
    for row, logprobs in zip(some, after, strict=True):
        np.testing.assert_allclose(trained.score([row.tokens])[0][row.prompt_length - 1 :], logprobs, atol=1e-4)
    ask = Request(prompt_tokens=rows()[0].tokens[:6], max_tokens=8, temperature=1.0, top_p=1.0, top_k=-1, seed=1)
    assert trained.generate([ask])[0].logprobs != engine.generate([ask])[0].logprobs


def test_its_memory_on_a_gpu_is_counted_by_its_own_code(model):
    """In float32: DeepSpeed's bucket of 500M gradients, 0.6 GiB for a process, and little more for 79k parameters."""
    assert 2.6e9 < needed(overridden(*TINY, *RFT, TRUST), model, False) < 2.75e9
