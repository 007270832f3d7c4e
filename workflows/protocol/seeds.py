"""Seeds of individual requests."""

import hashlib


def base_seed(config) -> int:
    """`explorer.rollout_model.seed`, or the run's own seed where that is null."""
    own = config.explorer.rollout_model.seed
    return config.seed if own is None else own


def request_seed(seed: int | str, step: int, slot: int) -> int:
    """48 bits of sha256 over (seed, step, slot), distinct for the first requests of a stage.

    Later requests of an attempt derive their seeds from it (workflows/protocol/outcomes.py). With one shared seed
    identical prompts would get identical answers.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{step}/{slot}".encode()).digest()[:6], "big")
