"""What `mode` makes of the stages of a recipe: of which kind each is, and what must stand before it.

`both` and `colocate` make the same, so `mode` is a `how` setting and no part of an identity. The others make something
else, and there the difference is the *kind* of stage, which is. A run as a whole in mode `bench` is its recipe, trained
before, with a stage `bench` behind it.
"""

from typing import Any

from pipeline.compose.stage_settings import BENCH, before, effective, entries, names_model
from pipeline.job.schedule import Schedule
from pipeline.settings.algorithms import GIVEN
from pipeline.store.errors import ConfigError

TRAINING = ("train", "rft", "offline")  # kinds that make a model by training


def kind_of(settings: dict[str, Any]) -> str:
    """The kind of a stage of the recipe (the module stages/<kind>.py that does it), from its effective settings."""
    if settings["mode"] == "bench":
        return "bench"
    if settings["algorithm"]["algorithm_type"] in GIVEN:
        return "train"
    return {"explore": "rollout", "train": "offline"}.get(settings["mode"], "rft")


def planned(config: dict[str, Any]) -> list[dict]:
    """The entries of `stages` as they are to be planned: each with a mode of its own where the run's is `bench`."""
    if config["mode"] != "bench":
        return entries(config)
    trained = [{**entry, "mode": entry.get("mode", "both")} for entry in entries(config)]
    return [*trained, {"stage_name": BENCH, "after": [entry["stage_name"] for entry in trained]}]


class Line:
    """Who stands before whom. parents: name -> names that a stage comes directly after; kinds: name -> kind.

    What `after` names and does not stand above is left out, and of entries with one name the first counts:
    pipeline/compose/stage_settings.py tells both. So nobody ever stands before himself.
    """

    def __init__(self, config: dict[str, Any]):
        self.parents: dict[str, list[str]] = {}
        self.kinds: dict[str, str] = {}
        self.settings: dict[str, dict] = {}
        self.with_own: set[str] = set()  # stages that say themselves which model they begin with
        for entry in planned(config):
            name = entry["stage_name"]
            if name in self.parents:
                continue
            self.with_own |= {name} if names_model(entry) else set()
            named = before(entry, list(self.parents))
            self.parents[name] = [n for n in named if n in list(self.parents)] if isinstance(named, list) else []
            self.settings[name] = effective(config, entry)
            self.kinds[name] = kind_of(self.settings[name])

    def ancestors(self, name: str) -> list[str]:
        """Every stage before one, the nearest first."""
        found: dict[str, None] = {}
        here = self.parents[name]
        while here:
            new = [n for n in dict.fromkeys(here) if n not in found]
            found |= dict.fromkeys(new)
            here = [parent for n in new for parent in self.parents[n]]
        return list(found)

    def begins_with(self, name: str) -> str | None:
        """The stage whose model one begins with: the nearest before it that trains, and where none does, the first that
        it comes after, which has made none and hands on what it began with. None: it has a model of its own, or the
        run's."""
        if name in self.with_own or not self.parents[name]:
            return None
        return next((n for n in self.ancestors(name) if self.kinds[n] in TRAINING), self.parents[name][0])

    def explored(self, name: str) -> str | None:
        """The stage whose experience an offline stage trains on: the nearest before it that only explores."""
        return next((n for n in self.ancestors(name) if self.kinds[n] == "rollout"), None)

    def trained(self, name: str) -> list[str]:
        """The stages before one that train, in the order of the recipe."""
        above = self.ancestors(name)
        return [n for n in self.parents if n in above and self.kinds[n] in TRAINING]


def problems(config: dict[str, Any]) -> list[str]:
    """What is wrong with the order of modes in a recipe, one line each. Its stages must be named and ordered well."""
    line, found = Line(config), []
    for name, kind in line.kinds.items():
        if kind == "offline":
            found += [f"stage '{name}': {problem}" for problem in _offline_problems(line, name)]
        if kind == "bench" and not line.trained(name):
            found.append(f"stage '{name}': mode=bench evaluates the checkpoints of the stages before it, and none of "
                         "those trains. Put it behind one that does.")
    return found


def _offline_problems(line: Line, name: str) -> list[str]:
    source = line.explored(name)
    if source is None:
        return ["mode=train, with an algorithm that learns from rollouts, trains on what an earlier stage with "
                "mode=explore wrote, and none stands before it. Put one there (stage_name: explore, mode: explore), "
                "or set mode=both."]
    theirs, batch = line.settings[source], line.settings[name]["buffer"]["train_batch_size"]
    rows = theirs["buffer"]["batch_size"] * (theirs["algorithm"]["repeat_times"] or 1)
    try:
        Schedule(rows, batch or rows, 1, 0, 1)
    except ConfigError as error:
        return [f"on the experience of '{source}': {error}"]
    return []
