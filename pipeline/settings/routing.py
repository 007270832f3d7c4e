"""Which stages compare the experts that engine and trainer give each token to."""

from ouroboros.pipeline.settings.setting import at


def compares_routings(config) -> bool:
    """Returns whether the engine of a stage says the experts of each sampled token, of a model that has experts. vLLM
    reserves memory for that, so it does where they are replayed."""
    replays = at(config, "algorithm.enable_router_replay")  # None: no setting of this stage
    if replays is None or not config.kind.is_online:
        return False
    engine = config.explorer.rollout_model.engine_type
    return (replays or engine == "transformers") and (
        config.algorithm.sample_strategy != "mix" and not config.explorer.partial_rollout)
