"""Refuses YAML whose aliases repeat each other until nothing can hold the result, before any of it is built."""

from contextlib import suppress
from pathlib import Path

import yaml

from pipeline.store.errors import ConfigError

MOST = 20_000  # values that the aliases of a file may add when they are written out
DEEPEST = 100  # mappings and lists within one another


def load(text: str | bytes, told: str):
    """As `yaml.safe_load`. told: what messages call the file. Raises yaml.YAMLError, and ConfigError as `refuse`."""
    loader = yaml.SafeLoader(text)
    try:
        return None if (node := single_node(loader, told)) is None else loader.construct_document(node)
    finally:
        loader.dispose()


def single_node(loader: yaml.SafeLoader, told: str) -> yaml.Node | None:
    """The node of a loader's document; None of an empty one. Raises ConfigError for what nests too deep, or whose
    aliases repeat too much."""
    try:
        node = loader.get_single_node()
        counted: dict[int, int] = {}
        added = _values(node, counted) - len(counted) if node else 0
    except RecursionError as error:
        raise ConfigError(f"{told}: mappings and lists nest too deep; needed at most {DEEPEST} within one "
                          "another.") from error
    if added > MOST:
        raise ConfigError(f"{told}: its aliases (*name) repeat {_about(added)} values; needed at most {MOST:,}. Write "
                          "the few that are meant in their place.")
    return node


def _about(count: int) -> str:
    return f"{count:,}" if count < 10**9 else "billions of"


def _values(node: yaml.Node, counted: dict[int, int], depth: int = 0) -> int:
    """Values below a node, itself included, every alias and every merge (<<) written out.

    counted: node -> its values; 0 while they are counted, so that an anchor within itself ends.
    """
    if depth > DEEPEST:
        raise RecursionError
    if id(node) not in counted:
        counted[id(node)] = 0
        below = [] if isinstance(node, yaml.ScalarNode) else node.value
        parts = (part for one in below for part in (one if isinstance(one, tuple) else (one,)))
        counted[id(node)] = 1 + sum(_values(part, counted, depth + 1) for part in parts)
    return counted[id(node)]


def refuse_below(directory: Path) -> None:
    """Raises ConfigError for a file of the user's conf/ that `single_node` refuses: Hydra reads what others name in
    their `defaults`. What is no YAML is left to Hydra to tell."""
    for file in sorted(directory.rglob("*.yaml")):
        content = file.read_bytes() if file.is_file() else b""
        if b"*" in content and b"&" in content:
            with suppress(yaml.YAMLError):
                single_node(yaml.SafeLoader(content), str(file))
