"""Rejects YAML of an excessive size, or whose aliases expand exponentially, before anything is built from it."""

import yaml

from ouroboros.pipeline.store.errors import ConfigError

MOST = 20_000  # values that a file's aliases may add when expanded
LARGEST = 1 << 20  # bytes of a file of settings; some seconds of parsing
DEEPEST = 100  # nesting of mappings and lists


def load(text: str | bytes, told: str):
    """Works as `yaml.safe_load`. told: the file's name in messages. Raises yaml.YAMLError, or ConfigError."""
    refuse_large(len(text), told)
    loader = yaml.SafeLoader(text)
    try:
        return None if (node := single_node(loader, told)) is None else loader.construct_document(node)
    finally:
        loader.dispose()


def refuse_large(size: int, told: str) -> None:
    """Raises ConfigError for a file of more than LARGEST bytes. told: its name."""
    if size > LARGEST:
        raise ConfigError(f"{told} has {size / 2**20:,.1f} MiB; needed a file of settings, of at most "
                          f"{LARGEST >> 20} MiB.")


def single_node(loader: yaml.SafeLoader, told: str) -> yaml.Node | None:
    """Returns the node of a loader's document; None if empty. Raises ConfigError for excessive nesting or alias
    expansion."""
    try:
        node = loader.get_single_node()
        counted: dict[int, int] = {}
        added = _values(node, counted) - len(counted) if node else 0
    except RecursionError as error:
        raise ConfigError(f"{told}: mappings and lists nest too deep; needed at most {DEEPEST} within one "
                          "another.") from error
    if added > MOST:
        about = f"{added:,}" if added < 10**9 else "billions of"
        raise ConfigError(f"{told}: its aliases (*name) repeat {about} values; needed at most {MOST:,}. Write "
                          "the few that are meant in their place.")
    return node


def _values(node: yaml.Node, counted: dict[int, int], depth: int = 0) -> int:
    """Counts the values below a node, itself included, with every alias and merge (<<) expanded.

    counted: node -> its values; 0 during counting, so that a self-referencing anchor terminates.
    """
    if depth > DEEPEST:
        raise RecursionError
    if id(node) not in counted:
        counted[id(node)] = 0
        below = [] if isinstance(node, yaml.ScalarNode) else node.value
        parts = (part for one in below for part in (one if isinstance(one, tuple) else (one,)))
        counted[id(node)] = 1 + sum(_values(part, counted, depth + 1) for part in parts)
    return counted[id(node)]
