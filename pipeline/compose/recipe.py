"""A recipe, resolved: the settings of a run and of every one of its stages, and the order of the stages.

An entry of `stages` is {stage_name, after, and any settings}. Without `after` a stage follows the one above it;
`after: [a, b]` names others above it, `after: []` none. The rest is merged over the global settings: sections key by
key, lists as a whole. Arguments (`*_args`) belong to the function of the same section: where a stage names another
function, only its own arguments count.

`mode` determines the kind of each stage. `both` and `colocate` produce the same, so `mode` is a `how` setting and not
part of an identity. The other modes produce something else; the *kind* of stage expresses that, and is in the identity.
A run as a whole in mode `bench` is its recipe, already trained, followed by a stage `bench`.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from ouroboros.pipeline.settings import schema
from ouroboros.pipeline.settings.algorithms import base_of, filled, functions
from ouroboros.pipeline.settings.combinations import LONGEST_NAME
from ouroboros.pipeline.settings.config import ITS_OWN, RUN_WIDE, Config
from ouroboros.pipeline.settings.kinds import CURATE, IMAGES, MODEL, QUANTIZED, REPORT, REWRITES, TASKS, Kind
from ouroboros.pipeline.settings.model import Model
from ouroboros.pipeline.settings.setting import at, given, parsed_environment
from ouroboros.pipeline.store.digests import StageModel
from ouroboros.pipeline.store.errors import ConfigError, Problem, nearest

BENCH = "bench"  # name of the stage added to a run in mode `bench`
STAGE_NAME = re.compile(rf"[A-Za-z]\w{{,{LONGEST_NAME - 1}}}", re.ASCII)
RESERVED = (IMAGES, TASKS, CURATE, MODEL, QUANTIZED, "evaluate_base", REPORT, BENCH)  # stages that the plan adds


def entries(config: Config) -> list[dict]:
    """Returns the stages of a run. A recipe without any is one stage: the global settings."""
    if config.stages:
        return config.stages
    algorithm = config.algorithm
    return [{"stage_name": base_of(algorithm.algorithm_type) if algorithm.on_given_tokens else "rft"}]


def _planned(config: Config) -> list[dict]:
    """Returns the entries of `stages` to plan: each with its own mode if the run's is `bench`."""
    if not config.only_evaluates:
        return entries(config)
    if config.asks_server and not config.stages:
        return [{"stage_name": BENCH}]
    trained = [{**entry, "mode": entry.get("mode", "both")} for entry in entries(config)]
    return [*trained, {"stage_name": BENCH, "after": [entry["stage_name"] for entry in trained]}]


def before(entry: dict, above: list[str]) -> list[str]:
    """Returns the names of a stage's predecessors. above: names of those listed above it, in order."""
    named = entry.get("after")
    if named is None:
        return above[-1:]
    return [named] if isinstance(named, str) else named


def effective(config: Config, entry: dict) -> Config:
    """Returns the settings of one stage: its own merged over the global ones, null algorithm components filled in."""
    made = merged(config, entry)
    return made.but("algorithm", filled(made.algorithm))


def merged(config: Config, entry: dict) -> Config:
    """Merges an entry over settings; null is left to the algorithm. Where the entry names another
    function, only the entry's arguments count."""
    own = entry.get("algorithm", {})
    arguments = {f"{name}_args": own.get(f"{name}_args", {}) for name in renamed_components(config, entry)}
    made = config.merged({key: value for key, value in entry.items() if key not in ITS_OWN} | {"stages": []})
    return made.but("algorithm", made.algorithm.model_copy(update=arguments))


def renamed_components(config: Config, entry: dict) -> list[str]:
    """Returns the algorithm components (`policy_loss_fn`, ...) for which an entry names another function, or a type
    that does: the arguments of `config` do not apply to them."""
    theirs = functions(config.algorithm)
    here = functions(config.algorithm.merged(entry.get("algorithm", {})))
    return [name for name in here if here[name] != theirs.get(name)]


def sets(entry: Any, key: str) -> bool:
    """Returns whether a stage sets a key, or something below it."""
    return at(entry, key, ITS_OWN) is not ITS_OWN


def with_stages(config: Config) -> tuple[Config, list[Problem]]:
    """Returns a configuration whose entries of `stages` are read, and the problems with their structure and values."""
    problems: list[Problem] = []
    above: list[str] = []
    kept: list[dict] = []
    for index, written in enumerate(config.stages):
        settings = {key: value for key, value in written.items() if key not in ITS_OWN}
        section, own = schema.read(settings, Config, more=ITS_OWN)
        entry = {**written, **{key: parsed_environment(written[key]) for key in ITS_OWN if key in written}}
        name = entry.get("stage_name")
        read = given(section)
        own += [Problem(key, "is a setting of the whole run, not of a stage.") for key in read if key in RUN_WIDE]
        if not isinstance(name, str) or not STAGE_NAME.fullmatch(name) or name == "all":
            place = f"entry {index + 1} of `stages`"
            problems.append(Problem(f"{place}: stage_name", "needed a letter, then letters, digits and '_', at most "
                                    f"{LONGEST_NAME} in all, and not 'all'; it names a rule and a directory.",
                                    "YAML reads on, off, yes, no, true and false as booleans: put the name in quotes."
                                    if isinstance(name, bool) else "", found=name))
            problems += [p.but(key=f"{place}: {p.key}") for p in own]
            continue
        if name in above:
            own.append(Problem("stage_name", "another entry of `stages` has this name; needed names that differ.",
                               found=name))
        own += [Problem(key, "changes the config.json of a model, and this stage names none: it continues with that of "
                        "the run or of a stage above.", "Set it for the run, or together with model.model_path.")
                for key in REWRITES if sets(entry, key) and not sets(entry, "model.model_path")]
        own += _reserved_problems(name, above) + _after_problems(entry, above)
        problems += [p.of([name]) for p in own]
        kept.append({k: v for k, v in {**entry, **read}.items() if k in ITS_OWN or (k in read and k not in RUN_WIDE)})
        above.append(name)
    return config.but("stages", kept), problems


def _are_ordered(stages: list[dict]) -> bool:
    """Returns whether all stages have unique names and follow stages above them, so that their order can be checked."""
    above: list[str] = []
    for entry in stages:
        if entry["stage_name"] in above or _after_problems(entry, above):
            return False
        above.append(entry["stage_name"])
    return True


def _reserved_problems(name: str, above: list[str]) -> list[Problem]:
    """Returns the problem of a name reserved for stages that the plan adds (pipeline/plan/plan.py)."""
    evaluated = [one for one, other in [*((o, name) for o in above), *((name, o) for o in above)]
                 if other == f"evaluate_{one}"]
    if evaluated:
        return [Problem("stage_name", f"'evaluate_{evaluated[0]}' is the evaluation of '{evaluated[0]}'; needed "
                        "another name.", found=name)]
    return [Problem("stage_name", f"a run gives this name to a stage that it adds; needed another than "
                    f"{', '.join(RESERVED)}.", found=name)] if name in RESERVED else []


def _after_problems(entry: dict, above: list[str]) -> list[Problem]:
    names = before(entry, above)
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        return [Problem("after", "needed the name of a stage, or a list of names.", found=entry["after"])]
    if len(set(names)) < len(names):
        return [Problem("after", "names a stage twice; needed each once.", found=f"[{', '.join(names)}]")]
    return [Problem("after", f"no stage above it has that name; above are: {', '.join(above) or 'none'}.", found=name)
            for name in names if name not in above]


class Recipe:
    """The settings of a run and of its stages, resolved once, and the order of the stages.

    run: the settings of the whole run. entries: every entry to plan, one that mode=bench adds too. settings, kinds:
    name -> settings of the stage (of `effective`), their kind. parents: name -> direct predecessors. own_models: the
    stages that set their own initial model. every: (name, settings) of each entry, also of one whose name another has.
    ancestors: name -> every predecessor, the nearest first. begins_with: name -> the stage whose model is the initial
    one: the nearest predecessor that trains a policy; if none does, the first direct one, which passes on its own
    initial model; None: it has its own model, or the run's, or follows one that explored with the model of a server.
    source: name -> the stage whose experience it reads: with mode=score that of the nearest predecessor that explores,
    offline that of the nearest one that only explores, or that scores such a one. explored: name -> the stage that
    generated that experience. models: name -> the section `model` of its initial model (consistent with plan/plan.py);
    teachers: that with the architecture of its teacher, None without one; a stage above that trains keeps the
    architecture of its initial model.
    ordered: whether names differ, and all follow stages above them, so that rules on their order can be applied.

    Names in `after` that are not above the stage are ignored, and of entries with one name the first counts:
    `with_stages` reports both. The graph is therefore acyclic.
    """

    _last: ClassVar["Recipe | None"] = None

    @classmethod
    def of(cls, config: Config) -> "Recipe":
        """Returns the recipe of a configuration, resolved once as long as no other one is asked for."""
        found = cls._last
        if found is None or found.run is not config:
            cls._last = found = cls(config)
        return found

    def __init__(self, config: Config):
        self.run = config
        self.entries = _planned(config)
        self.ordered = _are_ordered(config.stages)
        self.parents: dict[str, list[str]] = {}
        self.settings: dict[str, Config] = {}
        self.every = [(entry["stage_name"], effective(config, entry)) for entry in self.entries]
        self.own_models: set[str] = set()
        for entry, (name, settings) in zip(self.entries, self.every, strict=True):
            if name in self.parents:
                continue
            self.own_models |= {name} if sets(entry, "model.model_path") or sets(entry, "model.init") else set()
            named = before(entry, list(self.parents))
            self.parents[name] = [n for n in named if n in list(self.parents)] if isinstance(named, list) else []
            self.settings[name] = self._with_stages(settings)
        self.kinds: dict[str, Kind] = {name: settings.kind for name, settings in self.settings.items()}
        self.ancestors = {name: self._above(name) for name in self.parents}
        self.begins_with = {name: self._begins_with(name) for name in self.parents}
        self.source: dict[str, str | None] = {}
        self.explored: dict[str, str | None] = {}
        self.models: dict[str, Model] = {}
        for name, settings in self.settings.items():  # those above come first
            found = self.source[name] = self._source(name)
            self.explored[name] = found if not found or self.kinds[found].explores else self.explored[found]
            earlier, own = self.begins_with[name], settings.model if name in self.own_models else config.model
            self.models[name] = self.models[earlier] if earlier else own
        self.teachers = {name: self._teacher(name) for name in self.parents}

    def _with_stages(self, settings: Config) -> Config:
        """Returns settings in which each auxiliary model whose path is the name of an earlier stage is a StageModel."""
        models = [one if one.model_path not in self.settings else one.but("model_path", StageModel(
            one.model_path, not self.settings[one.model_path].makes_policy))
            for one in settings.explorer.auxiliary_models]
        return settings.but("explorer.auxiliary_models", models) if models else settings

    def each(self, find: Callable[[Config], Iterable[Problem]], written: bool = False) -> list[Problem]:
        """Collects the findings on the settings of each stage, each once with the stages it concerns.

        written: whether only stages that the recipe lists count, without the one that mode=bench adds."""
        return self.together([(name, find(settings)) for name, settings in self.every[
            : len(entries(self.run)) if written else None]])

    def together(self, found: Iterable[tuple[str, Iterable[Problem]]]) -> list[Problem]:
        """Returns findings by the names of their stages, each once with the stages that it concerns."""
        concerned: dict[Problem, list[str]] = {}
        number = len(entries(self.run))
        for name, problems in found:
            for problem in problems:
                concerned.setdefault(problem, []).append(name)
        return [problem if len(names) == number else problem.of(names) for problem, names in concerned.items()]

    def _above(self, name: str) -> list[str]:
        found: dict[str, None] = {}
        here = self.parents[name]
        while here:
            new = [n for n in dict.fromkeys(here) if n not in found]
            found |= dict.fromkeys(new)
            here = [parent for n in new for parent in self.parents[n]]
        return list(found)

    def _begins_with(self, name: str) -> str | None:
        if name in self.own_models or not self.parents[name]:
            return None
        first = self.parents[name][0]
        found = next((n for n in self.ancestors[name] if self.settings[n].makes_policy), first)
        return None if self.settings[found].asks_server and self.kinds[found].explores else found

    def _source(self, name: str) -> str | None:
        if self.kinds[name].only_rewards:
            return next((n for n in self.ancestors[name] if self.kinds[n].explores), None)
        return next((n for n in self.ancestors[name] if self._only_explored(n)), None)

    def _only_explored(self, name: str | None) -> bool:
        """Returns whether a stage makes experience of one model: that of a stage that trains meanwhile is of many."""
        kind = self.kinds.get(name)
        if not kind or kind.trains or not kind.makes_experience:
            return False
        return kind.explores or self._only_explored(self.source[name])

    def one_attempt(self, name: str | None) -> Config:
        """Returns the settings for an attempt: of the named stage, else of the first that explores or evaluates. Raises
        ConfigError for an unknown stage."""
        if name is not None and name not in self.kinds:
            raise ConfigError(f"no stage '{name}'.{nearest(name, self.kinds)} Stages: {', '.join(self.kinds)}.")
        able = (one for one, kind in self.kinds.items() if kind.engine)
        return self.settings[name or next(able, next(iter(self.kinds)))]

    def trained(self, name: str) -> list[str]:
        """Returns the predecessors that train a policy, in recipe order."""
        above = self.ancestors[name]
        return [n for n in self.parents if n in above and self.settings[n].makes_policy]

    def teacher_stage(self, name: str) -> str | None:
        """Returns the stage above that a stage's `model.teacher_model_path` names; None for a directory."""
        path, names = self.settings[name].model.teacher_model_path, list(self.settings)
        return path if path in names[: names.index(name)] else None

    def _teacher(self, name: str) -> Model | None:
        settings = self.settings[name]
        path = settings.model.teacher_model_path
        if not settings.asks_teacher or not path:
            return None
        stage = self.teacher_stage(name)
        return self.models[stage] if stage else Model.model_construct(
            model_path=path, trust_remote_code=settings.model.trust_remote_code)
