"""Writes a translation as a recipe: a YAML file for conf/recipe/, each line with its origin."""

import math
import re
import textwrap
from typing import Any

import yaml

from ouroboros.commands.bridges.translation import Entry, Path, Translation, Unread
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.secrets import typed
from ouroboros.pipeline.store.yaml_values import Loader

WIDTH = 116  # characters of a comment line


def write(translation: Translation, account: str) -> str:
    """Returns the text of the recipe. account: how many keys became what, in one line."""
    notes = [translation.incomplete, f"From {translation.source}: {account}.",
             *(_unknown(unread) for unread in translation.unknown), *translation.chosen, *translation.asked]
    if translation.left_out:
        notes.append(f"Left out: {', '.join(dict.fromkeys(given.key for given, _ in translation.left_out))}.")
    head = ["# @package _global_", *(line for note in filter(None, notes) for line in _comment(note))]
    tree = _tree(translation.entries)
    sections = list(Config.model_fields)
    order = sorted(tree, key=lambda name: sections.index(name) if name in sections else len(sections))
    body = [line for name in order for line in _lines({name: tree[name]}, 0)]
    return "\n".join([*head, *(body or ["{}"])]) + "\n"


def _unknown(unread: Unread) -> str:
    return f"unknown: {', '.join(unread.to)} ({typed(f'{unread.given.key}={unread.given.value}')}): {unread.why}."


def value_text(value: Any) -> str:
    """Formats a value as one line of YAML that OmegaConf reads back unchanged."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=math.inf, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def printable(text: str) -> str:
    """Formats text for a comment or the terminal: one line, no unprintable characters."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def _comment(note: str) -> list[str]:
    lines = textwrap.wrap(printable(note), WIDTH, break_long_words=False, break_on_hyphens=False)
    return [("# " if number == 0 else "#   ") + line for number, line in enumerate(lines)]


def _tree(entries: dict[Path, Entry]) -> dict:
    """Nests entries by their paths; a node whose keys are all numbers becomes a list, in their order."""
    root: dict = {}
    for path, entry in entries.items():
        node = root
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = entry
    return root


def _lines(node: dict, depth: int) -> list[str]:
    made = []
    for name, child in node.items():
        key = "  " * depth + value_text(name) + ":"
        if isinstance(child, Entry):
            made.append(f"{key} {_leaf(child)}")
        elif all(isinstance(part, int) for part in child):
            made += [key, *(line for index in sorted(child) for line in _element(child[index], depth + 1))]
        else:
            made += [key, *_lines(child, depth + 1)]
    return made


def _element(child: dict | Entry, depth: int) -> list[str]:
    dash = "  " * depth + "- "
    if isinstance(child, Entry):
        return [dash + _leaf(child)]
    below = _lines(child, depth + 1)
    return [dash + below[0].removeprefix("  " * (depth + 1)), *below[1:]]


def _leaf(entry: Entry) -> str:
    return value_text(entry.value) + (f"  # {printable(entry.comment)}" if entry.comment else "")


class _Dumper(yaml.SafeDumper):
    """Quotes text only where the reader of these files would give it another type."""

    yaml_implicit_resolvers = Loader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if "\n" in value else None)


def _number(dumper: yaml.SafeDumper, value: float) -> yaml.Node:
    if not math.isfinite(value):
        return dumper.represent_float(value)
    return dumper.represent_scalar("tag:yaml.org,2002:float", re.sub(r"e([-+])0+(?=\d)", r"e\1", repr(value)))


_Dumper.add_representer(str, _text)
_Dumper.add_representer(float, _number)
