"""The page of all keys known to the bridges: docs/trinity-keys.md."""

from ouroboros.commands.bridges.tables import find, keys, table
from ouroboros.pipeline.settings import guide
from ouroboros.pipeline.settings.guide_keys import Refused, Renamed


def page() -> str:
    """Returns the tables of the guide's keys, of veRL's, and of its SFT trainers' as one Markdown page."""
    return guide.page() + "".join(f"\n{table('sentences')[f'page_{name}']}\n| veRL | here |\n|---|---|\n{_rows(name)}"
                                  for name in ("verl", "verl_sft"))


def of_verl(key: str) -> str | None:
    """Returns the page's text on a veRL key; None for an unknown key."""
    if key in table("verl")["together"]:
        return table("verl")["together"][key]
    if found := find(key, keys("verl")):
        return _cell(found[1])
    of_sft = {name: _cell(fate) for name, fate in keys("verl_sft").items()} | table("verl_sft")["together"]
    return of_sft.get(key)


def _cell(fate: Renamed | Refused) -> str:
    return f"not meant here: {fate.why}" if isinstance(fate, Refused) else f"`{fate.to}`"


def _rows(name: str) -> str:
    rows = {key: _cell(fate) for key, fate in keys(name).items()} | table(name)["together"]
    return "".join(f"| `{key}` | {rows[key]} |\n" for key in sorted(rows))
