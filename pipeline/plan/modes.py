"""How `mode` determines the kind of each stage of a recipe, and its required predecessors.

`both` and `colocate` produce the same, so `mode` is a `how` setting and not part of an identity. The other modes
produce something else; the *kind* of stage expresses that, and is in the identity. A run as a whole in mode `bench`
is its recipe, already trained, followed by a stage `bench`.
"""


from collections.abc import Iterator

from pipeline.compose.stage_settings import BENCH, before, effective, entries, names_model
from pipeline.job.schedule import Schedule
from pipeline.settings.config import Config
from pipeline.settings.data import SHOWN, train_places
from pipeline.settings.kinds import Kind
from pipeline.settings.profiles import profiled
from pipeline.settings.setting import at
from pipeline.settings.train_batch import rows_of_step
from pipeline.store.errors import ConfigError, Problem


def planned(config: Config) -> list[dict]:
    """Returns the entries of `stages` to plan: each with its own mode if the run's is `bench`."""
    if not config.only_evaluates:
        return entries(config)
    if config.asks_server and not config.stages:
        return [{"stage_name": BENCH}]
    trained = [{**entry, "mode": entry.get("mode", "both")} for entry in entries(config)]
    return [*trained, {"stage_name": BENCH, "after": [entry["stage_name"] for entry in trained]}]


class Line:
    """The order of stages. parents: name -> direct predecessors; kinds: name -> kind.

    Names in `after` that are not above the stage are ignored, and of entries with one name the first counts:
    pipeline/compose/stage_settings.py reports both. The graph is therefore acyclic.
    """

    def __init__(self, config: Config):
        self.parents: dict[str, list[str]] = {}
        self.kinds: dict[str, Kind] = {}
        self.settings: dict[str, Config] = {}
        self.with_own: set[str] = set()  # stages that set their own initial model
        for entry in planned(config):
            name = entry["stage_name"]
            if name in self.parents:
                continue
            self.with_own |= {name} if names_model(entry) else set()
            named = before(entry, list(self.parents))
            self.parents[name] = [n for n in named if n in list(self.parents)] if isinstance(named, list) else []
            self.settings[name] = effective(config, entry)
            self.kinds[name] = self.settings[name].kind

    def ancestors(self, name: str) -> list[str]:
        """Returns every predecessor of a stage, the nearest first."""
        found: dict[str, None] = {}
        here = self.parents[name]
        while here:
            new = [n for n in dict.fromkeys(here) if n not in found]
            found |= dict.fromkeys(new)
            here = [parent for n in new for parent in self.parents[n]]
        return list(found)

    def begins_with(self, name: str) -> str | None:
        """Returns the stage whose model is the initial one: the nearest predecessor that trains; if none does, the
        first
        direct predecessor, which passes on its own initial model. None: it has a model of its own, or the run's;
        a stage that explored with the model of a server passes on none."""
        if name in self.with_own or not self.parents[name]:
            return None
        first = self.parents[name][0]
        found = next((n for n in self.ancestors(name) if self.kinds[n].trains), first)
        return None if self.settings[found].asks_server and self.kinds[found].explores else found

    def source(self, name: str) -> str | None:
        """Returns the stage whose experience a stage reads: a stage with mode=score that of the nearest predecessor
        that explores, an offline stage that of the nearest one that only explores, or that scores such a one."""
        if self.kinds[name].only_rewards:
            return next((n for n in self.ancestors(name) if self.kinds[n].explores), None)
        return next((n for n in self.ancestors(name) if self._only_explored(n)), None)

    def _only_explored(self, name: str | None) -> bool:
        """Returns whether a stage makes experience of one model: that of a stage that trains meanwhile is of many."""
        kind = self.kinds.get(name)
        if not kind or kind.trains or not kind.makes_experience:
            return False
        return kind.explores or self._only_explored(self.source(name))

    def explored(self, name: str) -> str | None:
        """Returns the stage that generated that experience."""
        found = self.source(name)
        return self.explored(found) if found and not self.kinds[found].explores else found

    def servers(self) -> list[str]:
        """Returns the stages whose tasks the model of a server answers."""
        return [name for name, settings in self.settings.items() if settings.asks_server]

    def trained(self, name: str) -> list[str]:
        """Returns the predecessors that train, in recipe order."""
        above = self.ancestors(name)
        return [n for n in self.parents if n in above and self.kinds[n].trains]


OPERATORS = "data_processor.experience_pipeline.operators"


def problems(config: Config) -> list[Problem]:
    """Lists problems with the order of modes in a recipe, one line each. Its stages must have valid names and order."""
    line, found = Line(config), []
    for name, kind in line.kinds.items():
        if kind.is_offline:
            found += [problem.of([name]) for problem in _offline_problems(line, name)]
        own = at(line.settings[name], OPERATORS)
        used = own == at(config, OPERATORS) and any(one.makes_experience for one in line.kinds.values())
        if kind.learns_from_given and own and not used:
            found.append(Problem(OPERATORS, "judge responses of an explorer, and this stage learns from given ones.",
                                 "Set them in the stage that explores; data_processor.task_pipeline.operators curate "
                                 "given rows.", found=own, stages=[name]))
        if kind.explores:
            found += [problem.of([name]) for problem in _unmeasured(line, name)]
        if kind.only_rewards:
            found += [problem.of([name]) for problem in _scored_problems(line, name)]
        if line.begins_with(name) in line.servers():
            found.append(Problem("after", "begins with the model of a server, which is not here.",
                                 "Put it before the evaluation of the server, or give it a model.", stages=[name]))
        if kind.evaluates and not line.trained(name) and not line.settings[name].asks_server:
            found.append(Problem("mode", "evaluates the checkpoints of the stages before it, and none of those trains.",
                                 "Put it behind one that does.", found=line.settings[name].mode, stages=[name]))
    return found


def _unmeasured(line: Line, name: str) -> Iterator[Problem]:
    """Yields a problem for each feature that no stage measures before this one."""
    able = [one for one in line.ancestors(name) if line.kinds[one].explores and not line.kinds[one].trains]
    for place, one in train_places(line.settings[name].buffer.explorer_input):
        for key in one.data_selector.feature_keys:
            if (measured := profiled(key)) and measured[0] not in able:
                yield Problem(f"buffer.explorer_input.{place}.data_selector.feature_keys", "names no stage with "
                              f"mode=explore before this one; there {'is ' + ', '.join(able) if able else 'is none'}.",
                              "Put one there, which attempts every task, and set the selector in this stage alone.",
                              found=key)


def _scored_problems(line: Line, name: str) -> Iterator[Problem]:
    source = line.source(name)
    if source is None:
        yield Problem("mode", "is about what an earlier stage explored, and none is before it.",
                      "Put it behind one with mode=explore, both or colocate.", found=line.settings[name].mode)
        return
    theirs = {one.name: one for _, one in train_places(line.settings[source].buffer.explorer_input)}
    for place, one in train_places(line.settings[name].buffer.explorer_input):
        key = f"buffer.explorer_input.{place}"
        if one.name not in theirs:
            yield Problem(f"{key}.name", f"'{source}' explored {', '.join(theirs)}.", "Needed a set of that name.",
                          found=one.name)
            continue
        for part in ("path", "subset_name", "split", "format", "limit"):
            if (here := getattr(one, part)) != getattr(theirs[one.name], part):
                yield Problem(f"{key}.{part}", f"with mode={line.settings[name].mode} the tasks are those that "
                              f"'{source}' explored.", "Leave it as it is there.", found=here)


def _uncurated(line: Line, name: str) -> list[Problem]:
    """Reports operators on experience that an offline stage would ignore: those of the stage that wrote it judge it."""
    key, source = OPERATORS, line.source(name)
    own, theirs = ([] if one is None else at(line.settings[one], key) for one in (name, source))
    if not own or own == theirs:
        return []
    if source is None:
        return [Problem(key, "a stage with mode=train reads recorded experience as it is: these operators would judge "
                        "no row.", "Leave them out.", found=own)]
    return [Problem(key, f"a stage with mode=train reads what the operators of '{source}' left, and these would judge "
                    f"no row.", f"Set them in '{source}', or in a stage with mode=score between the two.", found=own)]


def _offline_problems(line: Line, name: str) -> list[Problem]:
    return [*_rowless(line, name), *_uncurated(line, name)]


def _rowless(line: Line, name: str) -> list[Problem]:
    source = line.explored(name)
    if line.source(name) is None:
        if isinstance(line.settings[name].buffer.trainer_input.experience_buffer.path, str):  # of `ouro serve --record`
            return []
        return [Problem("mode", "with an algorithm that learns from rollouts, a stage trains on what an earlier one "
                        "with mode=explore wrote, and none is before it.", "Put one there (stage_name: explore, mode: "
                        f"explore), set {SHOWN}.path to a directory that ouro serve --record wrote, or set mode=both.",
                        found=line.settings[name].mode)]
    if line.settings[source].asks_server:
        return [Problem("mode", f"what '{source}' wrote are answers of a server, which gives neither the token "
                        "ids nor the log-probs that rollouts are trained by.", "Train on them as demonstrations, with "
                        f"algorithm_type=sft and {SHOWN}.path (docs/serve.md).", found=line.settings[name].mode)]
    theirs, batch = line.settings[source], line.settings[name].buffer.train_batch_size
    rows = rows_of_step(theirs)
    try:
        Schedule(rows, batch or rows, 1, 0, 1)
    except ConfigError as error:
        return [problem.but(needed=f"on the experience of '{source}': {problem.needed}")
                for problem in error.problems]
    return []
