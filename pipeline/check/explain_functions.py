"""What `ouro config explain` says of functions: those that a setting may name, and the arguments of the chosen ones.

All of it is read from source: the tables of names, the signatures and the docstrings.
"""

import re
import textwrap
from pathlib import Path
from typing import Any

from pipeline.check.references import KL, ON_ROLLOUTS
from pipeline.check.reward_rules import reward_functions
from pipeline.check.signatures import Definition, definitions, dotted_definition
from pipeline.check.syntax import HOME
from pipeline.compose.stage_settings import effective, entries
from pipeline.settings.algorithms import DEMONSTRATED, PAIR_TYPES
from pipeline.store.digests import module_file
from pipeline.store.errors import ConfigError, nearest

WIDTH = 110
NEW_LINE = "\n"
SENTENCE_ENDS = r"(?<!et al)(?<!eq)(?<!eqs)[.;]\s+(?![^()]*\))|\n\s*\n"  # none within parentheses

# last part of a setting that names functions -> files and tables of those that there are
REWARDS = (("operators/reward.py", "REWARDS"), ("workflows/rewards.py", "OPENED"))
WORKFLOWS = (("workflows/single_turn.py", "WORKFLOWS"),)
TABLES = {
    "advantage_fn": (("operators/advantage.py", "ADVANTAGES"),),
    "policy_loss_fn": (("operators/loss.py", "POLICY_LOSSES"),),
    "kl_loss_fn": (("operators/kl.py", "KL_ESTIMATORS"),),
    "kl_penalty_fn": (("operators/kl.py", "KL_ESTIMATORS"),),
    "entropy_loss_fn": (("operators/entropy.py", "ENTROPY_LOSSES"),),
    "sample_strategy": (("operators/sampling.py", "SAMPLE_STRATEGIES"),),
    "priority_fn": (("operators/priority.py", "PRIORITIES"),),
    "loss_agg_mode": (("operators/aggregation.py", "AGGREGATIONS"),),
    "generator": (("operators/generate.py", "GENERATORS"),),
    "default_reward_fn_type": REWARDS,
    "default_workflow_type": WORKFLOWS,
    "default_eval_workflow_type": WORKFLOWS,
}
# settings with arguments -> the one that names the function, where it is not the same without `_args`
NAMED_BY = {"reward_fn_args": "default_reward_fn_type", "workflow_args": "default_workflow_type"}
# parameters that the caller gives: all without a default unless said here
GIVEN = {"generator": 1, "default_reward_fn_type": 2}
KL_MEANINGS = {
    "kl_coef": ("0.001", "weight in the loss, or in the reward"),
    "adaptive": ("False", "true: kl_coef follows the measured KL, so that this nears target_kl"),
    "target_kl": ("None", "nats a token; needed with adaptive"),
    "horizon": ("None", "rows over which kl_coef grows by the relative error once; needed with adaptive"),
}
assert tuple(KL_MEANINGS) == KL.optional


def choices(part: str) -> list[str]:
    """The functions that a setting (its last part) may name, one line each; nothing for a setting of another kind."""
    found = {name: f for table in TABLES.get(part, ()) for name, f in definitions(*table).items()}
    width = max(map(len, found), default=0)
    return [f"  {name:<{width}}  {f.doc.partition(NEW_LINE)[0]}" for name, f in found.items()]


def arguments(config: dict[str, Any], stage: str, key: str) -> list[str]:
    """The functions whose arguments the setting `key` holds: where they are, what they take, what they say.

    stage: the only one that is meant, if any. key: of the `*_args`, or of one argument.
    """
    path = key.split(".")
    at = next((i for i, part in enumerate(path) if part.endswith("_args")), None)
    part = at is not None and NAMED_BY.get(path[at], path[at].removesuffix("_args"))
    if part not in TABLES:
        return []
    lines: list[str] = []
    called = _chosen(config, stage, path[:at], path[at], part)
    _refuse_unknown(key, path[at + 1 :], part, list(called))
    for name, (stages, given) in called.items():
        found = _definition(part, name)
        head = f"{name}{' in ' + ', '.join(stages) if stages else ''}"
        lines += ["", head] if found else ["", f"{head}: its source cannot be read"]
        lines += _told(part, found, given) if found else []
    return lines


def _refuse_unknown(key: str, argument: list[str], part: str, names: list[str]) -> None:
    """Raises ConfigError for an argument that none of the functions has, as far as their sources tell."""
    found = [_definition(part, name) for name in names]
    if not argument or not found or any(one is None or one.signature.anything for one in found):
        return
    known = dict.fromkeys(KL_MEANINGS if part.startswith("kl_") else
                          (name for one in found for name in _own(part, one)))
    if argument[0] not in known:
        raise ConfigError(f"'{key}': {', '.join(names)} has no argument '{argument[0]}'.{nearest(argument[0], known)} "
                          f"It has: {', '.join(known) or 'none'}.")


def _chosen(config: dict, stage: str, place: list[str], args: str, part: str) -> dict[str, tuple[list[str], dict]]:
    """Function -> (stages that call it, the arguments that it is given there), whatever those say."""
    if place != ["algorithm"]:
        section = config
        for step in place:
            section = section[int(step)] if step.isdigit() else section.get(step) or {}
        names = (reward_functions(section, config["buffer"]["explorer_input"]) if args == "reward_fn_args"
                 else [section.get(part) or config["buffer"]["explorer_input"].get(part)])
        return {name: ([], section[args]) for name in names if name}
    found: dict[str, tuple[list[str], dict]] = {}
    for entry in (e for e in entries(config) if stage in ("", e["stage_name"])):
        algorithm = effective(config, entry)["algorithm"]
        called = algorithm["algorithm_type"] not in DEMONSTRATED and not (
            part in ON_ROLLOUTS and algorithm["algorithm_type"] in PAIR_TYPES)
        if called and algorithm[part]:
            found.setdefault(algorithm[part], ([], algorithm[args]))[0].append(f"stage {entry['stage_name']}")
    return found


def _definition(part: str, name: str) -> Definition | None:
    if ":" in name:
        return dotted_definition(name) if module_file(name.partition(":")[0]) else None
    return next((found[name] for table in TABLES[part] if name in (found := definitions(*table))), None)


def _told(part: str, function: Definition, given: dict[str, Any]) -> list[str]:
    own = {name: (function.defaults.get(name, "(needed)"), _meaning(function.doc, name))
           for name in _own(part, function)}
    takes = [name for name in (*function.signature.required, *function.signature.optional) if name not in own]
    if part.startswith("kl_"):
        own = KL_MEANINGS
    values = {name: f"{name}={default}" + (f", here {given[name]}" if name in given else "")
              for name, (default, _) in own.items()}
    width = max(map(len, values.values()), default=0)
    lines = [f"  defined in  {_shown(function.file)}, line {function.line}",
             *([f"  is given    {', '.join(takes)}"] if takes else []), "  arguments" + ("" if own else "   none")]
    for name, (_, meaning) in own.items():
        lines += textwrap.wrap(meaning, WIDTH, initial_indent=f"    {values[name]:<{width}}  ",
                               subsequent_indent=" " * (width + 6)) or [f"    {values[name]}"]
    return [*lines, "  says", *textwrap.indent(function.doc, "    ").splitlines()]


def _own(part: str, function: Definition) -> list[str]:
    """The parameters of a function that its caller does not give."""
    opened = function.file == HOME / REWARDS[1][0]  # they are given what opens them, a rule a response and its truth
    passed = 1 if opened else GIVEN.get(part)
    names = (*function.signature.required, *function.signature.optional)
    taken = function.signature.required if passed is None else names[:passed]
    return [name for name in names if name not in taken]


def _shown(path: Path) -> str:
    return str(path.relative_to(HOME) if path.is_relative_to(HOME) else path)


def _meaning(doc: str, name: str) -> str:
    """The sentence of a docstring that says most of an argument: one that begins with it, or names it first."""
    sentences = [" ".join(s.split()).rstrip(".;") for s in re.split(SENTENCE_ENDS, doc)]
    naming = [s for s in sentences if re.search(rf"\b{re.escape(name)}\b", s)]
    return next((s for s in naming if s.startswith(name)), naming[0] if naming else "").removeprefix(f"{name}: ")
