"""Composes a configuration and validates it; reports every invalid value and broken rule at once."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ouroboros.pipeline.check import batch, data, model, named_functions, stage
from ouroboros.pipeline.compose import axes
from ouroboros.pipeline.compose.compose import TITLE, composition
from ouroboros.pipeline.compose.interpolation import resolved
from ouroboros.pipeline.compose.recipe import Recipe, with_stages
from ouroboros.pipeline.settings import changes, guide, schema, secrets
from ouroboros.pipeline.settings.algorithm import Algorithm
from ouroboros.pipeline.settings.algorithms import own, parts
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.key_names import exists
from ouroboros.pipeline.settings.setting import at, leaves, plain, put
from ouroboros.pipeline.store.errors import ConfigError, Problem, nearest

# rules in addition to those of single sections (`@rule` of a Section) and between sections (settings/combinations.py)
OF_A_STAGE = (data.without_rows, batch.unfit_batch)
# stages must have valid names and order
BETWEEN_STAGES = (batch.unread_sampling, data.unfit_rows, model.unfit_teachers, model.unfit_models, stage.unfit_order,
                  stage.unasked_models, stage.unfit_turns)

UNCHANGEABLE = {None: "no step depends on it; set it for the whole stage, with any launch.",
                "never": "cannot change on the way. docs/branches.md names the settings that can."}

ELEMENT = re.compile(r"\.\d+$")  # one that cannot be read is omitted, which changes the list


def compose(overrides: list[str]) -> Config:
    """Returns the whole validated configuration. Raises ConfigError with every problem."""
    config, problems = judged(overrides)
    if problems:
        raise ConfigError.of(TITLE, problems)
    return config


def judged(overrides: list[str]) -> tuple[Config, list[Problem]]:
    """Returns the configuration and every problem in it; unreadable values have their default.

    References (arguments, code) are checked here only if there are other problems, so that all are reported together;
    otherwise check/preflight.py reports them with its own findings. Raises ConfigError when files cannot be read,
    because their settings are then unknown, and for paths that cannot be looked for.
    """
    composed, typed = composition(overrides)  # these quote the command line, where a stage may be given by its number
    whole, unresolved = resolved(composed)
    read, said = guide.split_always(whole)
    config, unread = schema.read(read, Config)
    config, misplaced = with_stages(config)
    config.say(said)
    written, problems = plain(config), [*unresolved, *unread, *misplaced]
    if undefined := wrong_files(config):  # no rule applies to an algorithm whose definition is invalid
        return config, [*typed, *secrets.without_values([*problems, *undefined], written)]
    recipe = Recipe.of(config)
    problems += broken_rules(recipe, problems)
    problems += secrets.problems_of(written)
    if long := _long_paths(written):
        raise ConfigError.of(TITLE, [*typed, *secrets.without_values([*problems, *long], written)])
    if (typed or problems) and recipe.ordered:
        wrong = [problem.key for problem in problems]
        problems += [one for one in named_functions.wrong_references(recipe) if not _of_unknown_function(one, wrong)]
    return config, [*typed, *secrets.without_values(problems, written)]


def of_first_point(overrides: list[str]) -> Config:
    """Returns the configuration of the first point of a sweep, or of a run; as of `judged`."""
    return judged(axes.first_point(axes.read(overrides)))[0]


def _long_paths(written: dict) -> list[Problem]:
    """Lists paths that are too long for Linux, which raises an error for them where it is asked whether they exist."""
    found = [(key, value) for key, value in leaves(written) if isinstance(value, str)
             and ELEMENT.sub("", key).endswith(("path", "inputs", "checkpoint_root_dir"))]
    return [Problem(key, "needed a path of at most 4,095 bytes, and of 255 from one / to the next.", found=value)
            for key, value in found
            for encoded in [value.encode(errors="surrogatepass")]  # invalid Unicode: schema.py reports it
            if len(encoded) > 4095 or any(len(part) > 255 for part in encoded.split(b"/"))]


def _of_unknown_function(problem: Problem, wrong: list[str]) -> bool:
    """Returns whether a problem is one of arguments whose function is unknown itself: a default stands in its place.

    wrong: keys of the other problems.
    """
    section, _, last = problem.key.rpartition(".")
    name = re.sub("^workflow|^reward_fn", r"default_\g<0>_type", last.removesuffix("_args"))
    named = [key.rpartition(".") for key in wrong]
    return last.endswith("_args") and any(f"{section}.".startswith(f"{place}.") and key.replace("_eval_", "_") == name
                                          for place, _, key in named)


def broken_rules(recipe: Recipe, read: Iterable[Problem]) -> list[Problem]:
    """Lists every broken rule. read: problems of reading the settings, which have a default instead; a rule that is
    broken by such a value is left out."""
    wrong = [(problem.stages, ELEMENT.sub("", problem.key)) for problem in read if problem.key]

    def unreadable(stage: str) -> list[str]:
        return [key for stages, key in wrong if not stages or stage in stages]

    unfit = [*unfit_changes(recipe)]
    broken = unfit + recipe.together([(name, dict.fromkeys(
        problem for _, one in ([(0, settings)] if unfit else changes.segments(settings))
        for problem in rules_of_stage(one, unreadable(name)))) for name, settings in recipe.every])
    if not recipe.ordered:
        return broken
    return broken + [problem for rule in BETWEEN_STAGES for problem in rule(recipe) if _caused_by_none(
        [problem], [key for name in problem.stages or [""] for key in unreadable(name)])]


def rules_of_stage(settings: Config, unreadable: Iterable[str] = ()) -> list[Problem]:
    """Lists every rule that the settings of one stage break. unreadable: keys of values that a default replaces."""
    readable = settings
    for key in unreadable:
        readable = readable.without(key)
    return [*readable.broken_rules(),
            *_caused_by_none([one for rule in OF_A_STAGE for one in rule(settings)], list(unreadable))]


def _caused_by_none(problems: list[Problem], keys: list[str]) -> list[Problem]:
    """Drops the problems that name one of these settings, or one below it."""
    return [problem for problem in problems
            if not any(re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", problem) for key in keys)]


def unfit_changes(recipe: Recipe) -> Iterator[Problem]:
    """Yields what is wrong with the steps, keys and values of `changes`, stage by stage."""
    for name, settings in recipe.settings.items():
        for step, values in settings.changes.items():
            if not step.isdecimal() or not 0 < int(step) < (settings.buffer.total_steps or math.inf):
                yield Problem(f"changes.{step}", "needed a trainer step, at least 1 and not the last.", stages=[name])
            yield from (one.but(key=f"changes.{step}: {one.key}", stages=[name]) for key, value in values.items()
                        for one in _unfit_change(settings, key, value))


def _unfit_change(settings: Config, key: str, value: Any) -> list[Problem]:
    if not exists(key):
        return [schema.unknown(key)]
    if (acts := changes.acts(key)) in UNCHANGEABLE:
        return [Problem(key, UNCHANGEABLE[acts])]
    if not settings.kind.trains or (acts == "explorer" and not settings.kind.explores):
        return [Problem(key, f"is of the {acts}, which this stage does not have.")]
    made, problems = schema.read(put(plain(settings), key, value), Config)
    if any(getattr(made.algorithm, one) != getattr(settings.algorithm, one) for one in ("has_critic", "has_teacher")):
        problems.append(Problem(key, "a critic or a teacher cannot be switched on or off on the way.", found=value))
    return problems


def wrong_files(config: Config) -> list[Problem]:
    """Lists problems with the files of the user's algorithms, conf/algorithm/<name>.yaml with `algorithm_type: <name>`,
    that a run and its stages name. Such a file fills null values, so it cannot change a setting that is never null."""
    return [problem.but(file=f"conf/algorithm/{path.name}") for name, path in own().items()
            if any(at(settings, "algorithm.algorithm_type") == name for settings in [config, *config.stages])
            for problem in _of_own_algorithm(parts(name))]


def _of_own_algorithm(content: dict[str, Any]) -> list[Problem]:
    fields = {name: schema.default(field) for name, field in Algorithm.model_fields.items()}
    sections = {name: [key for key, value in fields[name].items() if value is None] for name in fields
                if isinstance(fields[name], dict) and None in fields[name].values()}
    names = ["algorithm_type", *(name for name in fields if fields[name] is None or name.endswith("_args")), *sections]
    elsewhere = "Other settings of the section belong into a recipe."
    wrong = [Problem(str(key), ("no part of an algorithm." if key in fields else "unknown.")
                     + f"{nearest(str(key), names)} Needed: {', '.join(names)}.", elsewhere)
             for key in content if key not in names]
    wrong += [Problem(f"{name}.{key}", f"no part of an algorithm. Needed: {', '.join(keys)}.", elsewhere)
              for name, keys in sections.items() if isinstance(content.get(name), dict)
              for key in content[name] if key not in keys]
    known = {key: value for key, value in content.items() if key in names}
    wrong += schema.read(known, Algorithm, "algorithm")[1]
    lacking = [name for name in ("repeat_times", *NEEDED) if content.get(name) is None]
    return wrong + [Problem(name, f"is missing{': ' + NEEDED[name] if name in NEEDED else ''}.") for name in lacking]


# required components of an algorithm on rollouts, and how to disable each
NEEDED = {
    "advantage_fn": "a name of operators/advantages, or package.module:function",
    "policy_loss_fn": "a name of operators/losses, or package.module:function",
    "kl_loss_fn": "none, or a name of operators/kl.py",
    "kl_penalty_fn": "none, or a name of operators/kl.py",
    "entropy_loss_fn": "none, default, or package.module:function",
}
