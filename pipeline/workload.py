"""What a training stage will do, in numbers: steps, experiences, tokens, checkpoints, disk. Nothing is run for it."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline import records
from pipeline.algorithms import PAIR_TYPES
from pipeline.memory import has_critic
from pipeline.schedule import Schedule
from pipeline.shape import Shape

GIVEN = ("sft", *PAIR_TYPES)  # algorithm types that train on what is given; all others explore
# Bytes on disk of one entry. Measured on zstd Parquet: log-probs shrink by less than a tenth, token ids by a third to a
# half, a token's text takes about 2, and an action mask next to nothing.
ENTRY = {records.TOKENS: 3.0, records.FLOATS: 4.0, pa.list_(pa.int8()): 0.1}
TEXT, FIXED = 2.0, 2.0  # a token as text; any other column, mostly the same from row to row


@dataclass(frozen=True)
class Workload:
    """The size of a training stage. None: known once the tasks are curated, because the stage makes whole passes.

    explored: rows of an explorer step; 0 without rollouts. trained: rows of an optimizer step. longest: tokens of the
    longest row. explorer_steps, trainer_steps: of the whole stage. versions: weights that lie on the disk at once.
    """

    explored: int
    trained: int
    longest: int
    explorer_steps: int | None
    trainer_steps: int | None
    versions: int

    @property
    def experiences(self) -> int | None:
        return None if self.explorer_steps is None else self.explorer_steps * self.explored


def explores(config: dict[str, Any]) -> bool:
    """Whether a stage of these settings makes rollouts to train on."""
    return config["algorithm"]["algorithm_type"] not in GIVEN


def workload(config: dict[str, Any]) -> Workload:
    """The size of a stage from its settings (as `compose.effective` gives them).

    versions: the explorer deletes what is older than its next step needs, and the trainer is at most 1 + sync_offset
    explorer steps ahead of that: so the one in use, and those published in between.
    """
    buffer, model, sync = config["buffer"], config["model"], config["synchronizer"]
    longest = model["max_model_len"] or model["max_prompt_tokens"] + model["max_response_tokens"]
    steps = buffer["total_steps"]
    if not explores(config):
        rows = 2 if config["algorithm"]["algorithm_type"] in PAIR_TYPES else 1
        return Workload(0, rows * buffer["batch_size"], longest, 0, steps, 0)
    explored = buffer["batch_size"] * config["algorithm"]["repeat_times"]
    trained = buffer["train_batch_size"] or explored
    schedule = Schedule(explored, trained, sync["sync_interval"], sync["sync_offset"], steps or 1)
    ahead = (1 + sync["sync_offset"]) * explored // trained // sync["sync_interval"]
    return Workload(explored, trained, longest, schedule.explorer_steps if steps else None, steps, 1 + max(ahead, 1))


def row_bytes(prompt: int, response: int) -> float:
    """Bytes on disk of one experience with what training adds to it, at these lengths in tokens."""
    columns = [f for record in (records.Experience, records.Trained) for f in dataclasses.fields(record)]
    total = 0.0
    for column in columns:
        length = prompt if column.name.startswith("prompt") else response
        if column.name in ("prompt", "response"):
            total += TEXT * length
        else:
            total += ENTRY[column.metadata["arrow"]] * length if column.metadata["arrow"] in ENTRY else FIXED
    return total


@dataclass(frozen=True)
class Disk:
    """Bytes at most that a stage takes. tables: None when the number of experiences is not known."""

    tables: float | None
    checkpoints: float
    versions: float

    @property
    def total(self) -> float:
        return (self.tables or 0) + self.checkpoints + self.versions


def disk(config: dict[str, Any], shape: Shape, element: int) -> Disk:
    """Disk of a training stage. element: bytes of a weight.

    tables        experiences x row_bytes at the longest lengths
    checkpoints   each: the model, its head spelt out, c (P + V h when tied); DeepSpeed's weights, c P; float32 master
                  and two moments, 12 P. One more than are kept, while the newest is written
                and 12 P + c P of a critic
    versions      weights on their way to the explorer, each one model
    """
    work, model = workload(config), config["model"]
    spelt_out = element * (shape.parameters + (shape.embedding if shape.tied else 0))
    states = shape.parameters + (shape.critic if has_critic(config) else 0)
    checkpoint = spelt_out + (element + 12) * states
    kept = config["trainer"]["max_checkpoints_to_keep"] + 1
    if work.trainer_steps is not None:
        kept = min(kept, -(-work.trainer_steps // config["trainer"]["save_interval"]))
    rows = None if work.experiences is None else (
        work.experiences * row_bytes(model["max_prompt_tokens"], model["max_response_tokens"]))
    return Disk(rows, kept * checkpoint, work.versions * spelt_out)


def described(config: dict[str, Any]) -> list[tuple[str, str]]:
    """What a stage will do, as (word, sentence)."""
    work, settings = workload(config), config["trainer"]
    passes = f"{config['buffer']['total_epochs']} pass(es) over the "
    pairs = config["algorithm"]["algorithm_type"] in PAIR_TYPES
    what = "experiences" if work.explored else "responses in pairs" if pairs else "demonstrations"
    steps = f"{work.trainer_steps:,} optimizer steps" if work.trainer_steps else passes + (
        "tasks; steps are known once they are curated" if work.explored else "pairs" if pairs else "demonstrations")
    tokens = f"at most {work.trained * work.longest:,} tokens"
    lines = [("trainer", f"{steps}; each of {work.trained:,} {what}, {tokens}")]
    if work.explored:
        total = "" if work.experiences is None else f"; {work.experiences:,} experiences in all"
        steps = "" if work.explorer_steps is None else f"{work.explorer_steps:,} steps; "
        lines.insert(0, ("explorer", f"{steps}each {config['buffer']['batch_size']:,} tasks x "
                                     f"{config['algorithm']['repeat_times']} rollouts = {work.explored:,} experiences"
                                     f"{total}"))
    lines.append(("micro-batch", f"at most {settings['max_token_len_per_gpu']:,} tokens on each of "
                                 f"{settings['ranks']} rank(s)"))
    lines.append(("checkpoints", f"every {settings['save_interval']:,} optimizer steps and the last; "
                                 f"{settings['max_checkpoints_to_keep']} kept"))
    return lines
