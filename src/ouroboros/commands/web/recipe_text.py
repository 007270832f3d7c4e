"""Changes single keys in the text of a recipe; every other byte stays, but for a comment behind a key that is left out.

PyYAML's nodes say where each value stands. A parser that writes whole files anew (ruamel.yaml) keeps comments too, but
attaches them to the key before them: they are lost with that key, and a new last key comes after the blank line.
"""

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Any

import yaml

from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.yaml_aliases import single_node
from ouroboros.pipeline.store.yaml_values import Loader

WIDTH = 110  # columns of a comment
PLAIN = re.compile(r"[\w./~$-](?:[\w ./@+=$-]|:(?=\S))*(?<! )", re.ASCII)  # needs no quotes anywhere
# what YAML takes for the end of a line, or for no letter
UNSAID = re.compile("[\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
UNREAD = (yaml.YAMLError, ValueError, TypeError, RecursionError)  # of text that is invalid YAML, or an invalid value
LEFT_OUT = object()
Place = list[str]  # keys, the outermost first; below `stages` the stage's name


@dataclass
class _Pair:
    """A key in a mapping and its value, or an element of a list twice. at: its position there."""

    key: yaml.Node
    value: yaml.Node
    within: list[tuple[yaml.Node, yaml.Node]]
    at: int
    is_flow: bool

    @property
    def is_element(self) -> bool:
        return self.key is self.value


def loaded(text: str) -> dict[str, Any]:
    """Returns what a recipe sets. Raises ConfigError where it is no YAML, no mapping, or contains itself."""
    node = _node(text)
    found = {} if node is None else _value(node)
    if not isinstance(found, dict):
        raise ConfigError("the recipe holds no settings; needed a mapping of them, as in conf/recipe/.")
    return found


def _value(node: yaml.Node) -> Any:
    try:
        found = Loader("").construct_document(node)
        json.dumps(found, default=str)
        return found
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise ConfigError(f"the recipe is no YAML: {' '.join(str(error).split())}") from error


def written(text: str) -> dict[str, dict[str, str]]:
    """Returns the text of each value in a recipe, of sections and lists too, by its dotted key: of the whole run under
    "", of a stage under its name."""
    loaded(text)
    root = _node(text)
    if root is None:
        return {"": {}}
    stages = next((node for key, node in root.value if key.value == "stages"), None)
    named = stages.value if isinstance(stages, yaml.SequenceNode) else ()
    scopes = {"": root} | {name: node for node in named if (name := _stage_name(node))}
    return {name: dict(_texts(text, node, "")) for name, node in scopes.items()}


def _texts(text: str, node: yaml.Node, key: str) -> Iterator[tuple[str, str]]:
    parts = ([(name.value, part) for name, part in node.value] if isinstance(node, yaml.MappingNode) else
             list(enumerate(node.value)) if isinstance(node, yaml.SequenceNode) else [])
    if key:
        here = text[node.start_mark.index:node.end_mark.index]
        as_it_is = _is_flow(node) and "\n" not in here and not here.startswith("&") and "*" not in here
        yield key, node.value if isinstance(node, yaml.ScalarNode) else here if as_it_is else json.dumps(
            _value(node), ensure_ascii=False, default=str)
    for name, part in parts:
        if name != "<<":
            yield from _texts(text, part, f"{key}.{name}" if key else str(name))


def fragment(typed: str, is_text: bool) -> str:
    """Returns what is typed in a field as YAML on one line. is_text: whether the setting is a text, whatever it looks
    like; null and an interpolation are not."""
    typed = typed.strip()
    if is_text and typed != "null" and not (typed.startswith("${") and typed.endswith("}")):
        return _quoted(typed)
    try:
        value = yaml.load(typed, Loader)
        said = json.dumps(value, ensure_ascii=False, default=str)
    except UNREAD:
        return _quoted(typed)
    if isinstance(value, str):
        return _quoted(value)
    on_a_line = value is not None and len(typed.splitlines()) == 1 and "#" not in typed
    return typed if on_a_line and (typed[0] in "{[" or not isinstance(value, dict | list)) else said


def _quoted(text: str) -> str:
    with suppress(*UNREAD):
        if PLAIN.fullmatch(text) and yaml.load(text, Loader) == text:
            return text
    return UNSAID.sub(lambda one: f"\\u{ord(one[0]):04x}", json.dumps(text, ensure_ascii=False))


def changed(text: str, place: Place, value: str | None, comment: str = "") -> str:
    """Returns the recipe with another value of a key, or without it.

    value: YAML on one line; None: the key is left out. comment: for lines above a key that is new. Raises ConfigError
    where that would change anything else.
    """
    if (lines := text.count("\r\n")) and lines == text.count("\n"):
        return changed(text.replace("\r\n", "\n"), place, value, comment).replace("\n", "\r\n")
    text = text if not text or text.endswith("\n") else f"{text}\n"
    before, root = loaded(text), _node(text)
    if root is not None:
        _refuse_repeated(root, place)
    pairs = _path(root, place)
    wanted = LEFT_OUT if value is None else yaml.load(value, Loader)
    if value is not None:
        made = _with(text, root, pairs, place, value, comment)
    else:
        made = _without(text, pairs, comment) if len(pairs) == len(place) else text
    with suppress(ConfigError):  # what was made is no recipe
        after = loaded(made)
        if reduce(_part, place, after) == wanted and _but(after, place) == _but(before, place):
            return made
    raise ConfigError(f"{'.'.join(place)} cannot be changed without another key. Change it in the text.")


def _node(text: str) -> yaml.Node | None:
    try:
        return single_node(Loader(text), "the recipe")
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"the recipe is no YAML: {' '.join(str(error).split())}") from error


def _refuse_repeated(root: yaml.Node, place: Place) -> None:
    """Raises ConfigError for a key within a value that other keys repeat by an alias."""
    times: Counter[int] = Counter()

    def visit(node: yaml.Node) -> None:
        times[id(node)] += 1
        if times[id(node)] == 1 and isinstance(node, yaml.CollectionNode):
            for one in chain(*(part if isinstance(part, tuple) else (part,) for part in node.value)):
                visit(one)

    visit(root)
    if any(times[id(pair.value)] > 1 for pair in _path(root, place)):
        raise ConfigError(f"{'.'.join(place)}: other keys repeat this value (*name). Change it in the text.")


def _path(root: yaml.Node | None, place: Place) -> list[_Pair]:
    """Returns the keys of a place that are there, the outermost first; elements of lists are passed through."""
    found, node = [], root
    for part in place:
        if isinstance(node, yaml.SequenceNode):
            named = {str(i): one for i, one in enumerate(node.value)} | {
                name: one for one in node.value if (name := _stage_name(one))}
            if part not in named:
                return found
            node = named[part]
            found.append(_Pair(node, node, [(node, node)], 0, False))
            continue
        at = next((i for i, (key, _) in enumerate(node.value) if key.value == part), None) if isinstance(
            node, yaml.MappingNode) else None
        if at is None:
            return found
        found.append(_Pair(*node.value[at], node.value, at, _is_flow(node)))
        node = node.value[at][1]
    return found


def _stage_name(node: yaml.Node) -> str | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value.value for key, value in pairs if key.value == "stage_name" and value.id == "scalar"), None)


def _end(node: yaml.Node) -> int:
    """Returns where the last value within a node ends; the node of a block ends with the next token."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    end = node.end_mark.index
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        return len(node.end_mark.buffer[:end].rstrip()) if node.end_mark.buffer else end
    return end


def _is_flow(node: yaml.Node) -> bool:
    return isinstance(node, yaml.CollectionNode) and bool(node.flow_style)


def _with(text: str, root: yaml.Node | None, pairs: list[_Pair], place: Place, value: str, comment: str) -> str:
    if len(pairs) == len(place):
        return _replaced(text, pairs[-1], value)
    missing = place[len(pairs):]
    if any(part.isdecimal() for part in missing):
        raise ConfigError(f"{'.'.join(place)}: this recipe has no such element. Set the list as a whole.")
    node = pairs[-1].value if pairs else root
    if node is None:
        return text + "\n".join(_lines(missing, value, comment, 0)) + "\n"
    if isinstance(node, yaml.ScalarNode) and node.value in ("", "null", "~") and pairs:
        return _replaced(text, pairs[-1], _nested(missing, value))
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{'.'.join(place)} is below a value that is not a section. Change it in the text.")
    if _is_flow(node) or not node.value:
        end = _end(node.value[-1][1]) if node.value else node.start_mark.index + 1
        return f"{text[:end]}{', ' * bool(node.value)}{_nested(missing, value)[1:-1]}{text[end:]}"
    lines = "\n".join(_lines(missing, value, comment, node.value[0][0].start_mark.column))
    if not pairs:  # a section: behind comments, too, that the recipe ends with
        return f"{text}\n{lines}\n"
    end = text.find("\n", _end(node)) + 1 or len(text)
    return f"{text[:end]}{lines}\n{text[end:]}"


def _replaced(text: str, pair: _Pair, value: str) -> str:
    begin = text.find(":", pair.key.end_mark.index) + 1
    is_beside = pair.value.start_mark.line == pair.key.end_mark.line and pair.value.end_mark.index > begin
    if pair.is_element or is_beside:
        return text[:pair.value.start_mark.index] + value + text[_end(pair.value):]
    return f"{text[:begin]} {value}{text[max(_end(pair.value), begin):]}"


def _nested(keys: Place, value: str) -> str:
    for key in reversed(keys):
        value = f"{{{_quoted(key)}: {value}}}"
    return value


def _lines(keys: Place, value: str, comment: str, indent: int) -> list[str]:
    made = [f"{' ' * (indent + 2 * at)}{_quoted(key)}:" for at, key in enumerate(keys)]
    made[-1] += f" {value}"
    return [*made[:-1], *_comment(comment, indent + 2 * (len(keys) - 1)), made[-1]]


def _comment(comment: str, indent: int) -> list[str]:
    return [f"{' ' * indent}# {line}" for line in textwrap.wrap(comment, WIDTH - indent, break_on_hyphens=False)]


def _without(text: str, pairs: list[_Pair], comment: str) -> str:
    """Leaves out the last of the keys, and sections that would have none then."""
    pair = pairs[-1]
    if pair.is_element:
        raise ConfigError("an element of a list cannot be left out here. Change the list.")
    if len(pair.within) == 1 and len(pairs) > 1 and not pairs[-2].is_element:
        return _without(text, pairs[:-1], comment)
    if pair.is_flow:
        return _without_flow(text, pair)
    start = text.rfind("\n", 0, pair.key.start_mark.index) + 1
    if text[start:pair.key.start_mark.index].strip():  # the first key of an element: `- key: value`
        return text[:pair.key.start_mark.index] + text[text.find("\n", _end(pair.value)):].lstrip()
    own = "".join(f"{line}\n" for line in _comment(comment, pair.key.start_mark.column))
    begin = start - len(own) if own and text[:start].endswith(own) else start
    end = text.find("\n", max(_end(pair.value), pair.key.end_mark.index)) + 1 or len(text)
    if text[:begin].endswith("\n\n") and text[end:end + 1] in ("", "\n"):  # of the blank lines around it, one stays
        begin -= 1
    return text[:begin] + text[end:]


def _without_flow(text: str, pair: _Pair) -> str:
    begin, end = pair.key.start_mark.index, _end(pair.value)
    if pair.at + 1 < len(pair.within):
        end = pair.within[pair.at + 1][0].start_mark.index
    elif pair.at:
        begin = _end(pair.within[pair.at - 1][1])
    if "#" in text[begin:pair.key.start_mark.index] + text[_end(pair.value):end]:
        raise ConfigError("a comment stands between this key and the next one. Change it in the text.")
    return text[:begin] + text[end:]


def _part(value: Any, part: str) -> Any:
    if isinstance(value, list):
        named = {str(i): one for i, one in enumerate(value)} | {
            str(one["stage_name"]): one for one in value if isinstance(one, dict) and "stage_name" in one}
        return named.get(part, LEFT_OUT)
    return value.get(part, LEFT_OUT) if isinstance(value, dict) else LEFT_OUT


def _but(value: Any, place: Place) -> Any:
    """Returns values without those of a place, and without sections that are empty then."""
    part, *below = place
    inner = _part(value, part)
    if inner is LEFT_OUT:
        return value
    if isinstance(value, list):
        return [(_but(one, below) if below else LEFT_OUT) if one is inner else one for one in value]
    rest = _but(inner, below) if below else LEFT_OUT
    kept = {} if rest is LEFT_OUT or rest in ({}, None) else {part: rest}
    return {name: one for name, one in value.items() if name != part} | kept
