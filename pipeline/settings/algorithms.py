"""What an algorithm is made of: conf/algorithm/<algorithm_type>.yaml names its parts, a configuration may change each.

An algorithm of the user's own is such a file in the conf/ of the current directory, with its own name as its
`algorithm_type`; a file there that names another one, or none, is a choice of values for the section `algorithm`.

A setting of the section `algorithm` that is null takes the algorithm's own value. Arguments are merged key by key over
the algorithm's own, as long as the function is the algorithm's own too.
"""

from functools import cache
from pathlib import Path
from typing import Any

from pipeline.store.errors import ConfigError
from pipeline.store.files import CONF

PAIR_TYPES = ("dpo", "ipo", "kto")  # they train on pairs of a preferred and a rejected response
DEMONSTRATED = ("sft", "cpt")  # the likelihood of given tokens is their loss, whatever the run's other stages are told
GIVEN = (*DEMONSTRATED, *PAIR_TYPES)  # they learn from given responses and explore nothing
MIXED_LOSSES = ("mix", "mix_chord")  # losses of batches with rows of an expert
WITH_CRITIC = ("ppo",)  # advantages that need values
WITH_TEACHER = ("on_policy_distill", "jsd")  # advantages that need teacher_logprobs
DIRECTORY = CONF / "algorithm"


def names() -> tuple[str, ...]:
    """Every `algorithm.algorithm_type` there is."""
    return tuple(sorted((*ours(), *own())))


def ours() -> tuple[str, ...]:
    return tuple(sorted({*_types().values()}))


def meant(name: str) -> str:
    """The `algorithm_type` that a name stands for: another spelling of one of ours has a file too."""
    return _types().get(name, name)


def _types() -> dict[str, str]:
    """File of ours, without its ending -> the type that it names."""
    return {path.stem: _said(path, path.stat().st_mtime_ns)["algorithm_type"] for path in DIRECTORY.glob("*.yaml")}


def own() -> dict[str, Path]:
    """The user's algorithms: name -> file. Raises ConfigError for a file that is no YAML."""
    found = sorted((Path.cwd() / "conf" / "algorithm").glob("*.yaml"))
    return {path.stem: path for path in found if path.parent.resolve() != DIRECTORY
            and _said(path, path.stat().st_mtime_ns).get("algorithm_type") == path.stem}


def parts(algorithm_type: str) -> dict[str, Any]:
    """What conf/algorithm/<algorithm_type>.yaml says; nothing for a type that there is none of."""
    path = DIRECTORY / f"{algorithm_type}.yaml"
    path = path if path.is_file() else own().get(algorithm_type)
    return _said(path, path.stat().st_mtime_ns) if path else {}


@cache
def _said(path: Path, changed: int) -> dict[str, Any]:
    """The content of a file; nothing of what is no mapping. changed: its time stamp."""
    import yaml

    from pipeline.store.yaml_aliases import load

    try:
        said = load(path.read_text(encoding="utf-8"), str(path))
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    return said if isinstance(said, dict) else {}


def functions(algorithm: dict[str, Any]) -> dict[str, str | None]:
    """The function of every part (`advantage_fn`, ...): the one that is set, or the algorithm's own."""
    own = parts(algorithm["algorithm_type"])
    chosen = [key for key in algorithm if f"{key}_args" in algorithm]
    return {key: own.get(key) if algorithm[key] is None else algorithm[key] for key in chosen}


def filled(algorithm: dict[str, Any]) -> dict[str, Any]:
    """The section `algorithm` with every null replaced by the algorithm's own value, sections and arguments key by
    key."""
    own = parts(algorithm["algorithm_type"])
    made = {key: value if key.endswith("_args") else _filled(value, own.get(key)) for key, value in algorithm.items()}
    for name, function in functions(algorithm).items():
        if function == own.get(name):
            made[f"{name}_args"] = {**own.get(f"{name}_args", {}), **algorithm[f"{name}_args"]}
    return made


def _filled(value: Any, own: Any) -> Any:
    """`own` where a value is null; of a section, key by key."""
    if isinstance(value, dict) and isinstance(own, dict):
        return {key: _filled(inner, own.get(key)) for key, inner in value.items()}
    return own if value is None else value
