"""Reads a YAML file of settings by its nodes, to report all its mistakes at once and with line numbers.

Invalid parts (an unterminated interpolation, one of two values of a key) are reported and omitted. So are aliases and
merge keys: a recipe is the user's own file, and what another section has is written `${section}`.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from ouroboros.pipeline.compose.interpolation import unreadable
from ouroboros.pipeline.settings.key_names import keeps_letters
from ouroboros.pipeline.store.errors import Problem
from ouroboros.pipeline.store.yaml_aliases import refuse_large, single_node
from ouroboros.pipeline.store.yaml_values import Loader, scalar

TEXT, WHOLE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:int"
MERGE = "tag:yaml.org,2002:merge"
STANDARD = "tag:yaml.org,2002:"
READ = ("str", "int", "float", "bool", "null", "seq", "map", "merge", "value", "timestamp")
KINDS = {"null": "null", "int": "a number", "float": "a number", "bool": "true or false to YAML", "seq": "a list",
         "map": "a mapping"}
Place = tuple[str, ...]  # names of the keys above, the outermost first


def read(path: Path, shown_name: str, section: str = "") -> tuple[Any, list[Problem]]:
    """Returns a file's content, None if empty, without what is wrong in it; and the problems, by their lines.

    shown_name: of the file, in exceptions. section: dotted key of what it sets; empty: the whole configuration. Raises
    yaml.YAMLError and UnicodeDecodeError for a file that is not YAML, and ConfigError for aliases that expand to too
    many nodes.
    """
    refuse_large(path.stat().st_size, shown_name)
    with open(path, encoding="utf-8") as file:
        loader = Loader(file)
        node, tree = single_node(loader, shown_name), _Tree()
    if node is None:
        return None, []
    tree.mend(node, tuple(filter(None, section.split("."))))
    problems = [problem.but(file=str(path)) for problem in sorted(tree.problems, key=lambda one: one.line)]
    return loader.construct_document(node), problems


def _misleading(node: yaml.ScalarNode) -> str | None:
    """Returns why a value is not what it looks like: YAML or OmegaConf would read it as another, or as none."""
    if node.value == "???":
        return "??? stands for a value that is still to be given. Give it, or leave the key out."
    based = 60 if ":" in node.value else 8 if re.fullmatch(r"[-+]?0[0-7_]*[1-7][0-7_]*", node.value) else None
    if node.tag == WHOLE and based:
        return (f"YAML reads {node.value} as a number to base {based}; needed quotes around a text ('{node.value}'), "
                "or a plain number.")
    return None


class _Tree:
    """Problems in a tree of nodes."""

    def __init__(self):
        self.problems: list[Problem] = []
        self.visited: set[int] = set()  # by identity: an alias is the node of its anchor

    def mend(self, node: yaml.Node, place: Place) -> None:
        if not isinstance(node, yaml.MappingNode | yaml.SequenceNode):
            return
        self.visited.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            items = [(part, (*place, str(index))) for index, part in enumerate(node.value)]
            node.value = [kept for part, full in items if (kept := self._kept(part, full))]
        else:
            pairs = self._each_once(node, place)
            node.value = [(key, kept) for key, child in pairs if (kept := self._kept(child, (*place, key.value), key))]

    def _kept(self, node: yaml.Node, place: Place, key: yaml.Node | None = None) -> yaml.Node | None:
        """Returns the corrected node; None for an invalid interpolation or an alias. key: of it, in a mapping."""
        if id(node) in self.visited:  # its own line is that of the anchor
            self._add(key or node, place, "is an alias, which a recipe has none of; needed the values themselves, or "
                      "an interpolation of where they are: ${section.key}.")
            return None
        self.visited.add(id(node))
        if node.tag.removeprefix(STANDARD) not in READ:
            self._add(node, place, f"has the tag {node.tag.replace(STANDARD, '!!')}; needed a plain text, number, list "
                      "or mapping.")
            return None
        self.mend(node, place)
        if not isinstance(node, yaml.ScalarNode):
            return node
        if why := unreadable(node.value):
            self._add(node, place, why)
            return None
        value = scalar(node.value) if node.tag != TEXT else None
        if keeps_letters(".".join(place), node.value, value):
            # only here do 1e5 and 100000.0, `false` and `off` still differ
            return yaml.ScalarNode(TEXT, node.value, node.start_mark, node.end_mark)
        if why := _misleading(node):
            self._add(node, place, why)
            return None
        return node

    def _each_once(self, node: yaml.MappingNode, place: Place) -> list[tuple[yaml.Node, yaml.Node]]:
        """Merges a mapping's duplicate keys: the last value, and for mappings the pairs of all."""
        kept: dict[Any, tuple[yaml.Node, yaml.Node]] = {}
        for key, child in node.value:
            if key.tag == WHOLE and key.value.isdecimal():  # as in the JSON that a run keeps of its settings
                key = yaml.ScalarNode(TEXT, key.value, key.start_mark, key.end_mark)
            if key.tag == MERGE:
                self._add(key, (*place, key.value), "is a merge key, which a recipe has none of; needed the values "
                          "themselves.")
                continue
            if key.tag != TEXT:
                kind = KINDS.get(key.tag.rpartition(":")[2], "no text")
                said = f" ({key.value})" if isinstance(key, yaml.ScalarNode) and kind != "null" else ""
                self._add(key, place, f"a key here is {kind}{said}; needed a name{', in quotes' * bool(said)}.")
                continue
            if not key.value.strip():
                self._add(key, place, "a key here is empty; needed a name.")
                continue
            first, before = kept.get(key.value, (key, None))
            if before:
                self._add(key, (*place, key.value), f"occurs again, first in line {first.start_mark.line + 1}; needed "
                          "each once.")
            if isinstance(before, yaml.MappingNode) and isinstance(child, yaml.MappingNode):
                child = yaml.MappingNode(child.tag, [*before.value, *child.value], child.start_mark, child.end_mark)
            kept[key.value] = (first, child)
        return list(kept.values())

    def _add(self, node: yaml.Node, place: Place, needed: str) -> None:
        self.problems.append(Problem(".".join(place), needed, line=node.start_mark.line + 1))
