"""What Hydra composes out of conf/ directories, its files read once for each choice of groups.

The points of a sweep mostly differ in values and not in groups; reading and merging the files is what takes the time.
"""

import copy
from functools import cache
from pathlib import Path

OF_A_VALUE = "++"  # begins an override of a value; the others choose among the files of a group


def composed(directories: list[Path], schema: dict, overrides: list[str]):
    """The composed DictConfig of config.yaml in the first directory, nothing resolved; the others add choices.

    schema: what the files fill in under the name `schema`. Raises the errors of Hydra, OmegaConf and YAML. Values are
    set by the function with which Hydra itself does it after the groups (hydra-core is pinned).
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.config_store import ConfigStore
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    if "schema.yaml" not in ConfigStore.instance().repo:
        ConfigStore.instance().store(name="schema", node=OmegaConf.create(schema))
    chosen = tuple(o for o in overrides if not o.startswith(OF_A_VALUE))
    values = OverridesParser.create().parse_overrides([o for o in overrides if o.startswith(OF_A_VALUE)])
    config = copy.deepcopy(_of_choices(tuple(directories), _stamp(directories), chosen))
    ConfigLoaderImpl._apply_overrides_to_config(values, config)
    return config


def _stamp(directories: list[Path]) -> tuple:
    """Changes when a file does: one process may compose before and after an edit."""
    return tuple((path, path.stat().st_mtime_ns) for d in directories for path in sorted(d.rglob("*.yaml")))


@cache
def _of_choices(directories: tuple[Path, ...], stamp: tuple, chosen: tuple[str, ...]):
    from hydra import compose, initialize_config_dir

    also = [f"hydra.searchpath=[file://{d}]" for d in directories[1:]]
    with initialize_config_dir(str(directories[0]), version_base="1.3"):
        return compose("config", [*chosen, *also])
