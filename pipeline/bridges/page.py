"""The page of every key that the bridges know: docs/trinity-keys.md."""

from pipeline.bridges.tables import find, keys, table
from pipeline.settings import guide
from pipeline.settings.guide_keys import Refused, Renamed


def page() -> str:
    """The tables of the guide's keys, of veRL's, and of its SFT trainers', as one Markdown page."""
    return guide.page() + "".join(f"\n{table('sentences')[f'page_{name}']}\n| veRL | here |\n|---|---|\n{_rows(name)}"
                                  for name in ("verl", "verl_sft"))


def of_verl(key: str) -> str | None:
    """What a key of veRL is here, in the words of the page; None for a key that is not known."""
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
