"""A configuration of Trinity-RFT as a recipe: every key by its fate in pipeline/settings/guide.py, stages and all.

Where the original's default differs from ours and the source is silent, the recipe says the original's.
"""

import re
from typing import Any

from pipeline.bridges import (
    arguments,
    trinity_data,
    trinity_gpus,
    trinity_inputs,
    trinity_older,
    trinity_reasons,
    trinity_rewards,
    trinity_sizes,
    trinity_teacher,
    trinity_unlisted,
    trinity_verl,
)
from pipeline.bridges.source import Given, scalar
from pipeline.bridges.translation import SETTINGS, Entry, Path, Translation, directory_name, off
from pipeline.bridges.trinity_reasons import TRAINING_SET
from pipeline.bridges.trinity_sizes import ITS_DEFAULT
from pipeline.bridges.trinity_stages import complete, names_of
from pipeline.settings import guide
from pipeline.settings.config import walk
from pipeline.settings.guide_keys import MEANT, Refused, Renamed, Works
from pipeline.settings.secrets import is_secret
from pipeline.store.errors import nearest

REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
SAMPLED_BY = re.compile(TRAINING_SET.pattern + r"rollout_args\.(temperature|top_p|top_k)")


def translate(given: list[Given], source: str) -> Translation:
    """The recipe of a configuration, and an account of each of its keys. Raises ConfigError for one of veRL."""
    trinity_verl.refuse_verls(given, source)
    made = Translation(source)
    given = trinity_older.as_today(made, given)
    values = {g.path: None if trinity_reasons.is_nothing(g) else g.value for g in given}
    made.idle += [(g, "nothing is set there either.") for g in given if trinity_reasons.is_nothing(g) and not g.value]
    given = [g for g in given if not trinity_reasons.is_nothing(g) or g.value]
    given = [Given(g.path, trinity_reasons.as_number(g.key, values[g.path]), g.line) for g in given]
    given = [g for g in given if not _shapeless(made, g)]
    given = trinity_inputs.read_by_a_set(made, given, values)
    given = [g for g in given if not _accounted(made, g, values)]
    works = [g for g in given if isinstance(_fate(g.key), Works)]
    for key in works:
        _works(made, key, values)
    for key in given:
        fate = _fate(key.key)
        if isinstance(fate, Renamed):
            _renamed(made, key, fate, values)
        elif isinstance(fate, Refused):
            _refused(made, key, fate, values)
        elif fate is None:
            _unknown(made, key, values)
    _mend_references(made, values)
    _say_defaults(made, values)
    complete(made, values)
    arguments.leave_out_unknown(made)
    made.keep_secrets_out()
    return made


def _shapeless(made: Translation, given: Given) -> bool:
    """Whether a key stands where no setting can stand, and is left out."""
    reason = trinity_reasons.of_structure(given)
    if reason:
        (made.idle if given.value in (None, {}) else made.left_out).append((given, reason))
    return bool(reason)


def _fate(key: str):
    if own := trinity_unlisted.UNLISTED.get(guide.general(key)):  # beside free arguments, of which the guide says more
        return own
    found = guide.find(key)
    if found is None and re.fullmatch(r"stages\.\d+\.(stage_name|after)", key):
        return Works()
    found = found or trinity_unlisted.find(key)
    return found[1] if found else None


def _accounted(made: Translation, given: Given, values: dict[Path, Any]) -> bool:
    """Whether a key belongs to a teacher, a judge or a reward of the original, or does nothing, and is accounted for.

    Whatever is said of a key in general does not hold for these.
    """
    general = guide.general(given.key)
    if (trinity_teacher.translated(made, given, *_stage(given.path), values)
            or trinity_rewards.translated(made, given, values) or trinity_data.columns(made, given, values)):
        return True
    if reason := trinity_reasons.of_judge(general, values):
        made.leave(given, reason)
    elif reason := trinity_reasons.without_effect(general, given.value, values):
        made.idle.append((given, reason))
    return bool(reason)


def _stage(path: Path) -> tuple[Path, Path]:
    """A path cut into `stages, i` (or nothing) and the setting."""
    return (path[:2], path[2:]) if path[0] == "stages" and len(path) > 2 else ((), path)


# ------------------------------------------------------------------------------------------------------------ one key


def _works(made: Translation, given: Given, values: dict[Path, Any]) -> None:
    stage, path = _stage(given.path)
    general = guide.general(given.key)
    if general == "buffer.train_batch_size" and _algorithm(stage, values) in ("sft", "dpo", "cpt"):
        made.entries.pop((*stage, "buffer", "batch_size"), None)
        made.rename(given, (*stage, "buffer", "batch_size"), given.value, f"{general}: rows of an optimizer step")
        return
    reason = guide.explain_value(given.key, given.value) or trinity_reasons.of_value(general, given, values)
    meant = {} if isinstance(given.value, (list, dict)) else MEANT.get(general, {})
    if reason:
        made.leave(given, reason)
    elif meant and given.value in meant:
        made.rename(given, given.path, meant[given.value], f"{given.value} there")
    elif misfit := trinity_reasons.misfit(given.key, given.value):
        made.leave(given, misfit)
    elif path == ("stage_name",) and names_of(values)[stage[1]] != given.value:
        made.rename(given, given.path, names_of(values)[stage[1]], f"{given.value} there: it names a rule")
    elif given.key in ("project", "name") and directory_name(given.value) != given.value:
        made.rename(given, given.path, directory_name(given.value), f"{given.value} there: it becomes a directory")
    elif SAMPLED_BY.fullmatch(general) and given.value is not None:
        _sampling(made, given, (*stage, "model", str(path[-1])), values)
    else:
        made.keep(given)


def _algorithm(stage: Path, values: dict[Path, Any]) -> Any:
    """The algorithm of a stage, or of all."""
    of_all = ("algorithm", "algorithm_type")
    return values.get((*stage, *of_all), values.get(of_all))


def _sampling(made: Translation, given: Given, of_all: Path, values: dict[Path, Any]) -> None:
    """Rollouts to train on are sampled as the section model says, by which the trainer scores them."""
    ours = values.get(of_all, values.get(of_all[-2:], SETTINGS[".".join(of_all[-2:])].default))
    if ours == given.value:
        made.keep(given)
    elif of_all in values:
        made.leave(given, f"rollouts to train on follow model.{of_all[-1]}, which is {ours}: the trainer scores "
                          "them by one distribution.")
    else:
        made.rename(given, of_all, given.value, f"{given.key}: the trainer scores rollouts by it; eval sets "
                                                "follow too, unless they say otherwise")


def _renamed(made: Translation, given: Given, fate: Renamed, values: dict[Path, Any]) -> None:
    stage, path = _stage(given.path)
    stars = iter([part for part in path if isinstance(part, int)])
    target = (*stage, *(next(stars, 0) if part == "*" else part for part in fate.to.split(".")))
    if fate.values and (isinstance(given.value, (list, dict)) or given.value not in fate.values):
        known = ", ".join(map(str, fate.values))
        made.leave(given, guide.explain_value(given.key, given.value)
                   or f"needed {known}; {fate.to} was left at its default.")
        return
    value = fate.values.get(given.value, given.value) if fate.values else trinity_reasons.as_number(
        fate.to, given.value)
    if reason := trinity_reasons.without_critic(fate.to, given.path, values) or trinity_reasons.misfit(fate.to, value):
        made.leave(given, reason)
        return
    said = f" = {given.value}" if value != given.value else ""
    made.rename(given, target, value, given.key.removeprefix(".".join(map(str, stage)) + ".") + said)


def _refused(made: Translation, given: Given, fate: Refused, values: dict[Path, Any]) -> None:
    key = guide.general(given.key)
    inner = key.removeprefix(trinity_verl.PREFIX)
    if inner == key or not trinity_verl.translated(made, given, inner, values, _renamed):
        said = off(given.value, _idle(fate, given, values))
        (made.idle if said else made.left_out).append((given, said + fate.why))


def _idle(fate: Refused, given: Given, values: dict[Path, Any]) -> tuple:
    """The values by which a key is switched off: its own; of a family, any value when the family is off."""
    parts = guide.general(given.key).split(".")
    stage = len(given.path) - len(parts)
    for size in range(1, len(parts)):
        family = guide.KEYS.get(".".join(parts[:size]))
        switches = [item for item in family.idle if isinstance(item, tuple)] if isinstance(family, Refused) else []
        if any(values.get((*given.path[:stage + size], name), values) == value for name, value in switches):
            return (given.value,)
    return tuple(item for item in fate.idle if not isinstance(item, tuple))


def _unknown(made: Translation, given: Given, values: dict[Path, Any]) -> None:
    if reason := trinity_reasons.of_value(guide.general(given.key), given, values):
        made.leave(given, reason)
    elif guide.general(given.key) in SETTINGS or guide.general(given.key).startswith(FREE):
        made.keep(given)
    elif trinity_verl.is_misplaced(given.key):
        made.leave(given, trinity_verl.MISPLACED)
    else:
        known = [*SETTINGS, *(key for key, fate in guide.KEYS.items() if not isinstance(fate, Refused))]
        made.leave(given, f"no key of the guide, and none here.{nearest(guide.general(given.key), known)}")


# ----------------------------------------------------------------------------------------------------------- the whole


def _mend_references(made: Translation, values: dict[Path, Any]) -> None:
    """`${a.b}` whose key is called otherwise here, or is left out, becomes what it stood for."""
    written = {".".join(map(str, path)) for path in made.entries}
    names = {given.key: target for given, target in made.renamed}
    source = {".".join(map(str, path)): value for path, value in values.items()}

    def stands_for(match: re.Match) -> str:
        key = match[1]
        if key in written or any(w.startswith(key + ".") for w in written) or key not in source or is_secret(key):
            return match[0]
        return f"${{{names[key]}}}" if names.get(key) in written else str(source[key])

    for path, entry in made.entries.items():
        value = entry.value
        for _ in range(9):  # one may stand for another
            if isinstance(value, str):
                value = REFERENCE.sub(stands_for, value)
        if isinstance(value, str) and value != entry.value:
            meant = value if "${" in value else scalar(value)
            made.entries[path] = Entry(meant, entry.comment or f"{entry.value} there")


def _say_algorithm(made: Translation, values: dict[Path, Any]) -> None:
    """The algorithm of a configuration that names none, and is for training."""
    kind = ("algorithm", "algorithm_type")
    stages = {path[:2] for path in values if path[0] == "stages" and len(path) > 2}
    silent = not stages or any((*stage, *kind) not in values for stage in stages)
    has_tasks = any(path[-1] == "path" and "explorer_input" in path for path in made.entries)
    if silent and has_tasks and values.get(("mode",)) != "bench":
        made.choose(kind, "ppo", ITS_DEFAULT)


def _say_defaults(made: Translation, values: dict[Path, Any]) -> None:
    """Lines for what the source leaves to defaults that are not ours."""
    given = {guide.general(".".join(map(str, path))) for path in values}
    trinity_data.say_defaults(made)
    _say_algorithm(made, values)
    if not {"buffer.batch_size", "buffer.train_batch_size"} & given:
        made.choose(("buffer", "batch_size"), 1, ITS_DEFAULT)
    if any("eval_tasksets" in path[:-1] for path in made.entries):
        for name, default in (("eval_interval", 100), ("eval_on_startup", True)):
            if f"explorer.{name}" not in given:
                made.choose(("explorer", name), default, ITS_DEFAULT)
    trinity_sizes.least_rates(made, values)
    made.choose(("trainer", "max_checkpoints_to_keep"), None, f"{ITS_DEFAULT}: all are kept")
    trinity_sizes.lengths(made)
    trinity_sizes.train_batch(made)
    trinity_gpus.gpus(made, values.get(("cluster", "node_num")))
    trinity_rewards.say(made, values)
    trinity_sizes.budget(made)


FREE = tuple(f"{key}." for key, item in walk()  # mappings with any keys
             if str(item.annotation).startswith(("dict", "list[dict")) and "Any" in str(item.annotation))
