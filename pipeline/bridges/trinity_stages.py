"""The stages of a Trinity-RFT configuration: names that they can have here, and what is said of them as a whole."""

import re
from typing import Any

from pipeline.bridges.translation import Entry, Path, Translation
from pipeline.compose.stage_settings import RESERVED
from pipeline.settings.algorithms import GIVEN


def names_of(values: dict[Path, Any]) -> dict[int, str]:
    """Position -> a name by which each stage can be a rule and a directory here; all differ. values: of the source."""
    names: dict[int, str] = {}
    for position in sorted({path[1] for path in values if len(path) > 2 and _is_stage(path)}):
        given = str(values.get(("stages", position, "stage_name")) or "")
        name = re.sub(r"\W+", "_", given, flags=re.ASCII).strip("_") or str(position + 1)
        if not name[0].isalpha() or name in (*RESERVED, "all") or name.startswith("evaluate_"):
            name = f"stage_{name}"
        while name in names.values():
            name += "_2"
        names[position] = name
    return names


def _is_stage(path: Path) -> bool:
    return path[0] == "stages" and isinstance(path[1], int)


def complete(made: Translation, values: dict[Path, Any]) -> None:
    """Names for stages that have none, new names also where others come after them, and remarks."""
    names = names_of(values)
    for position, name in names.items():
        made.choose(("stages", position, "stage_name"), name, "it has none there")
    renamed = {str(values.get(("stages", position, "stage_name"))): name for position, name in names.items()}
    for path, entry in made.entries.items():
        if path[0] == "stages" and path[2:] == ("after",):
            after = [renamed.get(str(n), n) for n in (entry.value if isinstance(entry.value, list) else [entry.value])]
            made.entries[path] = Entry(after, entry.comment)
    _remark(made, values)
    _remark_half(made, values)


def _remark(made: Translation, values: dict[Path, Any]) -> None:
    own = {path[2] for path in values if path[0] == "stages" and len(path) > 3}
    both = sorted(own & {path[0] for path in values if path[0] != "stages"})
    if both:
        made.chosen.append(f"A stage's {', '.join(both)} is merged over the settings of all, key by key. (Trinity-RFT "
                           "replaces the whole section, although its guide says that a stage inherits.)")
    kind = values.get(("algorithm", "algorithm_type"))
    if kind is not None and kind not in GIVEN and ("algorithm", "repeat_times") not in values:
        made.chosen.append("algorithm.repeat_times is not given: the algorithm's own applies, as the guide says. "
                           "(Trinity-RFT itself then makes one rollout per task.)")


def _remark_half(made: Translation, values: dict[Path, Any]) -> None:
    """A run that explores or trains alone is half of one there: the halves meet through buffer and checkpoints."""
    mode, algorithm = values.get(("mode",)), values.get(("algorithm", "algorithm_type"))
    if mode == "bench" and not names_of(values):
        made.chosen.append("mode=bench: there a run over the checkpoints that project and name lead to; here the "
                           "recipe that trained them, in that mode: put these eval_tasksets into it, and type "
                           "ouro run recipe=... mode=bench.")
    if mode not in ("explore", "train") or (mode == "train" and algorithm in GIVEN) or names_of(values):
        return
    alone = ("explores alone, by the weights that it begins with" if mode == "explore" else
             "trains on what an earlier stage with mode=explore wrote")
    made.chosen.append(f"mode={mode}: there one half of a run, which meets the other through the buffer and the "
                       f"checkpoints; here it {alone}. The two halves together are one run with mode=both, or two "
                       "stages of one recipe, with mode=explore and mode=train.")
