"""The page of all keys known to the bridges: docs/trinity-keys.md."""

from ouroboros.commands.bridges.tables import find, keys, table
from ouroboros.pipeline.settings import guide
from ouroboros.pipeline.settings.key_tables import Always, Fate, Refused, Renamed, Translated, Works

SECTIONS = ("algorithm", "model", "cluster", "buffer", "explorer", "synchronizer", "trainer", "monitor", "service",
            "data_processor", "log")  # in the order of the guide
# the same keys as the first of their kind
TWINS = ("buffer.explorer_input.tasksets.*", "buffer.explorer_input.eval_tasksets.*")


def page() -> str:
    """Returns the tables of the guide's keys, of veRL's, and of its SFT trainers' as one Markdown page."""
    return _of_guide() + "".join(f"\n{table('sentences')[f'page_{name}']}\n| veRL | here |\n|---|---|\n{_rows(name)}"
                                 for name in ("verl", "verl_sft"))


def _of_guide() -> str:
    shown = _shown()
    lines = [table("sentences")["page_trinity"].format(len(shown), *counts().values()).rstrip("\n")]
    last = None
    for key, fate in sorted(shown.items(), key=_order):
        section = key.partition(".")[0] if key in SECTIONS or "." in key else ""
        if section != last:
            last = section
            lines += ["", f"## {section or 'The run'}", "", "| key | here |", "|---|---|"]
        lines.append(f"| `{key}` | {_cell_of_guide(key, fate)} |")
    return "\n".join(lines) + "\n"


def counts() -> dict[str, int]:
    """Returns the number of the guide's keys with each fate, by the name of its class."""
    fates = [Renamed if isinstance(fate, Translated) else type(fate) for fate in _shown().values()]
    return {kind.__name__: fates.count(kind) for kind in (Works, Renamed, Always, Refused)}


def _shown() -> dict[str, Fate]:
    return {key: fate for key, fate in guide.fates().items() if not key.startswith(TWINS)}


def _order(pair: tuple[str, Fate]) -> tuple:
    section = pair[0].partition(".")[0]
    return ("." in pair[0] or pair[0] in SECTIONS, SECTIONS.index(section) if section in SECTIONS else 0, pair[0])


def _cell_of_guide(key: str, fate: Fate) -> str:
    if isinstance(fate, Refused) and not isinstance(fate, Translated):
        return f"not here: {fate.why}"
    if isinstance(fate, Always):
        return f"always so, with {guide.holding(fate)}: {fate.why}"
    text = f"works, {fate.note}" if isinstance(fate, Works) and fate.note else (
        "works" if isinstance(fate, Works) else guide.target(fate))
    refused = []
    for group in guide.of_values().get(key, ()):
        word = "Not" if "values" in group else "Only"
        values = ", ".join(f"`{guide.yaml_of(value)}`" for value in group.get("values", group.get("only")))
        refused.append(f"{word} {values}: {group['why']}")
    return " ".join([text + ("." if refused else ""), *refused])


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
