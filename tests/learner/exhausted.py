"""Two optimizer steps in which a rank runs out of memory on micro-batches of over 40 tokens."""

from pathlib import Path

import torch

from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.engine.zero import ZeroEngine
from ouroboros.stages.learner.objective import Objective
from tests.configs import TINY, overridden
from tests.learner.ranks import rows

SETTINGS = ("algorithm.algorithm_type=sft", "trainer.grad_clip=0.5", "algorithm.optimizer.weight_decay=0.1")
ROOM = 40


class Out(torch.autograd.Function):
    """Passes a tensor on, and has no memory left for its gradient."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise torch.OutOfMemoryError


def limited(place: str, rank: int) -> type[ZeroEngine]:
    """An engine that runs out of memory on one rank."""

    class Limited(ZeroEngine):
        def forward(self, micro, **options):
            logprobs, entropy = super().forward(micro, **options)
            if self.process.rank == rank and len(micro.input_ids) > ROOM:
                if place == "forward":
                    raise torch.OutOfMemoryError
                if place == "backward":
                    logprobs = Out.apply(logprobs)
            return logprobs, entropy

    return Limited


def train(model: Path, process: Process, place: str, budget: int, rank: int) -> dict:
    """What the steps made. place: where the rank runs out: forward, backward, or nowhere."""
    config = overridden(*TINY, *SETTINGS, f"trainer.max_token_len_per_gpu={budget}")
    actor, objective = Actor(model, config, process, engine=limited(place, rank)), Objective(config)
    results = [actor.step(rows(), objective, 1e-3, number) for number in (1, 2)]
    state = actor.full_state() or {}
    return {"losses": [result.loss for result in results], "norms": [result.grad_norm for result in results],
            "budgets": [result.token_budget for result in results],
            "weights": {name: tensor.flatten().tolist() for name, tensor in state.items()}}

