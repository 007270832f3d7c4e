"""Alternative algorithms for a stored batch: the section `algorithm` of a stage, merged with overrides."""

from pathlib import Path
from typing import Any

from ouroboros.pipeline.check import named_functions, user_code
from ouroboros.pipeline.check.data import lacking
from ouroboros.pipeline.check.judge import rules_of_stage
from ouroboros.pipeline.compose import axes
from ouroboros.pipeline.compose.recipe import Recipe, entries, merged
from ouroboros.pipeline.results.difference import frozen
from ouroboros.pipeline.settings import schema
from ouroboros.pipeline.settings.algorithm import Algorithm
from ouroboros.pipeline.settings.algorithms import filled
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.setting import Section, given
from ouroboros.pipeline.store.errors import ConfigError

# settings that determine the batch's content, and how its gradient is applied
FIXED = ("repeat_times", "max_resample_rounds", "resample_metric", "greedy_baseline", "sample_strategy",
         "sample_strategy_args", "optimizer")
MOST = 100  # at once


def alternatives(run: Path, stage: str, original: Algorithm, overrides: list[str]) -> dict[str, Algorithm]:
    """Maps names to sections `algorithm`, filled, for every combination of the overrides (`algorithm=gspo,dapo`).

    run: its directory below runs/. stage: name of its stage, whose own section is `original`. Settings without an
    override stay as they are; where the overrides name a type, the algorithm's components are that type's. Raises
    ConfigError with every problem of all alternatives.
    """
    words = axes.read(overrides)
    if axes.count(words) > MOST:
        raise ConfigError(f"{axes.count(words)} alternatives; needed at most {MOST}.")
    config, _ = schema.read(frozen(run), Config)  # settings that are newer than the run have their defaults
    entry = next(entry for entry in entries(config) if entry["stage_name"] == stage)
    recipe, made, problems = Recipe(config), {}, []
    explorer = recipe.explored(stage) if recipe.kinds[stage].is_offline else stage
    rows = (recipe.settings[explorer], f"stages.{explorer}." if config.stages else "")
    for chosen, differs in axes.points(words) if overrides else ():
        name = axes.point_label(differs) if differs else " ".join(chosen)
        made[name], wrong = _alternative(config, entry, original, rows, chosen)
        problems += [f"{name}: {problem}" for problem in wrong]
    if problems:
        raise ConfigError.of("not every alternative can be tried:", problems)
    return made


def _alternative(config: Config, entry: dict, original: Algorithm, rows: tuple[Config, str],
                 overrides: list[str]) -> tuple[Algorithm | None, list[str]]:
    """Returns the section `algorithm` of a stage with overrides, filled, and its problems.

    rows: the settings of the stage that explored the batch, and the prefix of those settings.
    """
    section, problems = _section(overrides)
    read, unread = schema.read(section, Algorithm, "algorithm")
    own = given(read)
    if problems or unread:
        return None, problems + unread
    base = merged(config, entry)
    if "algorithm_type" in own:
        base = base.but("algorithm", _left_to_the_type(base.algorithm, Algorithm()))
    settings, explored = merged(base, {"algorithm": own}), rows[0].algorithm
    algorithm = filled(settings.algorithm).model_copy(update={
        key: getattr(explored, key) for key in ("repeat_times", "greedy_baseline")})
    return algorithm, lacking(algorithm, *rows) or _unfit(settings.but("algorithm", algorithm), original)


def _left_to_the_type(section: Section, standard: Section) -> Section:
    """Resets a section's components to null, without arguments, so that the type sets them. The rest, and FIXED, stays.

    standard: its defaults.
    """
    values = ((key, value, getattr(standard, key)) for key, value in section if key not in FIXED)
    return section.model_copy(update={
        key: _left_to_the_type(value, reset) if isinstance(value, Section) else reset
        for key, value, reset in values if reset is None or key.endswith("_args") or isinstance(value, Section)})


def _unfit(settings: Config, original: Algorithm) -> list[str]:
    """Lists why an algorithm cannot be applied to a stored batch, one line each."""
    algorithm = settings.algorithm
    if not algorithm.on_rollouts:
        return [f"{algorithm.algorithm_type} learns from given responses, not from rollouts."]
    if algorithm.has_critic and not original.has_critic:
        return [f"algorithm.advantage_fn={algorithm.advantage_fn} needs the values of a critic, and this stage "
                "trained none."]
    if algorithm.has_teacher and not original.has_teacher:
        return [f"algorithm.advantage_fn={algorithm.advantage_fn} needs the log-probs of a teacher, and this stage "
                "has none."]
    losses = [(one.policy_loss_fn, one.policy_loss_fn_args.get("top_k")) for one in (algorithm, original)]
    if algorithm.loss.needs_teacher and losses[0] != losses[1]:
        return [f"algorithm.policy_loss_fn={algorithm.policy_loss_fn} needs the log-probs of as many of the teacher's "
                "likeliest tokens as it compares, and this stage did not ask for them."]
    absent = [*user_code.missing_code(settings), *user_code.wrong_code(settings)]
    functions, wrong = user_code.imported([settings], "\n".join(absent))
    alone = named_functions.lonely(algorithm, algorithm, functions, "") if settings.kind.is_offline else []
    return [*rules_of_stage(settings), *absent, *wrong, *alone, *named_functions.wrong_arguments(settings, functions)]


def _section(overrides: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Returns the part of the section `algorithm` that overrides set, and the problems with these."""
    section: dict[str, Any] = {}
    problems: list[str] = []
    for word in overrides:
        try:
            parsed = axes.parsed(word.lstrip("+"))
        except ValueError:
            problems.append(f"'{word}': the value cannot be read. A text with other characters than letters, digits "
                            "and . _ - / goes in quotes.")
            continue
        root, *path = parsed.key_or_group.split(".")
        value, path = parsed.value(), path or ["algorithm_type"]
        if root != "algorithm" or path[0] in FIXED:
            problems.append(f"'{word}': a batch that is there is judged by another algorithm, and nothing else can be "
                            f"another: needed algorithm=NAME or algorithm.KEY=VALUE, none of {', '.join(FIXED)}.")
            continue
        place = section
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    return section, problems
