"""Four steps of Muon on as many ranks as started it, the last of them after a restart: the weights, as JSON.

    RANK=... LOCAL_RANK=... WORLD_SIZE=... python -m tests.learner.muon _ OUT trainer.zero_stage=...
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from ouroboros.pipeline.store import files
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.engine.snapshot import written
from ouroboros.stages.learner.engine.zero import ZeroEngine
from tests.configs import TINY, overridden

GIVEN = ("algorithm.optimizer.optimizer_type=muon", "algorithm.optimizer.weight_decay=0.1", "trainer.grad_clip=100")


class Model(nn.Module):
    """Two matrices, of 15 and 12 numbers, between an embedding and a head, with a vector."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.up, self.down = nn.Embedding(4, 3), nn.Linear(3, 5), nn.Linear(5, 2, bias=False)
        self.lm_head = nn.Linear(2, 4, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.lm_head(self.down(torch.tanh(self.up(self.embedding(tokens)))))


def batch(step: int) -> Tensor:
    """Tokens and what follows them, [2, 6]."""
    return torch.tensor([[0, 1, 2, 3, step % 4, 1], [1, 0, 1, 2, 3, step % 4]])


def loss(model, rows: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(rows[0]), rows[1], reduction="sum")


def state(model: nn.Module) -> dict[str, list]:
    return {name: parameter.tolist() for name, parameter in model.named_parameters()}


def train(process: Process, directory: Path, *settings: str) -> dict[str, dict]:
    """Weights after four steps: by one engine, and by a second one that begins with the first's third checkpoint."""
    config = overridden(*TINY, *GIVEN, *settings)

    def engine() -> ZeroEngine:
        return ZeroEngine(Model(), process, config.algorithm.optimizer, config.trainer, torch.float32)

    def step(zero: ZeroEngine, number: int) -> None:
        own = batch(number)[:, process.rank :: process.ranks]
        zero.step([own], lambda rows: loss(zero.engine, rows), 1e-2)

    whole = engine()
    for number in range(4):
        step(whole, number)
        if number == 2:
            written(whole.save(directory))
            process.barrier()
    resumed = engine()
    resumed.load(directory)
    step(resumed, 3)
    return {"whole": state(whole.module), "resumed": state(resumed.module)}


if __name__ == "__main__":
    _, _, out, *given = sys.argv
    group = Process.start(1, Path(f"{out}.ranks"), 1)
    place = Path(f"{out}.state")
    place.mkdir(exist_ok=True)
    made = train(group, place, *given)
    if group.rank == 0:
        files.write_json(Path(out), made)
    group.barrier()
    group.stop()
