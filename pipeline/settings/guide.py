"""The status of each Trinity-RFT guide key: it works, has another name, says what always holds, or is refused.

Only a key or a value that is none of ours opens the table, bridges/tables/trinity_guide.yaml; docs/trinity-keys.md
shows all of it.
"""

import re
from functools import cache
from typing import Any

from ouroboros.pipeline.settings.config import ITS_OWN, walk
from ouroboros.pipeline.settings.key_tables import (
    NUMBER,
    OWN_NAME,
    Always,
    Fate,
    Refused,
    Renamed,
    Translated,
    Works,
    expanded,
    renamed,
    table,
    without_counterpart,
)

NAME = "trinity_guide"


@cache
def fates() -> dict[str, Fate]:
    """Maps every key of the guide to what becomes of it here."""
    read = table(NAME)
    made: dict[str, Fate] = dict.fromkeys(expanded(read["works"]), Works())
    for group in read["noted"]:
        made |= dict.fromkeys(expanded(group["keys"]), Works(group["note"]))
    for group in read["always"]:
        made |= dict.fromkeys(expanded(group["keys"]), Always(tuple(group["values"]), group["why"]))
    return made | renamed(read) | without_counterpart(read)


@cache
def _meant() -> dict[str, dict[Any, Any]]:
    return {key: values for pattern, values in table(NAME)["meant"].items() for key in expanded(pattern)}


def meanings(key: str) -> dict[Any, Any]:
    """Maps the values of a key that are written differently here to ours."""
    return _meant().get(general(key), {})


def workflows() -> dict[str, str]:
    """Maps workflows of the guide whose name alone has another one here to it."""
    return table(NAME)["workflows"]


@cache
def of_values() -> dict[str, list[dict[str, Any]]]:
    """Maps keys to their refused values: groups of `why` and `values`, or `only`, all but which are refused."""
    made: dict[str, list[dict[str, Any]]] = {}
    for group in table(NAME)["values"]:
        for key in expanded(group["keys"]):
            made.setdefault(key, []).append(group)
    return made


def general(key: str) -> str:
    """Generalizes a key as in the tables: without the stage prefix, `*` for an element or the name of a buffer."""
    parts = re.sub(r"\[(\w+)\]", r".\1", key).split(".")
    if parts[0] == "stages" and len(parts) > 2:
        parts = parts[2:]
    parts = ["*" if part.isdigit() else part for part in parts]
    if parts[:3] == ["buffer", "trainer_input", "auxiliary_buffers"] and len(parts) > 3:
        parts[3] = "*"
    return ".".join(parts)


def find(key: str) -> tuple[str, Fate] | None:
    """Returns the entry of a key: its own, or the nearest one above it. None for a key that the guide does not have."""
    entry = general(key)
    while entry not in fates():
        entry = entry.rpartition(".")[0]
        if not entry:
            return None
    return entry, fates()[entry]


def explain_absent(key: str) -> str | None:
    """Returns the alternative to a guide key that is missing here; None when it works, or is not in the guide."""
    found = find(key)
    if found is None or isinstance(found[1], Works):
        return None
    entry, fate = found
    meaning = f"here it is {target(fate)}" if isinstance(fate, Renamed | Translated) else fate.why
    if isinstance(fate, Always):
        meaning = f"needed {holding(fate)}, which holds without it: {fate.why}"
    return meaning if entry == key else f"{entry}: {meaning}"


def explain_value(key: str, value: Any) -> str | None:
    """Returns the alternative to a value that the guide allows and is refused here; None for any other value."""
    if isinstance(value, (list, dict)):
        return None
    return next((group["why"] for group in of_values().get(general(key), ())
                 if (value in group["values"] if "values" in group else value not in group["only"])), None)


def always(key: str, value: Any) -> bool:
    """Returns whether a key says with this value what holds here in any case, or switches off what is not here."""
    fate = fates().get(general(key))
    if type(fate) is Refused:
        return any(value == one and type(value) is type(one) for one in fate.idle)
    return isinstance(fate, Always) and fate.holds(key, value)


def may_hold(key: str) -> bool:
    """Returns whether `always` is true of a key with some value."""
    fate = fates().get(general(key))
    return isinstance(fate, Always) or (type(fate) is Refused and bool(fate.idle))


def split_always(settings: Any, key: str = "") -> tuple[Any, list[str]]:
    """Returns nested settings without the keys that say what holds here in any case, and these keys. key: dotted, of
    `settings`."""
    if isinstance(settings, list):
        parts = [split_always(one, f"{key}.{place}") for place, one in enumerate(settings)]
        return [part for part, _ in parts], [one for _, said in parts for one in said]
    if not isinstance(settings, dict):
        return settings, []
    made, said = {}, []
    for name, value in settings.items():
        place = f"{key}.{name}" if key else str(name)
        is_section = _ours().get(general(place))
        if is_section is None and always(place, value):
            said.append(place)
            continue
        part, below = (value, []) if is_section is False else split_always(value, place)
        said += below
        if part or part == value or is_section:
            made[name] = part
    return made, said


@cache
def _ours() -> dict[str, bool]:
    """Maps our settings and sections to whether settings lie below them."""
    settings = [key for key, _ in walk()]
    sections = {key[:dot.start()] for key in settings for dot in re.finditer(r"\.", key)}
    return {**dict.fromkeys([*settings, *ITS_OWN], False), **dict.fromkeys([*sections, "stages"], True)}


def holding(fate: Always) -> str:
    """Returns the values that hold, as YAML writes them."""
    return " or ".join(one if one in (NUMBER, OWN_NAME) else f"`{yaml_of(one)}`" for one in fate.values)


def yaml_of(value: Any) -> str:
    """Returns a value as YAML writes it."""
    return "null" if value is None else "''" if value == "" else str(value).lower()


def target(fate: Renamed | Translated) -> str:
    """Returns the setting in place of a key, with further differences in parentheses."""
    values = fate.values if isinstance(fate, Renamed) else {}
    parts = [", ".join(f"{theirs}: {ours}" for theirs, ours in values.items()), fate.note]
    remarks = "; ".join(part for part in parts if part)
    return f"`{fate.to}`" + (f" ({remarks})" if remarks else "")
