"""Reward shaping by properties other than correctness: response length."""

from ouroboros.pipeline.store.errors import ConfigError


def overlong_penalty(length: int, max_response_length: int, cache_length: int, penalty_factor: float = 1.0) -> float:
    """DAPO's soft overlong punishment, to be added to the reward (arXiv:2503.14476, eq. 13).

    0 up to M - c tokens, then linear to -penalty_factor at M and constant beyond; M = max_response_length, c =
    cache_length, 0 < c < M (Yu et al. 2025). Assumes that longer responses would not have ended. A response cut at M
    gets the full penalty; with a factor of 0 there is none.
    """
    if not 0 < cache_length < max_response_length:
        raise ConfigError(f"cache_length={cache_length}: needed between 0 and max_response_length="
                          f"{max_response_length}, both excluded.")
    over = (length - (max_response_length - cache_length)) / cache_length
    return -penalty_factor * min(max(over, 0.0), 1.0)
