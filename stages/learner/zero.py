"""The one door to DeepSpeed: a policy, its optimizer, one step over a whole train batch, checkpoints.

Departure from DeepSpeed's habit: the number of micro-batches changes from step to step, so the accumulation boundary
is set by hand, and the loss is not divided by it: token weights already sum to one over the whole batch and all ranks.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from operators.arguments import needed_columns
from pipeline.config import longest_sequence
from pipeline.errors import ModelError
from stages.learner import policy
from stages.learner.packing import MicroBatch, Row, pack


@dataclass
class Result:
    """What one optimizer step saw, over the whole batch and all ranks.

    loss: weighted sum. statistics: token means. tokens: through forward and backward, prompts included.
    logprobs: row index -> [N] of the rows of this rank.
    """

    loss: float
    grad_norm: float
    statistics: dict[str, float]
    tokens: int
    logprobs: dict[int, np.ndarray]


def learning_rate(step: int, total: int, settings) -> float:
    """Learning rate of optimizer step 1 .. total: linear warmup from 0, then constant, cosine or linear decay.

    A pure function of the step, so a resumed run has the very same one. settings: `algorithm.optimizer`.
    """
    warmup = settings.lr_warmup_steps
    if step <= warmup:
        return settings.lr * step / warmup
    done = (step - warmup) / max(total - warmup, 1)
    shape = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done))}
    least = 1.0 if settings.lr_scheduler_type == "constant" else settings.min_lr_ratio
    return settings.lr * (least + (1.0 - least) * shape[settings.lr_scheduler_type])


class ZeroLearner:
    """One rank of the trainer. Made after torch.distributed's environment variables are set."""

    def __init__(self, model_path: Path, config, temperature: float = 1.0):
        """config: the stage's settings (algorithm, trainer, model, seed). Collective: every rank must call it."""
        os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
        import deepspeed

        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        gpu = torch.cuda.is_available()
        self.device = torch.device("cuda", self.local_rank) if gpu else torch.device("cpu")
        if gpu:
            torch.cuda.set_device(self.device)
        torch.manual_seed(config.seed)
        # On CPU DeepSpeed would compile a shared-memory all-reduce at run time: 30 s and a C++ compiler. Gloo does.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(dist_backend="nccl" if gpu else "gloo", verbose=False)
        self.rank, self.ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        dtype = policy.resolve_dtype(config.model.dtype, self.device.type)
        self.optimizer_settings = config.algorithm.optimizer
        self.budget = config.trainer.max_token_len_per_gpu
        self.zero_stage = config.trainer.zero_stage
        longest = longest_sequence(config.model)
        model = policy.load(model_path, self.device.type, dtype, config.trainer, temperature, longest)
        o = self.optimizer_settings
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=o.lr, betas=tuple(o.betas), eps=o.eps, weight_decay=o.weight_decay, fused=gpu or None
        )
        self.engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer, config=_deepspeed_config(config.trainer, dtype)
        )

    def step(self, rows: list[Row], loss_function: Callable[..., tuple[Tensor, dict]], lr: float) -> Result:
        """One optimizer step over `rows`, the whole train batch, which every rank is given alike.

        loss_function(columns [N] by name, those that its signature needs) -> (loss [N], statistics of [N]).
        """
        for group in self.engine.optimizer.param_groups:
            group["lr"] = lr
        micro_batches = pack(rows, self.budget, self.rank, self.ranks)
        totals: dict[str, Tensor] = {}
        logprobs: dict[int, np.ndarray] = {}
        for index, micro in enumerate(micro_batches):
            self.engine.set_gradient_accumulation_boundary(index == len(micro_batches) - 1)
            self._forward_backward(micro, loss_function, totals, logprobs)
        self.engine.step()
        tokens = sum(len(row.tokens) for row in rows)
        names = sorted(totals)
        summed = self._all_reduce(torch.stack([totals[name] for name in names]))
        statistics = dict(zip(names, summed.tolist(), strict=True))
        return Result(statistics.pop("loss"), float(self.engine.get_global_grad_norm()), statistics, tokens, logprobs)

    def _forward_backward(self, micro: MicroBatch, loss_function, totals: dict, logprobs: dict) -> None:
        inputs = ("input_ids", "positions", "cu_seqlens", "source", "targets")
        names = (*inputs, "weights", "advantages", "old_logprobs", "row_in_micro")
        on_device = {name: torch.from_numpy(getattr(micro, name)).to(self.device, non_blocking=True) for name in names}
        scores, entropy = self.engine(longest=micro.longest, **{name: on_device[name] for name in inputs})
        weights = on_device["weights"]
        columns = {"logprobs": scores, "old_logprobs": on_device["old_logprobs"],
                   "advantages": on_device["advantages"], "rows": on_device["row_in_micro"]}
        loss, statistics = loss_function(**{name: columns[name] for name in needed_columns(loss_function)})
        total = (loss * weights).sum()
        self.engine.backward(total * self.ranks)  # DeepSpeed averages gradients over ranks; the batch needs their sum
        with torch.no_grad():
            for name, values in {"entropy": entropy, "loss": loss, **statistics}.items():
                totals[name] = totals.get(name, 0.0) + (values.detach() * weights).sum().double()
            flat = scores.detach().float().cpu().numpy()
            for row in micro.rows:
                logprobs[row] = flat[micro.row_of == row]

    def _all_reduce(self, values: Tensor) -> Tensor:
        if self.ranks > 1:
            torch.distributed.all_reduce(values)
        return values

    def barrier(self) -> None:
        if self.ranks > 1:
            torch.distributed.barrier()

    @torch.no_grad()
    def score(self, tokens: list[int]) -> list[float]:
        """Log-prob at temperature 1 of each token after the first, [L - 1]. Collective under ZeRO-3."""
        micro = pack([Row("probe", tokens, 1, [1] * (len(tokens) - 1))], max(self.budget, len(tokens)), 0, 1)[0]
        names = ("input_ids", "positions", "cu_seqlens", "source", "targets")
        arguments = {name: torch.from_numpy(getattr(micro, name)).to(self.device) for name in names}
        module, temperature = self.engine.module, self.engine.module.temperature
        self.engine.eval()
        module.temperature = 1.0
        scores, _ = self.engine(longest=micro.longest, **arguments)
        module.temperature = temperature
        self.engine.train()
        return scores.tolist()

    def full_state(self) -> dict[str, Tensor] | None:
        """All weights by Hugging Face name on rank 0, None elsewhere. Collective under ZeRO-3."""
        named = list(self.engine.module.model.named_parameters())
        if self.zero_stage < 3:
            return dict(named) if self.rank == 0 else None
        import deepspeed

        state = {}
        for name, parameter in named:
            with deepspeed.zero.GatheredParameters([parameter]):
                if self.rank == 0:
                    state[name] = parameter.detach().cpu().clone()
        return state if self.rank == 0 else None

    def export(self, directory: Path) -> None:
        """Writes `model.safetensors` into an existing directory (rank 0 writes). Collective under ZeRO-3."""
        state = self.full_state()
        if state is not None:
            self.write(state, directory)

    def write(self, state: dict[str, Tensor], directory: Path) -> None:
        """Writes weights from `full_state` as `directory`/model.safetensors. Not collective."""
        policy.export(state, self.engine.module.model, directory)

    def save(self, directory: Path) -> None:
        """Writes the optimizer's and the weights' exact state into an existing directory. Collective."""
        self.engine.save_checkpoint(str(directory), tag="state", exclude_frozen_parameters=False)

    def load(self, directory: Path) -> None:
        """Takes up a state written by `save`. Raises ModelError when it was made by another number of ranks."""
        found = len(list((directory / "state").glob("*zero_pp_rank_*_optim_states.pt")))
        if found != self.ranks:
            raise ModelError(f"{directory} was written by {found} trainer ranks, now there are {self.ranks}. "
                             f"Go on with trainer.ranks={found}, or delete the stage directory to begin again.")
        self.engine.load_checkpoint(str(directory), tag="state")

    def peak_memory_gib(self) -> float | None:
        """Peak memory of this rank's GPU since the last call; None on CPU."""
        if self.device.type == "cpu":
            return None
        peak = torch.cuda.max_memory_allocated(self.device) / 2**30
        torch.cuda.reset_peak_memory_stats(self.device)
        return peak

    def release_cache(self) -> None:
        """Gives unused GPU memory back, for an engine that shares the device."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def close(self) -> None:
        torch.distributed.destroy_process_group()


def _deepspeed_config(settings, dtype: torch.dtype) -> dict:
    """settings: the `trainer` section."""
    zero: dict = {"stage": settings.zero_stage}
    if settings.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": settings.grad_clip,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": dtype == torch.bfloat16},
        "steps_per_print": 10**9,
    }
