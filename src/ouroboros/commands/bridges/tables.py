"""The tables of keys and sentences, tables/*.yaml; pipeline/settings/key_tables.py describes their sections."""

from dataclasses import replace
from functools import cache
from typing import Any

from ouroboros.pipeline.settings.key_tables import Refused, Renamed, renamed, table, without_counterpart


@cache
def workflows() -> dict[str, dict[str, str]]:
    """Maps each workflow of tables/trinity_workflows.yaml to its group."""
    return {name: group for group in table("trinity_workflows") for name in group["names"].split()}


def said(name: str, /, **values: Any) -> str:
    """Returns a sentence of tables/sentences.yaml with its values filled in."""
    return table("sentences")[name].format(**values)


@cache
def keys(name: str) -> dict[str, Renamed | Refused]:
    """Maps the keys of tables/<name>.yaml to their equivalents here."""
    return without_counterpart(table(name)) | renamed(table(name))


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
