"""The policy in training: scores rows, makes optimizer steps, exports its weights."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ouroboros.pipeline.settings.config import longest_sequence
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.settings.trainer import compares_routings, leaves_gpu
from ouroboros.pipeline.store.errors import StageError
from ouroboros.pipeline.store.pictures import Picture
from ouroboros.stages.learner.engine import policy
from ouroboros.stages.learner.engine.adapter import Adapter, inject
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.budget import Budget
from ouroboros.stages.learner.engine.compiled import GRAPHS
from ouroboros.stages.learner.engine.packing import MicroBatch, lengths, pack, routed
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.engine.quantized import Frozen, Linear4bit, hold
from ouroboros.stages.learner.engine.snapshot import Part, write_weights
from ouroboros.stages.learner.engine.zero import ZeroEngine
from ouroboros.stages.learner.objective import Objective

REFERENCE = "reference.safetensors"  # in a checkpoint, where the reference follows the policy


@dataclass(frozen=True)
class Result:
    """Measurements of one optimizer step over the whole batch and all ranks.

    loss: weighted sum. grad_norm: before clipping; 0 when nothing was trained. kl_loss_coef: None without a KL loss.
    statistics: token means; loss statistics of rollouts and of off-policy rows are each averaged over their own tokens.
    tokens: of all rows with their prompts, also where these are shared. logprobs, entropies: of each row, in order [N];
    entropies: None where the output has none. token_budget: of its micro-batches; compiled_graphs: compiled since the
    last step; packing: the way of its rows (stages/learner/engine/way.py). These three are None in a result that no
    model made.
    """

    loss: float
    grad_norm: float
    lr: float
    kl_loss_coef: float | None
    statistics: dict[str, float]
    tokens: int
    logprobs: list[np.ndarray]
    token_budget: int | None = None
    compiled_graphs: int | None = None
    packing: str | None = None
    entropies: list[np.ndarray] | None = None


class Actor:
    """One rank of the policy. All methods but `write_adapter` are collective: call them on every rank.

    output: the column of `_outputs` that a result has of each row.
    """

    output = "logprobs"

    def __init__(self, model_path: Path, config, process: Process, temperature: float = 1.0,
                 keep_initial: bool = False, engine: type[ZeroEngine] = ZeroEngine):
        """config: the stage's settings (algorithm, trainer, model, seed).

        keep_initial: keep the initial weights (or adapter) in host memory, for `reference_logprobs`. engine: of a
        replay, which does not train (stages/learner/replay_engine.py).
        """
        self.process, self.budget, self.graphs = process, Budget(config.trainer.max_token_len_per_gpu), 0
        dtype = policy.resolve_dtype(config.model.dtype, process.device.type)
        longest = longest_sequence(config.model)
        model = policy.load(model_path, process.device.type, dtype, config.trainer, temperature, longest,
                            config.model.trust_remote_code, compares := compares_routings(config),
                            compares and config.algorithm.enable_router_replay, process.sequence)
        self.adapter: Adapter | None = None
        for settings in config.model.lora_configs:
            self.adapter = inject(model.model, model_path, settings, config.seed)
        if at(config, "model.load_in_4bit"):
            hold(model.model, process.device, str(model_path))
        self.initial: dict[str, Tensor] | None = None
        if keep_initial and (config.trainer.zero_stage < 3 or process.rank == 0):
            moves = at(config, "trainer.reference_update.interval") is not None
            self.initial = {name: p.detach().to(torch.float32 if moves else p.dtype, copy=True)
                            for name, p in model.model.named_parameters() if p.requires_grad}
        self.way, self.routed = model.way, model.routers is not None
        self.zero = engine(model, process, config.algorithm.optimizer, config.trainer, dtype)
        self.frozen = Frozen(model) if process.device.type == "cuda" and leaves_gpu(config) else None

    def expect_images(self) -> None:
        """Of a stage whose rows may have images, before any of these: ranks must call what they share, the weights of
        the tower (ZeRO-3) or their gradients, equally often, and only some have rows with images."""
        shared = self.zero.zero_stage == 3 or (self.process.ranks > 1 and self.zero.module.trains_tower)
        self.zero.module.always_sees = shared

    def step(self, rows: list[Row], objective: Objective, lr: float, number: int, update: bool = True) -> Result:
        """One optimizer step over `rows`, the whole train batch, identical on every rank.

        number: of the step, from 1. update: if false, everything is measured and nothing trained.
        """
        longest = max(lengths(rows, objective.aggregation.unit, self.way.fill.pads))
        if self.zero.module.replays and not routed(rows):
            raise StageError("algorithm.enable_router_replay=true, and a row of the batch has no routing.")
        if objective.chooses:
            objective.choose(rows, self.measure(rows))
        return self.budget.attempt(lambda budget: self._step(budget, rows, objective, lr, number, update),
                                   -(-longest // self.process.split))

    def _step(self, budget: int, rows: list[Row], objective: Objective, lr: float, number: int, update: bool) -> Result:
        """`step` with micro-batches of at most `budget` tokens. Raises Exhausted, with the weights as before."""
        process, totals, measured = self.process, {}, {}
        if self.routed and routed(rows):  # on every rank: the rows of one may all be without experts
            totals["routed_differently"] = torch.zeros((), dtype=torch.float64, device=process.device)
        micro_batches = process.pack(rows, budget, objective.row_columns, objective.aggregation, self.way.fill,
                                     experts=self.routed)

        def loss_of(micro: MicroBatch) -> Tensor:
            return self._loss(micro, objective, number, totals, measured)

        grad_norm = 0.0
        if update:
            grad_norm = self.zero.step(micro_batches, loss_of, lr)
        else:
            with self.zero.scoring():
                for micro in micro_batches:
                    loss_of(micro)
        names = sorted(totals)
        summed = process.sum_micro_batches(torch.stack([totals[name] for name in names]))
        statistics = dict(zip(names, summed.tolist(), strict=True))
        logprobs, *entropies = zip(*(one.T for one in process.gather_rows(measured)), strict=True)
        return Result(statistics.pop("loss"), grad_norm, lr, objective.kl.kl_coef if objective.kl else None, statistics,
                      sum(lengths(rows)), list(logprobs), budget, self._new_graphs(), self.way.name,
                      *map(list, entropies))

    def _new_graphs(self) -> int:
        before, self.graphs = self.graphs, GRAPHS.count
        return self.graphs - before

    def _loss(self, micro: MicroBatch, objective: Objective, number: int, totals: dict[str, Tensor],
              measured: dict[int, np.ndarray]) -> Tensor:
        """A micro-batch's part of the loss; adds its statistics to `totals`, and log-probs and entropies of its rows to
        `measured`, [N, 2]; [N, 1] without entropies."""
        columns = {name: self.zero.to_device(values) for name, values in micro.columns.items()}
        columns["rows"] = self.zero.to_device(micro.row_in_micro)
        columns = self._outputs(micro, objective) | columns
        columns["step"] = torch.tensor(number)
        loss, statistics = objective(columns)
        total = (loss * self.zero.to_device(micro.weights)).sum()
        with torch.no_grad():
            totals["loss"] = totals.get("loss", 0.0) + total.detach().double()
            if "entropy" in columns:
                entropy = (columns["entropy"].detach() * micro.share).sum().double()
                totals["entropy"] = totals.get("entropy", 0.0) + entropy
            if micro.experts is not None:
                others = (self.zero.module.differing * micro.share).sum().double()
                totals["routed_differently"] = totals.get("routed_differently", 0.0) + others
            shares = self.zero.to_device(micro.shares)
            for name, values in statistics.items():
                totals[name] = totals.get(name, 0.0) + (values.detach() * shares).sum().double()
        found = [columns[self.output], *([columns["entropy"]] if "entropy" in columns else [])]
        measured |= micro.by_row(torch.stack(found, dim=1))
        return total

    def _outputs(self, micro: MicroBatch, objective: Objective) -> dict[str, Tensor]:
        """What the model gives to the loss, by column [N], [N, K + 1]; prox_logprobs: where a row has none."""
        asked = micro.columns.get("teacher_top_ids")
        more = {} if asked is None else {"ids": self.zero.to_device(asked).long()}
        logprobs, entropy, *tops = self.zero.forward(micro, entropy_gradient=objective.needs_entropy_gradient, **more)
        found = {"top_logprobs": tops[1]} if tops else {}
        return {"logprobs": logprobs, "entropy": entropy, "prox_logprobs": logprobs.detach(), **found}

    def score_rows(self, rows: list[Row], replays: bool = True) -> list[np.ndarray]:
        """Log-prob of each action token under the current weights, [N] for each row. replays: where a step does."""
        with self.zero.scoring():
            return self.process.score_rows(rows, self.budget.tokens, lambda micro: self.zero.forward(micro)[0],
                                           self.way.fill, self.routed and replays)

    def measure(self, rows: list[Row], scores: bool = False) -> list[np.ndarray]:
        """Log-prob and entropy of each action token under the current weights, with `scores` also the mean of
        policy.MeanScores, [N, 2 or 3] for each row."""
        more = {"ids": policy.MeanScores()} if scores else {}
        with self.zero.scoring():
            return self.process.score_rows(rows, self.budget.tokens,
                                           lambda micro: torch.stack(self.zero.forward(micro, **more), dim=1),
                                           self.way.fill, self.routed)

    def reference_logprobs(self, rows: list[Row]) -> list[np.ndarray]:
        """As `score_rows`, under the reference: the stage's initial weights, or what `follow` made of them."""
        with self.zero.exchanged(self._trainable(), self.initial):
            return self.score_rows(rows, replays=False)  # the experts are the policy's

    def follow(self, mix: float) -> None:
        """Moves the reference to (1 - mix) of itself and mix of the policy, in float32."""
        state = dict(self._trainable()) if self.zero.zero_stage < 3 else self.zero.full_state(self._trainable())
        for name, kept in (self.initial or {}).items():
            kept.lerp_(state[name].detach().to(kept), mix)

    def load_reference(self, directory: Path) -> None:
        """Reads a reference that has moved from a checkpoint."""
        if self.initial is not None:
            found = load_file(directory / REFERENCE)
            self.initial = {name: found[name].to(kept) for name, kept in self.initial.items()}

    def reference_part(self, directory: Path) -> list[Part]:
        """The reference as a file of a checkpoint, of rank 0."""
        write = partial(write_weights, path=directory / REFERENCE)
        return [Part(self.initial, write)] if self.initial and self.process.rank == 0 else []

    def score(self, tokens: list[int], pictures: tuple[Picture, ...] = ()) -> list[float]:
        """Log-prob at temperature 1 of each token after the first, [L - 1]. pictures: in them."""
        row = Row("probe", tokens, 1, [1] * (len(tokens) - 1), pictures=pictures)
        (micro,) = pack([row], max(self.budget.tokens, len(tokens)), 0, 1)
        with self.zero.scoring():
            return self.zero.forward(micro, temperature=1.0)[0].tolist()

    def _parameters(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.zero.module.model.named_parameters())

    def _trainable(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, parameter) for name, parameter in self._parameters() if parameter.requires_grad]

    def full_state(self) -> dict[str, Tensor] | None:
        """All weights by Hugging Face name on rank 0, None elsewhere. An adapter is merged into them."""
        state = self._whole_state()
        return self.adapter.merged(state) if self.adapter and state is not None else state

    def _whole_state(self) -> dict[str, Tensor] | None:
        state = self.zero.full_state(self._parameters())
        held = {f"{name}.weight": one for name, one in self.zero.module.model.named_modules()
                if isinstance(one, Linear4bit)}
        return None if state is None else state | held | policy.saved_buffers(self.zero.module.model)

    def save(self, directory: Path) -> list[Part]:
        """The exact state, the whole model in `directory`/model and the adapter in `directory`/adapter, as files."""
        parts, state = self.zero.save(directory), self.full_state()
        if state is not None:
            write = partial(policy.export, model=self.zero.module.model, path=directory / "model")
            merged = self.adapter is not None and self.process.device.type == "cuda"
            parts.append(Part(state, write, fresh=merged))
        if self.adapter and (state := self.trainable_state()) is not None:
            (directory / "adapter").mkdir()
            parts.append(Part(state, partial(self.write_adapter, directory=directory / "adapter")))
        return parts

    def trainable_state(self) -> dict[str, Tensor] | None:
        """The weights that a weight sync publishes: the adapter's, or all without one; rank 0 as above."""
        return self.zero.full_state(self._trainable()) if self.adapter else self._whole_state()

    def write_adapter(self, state: dict[str, Tensor], directory: Path) -> None:
        """Writes `trainable_state` of an adapter into an existing directory, in peft's format."""
        self.adapter.write(state, directory)

    def peak_memory_gib(self) -> float | None:
        """Peak memory of this rank's GPU since the last call; None on CPU."""
        if self.process.device.type == "cpu":
            return None
        peak = torch.cuda.max_memory_allocated(self.process.device) / 2**30
        torch.cuda.reset_peak_memory_stats(self.process.device)
        return peak

    def make_room(self) -> None:
        """Moves frozen weights to host memory until the next forward, for engines that take turns with the trainer."""
        if self.frozen:
            self.frozen.leave()
            self.release_cache()
            self.process.barrier()  # engines on the GPUs of other ranks begin when the first one says so

    def release_cache(self) -> None:
        """Releases unused GPU memory, for an engine that shares the device."""
        if self.process.device.type == "cuda":
            torch.cuda.empty_cache()
