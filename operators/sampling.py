"""Sample strategies: queries over the views `candidates` and `experts` that select a train batch.

candidates: the usable rollouts that the schedule provides for optimizer step `step`, including replayed ones, with
experience_id, position (their order) and weights_version, the oldest of their group. experts: the rows of an auxiliary
data set, with experience_id and position, 0 .. count - 1. A query yields (experience_id, is_expert, place), place from
1: the rows of the batch, in order. It depends only on the tables and the step, so a resumed stage selects the same
rows.
"""

import math
from fractions import Fraction
from functools import partial

import pyarrow as pa

from ouroboros.operators.arguments import arguments
from ouroboros.pipeline.settings.arguments.rows import Mix, StalenessControl
from ouroboros.pipeline.store import sessions
from ouroboros.pipeline.store.errors import pick

MIX, FRESH = Mix(), StalenessControl()


def default(step: int, train_batch_size: int) -> str:
    """All candidates, in the order of the schedule and of any age (no paper). May be empty.

    Assumes that the schedule keeps rollouts fresh enough, or a loss that handles stale ones.
    """
    return _candidates("true")


def staleness_control(step: int, train_batch_size: int, max_staleness=FRESH.max_staleness) -> str:
    """The candidates of groups whose oldest weights are at most max_staleness trainer steps older than this step's.

    weights_version >= max(step - max_staleness - 1, 0): step 1 trains version 0, so a fresh row has staleness 0 (of
    Trinity-RFT; the bound eta of AReaL, arXiv:2505.24298, instead stops sampling). Assumes that older rows do more harm
    than good. The batch shrinks by the excluded rows. Without a limit it is `default`.
    """
    return _candidates(f"weights_version >= {oldest_version(step, max_staleness)!r}")


def oldest_version(step: int, max_staleness=FRESH.max_staleness) -> float:
    """The oldest weights whose rollouts `staleness_control` lets optimizer step `step` train on."""
    if max_staleness == math.inf:
        return 0
    return max(step - max_staleness - 1, 0)


def mix(step: int, train_batch_size: int, expert_data_ratio=MIX.expert_data_ratio,
        sft_dataset_name=MIX.sft_dataset_name) -> str:
    """All candidates, and ceil(expert_data_ratio train_batch_size) rows of sft_dataset_name.

    sft_dataset_name: an auxiliary buffer. The ratio is read as a decimal: 0.07 of 100 rows is 7, where binary fractions
    give 8. It must be below 1 in a run. Demonstrations are taken cyclically: step t continues after those of step t -
    1, so an epoch contains each once; a data set smaller than needed repeats within a batch. Assumes a loss that
    averages the two kinds separately, mix or mix_chord (Zhang et al. 2025, arXiv:2508.11408).
    """
    experts = math.ceil(Fraction(str(expert_data_ratio)) * train_batch_size)
    return f"""
        WITH turns AS (SELECT unnest(range({(step - 1) * experts}, {step * experts})) AS turn),
        chosen AS (
            SELECT experience_id, true AS is_expert,
                   (SELECT count(*) FROM candidates) + turn - {(step - 1) * experts - 1} AS place
            FROM turns JOIN experts ON position = turn % (SELECT count(*) FROM experts))
        SELECT * FROM ({default(step, train_batch_size)}) UNION ALL SELECT * FROM chosen ORDER BY place"""


def chosen_strategy(algorithm) -> tuple[str, partial]:
    """The name and the query, with its arguments, of a section `algorithm`. Raises ConfigError for unknown names."""
    name = algorithm.sample_strategy or "default"
    function, key = pick(SAMPLE_STRATEGIES, name, "algorithm.sample_strategy"), "algorithm.sample_strategy_args"
    return name, partial(function, **arguments("sample_strategy", name, function, algorithm.sample_strategy_args, key))


def selected(query: str, candidates: pa.Table, experts: int) -> tuple[list[str], list[int]]:
    """Ids of the rollouts that a query selects, and places of the expert rows, 0 .. experts - 1, each in its order."""
    places = pa.array(range(experts), pa.int64())
    with sessions.one().cursor() as session:
        session.register("candidates", candidates)
        session.register("experts", pa.table({"experience_id": places.cast(pa.string()), "position": places}))
        found = session.sql(query).fetchall()
    return ([id_ for id_, is_expert, _ in found if not is_expert],
            [int(id_) for id_, is_expert, _ in found if is_expert])


def _candidates(condition: str) -> str:
    return f"""
        SELECT experience_id, false AS is_expert, row_number() OVER (ORDER BY position, experience_id) AS place
        FROM candidates WHERE {condition} ORDER BY place"""


SAMPLE_STRATEGIES = {"default": default, "mix": mix, "staleness_control": staleness_control}
