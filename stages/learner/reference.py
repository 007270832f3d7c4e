"""Log-probs of the reference, the weights that a stage began with: a column made once a row, and kept in a table.

The reference never changes, so its log-probs of a row never do: `reference/step=…` holds them, and a resumed stage
reads what is there. They are scored by the policy's own module, for the time of scoring with the initial weights, which
otherwise lie in host memory: a second model would hold the device's memory at every step, or be loaded anew at each.
Of a model with an adapter only the adapter is exchanged: the rest is the reference's too.
"""

from collections.abc import Sequence

import numpy as np

from pipeline import files, records, tables
from pipeline.checkpoints import weights_hash
from pipeline.errors import DataError
from pipeline.external import resolve
from pipeline.process import Context
from stages.learner.actor import Actor
from stages.learner.packing import Row


class References:
    """The reference of one stage. Its methods are collective."""

    def __init__(self, context: Context, model, actor: Actor):
        """model: the Hugging Face directory that the stage began with; actor: one that keeps those weights."""
        self.context, self.actor, self.process = context, actor, actor.process
        self.hash = self.process.first(start_hash(model, context.config) if self.process.rank == 0 else None)
        self.held: dict[int, dict[str, np.ndarray]] = {}  # origin -> row id -> [N]

    def add(self, rows: list[Row], origins: Sequence[int]) -> None:
        """Gives every row its column `ref_logprobs` [R].

        origins: of each row, the step whose file holds it; all rows of an origin come together.
        """
        self.held = {origin: values for origin, values in self.held.items() if origin in set(origins)}
        for origin in sorted(set(origins)):
            of_origin = [row for row, its in zip(rows, origins, strict=True) if its == origin]
            if origin not in self.held:
                self.held[origin] = self._known(origin) or self._score(origin, of_origin)
            for row in of_origin:
                if row.id not in self.held[origin]:
                    raise DataError(f"{self._file(origin)} has no row {row.id}, which is to be trained on. Delete it, "
                                    "and run the same command again: it is then made anew.")
                row.columns["ref_logprobs"] = row.spread(self.held[origin][row.id])

    def _file(self, origin: int):
        return tables.step_file(self.context.directory, "reference", origin)

    def _known(self, origin: int) -> dict[str, np.ndarray] | None:
        """What the file holds; None when there is none, or of another reference."""
        if not self.process.first(self._file(origin).exists()):
            return None
        found = tables.read(self._file(origin), records.Reference).to_pydict()
        if set(found["reference_hash"]) != {self.hash}:
            return None
        return {id_: np.array(values, np.float32)
                for id_, values in zip(found["experience_id"], found["logprobs"], strict=True)}

    def _score(self, origin: int, rows: list[Row]) -> dict[str, np.ndarray]:
        scored = self.actor.reference_logprobs(rows)
        if self.process.rank == 0:
            made = [records.Reference(row.id, self.hash, values) for row, values in zip(rows, scored, strict=True)]
            tables.write(self._file(origin), records.Reference, made)
        return {row.id: values for row, values in zip(rows, scored, strict=True)}


def start_hash(model, config) -> str:
    """Hash of the weights that a stage begins with: of the model, and of an adapter that it begins with."""
    begun = [weights_hash(resolve(one.path)) for one in config.model.lora_configs if one.path]
    return files.hash_json([weights_hash(model), *begun]) if begun else weights_hash(model)
