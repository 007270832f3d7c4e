"""The stages of a recipe: partial configurations merged over the global one key by key, in an order or a DAG.

An entry of `stages` is {stage_name, after, and any settings}. Without `after` a stage follows the one above it;
`after: [a, b]` names others above it, `after: []` none. The rest is merged over the global settings: sections key by
key, lists as a whole. Arguments (`*_args`) belong to the function of the same section: where a stage names another
function, only its own arguments count.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from pipeline.settings import schema
from pipeline.settings.algorithms import DEMONSTRATED, filled, functions
from pipeline.settings.combinations import LONGEST_NAME
from pipeline.settings.config import RUN_WIDE, Config
from pipeline.settings.environment_values import parsed_environment
from pipeline.settings.kinds import REWRITES
from pipeline.settings.setting import at, given
from pipeline.store.errors import Problem

STAGE_NAME = re.compile(rf"[A-Za-z]\w{{,{LONGEST_NAME - 1}}}", re.ASCII)
ITS_OWN = ("stage_name", "after")  # keys of an entry that are not settings
BENCH = "bench"  # name of the stage added to a run in mode `bench`
RESERVED = ("tasks", "curate", "model", "evaluate_base", "report", BENCH)  # names of stages that the plan adds


def entries(config: Config) -> list[dict]:
    """Returns the stages of a run. A recipe without any is one stage: the global settings."""
    if config.stages:
        return config.stages
    algorithm = config.algorithm.algorithm_type
    return [{"stage_name": algorithm if algorithm in DEMONSTRATED else "rft"}]


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
    made = config.merged({key: value for key, value in entry.items() if key not in ITS_OWN} | {"stages": []})
    own = entry.get("algorithm", {})
    arguments = {f"{name}_args": own.get(f"{name}_args", {}) for name in renamed_components(config, entry)}
    return made.but("algorithm", made.algorithm.model_copy(update=arguments))


def renamed_components(config: Config, entry: dict) -> list[str]:
    """Returns the algorithm components (`policy_loss_fn`, ...) for which an entry names another function, or a type
    that does: the arguments of `config` do not apply to them."""
    theirs = functions(config.algorithm)
    here = functions(config.algorithm.merged(entry.get("algorithm", {})))
    return [name for name in here if here[name] != theirs.get(name)]


def of_stages(config: Config, stages: Iterable[dict], find: Callable[[Config], Iterable[Problem]]) -> list[Problem]:
    """Collects the findings on the settings of each stage, each once with the stages it concerns."""
    return collected(config, ((entry["stage_name"], problem) for entry in stages
                              for problem in find(effective(config, entry))))


def collected(config: Config, found: Iterable[tuple[str, Problem]]) -> list[Problem]:
    """Returns every problem once, with the stages that have it; none if all stages have it. found: (stage, problem)."""
    concerned: dict[Problem, list[str]] = {}
    for name, problem in found:
        concerned.setdefault(problem, []).append(name)
    return [problem if len(names) == len(entries(config)) else problem.of(names)
            for problem, names in concerned.items()]


def names_model(entry: dict) -> bool:
    """Returns whether a stage sets its initial model itself."""
    return sets(entry, "model.model_path") or sets(entry, "model.init")


def _rewriting_problems(entry: dict) -> list[Problem]:
    return [Problem(key, "changes the config.json of a model, and this stage names none: it continues with "
                    "that of the run or of a stage above.", "Set it for the run, or beside model.model_path.")
            for key in REWRITES if sets(entry, key) and not sets(entry, "model.model_path")]


def sets(entry: Any, key: str) -> bool:
    """Returns whether a stage sets a key, or something below it."""
    return at(entry, key, ITS_OWN) is not ITS_OWN


def stage_problems(config: Config) -> list[Problem]:
    """Lists problems with the structure of `stages`. Leaves the entries ready for the schema."""
    problems: list[Problem] = []
    above: list[str] = []
    kept: list[dict] = []
    own: list[Problem]
    for index, written in enumerate(config.stages):
        entry, own = {**written, **{key: parsed_environment(written[key]) for key in ITS_OWN if key in written}}, []
        name = entry.get("stage_name")
        settings = {key: value for key, value in entry.items() if key not in ITS_OWN}
        read = given(schema.read(settings, Config, "", own, ITS_OWN))
        own += [Problem(key, "is a setting of the whole run, not of a stage.") for key in read if key in RUN_WIDE]
        if not isinstance(name, str) or not STAGE_NAME.fullmatch(name) or name == "all":
            place = f"entry {index + 1} of `stages`"
            problems.append(Problem(f"{place}: stage_name", "needed a letter, then letters, digits and '_', at most "
                                    f"{LONGEST_NAME} in all, and not 'all'; it names a rule and a directory.",
                                    _boolean(name), found=name))
            problems += [p.but(key=f"{place}: {p.key}") for p in own]
            continue
        if name in above:
            own.append(Problem("stage_name", "another entry of `stages` has this name; needed names that differ.",
                               found=name))
        own += _rewriting_problems(entry) + _reserved_problems(name, above) + _after_problems(entry, above)
        problems += [p.of([name]) for p in own]
        kept.append({k: v for k, v in {**entry, **read}.items() if k in ITS_OWN or (k in read and k not in RUN_WIDE)})
        above.append(name)
    config.stages = kept
    return problems


def _boolean(name: Any) -> str:
    """Explains how to write a name that YAML does not read as text."""
    return ("YAML reads on, off, yes, no, true and false as booleans: put the name in quotes."
            if isinstance(name, bool) else "")


def are_ordered(stages: list[dict]) -> bool:
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
