"""PPO's critic: values of the state before each action token, with its own optimizer and checkpoints.

The value head is initialised to zero: the first advantages then have no baseline, instead of a random one.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ouroboros.pipeline.settings.config import longest_sequence
from ouroboros.pipeline.store.checkpoints import model_directory
from ouroboros.pipeline.store.digests import resolve
from ouroboros.stages.learner.engine import policy
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.budget import Budget
from ouroboros.stages.learner.engine.packing import MicroBatch, lengths
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.engine.sharing import Segments
from ouroboros.stages.learner.engine.snapshot import Part
from ouroboros.stages.learner.engine.way import Way, decoder, hidden_states
from ouroboros.stages.learner.engine.zero import ZeroEngine


@dataclass(frozen=True)
class ValueResult:
    """Measurements of one critic step over the whole batch and all ranks, named as in the step record."""

    vf_loss: float
    vf_clipfrac: float
    vf_explained_variance: float | None
    critic_grad_norm: float
    critic_lr: float


class ValueModel(policy.Deterministic):
    """A transformer with a linear head [width -> 1] initialised to zero. bias: of the head."""

    replays = False  # the choices of its experts are its own

    def __init__(self, transformer: nn.Module, way: Way, bias: bool = True):
        super().__init__()
        self.transformer = transformer
        self.way = way
        some = next(transformer.parameters())
        self.head = nn.Linear(transformer.config.hidden_size, 1, bias, dtype=some.dtype)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)
        self.train()

    def forward(
        self, input_ids: Tensor, positions: Tensor, segments: Segments, source: Tensor, targets: Tensor,
        temperature: Tensor | None = None, kept: Tensor | None = None
    ) -> Tensor:
        """As learner/engine/policy.py -> [N] float32: the value of the state before each action token, whatever the
        next is sampled by."""
        part = self.way.part(source, len(input_ids))
        states = self.hidden(input_ids, positions, segments).index_select(0, part.places)  # as in policy.py
        return part.whole(self.head(states)[:, 0].float())

    def hidden(self, input_ids: Tensor, positions: Tensor, segments: Segments) -> Tensor:
        """The last hidden states [T, width], those of this rank where ranks share a micro-batch."""
        return hidden_states(self.transformer, input_ids, positions, segments, self.way)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, cliprange: float) -> tuple[Tensor, Tensor]:
    """Clipped squared error [N] (Schulman et al. 2017, arXiv:1707.06347; code: baselines/ppo2).

    loss = 1/2 max((V - R)^2, (clamp(V, V_old - c, V_old + c) - R)^2); the second result is 1 where the clipped term is
    larger. V_old is the critic's value before the first step over a batch: with one alone V = V_old, and nothing is
    clipped.
    """
    near = values.clamp(old_values - cliprange, old_values + cliprange)  # exactly V within c, without rounding
    plain, clipped = (values - returns) ** 2, (near - returns) ** 2
    return 0.5 * torch.maximum(plain, clipped), (clipped > plain).detach().to(values.dtype)


def explained_variance(values: np.ndarray, returns: np.ndarray) -> float | None:
    """1 - Var(R - V) / Var(R) over the action tokens; None when all returns are equal."""
    variance = float(np.var(returns.astype(np.float64)))
    return None if variance == 0.0 else 1.0 - float(np.var((returns - values).astype(np.float64))) / variance


class Critic:
    """One rank of the critic. All methods are collective."""

    def __init__(self, model_path: Path, config, process: Process, engine: type[ZeroEngine] = ZeroEngine,
                 budget: Budget | None = None):
        """config: the stage's settings (trainer, model). model_path: of the policy, which it starts from without
        `model.critic_model_path`. engine: as for the policy (stages/learner/actor.py). budget: shared with the policy.
        """
        if own := config.model.critic_model_path:
            model_path = model_directory(resolve(own))
        self.process, self.settings = process, config.trainer.critic
        self.budget = budget or Budget(config.trainer.max_token_len_per_gpu)
        dtype = policy.resolve_dtype(config.model.dtype, process.device.type)
        longest = longest_sequence(config.model)
        model, self.way = policy.read(model_path, process.device.type, dtype, config.trainer, longest, headless=True,
                                      trust=config.model.trust_remote_code, sequence=process.sequence)
        policy.compile_layers(model, self.way, config.trainer, process.device.type)
        module = ValueModel(decoder(model), self.way)
        self.zero = engine(module, process, self.settings.optimizer, config.trainer, dtype)

    def values(self, rows: list[Row]) -> list[np.ndarray]:
        """The value of the state before each action token, [N] for each row."""
        with self.zero.scoring():
            return self.process.score_rows(rows, self.budget.tokens, self.zero.forward, self.way.fill)

    def step(self, rows: list[Row], lr: float) -> ValueResult:
        """One optimizer step towards the rows' column `returns`, clipped around the column `values`."""
        longest = -(-max(lengths(rows)) // self.process.split)
        return self.budget.attempt(lambda budget: self._step(budget, rows, lr), longest)

    def _step(self, budget: int, rows: list[Row], lr: float) -> ValueResult:
        process = self.process
        totals = torch.zeros(2, dtype=torch.float64, device=process.device)

        def loss_of(micro: MicroBatch) -> Tensor:
            old, returns = (self.zero.to_device(micro.columns[name]) for name in ("values", "returns"))
            losses, clipped = value_loss(self.zero.forward(micro), old, returns, self.settings.cliprange_value)
            loss = losses.sum() * micro.share
            totals.add_(torch.stack([loss.detach().double(), (clipped.sum() * micro.share).double()]))
            return loss

        micro_batches = process.pack(rows, budget, ("values", "returns"), fill=self.way.fill)
        grad_norm = self.zero.step(micro_batches, loss_of, lr)
        loss, clipped = process.sum_micro_batches(totals).tolist()
        before, returns = (np.concatenate([row.of_actions(name) for row in rows]) for name in ("values", "returns"))
        return ValueResult(loss, clipped, explained_variance(before, returns), grad_norm, lr)

    def save(self, directory: Path) -> list[Part]:
        """The exact state, as files of `directory`/critic, with the weights that a replay reads (replay_engine.py)."""
        (directory / "critic").mkdir(exist_ok=True)
        return self.zero.save(directory / "critic", weights=True)

    def load(self, directory: Path) -> None:
        self.zero.load(directory / "critic")
