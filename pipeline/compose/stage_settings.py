"""Rules for the structure of `stages`: names, order, keys that no stage may set (pipeline/compose/recipe.py)."""

import re
from typing import Any

from ouroboros.pipeline.compose.recipe import BENCH, before, sets
from ouroboros.pipeline.settings import schema
from ouroboros.pipeline.settings.combinations import LONGEST_NAME
from ouroboros.pipeline.settings.config import ITS_OWN, RUN_WIDE, Config
from ouroboros.pipeline.settings.environment_values import parsed_environment
from ouroboros.pipeline.settings.kinds import CURATE, IMAGES, MODEL, REPORT, REWRITES, TASKS
from ouroboros.pipeline.settings.setting import given
from ouroboros.pipeline.store.errors import Problem

STAGE_NAME = re.compile(rf"[A-Za-z]\w{{,{LONGEST_NAME - 1}}}", re.ASCII)
RESERVED = (IMAGES, TASKS, CURATE, MODEL, "evaluate_base", REPORT, BENCH)  # names of stages that the plan adds


def _rewriting_problems(entry: dict) -> list[Problem]:
    return [Problem(key, "changes the config.json of a model, and this stage names none: it continues with "
                    "that of the run or of a stage above.", "Set it for the run, or beside model.model_path.")
            for key in REWRITES if sets(entry, key) and not sets(entry, "model.model_path")]


def with_stages(config: Config) -> tuple[Config, list[Problem]]:
    """Returns a configuration whose entries of `stages` are read, and the problems with their structure and values."""
    problems: list[Problem] = []
    above: list[str] = []
    kept: list[dict] = []
    for index, written in enumerate(config.stages):
        entry = {**written, **{key: parsed_environment(written[key]) for key in ITS_OWN if key in written}}
        name = entry.get("stage_name")
        settings = {key: value for key, value in entry.items() if key not in ITS_OWN}
        section, own = schema.read(settings, Config, more=ITS_OWN)
        read = given(section)
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
    return config.but("stages", kept), problems


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
