"""`from=RUN[/STAGE]@STEP`: the frozen configuration of a run, whose stage changes settings after a trainer step.

The stage is the last one of the run that has made steps, if none is named.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ouroboros.pipeline.compose import axes
from ouroboros.pipeline.compose.axes import BRANCH as KEY
from ouroboros.pipeline.settings import changes
from ouroboros.pipeline.settings.rates import TOTALS
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.errors import ConfigError, nearest

GIVEN = ("recipe", "changes")  # what a branch has of its run
NEEDED = "Needed from=RUN@STEP or from=RUN/STAGE@STEP, after a trainer step of that run."


@dataclass
class Branch:
    """What overrides say of a branch. prefix: of keys of its stage in a recipe with several. words: the overrides
    that compose it, without `from`."""

    step: int
    prefix: str = ""
    words: list[str] = field(default_factory=list)

    def placed(self, key: str, value: Any) -> tuple[str, Any]:
        """Returns where a value is put that an override gives to a key of a composition."""
        own = key.removeprefix(self.prefix)
        if own.startswith("stages."):
            return key, value
        acts = changes.acts(own)
        if acts == "never":
            raise ConfigError(f"{own}: cannot change on the way (docs/branches.md). Leave out {KEY}= for another run.")
        if acts:
            return f"{self.prefix}changes", {str(self.step): {own: value}}
        return (f"{self.prefix}{own}" if own in TOTALS else key), value


def branch_of(overrides: list[str]) -> Branch | None:
    """Returns what overrides say of a branch, None without `from`. Raises ConfigError for a run, stage or step that
    does not exist, and for overrides that a branch cannot have."""
    given = {axes.key_of(word): word for word in overrides}
    if KEY not in given:
        return None
    if found := [given[key] for key in GIVEN if key in given]:
        raise ConfigError(f"'{found[0]}' with {given[KEY]}: a branch has the configuration of its run.")
    place, _, step = axes.plain(given[KEY].partition("=")[2]).rpartition("@")
    if not place or not step.isdecimal():
        raise ConfigError(f"'{given[KEY]}': {NEEDED}")
    root = Path(axes.plain(given.get("checkpoint_root_dir", "=.").partition("=")[2]))
    view, stage = _run(root, place)
    entries = yaml.safe_load((view / "config.yaml").read_text(encoding="utf-8")).get("stages") or []
    trained = _trained(view)
    stage = stage or next(reversed(trained), None)
    if stage not in trained:
        raise ConfigError(f"'{given[KEY]}': stages that have made trainer steps are {', '.join(trained) or 'none'}. "
                          f"{NEEDED}")
    made = tables.steps_present(trained[stage], "steps")
    if int(step) not in made:
        raise ConfigError(f"'{given[KEY]}': stage {stage} has made {len(made)} trainer steps. {NEEDED}")
    names = [entry["stage_name"] for entry in entries]
    branch = Branch(int(step), f"stages.{names.index(stage)}." if names else "")
    words = [_counted(word, branch.step) for word in overrides if axes.key_of(word) != KEY]
    if "name" not in given:
        differs = {key: axes.plain(word.partition("=")[2]) for key, word in given.items()
                   if changes.acts(key.removeprefix(f"stages.{stage}."))}
        name = axes.name_of(f"{view.name}-at{step}", differs).replace(",", "-").replace("=", "")
        words.append(f"name='{name}'")
    elif axes.plain(given["name"].partition("=")[2]) == view.name:
        raise ConfigError(f"'{given['name']}': is the name of the run that it branches from. Give another one.")
    branch.words = [f"recipe='{view / 'config.yaml'}'", *words]
    return branch


def _run(root: Path, place: str) -> tuple[Path, str | None]:
    """Returns the directory of a run, and the stage, that PROJECT/RUN/STAGE names, or a part of it."""
    parts = place.split("/")
    for size in (2, 1):
        here = "/".join(parts[:size]) if size == 2 else f"*/{parts[0]}"
        views = [found.parent for found in (root / "runs").glob(f"{here}/config.yaml")] if len(parts) >= size else []
        if len(views) == 1 and len(parts) <= size + 1:
            return views[0], parts[size] if len(parts) > size else None
    known = [found.parent.name for found in (root / "runs").glob("*/*/config.yaml")]
    raise ConfigError(f"'{KEY}={place}': no run of that name, or several, in {root / 'runs'}."
                      f"{nearest(parts[0], known)} {NEEDED}")


def _trained(view: Path) -> dict[str, Path]:
    """Returns the training stages of a run by name."""
    rows = files.read_json(view / "plan.json")["stages"]
    return {row["name"]: Path(row["directory"]) for row in rows
            if (Path(row["directory"]) / "steps").is_dir()}


def _counted(word: str, step: int) -> str:
    """Returns an override with `buffer.total_steps=+50` counted from a step."""
    found = re.fullmatch(r"(.*buffer\.total_steps)=\+(\d+)", word)
    return f"{found[1]}={step + int(found[2])}" if found else word
