"""Reward shaping by properties other than correctness: response length."""

from pipeline.store.errors import ConfigError


def overlong_penalty(length: int, max_response_length: int, cache_length: int, penalty_factor: float = 1.0) -> float:
    """The soft overlong punishment of DAPO (Yu et al. 2025, arXiv:2503.14476, eq. 13), to be added to the reward.

    0 up to M - c tokens, then linear to -penalty_factor at M, and that beyond; M = max_response_length, c =
    cache_length, 0 < c < M. Assumes that what is longer would not have ended. A response that was cut at M is punished
    in full; with a factor of 0 none is.
    """
    if not 0 < cache_length < max_response_length:
        raise ConfigError(f"cache_length={cache_length}: needed between 0 and max_response_length="
                          f"{max_response_length}, both excluded.")
    over = (length - (max_response_length - cache_length)) / cache_length
    return -penalty_factor * min(max(over, 0.0), 1.0)
