"""Writes a model whose linear layers have the weights that their 4 bits stand for, as a Hugging Face directory: what a
stage with model.load_in_4bit=true begins with (stages/learner/engine/quantized.py).

Its engines load it, its adapter is merged into it, and its trainer, who holds it in 4 bits, has the same weights.
"""

import torch

from ouroboros.pipeline.job.context import Context, run_stage
from ouroboros.pipeline.settings.lora import BLOCK
from ouroboros.pipeline.store import checkpoints, files
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.stages.learner.engine import policy
from ouroboros.stages.learner.engine.quantized import TYPE, round_weights
from ouroboros.workflows.protocol.hugging_face import causal_model, import_light


def work(context: Context) -> None:
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise ModelError(f"model.load_in_4bit=true needs the package bitsandbytes: {error}. `make setup` and `make "
                         "setup-gpu` install it.") from None
    base, settings = checkpoints.model_directory(context.inputs["model"]), context.config.model
    model = causal_model(base, dtype=getattr(torch, settings.dtype), trust=settings.trust_remote_code)
    round_weights(model, str(base))
    checkpoints.copy_model_files(base, context.directory)
    policy.export({**dict(model.named_parameters()), **policy.saved_buffers(model)}, model, context.directory)
    checkpoints.write_dtype(context.directory)
    files.flush_tree(context.directory)
    context.made |= {"quantization": {"type": TYPE, "block": BLOCK, "base": str(base)}}


def light(context: Context) -> None:
    import_light()
    work(context)


if __name__ == "__main__":
    run_stage(light, __doc__)
