"""The tables of keys and sentences in tables/*.yaml.

A table of keys has three sections. `renamed`: key there -> setting here, or [setting, {value there: value here}].
`left_out`: groups of keys that do something there and nothing here, with the reason. `without_effect`: the same for
keys that need no equivalent here. `disabled`: values that disable a key of a group there too; `switch`: a key below it
with such a value; `equals`: a key whose value it may repeat. `loses`: the part of the task that a recipe lacks without
the key. `a.{b,c}` stands for a.b and a.c; keys below one that is not renamed share its entry. `a.*: b.*` renames every
key below a.
"""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ouroboros.pipeline.settings.guide_keys import Refused, Renamed

DIRECTORY = Path(__file__).parent / "tables"


@cache
def table(name: str) -> dict[str, Any]:
    """Returns the content of tables/<name>.yaml."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((DIRECTORY / f"{name}.yaml").read_text(encoding="utf-8"), loader)


@cache
def workflows() -> dict[str, dict[str, str]]:
    """Maps each workflow of tables/trinity_workflows.yaml to its group: `to`, `reward` and `note`, or `instead`."""
    return {name: group for group in table("trinity_workflows") for name in group["names"].split()}


def said(name: str, /, **values: Any) -> str:
    """Returns a sentence of tables/sentences.yaml with its values filled in."""
    return table("sentences")[name].format(**values)


def expanded(patterns: str) -> list[str]:
    """Expands blank-separated key patterns."""
    found = re.search(r"\{([^{}]*)\}", patterns)
    if not found:
        return [patterns]
    return [key for part in found[1].split(",")
            for key in expanded(patterns[:found.start()] + part + patterns[found.end():])]


@cache
def keys(name: str) -> dict[str, Renamed | Refused]:
    """Maps the keys of tables/<name>.yaml to their equivalents here."""
    read, found = table(name), {}
    for group in (*read.get("left_out", ()), *read.get("without_effect", ())):
        idle = (*group.get("disabled", ()), *group.get("switch", {}).items())
        fate = Refused(group["why"], idle, group.get("loses", ""), equals=group.get("equals"))
        found |= {key: fate for pattern in group["keys"].split() for key in expanded(pattern)}
    for pattern, to in read.get("renamed", {}).items():
        found |= dict.fromkeys(expanded(pattern), Renamed(*([to] if isinstance(to, str) else to)))
    return found


def find(key: str, known: dict[str, Renamed | Refused]) -> tuple[str, Renamed | Refused] | None:
    """Returns the entry of a key: its own, or that of the nearest key above it which is not renamed."""
    entry = "_target_" if key.endswith("._target_") and "_target_" in known else key
    while entry and entry not in known:
        entry = entry.rpartition(".")[0]
        if isinstance(below := known.get(f"{entry}.*"), Renamed):
            return key, replace(below, to=below.to[:-1] + key[len(entry) + 1:])
    found = known.get(entry)
    return None if found is None or (isinstance(found, Renamed) and entry != key) else (entry, found)


# reasons of keys that need no equivalent
WITHOUT_EFFECT = frozenset(group["why"] for name in ("verl", "verl_sft") for group in table(name)["without_effect"])
