"""The action tokens of a batch as flat arrays: positions, column values, reverse sums.

The rows of one attempt are one sequence, in the order of their turns: a row's last action token is followed by the
first one of the attempt's next row. Tokens that are not the policy's own actions (padding, environment text) are
removed before any computation, so no recursion or mean includes them, and their values, including NaN, are never read.
"""

from __future__ import annotations

from dataclasses import dataclass

from ouroboros.operators.advantages.attempts import Attempts, attempts
from ouroboros.operators.advantages.query import require, require_finite
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.lazy import np, pa


@dataclass(frozen=True)
class Tokens:
    """B rows of A attempts, N action tokens, stored row after row.

    lengths: [B] response tokens. mask: [sum of lengths] true on action tokens. rows: [N] row of each action token.
    order: [N] its index among the action tokens of its attempt, from 0.
    """

    lengths: np.ndarray
    mask: np.ndarray
    rows: np.ndarray
    order: np.ndarray
    attempts: Attempts

    @property
    def owners(self) -> np.ndarray:
        """[N] attempt of each action token."""
        return self.attempts.of[self.rows]

    @property
    def counts(self) -> np.ndarray:
        """[A] action tokens of each attempt."""
        return np.bincount(self.owners, minlength=len(self.attempts.last))

    def take(self, batch: pa.Table, name: str) -> np.ndarray:
        """Column `name`, list [R], at action tokens: float64 [N]. Raises DataError for wrong lengths or NaN."""
        require(batch, name)
        lists = batch[name].combine_chunks()
        wrong = np.flatnonzero(lists.value_lengths().to_numpy() != self.lengths)
        if len(wrong):
            raise DataError(f"column '{name}' has {len(lists[wrong[0]])} entries in row "
                            f"{batch['experience_id'][wrong[0]]}, whose response has {self.lengths[wrong[0]]} tokens.")
        values = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float64)[self.mask]
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise DataError(f"column '{name}' is {values[bad[0]]} at an action token of row "
                            f"{batch['experience_id'][self.rows[bad[0]]]}, and at {len(bad) - 1} more.")
        return values

    def rewards(self, batch: pa.Table) -> np.ndarray:
        """Reward of each action token, [N]: token_rewards where present, else the attempt's on its last one."""
        require_finite(batch, "reward")
        last = self.order == self.counts[self.owners] - 1
        values = np.where(last, batch["reward"].to_numpy()[self.attempts.last][self.owners], 0.0)
        if "token_rewards" not in batch.column_names:
            return values
        given = batch["token_rewards"].is_valid().to_numpy()
        if not given.any():
            return values
        part = batch.filter(pa.array(given))
        inside = action_tokens(part)
        values[given[self.rows]] = inside.take(part, "token_rewards")
        return values

    def padded(self, values: np.ndarray) -> np.ndarray:
        """[A, K + 1] values of action tokens, padded with 0; K is the maximum per attempt."""
        matrix = np.zeros((len(self.attempts.last), self.counts.max(initial=0) + 1))
        matrix[self.owners, self.order] = values
        return matrix

    def following(self, values: np.ndarray) -> np.ndarray:
        """[N] the value of the attempt's next action token; 0 after its last."""
        return self.padded(values)[self.owners, self.order + 1]

    def sums_from_behind(self, values: np.ndarray, decay: float) -> np.ndarray:
        """G_k = x_k + decay G_(k+1) over the action tokens of each attempt, [N]."""
        matrix = self.padded(values)
        for k in range(matrix.shape[1] - 3, -1, -1):
            matrix[:, k] += decay * matrix[:, k + 1]
        return matrix[self.owners, self.order]

    def lists(self, values: np.ndarray) -> pa.ListArray:
        """[N] values back to one list [R] per row, 0 at other tokens."""
        flat = np.zeros(len(self.mask))
        flat[self.mask] = values
        offsets = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat))


def action_tokens(batch: pa.Table) -> Tokens:
    """The action tokens according to the column `action_mask`."""
    require(batch, "action_mask")
    masks = batch["action_mask"].combine_chunks()
    lengths = masks.value_lengths().to_numpy().astype(np.int64)
    mask = masks.flatten().to_numpy(zero_copy_only=False).astype(bool)
    rows = np.repeat(np.arange(len(lengths)), lengths)[mask]
    found = attempts(batch)
    ranks = np.empty_like(found.order)
    ranks[found.order] = np.arange(len(ranks))
    chained = np.argsort(ranks[rows], kind="stable")  # the tokens by attempt, turn and place in the row
    owners, order = found.of[rows][chained], np.empty_like(rows)
    order[chained] = np.arange(len(rows)) - np.searchsorted(owners, owners)
    return Tokens(lengths, mask, rows, order, found)


def whiten(values: np.ndarray) -> np.ndarray:
    """(x - mean) / sqrt(var + 1e-8), var unbiased; 0 for fewer than two values."""
    if len(values) < 2:
        return np.zeros_like(values)
    return (values - values.mean()) / np.sqrt(values.var(ddof=1) + 1e-8)
