"""On a GPU, pretrained models: the proof before the first step passes, and finds planted faults on the same weights.

    OURO_MODELS=models/smollm2:models/gemma3-270m pytest -m gpu tests/learner/test_gpu_real.py

Directories of Hugging Face models, such as SmolLM2-135M-Instruct and Gemma 3 270M.
"""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ouroboros.pipeline.store.errors import ModelError
from ouroboros.stages.learner import separation
from ouroboros.stages.learner.engine import attention, packing, policy
from ouroboros.stages.learner.engine.sharing import Segments
from tests.configs import TINY, composed, overridden

MODELS = [Path(one) for one in os.environ.get("OURO_MODELS", "").split(":") if one]
TEXT = "".join(f"Question: What is {a} + {b}?\nAnswer: {a + b}\n" for a in range(2, 40) for b in (7, 31))

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
              pytest.mark.skipif(not MODELS, reason="OURO_MODELS names no model")]


def proved(path, process, longest=640):
    """Proves a policy of 640 tokens, packed."""
    from transformers import AutoTokenizer

    settings = composed().trainer.merged({"enable_gradient_checkpointing": False, "compile": False})
    module = policy.load(path, "cuda", torch.bfloat16, settings, 1.0, longest).to("cuda")
    config = overridden(*TINY, "trainer.packing=packed", "model.max_prompt_tokens=128",
                        f"model.max_response_tokens={longest - 128}")
    actor = SimpleNamespace(process=process, zero=SimpleNamespace(module=module))
    separation.prove_policy(actor, config, AutoTokenizer.from_pretrained(path)(TEXT)["input_ids"])
    return module


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_a_pretrained_model_is_packed_and_proved_in_float32(path, process):
    module = proved(path, process)
    assert module.way.packed
    assert not module.way.unproved


@pytest.mark.parametrize("fault", ["positions", "leak", "window"])
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_planted_faults_are_found_on_its_weights(path, process, monkeypatch, fault):
    from transformers import AutoConfig

    if fault == "window" and not getattr(AutoConfig.from_pretrained(path), "sliding_window", None):
        pytest.skip("no layer has a window")
    inputs, layout, bounded = packing.MicroBatch.inputs, attention.layout, attention._bounded
    if fault == "positions":
        monkeypatch.setattr(packing.MicroBatch, "inputs", lambda self, device: (
            lambda given: given | {"positions": given["positions"] + 1})(inputs(self, device)))
    elif fault == "leak":
        monkeypatch.setattr(attention, "layout", lambda segments, *more: layout(
            Segments(segments.bounds[[0, -1]], segments.contexts[:1]), *more))
    else:
        monkeypatch.setattr(attention, "_bounded", lambda size: bounded(size + 1 if size else size))
    with pytest.raises(ModelError):
        proved(path, process)
