"""The status of each Trinity-RFT guide key: it works, has another name, says what always holds, or is refused.

`ouro import keys` prints the whole table, also in docs/trinity-keys.md. The keys are in guide_keys.py, guide_always.py
and guide_refused.py of pipeline/settings.
"""

import re
from typing import Any

from ouroboros.pipeline.settings.guide_always import ALWAYS
from ouroboros.pipeline.settings.guide_keys import (
    NOTED,
    ONLY,
    OWN_NAME,
    RENAMED,
    SECRETS,
    TASKSETS,
    VALUES,
    WORKS,
    Always,
    Fate,
    Refused,
    Renamed,
    Translated,
    Works,
)
from ouroboros.pipeline.settings.guide_refused import REFUSED, TRANSLATED


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
    while entry not in KEYS:
        entry = entry.rpartition(".")[0]
        if not entry:
            return None
    return entry, KEYS[entry]


def explain_absent(key: str) -> str | None:
    """Returns the alternative to a guide key that is missing here; None when it works, or is not in the guide."""
    found = find(key)
    if found is None or isinstance(found[1], Works):
        return None
    entry, fate = found
    meaning = f"here it is `{fate.to}`{_more(fate)}" if isinstance(fate, Renamed | Translated) else fate.why
    if isinstance(fate, Always):
        meaning = f"needed {_values(fate)}, which holds without it: {fate.why}"
    return meaning if entry == key else f"{entry}: {meaning}"


def explain_value(key: str, value: Any) -> str | None:
    """Returns the alternative to a value that the guide allows and is refused here; None for any other value."""
    if isinstance(value, (list, dict)):
        return None
    works, why = ONLY.get(general(key), ((value,), None))
    return VALUES.get(general(key), {}).get(value) if value in works else why


def always(key: str, value: Any) -> bool:
    """Returns whether a key says with this value what holds here in any case, or switches off what is not here."""
    fate = KEYS.get(general(key))
    if type(fate) is Refused:
        return any(value == one and type(value) is type(one) for one in fate.idle)
    return isinstance(fate, Always) and fate.holds(key, value)


def may_hold(key: str) -> bool:
    """Returns whether `always` is true of a key with some value."""
    fate = KEYS.get(general(key))
    return isinstance(fate, Always) or (type(fate) is Refused and bool(fate.idle))


def without_always(settings: Any, key: str = "") -> Any:
    """Returns nested settings without the keys that say what holds here in any case. key: dotted, of `settings`."""
    if isinstance(settings, list):
        return [without_always(one, f"{key}.{place}") for place, one in enumerate(settings)]
    if not isinstance(settings, dict):
        return settings
    made = {}
    for name, value in settings.items():
        place = f"{key}.{name}" if key else str(name)
        if always(place, value):
            continue
        part = without_always(value, place)
        if part or part == value or place not in OWN_SECTIONS:
            made[name] = part
    return made


def page() -> str:
    """Returns the table of every key as a Markdown page: docs/trinity-keys.md."""
    shown = _shown()
    lines = [line.format(len(shown), *counts().values()) for line in PAGE]
    last = None
    for key, fate in sorted(shown.items(), key=_order):
        section = key.partition(".")[0] if key in SECTIONS or "." in key else ""
        if section != last:
            last = section
            lines += ["", f"## {section or 'The run'}", "", "| key | here |", "|---|---|"]
        lines.append(f"| `{key}` | {_cell(key, fate)} |")
    return "\n".join(lines) + "\n"


def counts() -> dict[str, int]:
    """Returns the number of keys with each fate, by the name of its class."""
    fates = [Renamed if isinstance(fate, Translated) else type(fate) for fate in _shown().values()]
    return {kind.__name__: fates.count(kind) for kind in (Works, Renamed, Always, Refused)}


def _shown() -> dict[str, Fate]:
    return {key: fate for key, fate in KEYS.items() if not key.startswith(TWINS)}


def _cell(key: str, fate: Fate) -> str:
    if isinstance(fate, Refused) and not isinstance(fate, Translated):
        return f"not here: {fate.why}"
    if isinstance(fate, Always):
        return f"always so, with {_values(fate)}: {fate.why}"
    text = (f"`{fate.to}`{_more(fate)}" if isinstance(fate, Renamed | Translated) else
            ", ".join(filter(None, ["works", fate.note])))
    works, why = ONLY.get(key, ((), ""))
    only = [f"Only {', '.join(f'`{shown}`' for shown in dict.fromkeys(map(_yaml, works)))}: {why}"] if works else []
    reasons: dict[str, list[str]] = {}
    for value, why in VALUES.get(key, {}).items():
        reasons.setdefault(why, []).append(f"`{value}`")
    refused = [f"Not {', '.join(values)}: {why}" for why, values in reasons.items()]
    return " ".join([text + ("." if refused or only else ""), *only, *refused])


def _values(fate: Always) -> str:
    """Returns the values that hold, as YAML writes them."""
    words = {int: "any number", OWN_NAME: "the key above it"}
    return " or ".join(words[one] if one in (int, OWN_NAME) else f"`{_yaml(one)}`" for one in fate.values)


def _yaml(value: Any) -> str:
    return "null" if value is None else "''" if value == "" else str(value).lower()


def _more(fate: Renamed | Translated) -> str:
    """Describes further differences of a renamed key, in parentheses."""
    values = fate.values if isinstance(fate, Renamed) else {}
    parts = [", ".join(f"{theirs}: {ours}" for theirs, ours in values.items()), fate.note]
    remarks = "; ".join(part for part in parts if part)
    return f" ({remarks})" if remarks else ""


def _order(pair: tuple[str, Fate]) -> tuple:
    section = pair[0].partition(".")[0]
    return ("." in pair[0] or pair[0] in SECTIONS, SECTIONS.index(section) if section in SECTIONS else 0, pair[0])


IN_ENVIRONMENT = Works("as `${oc.env:VARIABLE}`: a secret goes into no file")
KEYS: dict[str, Fate] = {**dict.fromkeys(WORKS, Works()), **NOTED, **dict.fromkeys(SECRETS, IN_ENVIRONMENT), **RENAMED,
                         **ALWAYS, **REFUSED, **TRANSLATED}
SECTIONS = ("algorithm", "model", "cluster", "buffer", "explorer", "synchronizer", "trainer", "monitor", "service",
            "data_processor", "log")  # in the order of the guide
OWN_SECTIONS = ("service", "service.data_juicer")  # which have no setting of ours
TWINS = (TASKSETS[1], TASKSETS[2])  # the same keys as the first of their kind

PAGE = [
    "# Keys of the Trinity-RFT configuration guide",
    "",
    "Made by `ouro import keys`; a test fails when this page is not what that prints. Every key of the guide, and",
    "what becomes of it here: {0} keys, of which {1} work as they are, {2} have another name, which `ouro import`",
    "writes, {3} say what always holds (accepted with the value that holds, and without effect), and {4} are not here.",
    "A key that is not here, and another value than one that holds, is an error in a configuration, with the sentence",
    "below. `ouro import trinity FILE` translates a whole configuration (see [migrate.md](migrate.md)).",
    "",
    "What is said of `taskset` holds for each of `tasksets` and `eval_tasksets`, what is said of `experience_buffer`",
    "and all of it for every stage of `stages`. `*_args` are free: what stands below",
    "them is known to the function.",
]
