"""The rows of what was done to experience between rollout and training."""

from dataclasses import dataclass

import pyarrow as pa

from ouroboros.pipeline.store.task_records import COMPONENTS, column


@dataclass(slots=True)
class Curated:
    """What data_processor.experience_pipeline made of one row that was ok: joins to Experience by id.

    Of an attempt of several turns the last one is judged, and each of its rows has the verdict.
    """

    experience_id: str = column(pa.string(), "row of experience")
    step: int = column(pa.int32(), "explorer step, from 1")
    reward: float = column(pa.float64(), "reward by which advantages are computed; that of experience where no "
                                         "operator changed it")
    scores: dict = column(COMPONENTS, "numbers that operators found, by name, in their order")
    operator: str | None = column(pa.string(), "operator that dropped the row; null: it is kept", null=True)
    reason: str | None = column(pa.string(), "why it was dropped; null: it is kept", null=True)
