"""Writes a trainer's checkpoints: first under a hidden name, then visible with one rename."""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.job.context import Context
from pipeline.store import checkpoints, files, hashes
from stages.learner.actor import Actor
from stages.learner.critic import Critic
from stages.learner.engine.zero import Process
from workflows.prompts import keep_template


class Saving:
    """Checkpoints of one rank. model: directory of the initial weights. terms: KL terms with a coefficient, by name."""

    def __init__(self, context: Context, model: Path, process: Process, actor: Actor, critic: Critic | None,
                 terms: Mapping[str, Any]):
        self.context, self.model, self.process = context, model, process
        self.actor, self.critic, self.terms = actor, critic, terms

    def write(self, step: int, unscheduled: bool = False) -> None:
        """Writes a checkpoint under a hidden name. unscheduled: the next one replaces it. Collective."""
        temporary, settings = self._temporary(step), self.context.config
        self.context.activity.now("saves a checkpoint", f"step {step}")
        if self.process.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
            checkpoints.copy_model_files(self.model, temporary / "model")
            keep_template(temporary / "model", settings.model)
        self.process.barrier()
        try:
            self.actor.zero.save(temporary)
            if self.critic:
                self.critic.save(temporary)
            self.actor.export(temporary / "model")
            if settings.model.lora_configs:
                self.actor.export_adapter(temporary / "adapter")
        except Exception:  # most likely a full disk: free the space that was taken
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self.process.barrier()
        if self.process.rank == 0:
            self._seal(temporary, step, {"unscheduled": True} if unscheduled else {})

    def _seal(self, temporary: Path, step: int, more: dict[str, Any]) -> None:
        """Writes the manifest of a checkpoint, with the hash of every file, and flushes all to the disk."""
        sha256 = hashlib.sha256()
        entries = hashes.hash_tree(temporary, {f"model/{checkpoints.WEIGHTS}": sha256})
        manifest = {"step": step, "weights_hash": sha256.hexdigest()[:16],
                    "zero_stage": self.context.config.trainer.zero_stage,
                    "kl_coef": {name: term.kl_coef for name, term in self.terms.items()},
                    "token_budget": self.actor.budget.saved(), **more, hashes.FILES: entries}
        files.write_json(temporary / files.MANIFEST, manifest)
        files.flush_tree(temporary)

    def show(self, step: int) -> None:
        """Makes the checkpoint visible with one rename, and deletes old ones. Collective."""
        if self.process.rank == 0:
            final = checkpoints.checkpoint_directory(self.context.directory, step)
            files.remove_tree(final)
            self._temporary(step).rename(final)
            checkpoints.keep_newest(self.context.directory, self.context.config.trainer.max_checkpoints_to_keep)
        self.process.barrier()

    def _temporary(self, step: int) -> Path:
        return self.context.directory / "checkpoints" / f".step={step:06d}.tmp"
