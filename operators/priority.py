"""Replay priorities as SQL expressions, so that their values can be queried.

The unit of replay is a group, the rollouts of one task in one explorer step, because advantages compare them. An
expression uses the columns group_id, weights_version (trainer step of the weights that generated it) and use_count
(train batches that used it); higher values come first, NULL means never again.
"""


from ouroboros.pipeline.settings.arguments.rows import DecayLimitRandomization, LinearDecay

NOISY, LINEAR = DecayLimitRandomization(), LinearDecay()


def linear_decay(decay=LINEAR.decay) -> str:
    """weights_version - decay use_count (of Trinity-RFT, no paper).

    One use counts like `decay` versions of age. Assumes that fresh groups are the most useful. decay 0: always the
    newest; a negative one prefers used groups. All groups stay eligible.
    """
    return f"(weights_version - {float(decay)!r}::DOUBLE * use_count)"


def decay_limit_randomization(decay=NOISY.decay, use_count_limit=NOISY.use_count_limit, sigma=NOISY.sigma,
                              seed=NOISY.seed) -> str:
    """linear_decay plus normal noise with std sigma; NULL after use_count_limit uses (0: no limit).

    Of Trinity-RFT, no paper. The noise is a hash of (seed, group_id, use_count) by Box and Muller (1958): new after
    each use, and reproducible; it assumes that the order of near-equal groups should vary. Without noise and limit it
    is linear_decay.
    """
    priority = linear_decay(decay)
    if sigma > 0:
        first, second = (_uniform(seed, name) for name in "ab")
        priority = f"({priority} + {float(sigma)!r} * sqrt(-2 * ln({first})) * cos(2 * pi() * {second}))"
    if use_count_limit <= 0:
        return priority
    return f"(CASE WHEN use_count < {int(use_count_limit)} THEN {priority} END)"


def _uniform(seed: int, name: str) -> str:
    """SQL for a number in (0, 1), from the first 48 bits of an MD5."""
    digest = f"md5(concat_ws('/', {int(seed)}, '{name}', group_id, use_count))"
    return f"((('0x' || {digest}[:12])::BIGINT + 0.5) / {2.0**48!r})"


PRIORITIES = {
    "decay_limit_randomization": decay_limit_randomization,
    "linear_decay": linear_decay,
    "linear_decay_use_count_control_randomization": decay_limit_randomization,  # its name in the Trinity-RFT guide
}
