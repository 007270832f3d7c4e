"""What Hydra composes out of a directory like conf/, its files read once for each choice of groups.

The points of a sweep mostly differ in values and not in groups; reading and merging the files is what takes the time.
"""

import copy
from functools import cache
from pathlib import Path


def composed(directory: Path, groups: tuple[str, ...], schema, overrides: list[str]):
    """The composed DictConfig of `directory`/config.yaml with the overrides applied, nothing resolved.

    schema: the structured config that the files fill in under the name `schema`. Raises Hydra's and OmegaConf's errors.
    The values are set by the function with which Hydra itself does it after the groups (hydra-core is pinned).
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.config_store import ConfigStore
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if "schema.yaml" not in ConfigStore.instance().repo:
        ConfigStore.instance().store(name="schema", node=schema)
    parsed = OverridesParser.create().parse_overrides(overrides)
    chosen = tuple(o.input_line for o in parsed if o.key_or_group in groups)
    config = copy.deepcopy(_of_groups(directory, chosen))
    ConfigLoaderImpl._apply_overrides_to_config([o for o in parsed if o.key_or_group not in groups], config)
    return config


@cache
def _of_groups(directory: Path, chosen: tuple[str, ...]):
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(directory), version_base="1.3"):
        return compose("config", list(chosen))
