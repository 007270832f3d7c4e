"""`from=RUN[/STAGE]@STEP`: the frozen configuration of a run, whose stage changes settings after a trainer step.

The stage is the last one of the run that has made steps, if none is named.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ouroboros.pipeline.compose import axes
from ouroboros.pipeline.compose.interpolation import stage_names
from ouroboros.pipeline.settings import changes
from ouroboros.pipeline.settings.rates import TOTALS
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.errors import ConfigError, nearest

NEEDED = "Needed from=RUN@STEP or from=RUN/STAGE@STEP, after a trainer step of that run."


@dataclass(frozen=True)
class Branch:
    """A branch that overrides ask for. words: those that compose it, without `from`."""

    stage: str
    step: int
    words: list[str]

    def placed(self, whole: dict[str, Any], key: str, value: Any) -> tuple[str, Any]:
        """Returns the key of a composition, and its value, that an override of a key is put to."""
        names = stage_names(whole["stages"])
        prefix = f"stages.{names.index(self.stage)}." if names else ""
        own = key.removeprefix(prefix)
        if (acts := changes.acts(own)) == "never":
            raise ConfigError(f"{own}: cannot change on the way (docs/branches.md). Leave out from= for another run.")
        if acts:
            return f"{prefix}changes", {str(self.step): {own: value}}
        return (f"{prefix}{own}" if own in TOTALS else key), value


def branch_of(overrides: list[str]) -> Branch | None:
    """Returns the branch that overrides ask for, None without `from`. Raises ConfigError for a run, stage or step that
    does not exist, and for overrides that a branch cannot have."""
    given = {axes.key_of(word): word for word in overrides}
    if (word := given.pop(axes.BRANCH, None)) is None:
        return None
    if found := [given[key] for key in ("recipe", "changes") if key in given]:
        raise ConfigError(f"'{found[0]}' with {word}: a branch has the configuration of its run.")
    values = {key: axes.plain(one.partition("=")[2]) for key, one in given.items()}
    place, _, step = axes.plain(word.partition("=")[2]).rpartition("@")
    view, stage = _run(Path(values.get("checkpoint_root_dir", ".")), place)
    directories = {row["name"]: Path(row["directory"]) for row in files.read_json(view / "plan.json")["stages"]}
    made = {name: steps for name, one in directories.items() if (steps := tables.steps_present(one, "steps"))}
    stage = stage or next(reversed(made), "")
    if not step.isdecimal() or int(step) not in made.get(stage, ()):
        there = "; ".join(f"{name} 1 to {steps[-1]}" for name, steps in made.items())
        raise ConfigError(f"'{word}': the trainer steps of {view.name} are: {there or 'none'}. {NEEDED}")
    if values.get("name") == view.name:
        raise ConfigError(f"'{given['name']}': is the name of the run that it branches from. Give another one.")
    differs = {key: value for key, value in values.items() if changes.acts(key.removeprefix(f"stages.{stage}."))}
    name = axes.name_of(f"{view.name}-at{step}", differs).replace(",", "-").replace("=", "")
    words = [re.sub(r"(buffer\.total_steps=)\+(\d+)$", lambda one: f"{one[1]}{int(step) + int(one[2])}", one)
             for one in ({"name": axes.word_of("name", name)} | given).values()]
    return Branch(stage, int(step), [axes.word_of("recipe", view / "config.yaml"), *words])


def _run(root: Path, place: str) -> tuple[Path, str]:
    """Returns the directory of the run, and the name of the stage or none, that [PROJECT/]RUN[/STAGE] means."""
    known = [file.parent for file in sorted(root.glob("runs/*/*/config.yaml"))]
    found = [(view, place[len(name) + 1 :]) for view in known for name in (f"{view.parent.name}/{view.name}", view.name)
             if f"{place}/".startswith(f"{name}/")]
    if len(found) != 1:
        raise ConfigError(f"'{axes.BRANCH}={place}': {len(found) or 'no'} runs of that name in {root / 'runs'}."
                          f"{nearest(place, [view.name for view in known])} {NEEDED}")
    return found[0]
