"""The DeepSpeed wrapper: a module, its optimizer, one step over a whole train batch, checkpoints.

Unlike usual DeepSpeed code, the number of micro-batches changes from step to step. The accumulation boundary is
therefore set explicitly, and the loss is not divided by it: token weights already sum to one over the whole batch and
all ranks. The policy (stages/learner/actor.py) and the critic (stages/learner/critic.py) each use one in the same
process.
"""

import pickle
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ouroboros.pipeline.store.errors import ModelError
from ouroboros.pipeline.store.tensor_files import Writer
from ouroboros.stages.learner.engine.adamw8bit import AdamW8bit
from ouroboros.stages.learner.engine.budget import Exhausted
from ouroboros.stages.learner.engine.muon import Muon
from ouroboros.stages.learner.engine.packing import MicroBatch
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.engine.recurrent import layers_of
from ouroboros.stages.learner.engine.snapshot import Part, Written

# without and with weights by name: earlier releases must not take one for the other. ZeRO-3, which never had them,
# keeps the name that they read
STATES = ("masters", "state")


class ZeroEngine:
    """One rank of a module in training. All methods but callers' file writes are collective."""

    def __init__(self, module: nn.Module, process: Process, optimizer, settings, dtype: torch.dtype):
        """optimizer, settings: the sections `algorithm.optimizer` (or the critic's) and `trainer`."""
        import deepspeed

        self.process = process
        self.zero_stage = settings.zero_stage
        fused = (process.device.type == "cuda" or None) if optimizer.fused is None else optimizer.fused
        self.given = {"betas": tuple(optimizer.betas), "eps": optimizer.eps, "weight_decay": optimizer.weight_decay,
                      "fused": fused}
        self.grad_clip = settings.grad_clip
        if optimizer.optimizer_type == "muon":
            made = Muon(module, process, lr=optimizer.lr, **self.given)
        else:
            kind = AdamW8bit if optimizer.optimizer_type == "adamw8bit" else torch.optim.AdamW
            made = kind([p for p in module.parameters() if p.requires_grad], lr=optimizer.lr, **self.given)
        if self.zero_stage == 3:  # their code reads weights of the modules in them, which gather them when called alone
            for layer in layers_of(module):
                deepspeed.utils.set_z3_leaf_module(layer, True)
        self.module = module  # not DeepSpeed's engine: each attribute lookup there searches all names, for milliseconds
        self.engine, *_ = deepspeed.initialize(model=module, optimizer=made, config=_deepspeed_config(settings, dtype))
        self.engine.checkpoint_engine = _checkpoint_engine()

    def forward(self, micro: MicroBatch, **options):
        """The module's outputs for one packed micro-batch. options: further arguments of its forward."""
        return self.engine(**micro.inputs(self.process.device), **options)

    def to_device(self, array) -> Tensor:
        return torch.from_numpy(array).to(self.process.device, non_blocking=True)

    def step(self, micro_batches: list[MicroBatch], loss_of: Callable[[MicroBatch], Tensor], lr: float) -> float:
        """Makes one optimizer step; returns the gradient norm before clipping.

        loss_of(micro) -> its part (0-d) of the batch loss, which is the sum of the parts over all ranks. Raises
        Exhausted when a GPU's memory does not suffice; torch's error instead where passes communicate (ZeRO-2 and 3,
        shared micro-batches), as the other ranks could not be told.
        """
        self.engine.optimizer.clip_grad = self.grad_clip
        for group in self.engine.optimizer.param_groups:  # a checkpoint has values of before
            group |= self.given | {"lr": lr}
        if self.zero_stage == 1 and not self.process.sequence:
            self._accumulate(micro_batches, loss_of)
        else:
            for index, micro in enumerate(micro_batches):
                self._backward(loss_of(micro), index == len(micro_batches) - 1)
        self.engine.step()
        return float(self.engine.get_global_grad_norm())

    def _backward(self, loss: Tensor, last: bool) -> None:
        """last: whether the micro-batch is the last one of the step; then gradients are reduced over ranks."""
        self.engine.set_gradient_accumulation_boundary(last)
        # DeepSpeed averages gradients over ranks; the batch needs their sum
        self.engine.backward(loss * self.process.ranks)

    def _accumulate(self, micro_batches: list[MicroBatch], loss_of: Callable[[MicroBatch], Tensor]) -> None:
        """The gradients of a step under ZeRO-1: reduced when all ranks have theirs, or discarded on all of them."""
        exhausted = False
        try:
            for micro in micro_batches:
                self._backward(loss_of(micro), last=False)
        except torch.OutOfMemoryError:
            exhausted = True
        if self.process.any(exhausted):
            self._discard()
            raise Exhausted
        self.engine.set_gradient_accumulation_boundary(True)
        self.engine.allreduce_gradients()

    def _discard(self) -> None:
        """Drops accumulated gradients, and DeepSpeed's state of a backward pass that did not end."""
        optimizer = self.engine.optimizer
        while optimizer._backward_active_depth:
            optimizer.exit_backward()
        optimizer.clear_backward_seen_flag()
        optimizer.zero_grad()
        if self.process.device.type == "cuda":
            torch.cuda.empty_cache()

    @contextmanager
    def scoring(self):
        """Context in which forwards do not train and keep no state."""
        self.engine.eval()
        with torch.no_grad():
            yield
        self.engine.train()

    def full_state(self, named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, Tensor] | None:
        """Whole parameters by name on rank 0, None elsewhere."""
        if self.zero_stage < 3:
            return dict(named) if self.process.rank == 0 else None
        import deepspeed

        state = {}
        for name, parameter in named:
            with deepspeed.zero.GatheredParameters([parameter]):
                if self.process.rank == 0:
                    state[name] = parameter.detach().cpu().clone()
        return state if self.process.rank == 0 else None

    @contextmanager
    def exchanged(self, named: Iterable[tuple[str, nn.Parameter]], other: dict[str, Tensor] | None):
        """Context in which parameters have the values of `other`; restored bit for bit afterwards.

        other: whole parameters by name, on every rank, under ZeRO-3 on rank 0 alone (None elsewhere).
        """
        named = list(named)
        own = self._replace(named, other)
        yield
        self._replace(named, own)

    def _replace(self, named: list, other: dict[str, Tensor] | None) -> dict[str, Tensor]:
        """Replaces the parameters' values; returns the previous ones, on the same ranks as `other`."""
        had: dict[str, Tensor] = {}
        if self.zero_stage < 3:  # swap the tensor, not its content: ZeRO's flat buffer stays untouched
            for name, parameter in named:
                had[name], parameter.data = parameter.data, other[name].to(parameter)
            return had
        import deepspeed

        for name, parameter in named:
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                if self.process.rank == 0:
                    had[name] = parameter.detach().cpu().clone()
                    parameter.data.copy_(other[name])
        return had

    def save(self, directory: Path, weights: bool = False) -> list[Part]:
        """The exact state of the optimizer and of all trainable weights, as files of an existing directory. weights: by
        name too, as they compute, below ZeRO-3. `load` has them from the optimizer's float32 masters: a step rounds
        those."""
        weights = weights or self.zero_stage == 3
        self.engine.save_checkpoint(str(directory), tag=STATES[weights], exclude_frozen_parameters=True)
        parts, self.engine.checkpoint_engine.parts = self.engine.checkpoint_engine.parts, []
        if not weights:
            names = {name for name, _ in self.module.named_parameters(remove_duplicate=False)}
            for state in (part.state for part in parts if "module" in part.state):
                state["module"] = {name: one for name, one in state["module"].items() if name not in names}
        return parts

    def load(self, directory: Path) -> None:
        """Loads a state written by `save`. Raises ModelError when the number of ranks or the module was different."""
        tag, ranks = STATES[not (directory / STATES[False]).exists()], self.process.ranks
        named = {self.engine._get_rank_zero_ckpt_name(str(directory), tag, self.engine.checkpoint_mp_rank, rank,
                                                      self.engine.bfloat16_enabled()) for rank in range(ranks)}
        found = {str(path) for path in (directory / tag).glob("*zero_pp_rank_*_optim_states.pt")}
        if len(found) != ranks:
            raise ModelError(f"{directory} was written by {len(found)} trainer ranks, now there are {ranks}. "
                             f"Resume with trainer.ranks={len(found)}, or delete the stage directory to start again.")
        again = "Resume with the settings and libraries that wrote it, or delete the stage directory to start again."
        if lacking := named - found:  # without masters DeepSpeed would take weights by name, and there are none
            raise ModelError(f"{min(lacking)} is missing: the state has {min(found)}. {again}")
        path = self.engine._get_ckpt_name(str(directory), tag)
        held = self.engine.checkpoint_engine.load(path, "cpu", mmap=True)  # its names: the weights stay on the disk
        theirs, ours = ([f"{name} {[*size]}" for group in shapes for name, size in group.items()] + buffers
                        for shapes, buffers in ((held["param_shapes"], held["buffer_names"]), (
                            self.engine._get_zero_param_shapes(), self.engine._get_buffer_names())))
        if theirs != ours:  # masters have no names: their order tells them apart
            other = min({*theirs} ^ {*ours}, default="their order")
            raise ModelError(f"{path} is of other weights than train now: {other} differs. {again}")
        self.engine.load_checkpoint(str(directory), tag=tag, load_module_strict=False)
        if self.zero_stage < 3:
            self.engine.optimizer.update_lp_params()


def _checkpoint_engine():
    """DeepSpeed's reader and writer of checkpoint files, which unpickles tensors and three classes only: the
    usual one would run any code that a file contains. `save` writes nothing, but adds to `parts`.
    """
    from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    def member(kind, name: str) -> ZeroStageEnum:
        """What Python 3.11.0 to 3.11.3 writes a member of an enumeration as: getattr(kind, name)."""
        if kind is not ZeroStageEnum:
            raise pickle.UnpicklingError(f"getattr of {kind} in a checkpoint")
        return ZeroStageEnum[name]

    known = [LossScaler, ZeroStageEnum, fragment_address, (member, "builtins.getattr")]

    class WeightsOnly(TorchCheckpointEngine):
        def save(self, state_dict, path: str):
            self.parts.append(Part(state_dict, partial(_write, path=Path(path))))

        def load(self, path: str, map_location=None, mmap: bool = False):
            with torch.serialization.safe_globals(known):
                return torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)

    made = WeightsOnly()
    made.parts = []
    return made


def _write(state: dict, path: Path) -> Written:
    with Writer(path) as file:
        torch.save(state, file)
    return path, file.entry


def _deepspeed_config(settings, dtype: torch.dtype) -> dict:
    """settings: the `trainer` section."""
    # transformers keeps all experts of a layer in one tensor; DeepSpeed would count their gradient twice as a leaf's
    zero: dict = {"stage": settings.zero_stage, "leaf_module": {"classes": []}}
    if settings.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    if settings.offload_param:
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": settings.grad_clip,
        "zero_optimization": zero, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": dtype == torch.bfloat16}, "steps_per_print": 10**9,
    }
