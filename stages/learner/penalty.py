"""The KL penalty: what a response's distance from the reference takes off its reward, before any advantage."""

from collections import defaultdict

import numpy as np
import pyarrow as pa

from operators.kl import penalise
from stages.learner.objective import KLTerm


def penalised(table: pa.Table, term: KLTerm) -> tuple[pa.Table, float]:
    """The table with the columns `reward`, less the penalty, and `token_rewards` [R]; the mean KL of a token, nats.

    table: with reward, action_mask, position and, as lists [R], old_logprobs and ref_logprobs. Advantages of whole
    responses read the one, those of tokens the other; both have the same sum. The turns of an attempt (rows of one
    position) share its reward, so they share what all of them together lose; each has its own token rewards.
    """
    names = ("reward", "old_logprobs", "ref_logprobs", "action_mask")
    columns = table.select(names).to_pydict()
    made, kls, tokens = [], [], []
    for reward, old, reference, mask in zip(*(columns[name] for name in names), strict=True):
        rewards, kl = penalise(reward, np.array(old), np.array(reference), np.array(mask), term.estimator, term.kl_coef)
        made.append(rewards)
        kls.append(kl)
        tokens.append(sum(mask))
    lost: dict[int, float] = defaultdict(float)
    positions = table["position"].to_pylist()
    for position, reward, rewards in zip(positions, columns["reward"], made, strict=True):
        lost[position] += reward - float(rewards.sum())
    left = [reward - lost[position] for position, reward in zip(positions, columns["reward"], strict=True)]
    table = table.drop_columns(["reward"]).append_column("reward", pa.array(left, pa.float64()))
    return table.append_column("token_rewards", pa.array(made, pa.list_(pa.float64()))), float(
        np.average(kls, weights=tokens))
