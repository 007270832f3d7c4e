"""The components of algorithms: conf/algorithm/<algorithm_type>.yaml sets them, a configuration may override each.

A user's algorithm is such a file in the conf/ of the current directory, with its own name as its `algorithm_type`; a
file there with another name, or none, is a choice of values for the section `algorithm`.

A null setting of the section `algorithm` takes the algorithm's own value. Arguments are merged key by key over the
algorithm's own if the function is the algorithm's own too.
"""

import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ouroboros.pipeline.settings.declared import ADVANTAGES, POLICY_LOSSES
from ouroboros.pipeline.settings.setting import Section
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.files import CONF
from ouroboros.pipeline.store.user_errors import load_dotted

ROLLOUTS, PAIRS = "rollouts", "pairs"  # what algorithms train on, if not on demonstrations or texts
OWN_CLASS = re.compile(r"[\w.]+:\w+")
LIKE = "grpo"  # the type that a user's class is a variant of, unless it says another
# losses on pairs of a preferred and a rejected response; the types of the same names train on pairs
OF_PAIRS = tuple(name for name, one in POLICY_LOSSES.items() if one.compares_pairs)
OF_SCORES = tuple(name for name, one in POLICY_LOSSES.items() if one.scores_responses)  # those of a reward model
DATA = dict.fromkeys(OF_PAIRS, PAIRS) | dict(pair for one in POLICY_LOSSES.values() for pair in one.types)
# losses for batches with expert rows
MIXED_LOSSES = tuple(name for name, one in POLICY_LOSSES.items() if "is_expert" in one.columns)
# advantages by what their models declare
COMPARE = tuple(name for name, one in ADVANTAGES.items() if one.compares_groups)
# those that are 0 where the rewards of a group are equal
CENTRED = tuple(name for name in COMPARE if "baseline_shift" not in ADVANTAGES[name].names() and not (
    ADVANTAGES[name].chooses_rows or ADVANTAGES[name].reads_components or ADVANTAGES[name].reads_steps))
WITH_CRITIC = tuple(name for name, one in ADVANTAGES.items() if "values" in one.reads)
WITH_TEACHER = tuple(name for name, one in ADVANTAGES.items() if "teacher_logprobs" in one.reads)
DIRECTORY = CONF / "algorithm"


def own_class(algorithm_type: str | None) -> Any:
    """Returns the user's class of operators/algorithm.py that `package.module:Class` names; None for a name. Raises
    ConfigError for one that cannot be imported."""
    if not (isinstance(algorithm_type, str) and OWN_CLASS.fullmatch(algorithm_type)):
        return None
    sys.path += {os.getcwd()}.difference(sys.path)  # of a command: the processes of stages have it
    return load_dotted(algorithm_type)


def base_of(algorithm_type: str | None) -> str:
    """Returns the type that a user's class is a variant of; any other is its own."""
    found = own_class(algorithm_type)
    return getattr(found, "like", LIKE) if found else algorithm_type or ""


class Facts(NamedTuple):
    """What a type trains on: rollouts, or given pairs, demonstrations or texts, whose tokens have their likelihood as
    the loss whatever the other settings; and whether that is a reward model, with scores and no log-probs."""

    data: str
    on_rollouts: bool
    on_pairs: bool
    on_given_tokens: bool
    scores_responses: bool


def facts(algorithm_type: str | None) -> Facts:
    """Returns what a type declares; an unknown one trains on rollouts."""
    name = base_of(algorithm_type)
    data = DATA.get(name, ROLLOUTS)
    return Facts(data, data == ROLLOUTS, data == PAIRS, data not in (ROLLOUTS, PAIRS), name in OF_SCORES)


def learns_by_variance(algorithm) -> bool:
    """Returns whether groups of equal rewards add nothing to the policy loss. algorithm: its section; None: unknown."""
    loss = POLICY_LOSSES.get(getattr(algorithm, "policy_loss_fn", None))
    return bool(loss) and "advantages" in loss.columns and getattr(algorithm, "advantage_fn", None) in CENTRED


def names() -> tuple[str, ...]:
    """Returns every available `algorithm.algorithm_type`."""
    return tuple(sorted((*ours(), *own())))


def ours() -> tuple[str, ...]:
    return tuple(sorted({*_types().values()}))


def meant(name: str) -> str:
    """Returns the `algorithm_type` that a name means: alternative spellings of ours have files too."""
    return _types().get(name, name)


def _types() -> dict[str, str]:
    """Maps our files, without suffix, to the type each names."""
    return {path.stem: _content(path, path.stat().st_mtime_ns)["algorithm_type"] for path in DIRECTORY.glob("*.yaml")}


def own() -> dict[str, Path]:
    """Returns the user's algorithms: name -> file. Those that cannot be read are among them: only naming one fails."""
    place = Path.cwd() / "conf" / "algorithm"
    found = sorted(filter(Path.is_file, place.glob("*.yaml"))) if place.resolve() != DIRECTORY else ()  # no pipe
    return {path.stem: path for path in found if _is_own(path)}


def without_its_name(name: str) -> str:
    """Returns what a file of the user lacks to be the algorithm of this name; empty where there is no such file."""
    there = (Path.cwd() / "conf" / "algorithm" / f"{name}.yaml").is_file()
    return (f"conf/algorithm/{name}.yaml is there: to define a type it needs the line algorithm_type: {name}; as a "
            f"choice of values the word algorithm={name} takes it.") if there else ""


def _is_own(path: Path) -> bool:
    try:
        return _content(path, path.stat().st_mtime_ns).get("algorithm_type") == path.stem
    except (ConfigError, OSError):
        return True


def parts(algorithm_type: str) -> dict[str, Any]:
    """Returns the content of conf/algorithm/<algorithm_type>.yaml; empty for an unknown type. Raises ConfigError for a
    file that cannot be read."""
    name = base_of(algorithm_type)
    path = DIRECTORY / f"{name}.yaml"
    path = path if path.is_file() else own().get(name)
    return _content(path, path.stat().st_mtime_ns) if path else {}


@cache
def _content(path: Path, changed: int) -> dict[str, Any]:
    """Returns the content of a file; empty unless it is a mapping. changed: its mtime."""
    import yaml

    from ouroboros.pipeline.store.yaml_aliases import load

    try:
        found = load(path.read_text(encoding="utf-8"), str(path))
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    return found if isinstance(found, dict) else {}


def functions(algorithm) -> dict[str, str | None]:
    """Returns the function of every component (`advantage_fn`, ...): the configured one, or the algorithm's own."""
    own, fields = parts(algorithm.algorithm_type), type(algorithm).model_fields
    chosen = {name: getattr(algorithm, name) for name in fields if f"{name}_args" in fields}
    return {name: own.get(name) if function is None else function for name, function in chosen.items()}


def filled(algorithm):
    """Returns the section `algorithm` with every null replaced by the algorithm's own value; sections and arguments key
    by key."""
    own = parts(algorithm.algorithm_type)
    arguments = {f"{name}_args": {**own.get(f"{name}_args", {}), **getattr(algorithm, f"{name}_args")}
                 for name, function in functions(algorithm).items() if function == own.get(name)}
    return algorithm.model_copy(update=_nulls(algorithm, own) | arguments)


def _nulls(section, own: dict[str, Any]) -> dict[str, Any]:
    """Returns the algorithm's own values of what a section leaves null, and sections with theirs."""
    held = {name: getattr(section, name) for name in own if name in type(section).model_fields}
    return {name: own[name] if value is None else value.model_copy(update=_nulls(value, own[name]))
            for name, value in held.items() if value is None or isinstance(value, Section)}
