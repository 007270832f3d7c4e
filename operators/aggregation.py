"""Loss aggregation as token weights, fixed over the whole train batch before it is split.

The loss of a batch is sum_r weight_r * sum_t loss_rt, over rows r and their action tokens t. It therefore does not
depend on the split into micro-batches or on the number of ranks, and averages of averages cannot occur.
"""

from collections.abc import Callable

import numpy as np

from ouroboros.pipeline.store.errors import ConfigError, nearest


def token_weights(mode: str, lengths: np.ndarray, normalizer: float | None = None) -> np.ndarray:
    """The weight w_r of each action token of row r, float64 [R] (no paper).

    The aggregate is sum_r w_r sum_t loss_rt. The four modes are veRL's, each from the paper that it names, written as
    weights. Assumes that all rows of the train batch are known: weights of a single micro-batch would give averages of
    averages. lengths: action tokens of each row of the whole train batch, int [R]; 0 for a row without any. normalizer:
    only for seq-mean-token-sum-norm, the constant divisor; null: the longest row of the batch.

    A row without action tokens counts as a row with loss 0 in the modes that average over rows, so removing a row's
    last token changes the loss continuously. Raises ConfigError for an unknown mode, a normalizer that is not positive,
    or one that the mode does not use. A batch without action tokens has weights 0.
    """
    if mode not in AGGREGATIONS:
        raise ConfigError(f"unknown algorithm.loss_agg_mode '{mode}'.{nearest(mode, AGGREGATIONS)} "
                          f"Known: {', '.join(AGGREGATIONS)}.")
    if normalizer is not None and (mode != "seq-mean-token-sum-norm" or not normalizer > 0):
        raise ConfigError(f"normalizer={normalizer!r} with algorithm.loss_agg_mode={mode}: only "
                          "seq-mean-token-sum-norm has one, and it must be greater than 0.")
    lengths = np.asarray(lengths, np.int64)
    if not lengths.sum():
        return np.zeros(len(lengths))
    return AGGREGATIONS[mode](lengths, normalizer or lengths.max())


def token_weights_by_kind(mode: str, lengths: np.ndarray, kinds: np.ndarray,
                          normalizer: float | None = None) -> np.ndarray:
    """`token_weights` within each kind of rows, float64 [R]: the sum of the kinds' means.

    CHORD (Zhang et al. 2025, arXiv:2508.11408): (1 - mu) L_GRPO + mu L_SFT, each with its own mean. w_r = the weight of
    row r among the rows of its kind. kinds: [R], any values. Assumes that the loss includes the factors: in a joint
    mean the weight of demonstrations would be their share of tokens, not mu. With one kind this is `token_weights`; a
    kind without action tokens adds 0.
    """
    lengths, kinds = np.asarray(lengths, np.int64), np.asarray(kinds)
    weights = np.zeros(len(lengths))
    for kind in np.unique(kinds):
        weights[kinds == kind] = token_weights(mode, lengths[kinds == kind], normalizer)
    return weights


def _token_mean(lengths: np.ndarray, normalizer: float) -> np.ndarray:
    """Sum over all tokens / their number: long responses weigh more (DAPO, arXiv:2503.14476).

    Assumes that all tokens are equally important. A row without tokens changes nothing.
    """
    return np.full(len(lengths), 1.0 / lengths.sum())


def _seq_mean_token_sum(lengths: np.ndarray, normalizer: float) -> np.ndarray:
    """Mean over rows of the token sum: the policy gradient of whole responses (Williams 1992).

    Assumes responses of bounded length: the size of the gradient grows with it. A row without tokens counts as 0.
    """
    return np.full(len(lengths), 1.0 / len(lengths))


def _seq_mean_token_mean(lengths: np.ndarray, normalizer: float) -> np.ndarray:
    """Mean over rows of the token mean: equal weight per response (GRPO, arXiv:2402.03300, eq. 3).

    Assumes that a response is one action: each token of a long one weighs less. A row without tokens counts as 0.
    """
    return np.where(lengths > 0, 1.0 / (len(lengths) * np.maximum(lengths, 1)), 0.0)


def _seq_mean_token_sum_norm(lengths: np.ndarray, normalizer: float) -> np.ndarray:
    """Mean over rows of token sum / normalizer: Dr. GRPO (Liu et al. 2025, arXiv:2503.20783).

    Without length bias assuming the same normalizer in every step: use model.max_response_tokens. A row without tokens
    counts as 0.
    """
    return np.full(len(lengths), 1.0 / (len(lengths) * normalizer))


AGGREGATIONS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "token-mean": _token_mean,
    "seq-mean-token-sum": _seq_mean_token_sum,
    "seq-mean-token-mean": _seq_mean_token_mean,
    "seq-mean-token-sum-norm": _seq_mean_token_sum_norm,
}
