"""The KL penalty: reduces rewards by the policy's distance from the reference, before advantages."""

from collections import defaultdict

import numpy as np
import pyarrow as pa

from ouroboros.operators.kl import penalise
from ouroboros.operators.terms import KLTerm
from ouroboros.pipeline.settings.declared import ADVANTAGES
from ouroboros.pipeline.store.errors import DataError

LISTS = pa.list_(pa.float64())
Attempt = tuple[int, str]  # its position and group; of several players, the rows of each are one, as their groups are


def penalised(table: pa.Table, term: KLTerm) -> tuple[pa.Table, float | None]:
    """The table with penalised rewards; the mean KL per token over the batch's own rows, in nats.

    table: in the order of position and turn, with reward, step_reward, action_mask, is_candidate and, as lists [R],
    old_logprobs and ref_logprobs. The KL is None where no row of the batch (is_candidate) has an action token.

    Every advantage function reads one of four columns: `reward`, minus the penalties of all turns of the attempt (rows
    of one position and group), shared by its turns as the reward is; `token_rewards` [R], of the row's own tokens, with
    the reward on the last action token of the attempt; `step_reward`, what the turn itself earned minus its penalty;
    `kl_penalties` [R], the penalty of each token, for distillation, which uses no reward. Over the rows of an attempt
    token_rewards sum to its `reward`, and so do step_rewards where no turn earned any.
    """
    names = ("position", "group_id", "turn", "reward", "step_reward", "old_logprobs", "ref_logprobs", "action_mask")
    positions, groups, turns, rewards, steps, *scored = table.select(list(names)).to_pydict().values()
    attempts = list(zip(positions, groups, strict=True))
    dense = table["token_rewards"].to_pylist() if "token_rewards" in table.column_names else [None] * len(table)
    token_rewards, penalties, kls = [], [], []
    for reward, own, old, reference, mask in zip(_outcomes(attempts, rewards, scored[-1]), dense, *scored, strict=True):
        earned = np.zeros(len(mask)) if own is None else np.array(own)
        if own is None:
            earned[np.flatnonzero(mask)[-1:]] = reward
        left, kl = penalise(reward, np.array(old), np.array(reference), np.array(mask), term.estimator, term.kl_coef,
                            earned)
        taken = earned * np.array(mask) - left
        token_rewards.append(left)
        penalties.append(taken)
        kls.append(kl)
    lost: dict[Attempt, float] = defaultdict(float)
    for attempt, taken in zip(attempts, penalties, strict=True):
        lost[attempt] += float(taken.sum())
    earned = _earned(attempts, turns, rewards, steps)
    made = {
        "reward": pa.array([reward - lost[attempt] for attempt, reward in zip(attempts, rewards, strict=True)]),
        "step_reward": pa.array([own - float(taken.sum()) for own, taken in zip(earned, penalties, strict=True)]),
        "token_rewards": pa.array(token_rewards, LISTS), "kl_penalties": pa.array(penalties, LISTS),
    }
    return _with(table, made), _mean(kls, table)


def refuse_dense(table: pa.Table, algorithm) -> None:
    """Raises DataError where rewards of single tokens would not count as they are. algorithm: its section."""
    given = table.filter(table["token_rewards"].is_valid())
    name, ours = algorithm.advantage_fn, ADVANTAGES.get(algorithm.advantage_fn)
    if not len(given) or (ours and "teacher_logprobs" in ours.reads):
        return
    row = f"the reward function rewards single tokens (token_rewards of the row {given['experience_id'][0]})"
    if ours and not ours.reads_tokens:
        able = ", ".join(one for one, model in ADVANTAGES.items() if model.reads_tokens)
        raise DataError(f"{row}, and algorithm.advantage_fn={name} compares sums. Choose one of {able}, or return the "
                        "sum.")
    if algorithm.reward_weights:
        raise DataError(f"{row}, and algorithm.reward_weights weighs components of whole responses. Set it to {{}}, "
                        "and weigh them in the function.")
    apart = [abs(reward - sum(own)) > 1e-6 * (1 + abs(reward)) for reward, own in zip(
        given["reward"].to_pylist(), given["token_rewards"].to_pylist(), strict=True)]
    if any(apart):
        raise DataError(f"{row}, and an operator of data_processor.experience_pipeline changed the reward of "
                        f"{sum(apart)} rows, which says of no token how much. Take it out.")


def _outcomes(attempts: list[Attempt], rewards: list[float], masks: list[list[int]]) -> list[float]:
    """The reward of each attempt at its last row with an action token, 0 at its others."""
    last = {attempt: row for row, (attempt, mask) in enumerate(zip(attempts, masks, strict=True)) if any(mask)}
    return [reward if last.get(attempt) == row else 0.0
            for row, (attempt, reward) in enumerate(zip(attempts, rewards, strict=True))]


def _earned(attempts: list[Attempt], turns: list[int], rewards: list[float], steps: list[float | None]) -> list[float]:
    """What each turn earned by itself; if no turn has a step reward, the last one gets the reward."""
    by_step = {attempt for attempt, step in zip(attempts, steps, strict=True) if step is not None}
    last = dict(zip(attempts, turns, strict=True))
    return [(step or 0.0) if attempt in by_step else reward if last[attempt] == turn else 0.0
            for attempt, turn, reward, step in zip(attempts, turns, rewards, steps, strict=True)]


def _with(table: pa.Table, made: dict[str, pa.Array]) -> pa.Table:
    table = table.drop_columns([name for name in made if name in table.column_names])
    for name, column in made.items():
        table = table.append_column(name, column)
    return table


def _mean(kls: list[float], table: pa.Table) -> float | None:
    """The mean KL over the action tokens of the batch's own rows. kls: the mean of each row of the table."""
    counts = [sum(mask) * own for mask, own in zip(*table.select(["action_mask", "is_candidate"]).to_pydict().values(),
                                                   strict=True)]
    return float(np.average(kls, weights=counts)) if any(counts) else None
