"""Which stages sample rows to train on from truncated distributions."""

from collections.abc import Iterator
from typing import Any

from ouroboros.pipeline.settings.algorithms import facts
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.store.errors import Problem

MOST = 1024  # top_k of rollouts to train on: what stays is kept with each token
UNCUT = {"top_p": 1, "top_k": -1, "min_p": 0}
ENGINES = ("vllm", "transformers")
ENGINE = "explorer.rollout_model"


def truncations(config) -> dict[str, dict[str, Any]]:
    """Maps training sets that are sampled from truncated distributions to top_p, top_k and min_p. Keys: the prefix of
    the settings: `model`, or the rollout_args of the set."""
    made = {}
    for place, one in config.buffer.explorer_input.train_places:
        own = {name: getattr(one.rollout_args, name) for name in UNCUT}
        chosen = {name: getattr(config.model, name) if value is None else value for name, value in own.items()}
        of_model = all(value is None for value in own.values())
        if is_truncated(**chosen):
            made["model" if of_model else f"buffer.explorer_input.{place}.rollout_args"] = chosen
    return made


def is_truncated(top_p: float, top_k: int, min_p: float | None) -> bool:
    """Returns whether a distribution is. min_p: None in rows of older releases, which had none."""
    return top_p < 1 or top_k > 0 or bool(min_p)


def truncates(config) -> bool:
    """Returns whether the explorer of a stage samples rows to train on so."""
    if at(config, "algorithm") is None or not facts(at(config, "algorithm.algorithm_type")).on_rollouts:
        return False  # it evaluates, or learns from files
    return config.of_mode.explores and bool(truncations(config))


def most_kept(config) -> int:
    """Returns the most tokens that are kept in addition to each sampled one; 0 where none are kept."""
    return max((one["top_k"] for one in truncations(config).values()), default=0) if truncates(config) else 0


def unfit(config) -> Iterator[Problem]:
    """Yields what the settings of a stage that explores lack to train on truncated sampling, or exclude."""
    found, settings = truncations(config), config.explorer.rollout_model
    for prefix, one in found.items():
        if one["min_p"] == 1 or 0 < one["top_p"] * one["top_k"] <= 1:
            name = "min_p" if one["min_p"] == 1 else "top_k" if one["top_k"] == 1 else "top_p"
            yield Problem(f"{prefix}.{name}", "leaves one token to sample: the responses of a group are the same, and "
                          "every gradient is 0.", "Needed 2 tokens or more to sample among.", found=one[name])
        elif not 1 <= one["top_k"] <= MOST:
            others = " and ".join(f"{name}={one[name]}" for name in ("top_p", "min_p") if one[name] != UNCUT[name])
            yield Problem(f"{prefix}.top_k", (f"with {others}: " if others else "") + "the tokens that each one was "
                          f"sampled among are kept with it, for the trainer; needed 2 to {MOST}"
                          + ("." if others else ", or -1."), found=one["top_k"])
    if not found:
        return
    prefix, one = next(iter(found.items()))
    name = next(name for name in UNCUT if one[name] != UNCUT[name])
    if settings.engine_type not in ENGINES:
        yield Problem(f"{prefix}.{name}", f"with {ENGINE}.engine_type={settings.engine_type}, which does not say what "
                      "each token was sampled among: ratios would be biased.", f"Leave it at {UNCUT[name]}.",
                      found=one[name])
    if settings.engine_type == "vllm" and config.algorithm.enable_router_replay:
        yield Problem("algorithm.enable_router_replay", f"with {prefix}.{name}: vLLM's model runners do not return "
                      "both experts and what each token was sampled among.", "Set one of the two.", found=True)
