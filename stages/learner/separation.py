"""The proof, before a stage's first step, that rows packed into one micro-batch do not touch one another.

Log-probs of a leaking model look right within rounding, so gradients are compared instead: that of row 2's outputs with
respect to row 1's input embeddings, both packed together, is exactly 0 where no operation leads from one row to the
other. Layers that carry a state along the sequence, and attention that ignores the bounds of rows, are found alike.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.store.errors import ModelError
from stages.learner.actor import Actor
from stages.learner.batch import Row
from stages.learner.critic import Critic
from stages.learner.engine.packing import MicroBatch, pack
from stages.learner.engine.zero import Process
from stages.learner.teacher import Teacher

FIRST, SECOND = 13, 10  # tokens; the first row is longer, so that attention pads the second


def prove_policy(actor: Actor) -> None:
    """Of log-probs, in the state in which the policy is trained. Raises ModelError. Collective."""
    module = actor.zero.module
    _prove(actor.process, module.model, lambda micro: module(**micro.inputs(actor.process.device))[0])


def prove_critic(critic: Critic) -> None:
    """Of the last hidden states, weighted: the value head begins at zero, and would hide them. Raises ModelError.
    Collective."""
    module, hidden = critic.zero.module, []

    def outputs(micro: MicroBatch) -> Tensor:
        module(**micro.inputs(critic.process.device))
        states = hidden[0][0][torch.from_numpy(micro.source).to(critic.process.device)].float()  # [N, width]
        return states @ torch.arange(states.shape[-1], device=states.device).cos()

    hook = module.transformer.register_forward_hook(lambda _, __, found: hidden.append(found.last_hidden_state))
    try:
        _prove(critic.process, module.transformer, outputs)
    finally:
        hook.remove()


def prove_teacher(teacher: Teacher) -> None:
    """Of log-probs, in the state in which the teacher scores. Raises ModelError. Collective."""
    with teacher._on_device(), torch.compiler.set_stance("force_eager"):  # its graphs have no gradient
        _prove(teacher.process, teacher.policy.model,
               lambda micro: teacher.policy(**micro.inputs(teacher.process.device))[0])


def _prove(process: Process, model: nn.Module, outputs: Callable[[MicroBatch], Tensor]) -> None:
    """outputs(micro): one number per action token [N]."""
    with torch.random.fork_rng(devices=[process.device] if process.device.type == "cuda" else []):
        found = _largest_gradients(model, outputs)
    across, within = np.max(process.gather_rows({process.rank: found}), axis=0)
    name = f"{model.config.name_or_path} ({model.config.model_type})"
    if not within > 0.0:
        raise ModelError(f"{name}: whether packed rows touch one another cannot be proved, because the gradient of a "
                         f"row's outputs with respect to its own input embeddings is {within:g}; needed weights "
                         "that are finite, with an output head that is not 0.")
    if across != 0.0:
        raise ModelError(f"{name}: rows packed into one micro-batch touch one another: the gradient of row 2's outputs "
                         f"with respect to row 1's input embeddings is up to {across:.2g}, needed exactly 0. The "
                         "trainer would compute wrong log-probs; take a model with attention alone, as Llama or Qwen.")


def _largest_gradients(model: nn.Module, outputs: Callable[[MicroBatch], Tensor]) -> np.ndarray:
    """Returns the largest absolute gradient of row 2's outputs with respect to the input embeddings of row 1, and of
    row 2 itself, [2]."""
    embeddings: list[Tensor] = []

    def leaf(_, __, found: Tensor) -> Tensor:
        embeddings.append(found.detach().requires_grad_())
        return embeddings[-1]

    hook = model.get_input_embeddings().register_forward_hook(leaf)
    try:
        (micro,) = pack(_rows(model.config), FIRST + SECOND, 0, 1)
        second = outputs(micro)[torch.from_numpy(micro.row_in_micro == 1)]
    finally:
        hook.remove()
    assert len(embeddings) == 1, f"{len(embeddings)} calls of the input embedding in one forward"
    (gradient,) = torch.autograd.grad(second.sum(), embeddings)  # [1, T, width]
    first, own = gradient[0].float().abs().split([gradient.shape[1] - len(second) - 1, len(second) + 1])
    return np.array([first.max().item(), own.max().item()])


def _rows(config) -> list[Row]:
    room = getattr(config, "max_position_embeddings", None) or FIRST
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, FIRST + SECOND).tolist()
    made = tokens[:FIRST][:room], tokens[FIRST:][:room]
    return [Row(f"row {i}", row, 1, [1] * (len(row) - 1)) for i, row in enumerate(made, 1)]
