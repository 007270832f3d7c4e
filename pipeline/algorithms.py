"""What an algorithm is made of: conf/algorithm/<algorithm_type>.yaml names its parts, a configuration may change each.

A setting of the section `algorithm` that is null takes the algorithm's own value. Arguments are merged key by key over
the algorithm's own, as long as the function is the algorithm's own too.
"""

from functools import cache
from pathlib import Path
from typing import Any

PAIR_TYPES = ("dpo", "ipo", "kto")  # they train on pairs of a preferred and a rejected response
DEMONSTRATED = ("sft", "cpt")  # the likelihood of given tokens is their loss, whatever the run's other stages are told
GIVEN = (*DEMONSTRATED, *PAIR_TYPES)  # they learn from given responses and explore nothing
MIXED_LOSSES = ("mix", "mix_chord")  # losses of batches with rows of an expert
WITH_CRITIC = ("ppo",)  # advantages that need values
WITH_TEACHER = ("on_policy_distill", "jsd")  # advantages that need teacher_logprobs
DIRECTORY = Path(__file__).resolve().parent.parent / "conf" / "algorithm"


def names() -> tuple[str, ...]:
    """Every `algorithm.algorithm_type` there is."""
    return tuple(sorted(f.stem for f in DIRECTORY.glob("*.yaml")))


@cache
def parts(algorithm_type: str) -> dict[str, Any]:
    """What conf/algorithm/<algorithm_type>.yaml says; nothing for a type that there is none of."""
    import yaml

    path = DIRECTORY / f"{algorithm_type}.yaml"
    return yaml.safe_load(path.read_text()) if path.is_file() else {}


def functions(algorithm: dict[str, Any]) -> dict[str, str | None]:
    """The function of every part (`advantage_fn`, ...): the one that is set, or the algorithm's own."""
    own = parts(algorithm["algorithm_type"])
    chosen = [key for key in algorithm if f"{key}_args" in algorithm]
    return {key: own.get(key) if algorithm[key] is None else algorithm[key] for key in chosen}


def filled(algorithm: dict[str, Any]) -> dict[str, Any]:
    """The section `algorithm` with every null replaced by the algorithm's own value, arguments key by key."""
    own = parts(algorithm["algorithm_type"])
    made = {key: own.get(key) if value is None else value for key, value in algorithm.items()}
    for name, function in functions(algorithm).items():
        if function == own.get(name):
            made[f"{name}_args"] = {**own.get(f"{name}_args", {}), **algorithm[f"{name}_args"]}
    return made
