"""The weights of an explorer's engine: waited for, loaded, and verified by the trainer's log-probs of a probe.

With explorer.partial_rollout, a step loads newer ones as soon as they are published, with sync_style=fixed those of the
next step, and its answers go on under them (workflows/attempts/continued.py).
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ouroboros.pipeline.job.background import Background
from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.syncs import Scheduled
from ouroboros.pipeline.job.waiting import wait_for
from ouroboros.pipeline.settings.config import resolve_dtype
from ouroboros.pipeline.settings.trainer import publishes_deltas
from ouroboros.pipeline.store import checkpoints, files, tables, versions
from ouroboros.pipeline.store.errors import SyncError
from ouroboros.pipeline.store.pictures import named
from ouroboros.workflows.attempts.recording import Journal
from ouroboros.workflows.protocol.engine import Engine

LOOK_SECONDS = 0.1  # between two looks for newer weights
SETTLED_SECONDS = 10.0  # a network's file system may show a later file before an earlier one
# mean and 95th percentile of |engine - trainer| on the probe, nats; where it is more, ROUNDED times what another
# rounding of the trainer's layers changes
ALLOWED, ROUNDED = {"float32": (1e-3, 1e-3), "bfloat16": (0.05, 0.2)}, 4.0


class Weights:
    """Tracks and updates the engine's weights version. Version 0 is the stage's initial model."""

    def __init__(self, context: Context, engine: Engine):
        self.context, self.engine = context, engine
        self.version, self.hash = -1, ""
        self.hashes: dict[int, str] = {}  # of all versions so far
        self.wait_seconds = self.sync_seconds = 0.0
        self.difference: float | None = None
        self.ahead_seconds = 0.0  # of sync_seconds, those during the step
        self._ahead: float | None = None  # difference of weights that were loaded during the step before their own
        self.asleep = False
        self.flusher = Background()  # flushes a version to the disk, which precedes its rows there

    def set_initial(self, model: Path) -> None:
        """Records that the engine was opened with this model and gets no other weights (mode=explore)."""
        asks_server = self.context.config.explorer.rollout_model.engine_type == "openai"
        self.version = 0
        self.hash = files.hash_json(files.read_json(model / "config.json")) if asks_server else (
            checkpoints.weights_hash(model))
        self.hashes[0] = self.hash

    def update_to(self, version: int, check: Callable[[], None] = lambda: None) -> None:
        """Waits for, loads and verifies `version`, unless loaded and awake. check: see wait_for.

        Raises SyncError for one that was published and is gone.
        """
        self.wait_seconds = self.sync_seconds = self.ahead_seconds = 0.0
        self.difference, self._ahead = self._ahead, None
        if version == self.version and not self.asleep:
            return
        directory = versions.version_directory(self.context.directory, version)
        config = self.context.config.synchronizer

        passed_at = None  # when the trainer was first seen to have passed them

        def check_both() -> None:
            nonlocal passed_at
            check()
            if not tables.step_file(self.context.directory, "steps", version + 1).exists():
                return
            passed_at = passed_at or time.monotonic()
            if time.monotonic() - passed_at > SETTLED_SECONDS and not files.is_complete(directory):
                raise SyncError(f"{directory} is gone: it was published, and the trainer has made step {version + 1} "
                                "since. Run the same command again: the stage goes on from a checkpoint before it.")

        self.wait_seconds = wait_for(
            directory / files.MANIFEST, config.sync_timeout, f"weights version {version} of the trainer",
            self.context.directory / "trainer.log", check_both,
        )
        begin = time.perf_counter()
        if self.asleep:
            self.engine.wake()
            self.asleep = False
        self.engine.load_weights(directory)
        manifest = files.read_json(directory / files.MANIFEST)
        self.difference = probe_difference(self.engine, manifest, _dtype(self.context), config.probe_tolerance,
                                           self.context.inputs.get("tasks"), directory)
        self.version, self.hash = version, manifest["hash"]
        self.hashes[version] = self.hash
        self.flusher.start(files.flush_tree, directory)
        self.sync_seconds = time.perf_counter() - begin

    def load_ahead(self, version: int) -> None:
        """`update_to` within a step; the measurements remain those of its beginning, seconds include both."""
        before = self.wait_seconds, self.sync_seconds, self.difference
        self.update_to(version)
        self._ahead, self.ahead_seconds = self.difference, self.sync_seconds
        self.wait_seconds, self.sync_seconds, self.difference = before[0], before[1] + self.sync_seconds, before[2]

    def forget_before(self, version: int) -> None:
        """Deletes published weights that neither `version` nor a later one needs, as far as the settings say so."""
        config = self.context.config
        based = publishes_deltas(config, _dtype(self.context))
        versions.forget_before(self.context.directory, version, config.synchronizer.keep, based)

    def sleep(self) -> None:
        self.engine.sleep()
        self.asleep = True


class NextWeights:
    """Newer weights for the answers of an explorer step (ouroboros.workflows.attempts.continued.NewerWeights)."""

    def __init__(self, weights: Weights, syncs: Scheduled, step: int, journal: Journal):
        """journal: of this step. Loads them at once if it says that a killed explorer had done so."""
        self._weights, self._journal, self._looked = weights, journal, -LOOK_SECONDS
        self._syncs, self._step, self._found = syncs, step, None
        if journal.newer:
            weights.load_ahead(journal.newer[0])
            if journal.newer != (weights.version, weights.hash):
                journal.forget()
                journal.loaded(weights.version, weights.hash)

    @property
    def version(self) -> int:
        return self._weights.version

    def are_there(self) -> bool:
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return False
        self._looked = time.monotonic()
        self._found = self._syncs.newer(self._step, self.version)
        return self._found is not None

    def load(self) -> None:
        self._weights.load_ahead(self._found)
        self._journal.loaded(self.version, self._weights.hash)


def probe_difference(engine: Engine, manifest: dict, dtype: str, tolerance: float | None = None,
                     curated: Path | None = None, published: Path | None = None) -> float:
    """Largest |engine - trainer| log-prob over the probe published with the weights, over all engines.

    The tokens of the probe at temperature 1, and the token after them as it is sampled: at the stage's temperature,
    which divides differences of logits, and so what is allowed. dtype: of the weights, whose rounding decides what is
    allowed in the mean and at the 95th percentile; tolerance: what is allowed of the largest instead. curated: the
    stage with the images of the probe; published: the version, with those of agents. Raises SyncError beyond it: an
    engine does not reproduce the trainer's weights, or gives other log-probs than those of its sampling distribution.
    """
    probe = manifest["probe"]
    allowed = np.maximum(ALLOWED[dtype], ROUNDED * np.array(probe.get("rounding", (0.0, 0.0))))
    shown = [named(probe["pictures"], curated, published and published / versions.SHOWN)] if "pictures" in probe else []
    found, largest = engine.probe(probe["tokens"], *shown), 0.0
    last = probe.get("likeliest")  # versions of earlier releases have none
    ends = engine.likeliest(probe["tokens"], last["temperature"], *shown) if last else [{}] * len(found)
    for index, (logprobs, after) in enumerate(zip(found, ends, strict=True)):
        far = np.abs(np.array(logprobs) - probe["logprobs"])
        end = abs(after.get(last["token"], -np.inf) - last["logprob"]) * min(last["temperature"], 1.0) if last else 0.0
        mean, percentile = far.mean(), np.quantile(far, 0.95) if np.isfinite(far).all() else np.inf
        most = float(np.maximum(far.max(), end))  # nan where one is
        within = most <= tolerance if tolerance else (
            np.array([mean, percentile]) <= allowed).all() and end <= allowed[1]  # also false of NaN
        if not within:
            which = f"engine {index} of {len(found)}" if len(found) > 1 else "the engine"
            bounds = (f"{tolerance:g} at most (synchronizer.probe_tolerance)" if tolerance else
                      f"{allowed[0]:.3g} and {allowed[1]:.3g}; synchronizer.probe_tolerance allows another largest one")
            raise SyncError(
                f"weights version {manifest['version']} were loaded, but {which} does not answer like the trainer: "
                f"log-probs of {len(far)} tokens of text at temperature 1 differ by {mean:.3g} in the mean, "
                f"{percentile:.3g} at the 95th percentile and {far.max():.3g} at most, that of the likeliest token "
                f"after them, as it is sampled, by {end:.3g}; allowed in {dtype}: {bounds}. Rollouts would be "
                "off-policy unnoticed. Does the model have parts that the engine does not reload, or another dtype "
                "than the trainer?")
        largest = max(largest, most)
    return largest


def _dtype(context: Context) -> str:
    import torch

    return resolve_dtype(context.config.model.dtype, torch.cuda.is_available())
