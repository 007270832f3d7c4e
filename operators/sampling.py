"""How a train batch is taken from what there is: queries over the views `candidates` and `experts`.

candidates: the usable rows that the schedule offers to optimizer step `step`, with experience_id, position (their
order) and weights_version. experts: the rows of an auxiliary data set, with experience_id and position, 0 .. count - 1.
A query yields (experience_id, is_expert, place), place from 1: the rows of the batch, in order. It depends on the
tables and the step alone, so the same step takes the same rows after a resume.
"""

import math

from operators.arguments import check_number

KEY = "algorithm.sample_strategy_args"


def default(step: int, train_batch_size: int) -> str:
    """The first train_batch_size candidates."""
    return _first("true", train_batch_size)


def staleness_control(step: int, train_batch_size: int, max_staleness: float = math.inf) -> str:
    """The first candidates whose weights are at most max_staleness trainer steps behind those of this step.

    weights_version >= max(step - max_staleness - 1, 0): step 1 trains version 0, so a fresh row has staleness 0.
    """
    if max_staleness == math.inf:
        return default(step, train_batch_size)
    check_number(f"{KEY}.max_staleness", max_staleness, least=0)
    return _first(f"weights_version >= {max(step - max_staleness - 1, 0)!r}", train_batch_size)


def mix(step: int, train_batch_size: int, expert_data_ratio: float = 0.5) -> str:
    """ceil(expert_data_ratio train_batch_size) expert rows, the first candidates for the rest; rollouts come first.

    Expert rows are taken in turn, cyclically: step t takes those after the ones of step t - 1, so an epoch over them
    sees each once.
    """
    check_number(f"{KEY}.expert_data_ratio", expert_data_ratio, least=0, most=1)
    experts = math.ceil(expert_data_ratio * train_batch_size)
    return f"""
        WITH turns AS (SELECT unnest(range({(step - 1) * experts}, {step * experts})) AS turn),
        chosen AS (
            SELECT experience_id, true AS is_expert, {train_batch_size - experts} + turn - {(step - 1) * experts - 1}
                   AS place
            FROM turns JOIN experts ON position = turn % (SELECT count(*) FROM experts))
        SELECT * FROM ({default(step, train_batch_size - experts)}) UNION ALL SELECT * FROM chosen ORDER BY place"""


def _first(condition: str, count: int) -> str:
    return f"""
        SELECT experience_id, false AS is_expert, row_number() OVER (ORDER BY position) AS place FROM candidates
        WHERE {condition} ORDER BY place LIMIT {count}"""


SAMPLE_STRATEGIES = {"default": default, "mix": mix, "staleness_control": staleness_control}
