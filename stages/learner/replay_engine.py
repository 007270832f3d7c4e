"""An engine with fixed weights: computes loss and gradient of a batch without an optimizer step.

Plain torch on one device: the optimizer, ranks and checkpoints that DeepSpeed adds are not needed, and cost memory. The
loss does not depend on the split into micro-batches and ranks, so neither does the gradient.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from ouroboros.pipeline.store.errors import ModelError
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.engine import adapter
from ouroboros.stages.learner.engine.packing import MicroBatch
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.engine.zero import ZeroEngine
from ouroboros.workflows.engines.host_weights import HostWeights

CRITIC_STATE = Path("critic") / "state" / "mp_rank_00_model_states.pt"


class GradientEngine(ZeroEngine):
    """An engine whose `step` keeps the weights and stores the gradient.

    gradients: of the last step, by name, float32 in host memory.
    """

    def __init__(self, module: nn.Module, process: Process, optimizer, settings, dtype: torch.dtype):
        """As the DeepSpeed engine; optimizer and settings are not used."""
        self.process, self.zero_stage = process, 0
        self.module = self.engine = module.to(process.device)
        self.gradients: dict[str, Tensor] = {}

    def step(self, micro_batches: list[MicroBatch], loss_of: Callable[[MicroBatch], Tensor], lr: float) -> float:
        """The gradient norm of the batch. lr is not used."""
        self.module.zero_grad(set_to_none=True)
        for micro in micro_batches:
            loss_of(micro).backward()
        named = [(name, p) for name, p in self.module.named_parameters() if p.grad is not None]
        self.gradients = {name: p.grad.detach().float().cpu() for name, p in named}
        self.module.zero_grad(set_to_none=True)
        return inner_product(self.gradients, self.gradients) ** 0.5


def single_process() -> Process:
    """A process without other ranks, on a GPU if there is one."""
    return Process(torch.device("cuda" if torch.cuda.is_available() else "cpu"), 0, 1)


def inner_product(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The inner product of two gradients, in float64; a parameter missing in one counts as 0."""
    return sum(torch.dot(a[name].flatten().double(), b[name].flatten().double()).item() for name in a.keys() & b.keys())


def load_policy(actor: Actor, directory: Path) -> None:
    """Loads the weights or adapter of a checkpoint or published version.

    Raises ModelError when the file is incomplete.
    """
    model = actor.zero.module.model
    inside = directory / ("adapter" if actor.adapter else "model")
    source = inside if inside.exists() else directory  # a published version has no such subdirectory
    if actor.adapter:
        adapter.read(model, source)
    else:
        _read(model, source)


def _read(model: nn.Module, directory: Path) -> None:
    """Copies weights into a model. transformers reads them, because experts are one tensor each in the file."""
    with HostWeights().verified(directory) as tensors:
        made, found = type(model).from_pretrained(None, config=model.config, state_dict=tensors, dtype=torch.float32,
                                                  output_loading_info=True)
    state = made.state_dict()  # transformers joins the tensors of the experts on reading
    if missing := found["missing_keys"]:
        raise ModelError(f"{directory} lacks {len(missing)} of the {len(state)} weights of the model, such as "
                         f"{min(missing)}.")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[name])


def load_critic(module: nn.Module, checkpoint: Path) -> None:
    """Loads the critic of a checkpoint that DeepSpeed wrote under ZeRO 0 to 2."""
    module.load_state_dict(torch.load(checkpoint / CRITIC_STATE, "cpu", weights_only=True)["module"])
