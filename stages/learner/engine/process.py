"""A rank of the trainer among the others: its device, what it sums and gathers with them, and its micro-batches."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.packing import Fill, MicroBatch, pack
from ouroboros.stages.learner.engine.ulysses import Sequence


@dataclass(frozen=True)
class Process:
    """This rank of the trainer: its device, its place among the ranks, and those that share its micro-batches."""

    device: torch.device
    rank: int
    ranks: int
    sequence: Sequence | None = None

    @classmethod
    def start(cls, seed: int, rendezvous: Path | None = None, split: int = 1) -> "Process":
        """Joins the other ranks (RANK, WORLD_SIZE, LOCAL_RANK in the environment). Call once per process.

        split: ranks that share a micro-batch (trainer.ulysses_sequence_parallel_size).
        rendezvous: a file where the ranks of one node meet; not needed for a single rank. Those of several nodes meet
        at MASTER_ADDR, MASTER_PORT: torch's TCP store accepts connections from the whole network, unauthenticated.
        """
        os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
        deepspeed = _import_deepspeed()
        gpu = torch.cuda.is_available()
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
        if gpu:
            torch.cuda.set_device(device)
        torch.manual_seed(seed)
        # On CPU DeepSpeed would compile a shared-memory all-reduce at run time (30 s, a C++ compiler); use Gloo.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        store = _store(rendezvous, rank, ranks)
        backend = "nccl" if gpu else "gloo"
        torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=ranks,
                                             device_id=device if gpu and ranks > 1 else None)
        deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)
        return cls(device, rank, ranks, Sequence.start(split, rank, ranks))

    @property
    def split(self) -> int:
        """Ranks that share a micro-batch, which all have the same results of it."""
        return self.sequence.size if self.sequence else 1

    def pack(self, rows: list[Row], budget: int, *arguments, **named) -> list[MicroBatch]:
        """This rank's micro-batches of at most `budget` tokens on a GPU; further arguments as of `pack`."""
        return pack(rows, budget * self.split, self.rank // self.split, self.ranks // self.split, *arguments, **named)

    def sum_micro_batches(self, values: Tensor) -> Tensor:
        """Sums what every rank has of its micro-batches, in place."""
        return self.all_reduce(values).div_(self.split)

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sums over ranks, in place."""
        if self.ranks > 1:
            torch.distributed.all_reduce(values)
        return values

    def any(self, happened: bool) -> bool:
        """Whether it happened on any rank."""
        if self.ranks == 1:
            return happened
        return bool(self.all_reduce(torch.tensor(float(happened), device=self.device)))

    def gather_rows(self, of_rank: dict[int, np.ndarray]) -> list[np.ndarray]:
        """The values of all rows in order, on every rank. of_rank: those of this rank, by index of the row."""
        parts = [of_rank]
        if self.ranks > 1:
            parts = [None] * self.ranks
            torch.distributed.all_gather_object(parts, of_rank)
        merged = {row: values for part in parts for row, values in part.items()}
        return [merged[row] for row in range(len(merged))]

    def score_rows(self, rows: list[Row], budget: int, forward: Callable[[MicroBatch], Tensor], fill: Fill,
                   experts: bool = False) -> list[np.ndarray]:
        """One number per action token [N] of each row, by forwards of micro-batches. experts: as of `pack`.
        Collective."""
        scored: dict[int, np.ndarray] = {}
        for micro in self.pack(rows, budget, fill=fill, experts=experts):
            scored |= micro.by_row(forward(micro))
        return self.gather_rows(scored)

    def first(self, value):
        """Rank 0's value, on every rank."""
        if self.ranks == 1:
            return value
        held = [value]
        torch.distributed.broadcast_object_list(held, src=0)
        return held[0]

    def barrier(self) -> None:
        if self.ranks > 1:
            torch.distributed.barrier()

    def stop(self) -> None:
        torch.distributed.destroy_process_group()


def _import_deepspeed():
    """The package, imported with MLflow hidden.

    DeepSpeed's autotuner, unused here, would import MLflow and with it pandas: most of the import's processor time.
    """
    loaded = sys.modules.get("mlflow")
    sys.modules["mlflow"] = None
    try:
        import deepspeed
    finally:
        del sys.modules["mlflow"]
        if loaded:
            sys.modules["mlflow"] = loaded
    return deepspeed


def _store(rendezvous: Path | None, rank: int, ranks: int):
    """Returns where the ranks exchange addresses."""
    if ranks == 1:
        return torch.distributed.HashStore()
    if (port := int(os.environ.get("MASTER_PORT", "0"))) == 0:
        return torch.distributed.FileStore(str(rendezvous), ranks)
    return torch.distributed.TCPStore(os.environ["MASTER_ADDR"], port, ranks, is_master=rank == 0)
