"""Sample strategies: queries over the views `candidates` and `experts` that select a train batch.

candidates: the usable rollouts that the schedule provides for optimizer step `step`, including replayed ones, with
experience_id, position (their order) and weights_version. experts: the rows of an auxiliary data set, with
experience_id and position, 0 .. count - 1. A query yields (experience_id, is_expert, place), place from 1: the rows of
the batch, in order. It depends only on the tables and the step, so a resumed stage selects the same rows.
"""

import math
from fractions import Fraction

from pipeline.settings.arguments.rows import Mix, StalenessControl

MIX, FRESH = Mix(), StalenessControl()


def default(step: int, train_batch_size: int) -> str:
    """All candidates: what the schedule offers, in its order and however old (no paper). None, if it offers none.

    Assumes that the schedule keeps rollouts young enough, or a loss that takes old ones as they are.
    """
    return _candidates("true")


def staleness_control(step: int, train_batch_size: int, max_staleness=FRESH.max_staleness) -> str:
    """The candidates whose weights are at most max_staleness trainer steps behind those of this step.

    weights_version >= max(step - max_staleness - 1, 0): step 1 trains version 0, so a fresh row has staleness 0 (of
    Trinity-RFT; the bound eta of AReaL, arXiv:2505.24298, refuses to sample instead). Assumes that what is older
    misleads more than it teaches. The batch is smaller by the others. Without a limit it is `default`.
    """
    return _candidates(f"weights_version >= {oldest_version(step, max_staleness)!r}")


def oldest_version(step: int, max_staleness=FRESH.max_staleness) -> float:
    """The oldest weights whose rollouts `staleness_control` lets optimizer step `step` train on."""
    if max_staleness == math.inf:
        return 0
    return max(step - max_staleness - 1, 0)


def mix(step: int, train_batch_size: int, expert_data_ratio=MIX.expert_data_ratio,
        sft_dataset_name=MIX.sft_dataset_name) -> str:
    """All candidates, and ceil(expert_data_ratio train_batch_size) rows of the auxiliary buffer sft_dataset_name.

    The ratio is taken as it is written in decimals: 0.07 of 100 rows is 7, where binary fractions make it 8. A run
    needs one below 1. Expert rows are taken in turn, cyclically: step t takes those after the ones of step t - 1, so an
    epoch over them sees each once; fewer than a batch needs come several times in it. Assumes a loss that averages
    the two kinds apart, mix or mix_chord (Zhang et al. 2025, arXiv:2508.11408).
    """
    experts = math.ceil(Fraction(str(expert_data_ratio)) * train_batch_size)
    return f"""
        WITH turns AS (SELECT unnest(range({(step - 1) * experts}, {step * experts})) AS turn),
        chosen AS (
            SELECT experience_id, true AS is_expert,
                   (SELECT count(*) FROM candidates) + turn - {(step - 1) * experts - 1} AS place
            FROM turns JOIN experts ON position = turn % (SELECT count(*) FROM experts))
        SELECT * FROM ({default(step, train_batch_size)}) UNION ALL SELECT * FROM chosen ORDER BY place"""


def _candidates(condition: str) -> str:
    return f"""
        SELECT experience_id, false AS is_expert, row_number() OVER (ORDER BY position, experience_id) AS place
        FROM candidates WHERE {condition} ORDER BY place"""


SAMPLE_STRATEGIES = {"default": default, "mix": mix, "staleness_control": staleness_control}
