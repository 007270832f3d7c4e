"""Rows for tests: a record with plain defaults, of which a test states only the columns it is about."""

import dataclasses
import inspect
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa

from ouroboros.pipeline.settings.arguments.base import Arguments
from ouroboros.pipeline.settings.declared import name_of

OFF = {"top_p": 1.0}  # 0 would keep nothing


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(record: type, **given: Any):
    """A row of `record`; a column that is not given is null where it may be, else off, empty or 0."""
    fields = dataclasses.fields(record)
    unknown = set(given) - {f.name for f in fields}
    assert not unknown, f"{record.__name__} has no column {sorted(unknown)}"
    return record(**{f.name: (OFF | given).get(f.name, _plain(f.metadata)) for f in fields})


def _plain(column: dict) -> Any:
    kind = column["arrow"]
    if column["null"]:
        return None
    if pa.types.is_map(kind):
        return {}
    if pa.types.is_list(kind):
        return []
    if pa.types.is_string(kind):
        return ""
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return b""
    if pa.types.is_boolean(kind):
        return False
    return 0.0 if pa.types.is_floating(kind) else 0


BATCH_TYPES = {
    "action_mask": pa.list_(pa.int8()), "baseline_reward": pa.float64(), "entropies": pa.list_(pa.float64()),
    "experience_id": pa.string(), "mean_scores": pa.list_(pa.float64()),
    "group_id": pa.string(), "old_logprobs": pa.list_(pa.float32()), "reward": pa.float64(),
    "reward_components": pa.map_(pa.string(), pa.float64()),
    "rollout_logprobs": pa.list_(pa.float32()), "run_index": pa.int32(), "state_hash": pa.string(),
    "step_reward": pa.float64(), "teacher_logprobs": pa.list_(pa.float32()), "token_rewards": pa.list_(pa.float64()),
    "turn": pa.int32(), "values": pa.list_(pa.float64()), "is_candidate": pa.bool_(), "position": pa.int64(),
    "role": pa.string(), "taskset": pa.string(), "use_count": pa.int32(),
}


def advantage_batch(**columns: list) -> pa.Table:
    """What an advantage function is handed, of the given columns; experience_id is e0, e1, ... unless given."""
    count = len(next(iter(columns.values())))
    columns = {"experience_id": [f"e{i}" for i in range(count)], **columns}
    return pa.table({name: pa.array(values, BATCH_TYPES[name]) for name, values in columns.items()})


TEXT = [3 + number * number % 13 for number in range(64)]  # token ids that every tokenizer of tests has


def called(model: type[Arguments]) -> Callable:
    """A loss or an advantage as one function: of its columns or its batch, with its arguments by name."""
    def function(*given: Any, **named: Any) -> Any:
        own = {name: named.pop(name) for name in model.model_fields if name in named}
        return model(**own)(*given, **named)

    function.__name__ = name_of(model)
    function.__signature__ = inspect.signature(partial(model.__call__, None))
    return function
