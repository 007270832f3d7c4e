"""Log-probs and gradients of models with each micro-batch split between two ranks, beside whole ones.

    RANK=... LOCAL_RANK=... WORLD_SIZE=2 python -m tests.learner.sequences DIRECTORY OUT family=float64 ...

DIRECTORY has a model of each family (tests/families.py). OUT: family -> the largest difference of a log-prob, the
largest difference of a gradient, and its largest value.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ouroboros.pipeline.store import files
from ouroboros.stages.learner.engine import policy
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.packing import Fill, MicroBatch, pack
from ouroboros.stages.learner.engine.process import Process
from ouroboros.workflows.protocol.kept import Kept
from tests.configs import TINY, overridden


def rows() -> list[Row]:
    """Eight rows of three prompts, of which two begin as an earlier row does: 83 tokens where these are shared, no
    multiple of two. Every second one is sampled from a part of the vocabulary."""
    source, made = torch.Generator().manual_seed(2), []
    prompts = [torch.randint(3, 90, (length,), generator=source).tolist() for length in (4, 9, 2)]
    for i, length in enumerate((9, 4, 16, 1, 7, 12, 10, 9)):
        prompt = prompts[i % 3]
        response = torch.randint(3, 90, (length,), generator=source).tolist()
        if i >= 6:  # all of 1 token, and 6 of 7
            response = made[i - 3].tokens[len(prompt) : len(prompt) + 6] + response
        kept = Kept.of([np.unique([token, *range(5 + i, 60, 9)]) for token in response]) if i % 2 else None
        made.append(Row(f"r{i}", prompt + response, len(prompt), [1] * len(response), {}, kept=kept))
    return made


def gradients(model: nn.Module, micro: MicroBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Log-probs, and the gradients of a loss in which every token's weight depends on the mean over all."""
    logprobs, entropy = model(**micro.inputs(torch.device("cpu")), entropy_gradient=True)
    ratio = logprobs - logprobs.mean()
    (ratio.square().mean() + logprobs.mean() - 0.1 * entropy.mean()).backward()
    return logprobs.detach(), {name: parameter.grad for name, parameter in model.named_parameters()
                               if parameter.grad is not None}


def compare(path: Path, process: Process, dtype: torch.dtype) -> list[float]:
    settings, found = overridden(*TINY).trainer, []
    for sequence in (None, process.sequence):
        if sequence and path.name != "gpt_oss":  # MLPs by parts beside it: experts are none
            settings = overridden(*TINY, "trainer.tiled_mlp_num_shards=3").trainer
        model = policy.load(path, "cpu", dtype, settings, 1.0, 64, sequence=sequence)
        (micro,) = pack(rows(), 1000, 0, 1, fill=Fill.SHARED)
        found.append(gradients(model, micro))
    (whole, expected), (split, made) = found
    for name in sorted(expected):
        made.setdefault(name, torch.zeros_like(expected[name]))
        process.all_reduce(made[name])
    apart = max(float((made[name] - expected[name]).abs().max()) for name in expected)
    return [float((whole - split).abs().max()), apart, max(float(one.abs().max()) for one in expected.values())]


if __name__ == "__main__":
    _, directory, out, *families = sys.argv
    group = Process.start(1, Path(f"{out}.ranks"), 2)
    asked = dict(family.split("=") for family in families)
    differences = {name: compare(Path(directory) / name, group, getattr(torch, dtype)) for name, dtype in asked.items()}
    if group.rank == 0:
        files.write_json(Path(out), differences)
    group.barrier()
    group.stop()
