"""`ouro config`: shows the composed configuration with derived numbers, and explains single settings and functions."""

import json
import re
import textwrap
from collections.abc import Callable
from functools import partial
from types import UnionType
from typing import Any

from pydantic.fields import FieldInfo

from ouroboros.pipeline.check.named_functions import ON_ROLLOUTS, part_taker, reward_taker, workflow_taker
from ouroboros.pipeline.check.user_code import named
from ouroboros.pipeline.check.workload import counted, described
from ouroboros.pipeline.compose.conf_files import groups
from ouroboros.pipeline.compose.origins import origin, stage_origin
from ouroboros.pipeline.compose.recipe import Recipe, effective, entries
from ouroboros.pipeline.settings.arguments.base import Taker, Term, bound, choices, unknown
from ouroboros.pipeline.settings.arguments.base import bounds as argument_bounds
from ouroboros.pipeline.settings.arguments.users import Signature
from ouroboros.pipeline.settings.config import RUN_WIDE, Config, walk
from ouroboros.pipeline.settings.data import reward_functions
from ouroboros.pipeline.settings.declared import TABLES
from ouroboros.pipeline.settings.guide import explain_absent
from ouroboros.pipeline.settings.key_names import general as general_key
from ouroboros.pipeline.settings.key_names import nearest_key
from ouroboros.pipeline.settings.kinds import ROWS, is_below
from ouroboros.pipeline.settings.schema import default
from ouroboros.pipeline.settings.secrets import is_name, is_secret, mask
from ouroboros.pipeline.settings.setting import about, at, listed, plain
from ouroboros.pipeline.store.errors import ConfigError, nearest
from ouroboros.pipeline.store.errors import shown as written


def show(config: Config) -> str:
    """Returns the configuration as YAML, secrets masked, preceded by comments with derived numbers."""
    from omegaconf import OmegaConf

    notes = [f"#   {name}: {word}: {sentence}" for name, settings in counted(Recipe.of(config)).items()
             for word, sentence in described(settings)]
    yaml = OmegaConf.to_yaml(OmegaConf.create(mask(plain(config))))
    return "\n".join(["# what follows from these settings, per training stage:", *notes, yaml.rstrip("\n")])


def explain(config: Config, key: str, overrides: list[str], valued: bool = True,
            elsewhere: Callable[[str], str | None] | None = None) -> str:
    """Explains a setting (type, meaning, bounds, default, value, origin), or lists those below a prefix.

    overrides: those that the configuration was composed with. valued: false where they have problems; the value, which
    could not be read, is then omitted. elsewhere: the equivalent of a veRL key, None for any other key.
    `stages.<stage_name>.key` is explained as `key`, with its value in that stage alone.
    """
    if "=" in key:
        raise ConfigError(f"'{key}' is an override; needed a key before it, such as "
                          f"`ouro config explain algorithm.policy_loss_fn_args {key}`.")
    stage, key = _stage_of(config, key)
    leaves = dict(walk())
    general = general_key(key)
    if general in leaves:
        return _setting(config, stage, key, general, overrides, valued)
    free = (k for k, f in leaves.items() if f.annotation == dict[str, Any])
    enclosing = next((k for k in free if general.startswith(k + ".")), None)
    if enclosing:  # an argument that only the function declares
        return _setting(config, stage, key, enclosing, overrides, valued)
    below = {k: f for k, f in leaves.items() if k.startswith(general + ".")}
    known = groups().get(key)
    of_files = [f"{key}=NAME chooses a file of conf/{key}/: {', '.join(known)}"] if known else []
    if below or of_files:
        width = max(map(len, below), default=0)
        return "\n".join([*of_files, *(f"{k:<{width}}  {f.description}" for k, f in below.items())])
    if of_guide := explain_absent(key):
        raise ConfigError(f"no key '{key}': {of_guide}")
    if of_verl := elsewhere and elsewhere(key):
        here = "" if of_verl.startswith("not meant here") else "here "
        raise ConfigError(f"no key '{key}', which is one of veRL's: {here}{of_verl.removesuffix('.')}.")
    last = [k for k in leaves if k.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
    hint = f" Did you mean {' or '.join(repr(k) for k in last)}?" if last else nearest_key(key, groups())
    raise ConfigError(f"unknown key '{key}'.{hint} `ouro config show` prints every key.")


def _stage_of(config: Config, key: str) -> tuple[str, str]:
    """Splits `stages.<stage_name>.key` into the stage's name and the key; other keys have no stage."""
    if not key.startswith("stages."):
        return "", key
    _, stage, *rest = key.split(".", 2)
    names = [entry["stage_name"] for entry in entries(config)]
    if stage not in names:
        raise ConfigError(f"'{key}': no stage '{stage}' in this recipe.{nearest(stage, names)} Stages: "
                          f"{', '.join(names)}.")
    return (stage, rest[0]) if rest else ("", "stages")


def _setting(config: Config, stage: str, key: str, general: str, overrides: list[str], valued: bool) -> str:
    item = dict(walk())[general]
    rows = [("type", type_name(item.annotation)), ("meaning", item.description), ("bounds", bounds(item)),
            ("default", shown(default(item))), ("decides", _effect(general, item))]
    if key.count(".") > general.count("."):  # the function declares its own type and default
        rows = [("entry of", general), *(r for r in rows if r[0] not in ("type", "default"))]
    if "*" not in key and valued:
        rows += _values(config, stage, key, overrides)
    width = max(len(name) for name, _ in rows)
    title = f"stages.{stage}.{key}" if stage else key
    return "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows if value),
                      *function_choices(general.rsplit(".", 1)[-1]), *_arguments(config, stage, key)])


def _values(config: Config, stage: str, key: str, overrides: list[str]) -> list[tuple[str, str]]:
    """Returns a setting's value for the whole run and in every stage that differs, with origins.

    stage: the only stage of interest, if any; its value is always included.
    """
    def row(name: str, value: Any, source: str) -> list[tuple[str, str]]:
        secret = is_secret(key) and value not in (ABSENT, None, "") and not is_name(value)
        text = "***" if secret else shown(value)
        return [(name, text), *([("  comes from", source)] if value != ABSENT else [])]

    value = _value(config, key)
    rows = row("value now", value, origin(overrides, key))
    for entry in [] if key.partition(".")[0] in RUN_WIDE else entries(config):
        own = _value(effective(config, entry), key)
        if entry["stage_name"] == stage or (own != value and not stage):
            rows += row(f"in stage {entry['stage_name']}", own, stage_origin(config, entry, key, overrides))
    return rows


def _effect(key: str, item) -> str:
    if key in EFFECTS:
        return EFFECTS[key]
    if about(item).how:
        return "how a stage runs; changing it re-runs nothing"
    if of_file := [kind for kind in ROWS if key in kind.external]:
        kinds = ", ".join(of_file)
        return ("what a stage makes, by content and not by path; other content re-runs these kinds of stage, and those "
                f"that read them: {kinds}")
    kinds = ", ".join(kind for kind in ROWS if is_below(key, kind.uses))
    return f"what a stage makes; changing it re-runs these kinds of stage, and those that read them: {kinds}"


def reference() -> str:
    """Returns every setting as a Markdown page, one table per section: docs/configuration.md."""
    lines = ["# Configuration", "", *REFERENCE]
    section = None
    for key, item in sorted(walk(), key=lambda pair: "." in pair[0]):  # settings outside any section come first
        here = key.split(".", 1)[0] if "." in key else ""
        if here != section:
            section = here
            lines += ["", f"## {here or 'The run'}", "", "| key | type | default | bounds | meaning |"]
            lines.append("|---|---|---|---|---|")
        meaning = item.description.replace("<", "&lt;") + (" *(how)*" if about(item).how else "")
        cells = (f"`{key}`", type_name(item.annotation), f"`{shown(default(item))}`", bounds(item), meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def type_name(kind: Any) -> str:
    """Formats a type: float, list[float], `int or null`."""
    if isinstance(kind, UnionType):
        return " or ".join("null" if k is type(None) else type_name(k) for k in kind.__args__)
    if hasattr(kind, "__args__"):
        return re.sub(r"\b(?:typing|ouroboros)\.(?:\w+\.)*", "", str(kind))
    return kind.__name__


def bounds(field: FieldInfo) -> str:
    """Formats the bounds: `one of a, b`, or `>= 0, <= 1`, or nothing."""
    if chosen_from := about(field).choices:
        return f"one of {listed(chosen_from)}"
    if names := about(field).names:
        return f"one of {', '.join(names)}, or module:function"
    signs = (("ge", ">="), ("gt", ">"), ("le", "<="))
    return ", ".join(f"{sign} {found}" for name, sign in signs if (found := bound(field, name)) is not None)


def _value(config: Config, key: str) -> Any:
    found = at(config, key, ABSENT)
    above, _, index = re.match(r"(.+?)(\.(\d+)(\..*)?)?$", key).groups()[:3]
    if found is ABSENT and index and isinstance(several := at(config, above), list):
        raise ConfigError(f"'{key}': the list has {len(several)} element(s); they count from 0.")
    return mask(plain(found))


def shown(value: Any) -> str:
    """Formats a value as in an override."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def function_choices(part: str) -> list[str]:
    """Lists the functions that a setting (its last part) may name, one line each; empty for other settings."""
    found = TABLES.get(part, {})
    width = max(map(len, found), default=0)
    return [f"  {name:<{width}}  {model.summary()}" for name, model in found.items()]


def _arguments(config: Config, stage: str, key: str) -> list[str]:
    """Describes the functions whose arguments `key` holds: purpose, configured arguments, parameters.

    stage: the only stage of interest, if any. key: of the `*_args`, or of one argument.
    """
    path = key.split(".")
    place = next((i for i, part in enumerate(path) if part.endswith("_args")), None)
    part = place is not None and NAMED_BY.get(path[place], path[place].removesuffix("_args"))
    if part not in TABLES:
        return []
    called = chosen(config, stage, path[:place], path[place], part)
    functions, wrong = named(*(name for name in called if ":" in name))
    found = {"default_reward_fn_type": reward_taker, "default_workflow_type": workflow_taker}.get(
        part, partial(part_taker, part))
    takers = {name: found(name, functions) for name in called}
    if lines := unknown(", ".join(called), list(takers.values()), path[place + 1:][:1]) if called else []:
        raise ConfigError(f"'{key}': {lines[0]}")
    made: list[str] = []
    for name, (stages, given) in called.items():
        made += ["", f"{name}{' in ' + ', '.join(stages) if stages else ''}"]
        if own := functions.get(name):
            made += [f"  is called  {name.partition(':')[2]}{own.text}", *([f"  says       {own.doc}"] * bool(own.doc))]
        made += _described(takers[name], given)
        made += [f"  {PAGE}"] if path[0] == "algorithm" and ":" not in name else []
    return [*made, *wrong]


def chosen(config: Config, stage: str, place: list[str], args: str, part: str) -> dict[str, tuple[list[str], dict]]:
    """Maps each function to (stages that call it, the arguments configured there), without validating them."""
    if place != ["algorithm"]:
        section, of_all = at(config, ".".join(place)), config.buffer.explorer_input
        names = (reward_functions(section, of_all) if args == "reward_fn_args"
                 else [at(section, part) or at(of_all, part)])
        return {name: ([], getattr(section, args)) for name in names if name}
    found: dict[str, tuple[list[str], dict]] = {}
    for entry in (e for e in entries(config) if stage in ("", e["stage_name"])):
        algorithm = effective(config, entry).algorithm
        called = not algorithm.on_given_tokens and not (part in ON_ROLLOUTS and algorithm.on_pairs)
        if called and (name := getattr(algorithm, part)):
            found.setdefault(name, ([], getattr(algorithm, args)))[0].append(f"stage {entry['stage_name']}")
    return found


def _described(taker: Taker | None, given: dict[str, Any]) -> list[str]:
    """Describes a built-in function and its parameters; only the names for a user's function."""
    if taker is None or isinstance(taker, Signature):
        return [f"    {name}, here {written(given[name])}" for name in (taker.names() if taker else ())
                if name in given]
    fields = taker.model_fields
    lines = [f"  is         {taker.summary()}",
             *([f"  is given   {', '.join(taker.columns)}"] if issubclass(taker, Term) and taker.columns else []),
             "  arguments" + ("" if fields else "  none")]
    values = {name: f"{name}={'(needed)' if one.is_required() else written(one.default)}"
              + (f", here {written(given[name])}" if name in given else "") for name, one in fields.items()}
    width = max(map(len, values.values()), default=0)
    for name, one in fields.items():
        limit = ", ".join(map(written, choices(one))) or argument_bounds(one)
        lines += textwrap.wrap(f"{one.description}{f' ({limit})' if limit else ''}", WIDTH,
                               initial_indent=f"    {values[name]:<{width}}  ", subsequent_indent=" " * (width + 6))
    return lines


WIDTH = 110
# settings with arguments -> the setting that names the function, where it is not the same key without `_args`
NAMED_BY = {"reward_fn_args": "default_reward_fn_type", "workflow_args": "default_workflow_type"}
PAGE = "docs/algorithms.md has its formula, paper and assumptions"
REFERENCE = [
    "Made by `ouro config reference`; a test fails when this page is not what that prints. `ouro config explain KEY`",
    "says the same of one setting, with its value in the composed configuration and what changing it re-runs.",
    "",
    "*(how)*: says how a stage runs (devices, memory, logs), not what it makes; changing it re-runs nothing.",
    "`*` stands for the number of an element. `stages.<stage_name>.<key>` sets a key for one training stage.",
]

ABSENT = "not given"  # an entry of free arguments that is not set

# settings that take effect through something other than the settings of a kind
EFFECTS = {
    "mode": "of which kind a stage is: another one is another stage; both and colocate make the same",
    "explorer.eval_on_startup": "whether there is a stage evaluate_base; changing it re-runs no other",
    "explorer.bench_on_latest_checkpoint": "which stages a bench has; changing it re-runs no other",
    "model.model_path": "what a stage makes, by content and not by path; another model re-runs the first training "
                        "stage, and all that read it",
    "model.teacher_model_path": "what a stage that distils makes, by content and not by path; another teacher re-runs "
                                "it, and all that read it",
    "checkpoint_root_dir": "where stages and runs lie; below another directory nothing is made yet, so all of it runs",
    "stages": "which training stages there are; one whose own settings change runs again, and all that read it",
}
