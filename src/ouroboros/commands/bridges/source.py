"""The input of the bridges: a source's keys, each with its value and line.

YAML is read as OmegaConf reads it (`1e-6` is a number, a date is a text), by nodes, so that lines are known.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.yaml_aliases import refuse_large, single_node
from ouroboros.pipeline.store.yaml_values import Loader, plain

DEEPEST = 60  # nesting of mappings and lists


@dataclass(frozen=True)
class Given:
    """One key of a source: its path (texts, and numbers for elements of lists), its value, its line."""

    path: tuple[str | int, ...]
    value: Any
    line: int

    @property
    def key(self) -> str:
        return ".".join(map(str, self.path))


def read_yaml(text: str, name: str) -> list[Given]:
    """Reads a YAML file's settings. Raises ConfigError, with line and column, unless it is a mapping of settings."""
    refuse_large(len(text), name)
    try:
        loader = Loader(text)
        node = single_node(loader, name)
        if not isinstance(node, yaml.MappingNode) or not node.value:
            raise ConfigError(f"{name} holds no settings; needed a YAML mapping of sections, such as `algorithm:`.")
        _refuse_twice(node, name, set())
        return list(_leaves(loader, node, (), name))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{name}{where} is no YAML: {error.problem or error.context}.") from error
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise ConfigError(f"{name} is no YAML: {' '.join(str(error).split())}.") from error


def _leaves(loader, node: yaml.Node, path: tuple, name: str) -> Iterator[Given]:
    """Yields every value below a node; a list of plain values is one value."""
    if len(path) > DEEPEST:
        raise ConfigError(f"{name}, line {node.start_mark.line + 1}: mappings nest deeper than {DEEPEST}, or hold "
                          "themselves.")
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
    if isinstance(node, yaml.MappingNode) and node.value:
        for key, child in _pairs(node, name):
            yield from _leaves(loader, child, (*path, *key), name)
    elif isinstance(node, yaml.SequenceNode) and any(isinstance(n, yaml.MappingNode) for n in node.value):
        for index, child in enumerate(node.value):
            yield from _leaves(loader, child, (*path, index), name)
    else:
        yield Given(path, plain(loader.construct_object(node, deep=True)), node.start_mark.line + 1)


def _pairs(node: yaml.MappingNode, name: str) -> Iterator[tuple[tuple[str, ...], yaml.Node]]:
    """Returns (parts of the key, value node), each key once: an own key overrides a merged one; `a.b` is b within a."""
    for text, child in {_key(key, name): child for key, child in node.value}.items():
        yield tuple(part for part in text.split(".") if part) or (text,), child


def _refuse_twice(node: yaml.Node, name: str, visited: set[int]) -> None:
    """Raises ConfigError for a duplicate key of a mapping: one of the two would be lost."""
    if id(node) in visited or isinstance(node, yaml.ScalarNode):
        return
    visited.add(id(node))
    seen: dict[str, int] = {}
    for child in node.value:
        if isinstance(node, yaml.MappingNode):
            key, child = child
            text, line = _key(key, name), key.start_mark.line + 1
            if text in seen and text != "<<":
                raise ConfigError(f"{name}, line {line}: the key '{text}' is there twice, first in line {seen[text]}; "
                                  "needed each once.")
            seen[text] = line
        _refuse_twice(child, name, visited)


def _key(key: yaml.Node, name: str) -> str:
    if not isinstance(key, yaml.ScalarNode) or not key.value:
        raise ConfigError(f"{name}, line {key.start_mark.line + 1}: a key of a mapping is no text.")
    return key.value
