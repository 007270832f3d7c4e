"""Replays a stored train batch under other algorithms: `ouro replay`.

    python -m ouroboros.stages.counterfactual request.json answer.json

Started by results/counterfactual.py. Rebuilds the batch of a trainer step from the stage's tables, scores it with the
weights before that step, and computes loss and gradient under the stage's own algorithm, which must reproduce the
stored values, and under each alternative. Not a stage of the plan: it writes only its answer.
"""

import logging
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ouroboros.operators.algorithm import Algorithm
from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.results.counterfactual import ORIGINAL
from ouroboros.pipeline.settings import secrets
from ouroboros.pipeline.settings.algorithm import Algorithm as Section
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store import checkpoints, files, hashes, records, tables
from ouroboros.pipeline.store.errors import OuroError
from ouroboros.pipeline.store.pictures import has_pictures
from ouroboros.stages.learner.actor import Actor, Result
from ouroboros.stages.learner.batches.recorded import Recorded
from ouroboros.stages.learner.batches.rollouts import Rollouts
from ouroboros.stages.learner.critic import Critic
from ouroboros.stages.learner.estimates import Estimates
from ouroboros.stages.learner.objective import Objective
from ouroboros.stages.learner.reference import References
from ouroboros.stages.learner.replay_engine import (
    GradientEngine,
    inner_product,
    load_critic,
    load_policy,
    single_process,
)
from ouroboros.stages.learner.teacher import Teacher
from ouroboros.stages.recompute import resolve

LEAST_ALIKE = 3  # number of parameter groups to list


@dataclass
class Outcome:
    """Result of one algorithm on the batch. advantages: of each row trained on; gradient: by parameter."""

    advantages: dict[str, float]
    result: Result
    gradient: dict[str, Tensor]


class Replay:
    """A stored train batch, the weights before its step, and the models that its algorithms need."""

    def __init__(self, request: dict[str, Any], directory: Path):
        """request: stage directory; step; weights: directory, or null for the initial model; alternatives: filled
        sections `algorithm`. directory: a copy of the stage's directory that may be written to.
        """
        self.step, self.directory = request["step"], directory
        self.spec = files.read_json(directory / "stage.json")
        self.inputs = files.inputs_of(Path(request["directory"]))
        self.config = Config.of_stage(self.spec["kind"], secrets.reveal(self.spec["config"]))
        self.original = self.config.algorithm
        self.alternatives = {name: Section.partial(one) for name, one in request["alternatives"].items()}
        path = tables.step_file(directory, "steps", self.step)
        self.stored = tables.read(path, records.Step).to_pylist()[0]
        context = self._context(self.original)
        model = checkpoints.model_directory(context.inputs["model"])
        every = [self.original, *self.alternatives.values()]
        refers = any("ref_logprobs" in self._made(algorithm).estimates for algorithm in every)
        config = context.config
        resolve(config, model, has_pictures(context.inputs.get("tasks")))
        self.actor = Actor(model, config, single_process(), config.model.temperature, refers, GradientEngine)
        if request["weights"]:
            _require_intact(Path(request["weights"]))
            load_policy(self.actor, Path(request["weights"]))
        self.references = References(context, model, self.actor) if refers else None
        self.teacher = Teacher(context, model, self.actor.process) if "teacher" in context.inputs else None
        self.critic = (Critic(model, config, self.actor.process, GradientEngine)
                       if "values" in self._made(self.original).estimates else None)
        if self.critic and self.step > 1:
            load_critic(self.critic.zero.module, checkpoints.checkpoint_directory(directory, self.step - 1))

    def _context(self, algorithm: Section) -> Context:
        """The stage's context with another algorithm and without a log."""
        spec, config = self.spec, self.config.but("algorithm", algorithm)
        return Context(spec["run"], spec["name"], spec["identity"], self.directory, config, self.inputs,
                       logging.getLogger("ouro.replay"))

    def under(self, algorithm: Section) -> Outcome:
        """Loss and gradient of the batch under an algorithm."""
        context = self._context(algorithm)
        experience = Recorded if "experience" in context.inputs else Rollouts
        made = self._made(algorithm)
        source, objective, asked = experience(context, made), Objective(context.config, made), made.estimates
        batch = source.cut(self.step)
        references, critic, teacher = (model if column in asked else None for column, model in (
            ("ref_logprobs", self.references), ("values", self.critic), ("teacher_logprobs", self.teacher)))
        estimates = Estimates(self.actor, references, critic, teacher, asked)
        estimates.add(batch.rollouts)
        rows = source.with_advantages(batch).rows
        result = self.actor.step(rows, objective, 0.0, self.step)
        return Outcome({row.id: row.advantage for row in rows}, result, self.actor.zero.gradients)

    def _made(self, algorithm: Section) -> Algorithm:
        """An algorithm with the state that it had at this step."""
        state = {part: self._coefficient(algorithm, part) for part in ("kl_loss_fn", "kl_penalty_fn")}
        return Algorithm.of(self._context(algorithm).config, state)

    def _coefficient(self, algorithm: Section, part: str) -> float | None:
        """Coefficient of a KL term at this step if it is the stage's own, which may have adapted; None: as configured.
        """
        same = all(getattr(algorithm, key) == getattr(self.original, key) for key in (part, f"{part}_args"))
        return self.stored[part.replace("_fn", "_coef")] if same else None

    def proof(self, outcome: Outcome) -> list[list]:
        """[quantity, stored value, recomputed value, tolerance for rounding] of the original algorithm."""
        path = tables.step_file(self.directory, "trained", self.step)
        trained = tables.read(path, records.Trained).select(["experience_id", "advantage"]).to_pydict()
        stored = dict(zip(trained["experience_id"], trained["advantage"], strict=True))
        apart = max((abs(stored.get(id_, np.inf) - a) for id_, a in outcome.advantages.items()), default=0.0)
        off = ROUNDING[next(self.actor.zero.module.parameters()).dtype.itemsize]
        size = float(np.mean(np.abs(list(outcome.advantages.values()))))  # a loss may be near 0, a sum of both signs
        rows = [["rows", len(stored), len(outcome.advantages), 0],
                ["largest difference of an advantage", 0.0, apart, off * max(size, 1e-6)],
                ["loss", self.stored["loss"], outcome.result.loss, off * max(size, abs(self.stored["loss"]))]]
        norm = self.stored["grad_norm"]
        if norm:  # 0 while only the critic is trained
            rows.append(["gradient norm", norm, outcome.result.grad_norm, off * norm])
        return rows


ROUNDING = {4: 1e-3, 2: 5e-2}  # bytes of a weight -> relative difference between two summation orders


def compared(outcome: Outcome, original: Outcome) -> dict[str, Any]:
    """One entry of the answer; undefined values (a correlation with a constant) are null."""
    values = np.array(list(outcome.advantages.values()))
    common = [id_ for id_ in outcome.advantages if id_ in original.advantages]
    here, there = (np.array([of.advantages[id_] for id_ in common]) for of in (outcome, original))
    statistics = outcome.result.statistics
    alike = {name: cosine(*parts) for name, parts in grouped(outcome.gradient, original.gradient).items()}
    least = sorted((value, name) for name, value in alike.items() if value is not None)[:LEAST_ALIKE]
    return {
        "rows": len(values), "advantage_mean": values.mean().item(), "advantage_std": values.std().item(),
        "advantage_correlation": correlation(here, there),
        "same_sign": np.mean(np.sign(here) == np.sign(there)).item() if common else None,
        "loss": outcome.result.loss, **{name: statistics.get(name) for name in STATISTICS},
        "grad_norm": outcome.result.grad_norm, "cosine": cosine(outcome.gradient, original.gradient),
        "least_alike": None if outcome is original else ", ".join(f"{name} {value:.3f}" for value, name in least),
    }


STATISTICS = ("clip_fraction", "kl", "kl_loss", "entropy")


def correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Pearson correlation; None for fewer than two values or a constant side."""
    if len(a) < 2 or a.std() == 0.0 or b.std() == 0.0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def cosine(a: dict[str, Tensor], b: dict[str, Tensor]) -> float | None:
    """Cosine of the angle between two gradients, -1 to 1; None when one is 0."""
    sizes = inner_product(a, a) * inner_product(b, b)
    return inner_product(a, b) / sizes**0.5 if sizes else None


def grouped(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, tuple[dict, dict]]:
    """Two gradients by parameter group: each layer, the embedding, the final norm, the head."""
    groups: dict[str, tuple[dict, dict]] = {}
    for name in a.keys() & b.keys():
        layer = re.search(r"layers\.\d+", name)
        mine, theirs = groups.setdefault(layer[0] if layer else name.split(".")[-2], ({}, {}))
        mine[name], theirs[name] = a[name], b[name]
    return groups


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """`proof`: checks of the original; `rows`: results of the original and each alternative, by name."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "store" / Path(request["directory"]).name  # the layout that messages expect
        copy.mkdir(parents=True)
        linked(Path(request["directory"]), copy)
        try:
            with tables.blamed(copy):
                replay = Replay(request, copy)
                original = replay.under(replay.original)
                rows = {ORIGINAL: compared(original, original)}
                for name, algorithm in replay.alternatives.items():
                    rows[name] = compared(replay.under(algorithm), original)
                return {"proof": replay.proof(original), "rows": rows}
        except OuroError as error:  # an error in one of the stage's own files
            raise type(error)(str(error).replace(str(copy), request["directory"])) from error


def _require_intact(weights: Path) -> None:
    """Raises ModelError when the files of a checkpoint are not those that were written."""
    if weights.parent.name == "checkpoints":
        checkpoints.require_intact(weights.parents[1], int(weights.name.removeprefix("step=")))


def linked(stage: Path, directory: Path) -> None:
    """Fills an empty directory with links to a stage's files, so that writes do not touch the stage."""
    for path in stage.resolve().iterdir():
        if path.is_dir():
            (directory / path.name).mkdir()
        for file in path.iterdir() if path.is_dir() else [path]:
            if hashes.is_list(file):  # appended to
                shutil.copyfile(file, directory / file.relative_to(stage.resolve()))
                continue
            (directory / file.relative_to(stage.resolve())).symlink_to(file)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        files.write_json(Path(sys.argv[2]), answer(files.read_json(Path(sys.argv[1]))))
    except OuroError as error:
        sys.exit(str(error))
