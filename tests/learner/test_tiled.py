"""MLPs computed in parts of the tokens: the same log-probs and gradients as at once."""

import pytest
import torch

from ouroboros.pipeline.settings.model import Lora
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.stages.learner.engine import policy
from ouroboros.stages.learner.engine.adapter import inject
from ouroboros.stages.learner.engine.packing import Fill, pack
from tests import families
from tests.configs import TINY, element, lora, overridden
from tests.golden.messages import refuses
from tests.learner.ranks import DPO, train
from tests.learner.sequences import gradients, rows


def found(path, shards: int, recompute: bool = False, adapter: bool = False):
    settings = overridden(*TINY, f"trainer.tiled_mlp_num_shards={shards}",
                          f"trainer.enable_gradient_checkpointing={recompute}").trainer
    model = policy.load(path, "cpu", torch.float64, settings, 1.0, 64)
    if adapter:
        inject(model.model, path, element(Lora, lora(lora_rank=4)), 0)
        for name, parameter in model.named_parameters():
            if ".lora_B" in name:
                torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    model.train()
    (micro,) = pack(rows(), 1000, 0, 1, fill=Fill.SHARED)
    return gradients(model, micro)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    made = tmp_path_factory.mktemp("tiled")
    families.make("qwen2", made)
    return made


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize(("shards", "recompute"), [(3, False), (4, True), (60, False), (1000, True)])
def test_parts_change_no_log_prob_and_no_gradient(model, shards, recompute, adapter):
    """83 tokens: in 28 + 28 + 27, in 4, in 42 parts of 2 where 60 were asked, and each alone."""
    (expected, whole), (logprobs, parts) = found(model, 1, adapter=adapter), found(model, shards, recompute, adapter)
    assert parts.keys() == whole.keys()
    assert max(float(one.abs().max()) for one in whole.values()) > 1e-3
    assert float((logprobs - expected).abs().max()) < 1e-12
    assert max(float((parts[name] - whole[name]).abs().max()) for name in whole) < 1e-12


@pytest.mark.parametrize("zero_stage", [1, 2])
def test_deepspeed_makes_the_same_steps(model, process, zero_stage):
    """Micro-batches of 64 tokens, so that gradients of several are added up; float32."""
    given = (*DPO, f"trainer.zero_stage={zero_stage}", "trainer.max_token_len_per_gpu=64")
    whole, parts = (train(model, process, (*given, f"trainer.tiled_mlp_num_shards={shards}"), False)
                    for shards in (1, 5))
    assert whole["losses"][0] != whole["losses"][1]  # something was learnt
    for name in ("losses", "norms"):
        assert parts[name] == pytest.approx(whole[name], rel=1e-4)
    for ours, theirs in zip(parts["scores"], whole["scores"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


def test_a_model_without_such_mlps_is_refused(tmp_path):
    families.make("gpt_oss", tmp_path)
    with refuses(ModelError, "trainer.tiled_mlp_num_shards"):
        found(tmp_path, 2)
