"""Generates the second half of docs/algorithms.md: `python -m benchmarks.catalogue`.

Names come from the tables, arguments and defaults from classes or signatures, texts from the docstrings, so the page
always matches the code. A test compares them.
"""

import inspect
from collections.abc import Callable
from types import ModuleType

from ouroboros.operators import correction, entropy, kl, priority, sampling, selection, shaping
from ouroboros.operators.aggregation import AGGREGATIONS, token_weights, token_weights_by_kind
from ouroboros.pipeline.settings.arguments.users import needed_columns
from ouroboros.pipeline.settings.declared import ADVANTAGES, POLICY_LOSSES
from ouroboros.pipeline.store.files import CONF

PARTS = ("advantage_fn", "policy_loss_fn", "loss_agg_mode", "kl_loss_fn", "kl_penalty_fn", "entropy_loss_fn",
         "sample_strategy")
ESTIMATES = "KL estimates: `algorithm.kl_loss_fn`, `algorithm.kl_penalty_fn`"
FAMILIES = {
    "Advantages: `algorithm.advantage_fn`": ADVANTAGES,
    "Policy losses: `algorithm.policy_loss_fn`": POLICY_LOSSES,
    "Loss aggregation: `algorithm.loss_agg_mode`": AGGREGATIONS,
    "Weights of tokens": {f.__name__: f for f in (token_weights, token_weights_by_kind)},
    ESTIMATES: kl.KL_ESTIMATORS,
    "What a KL estimate is used for": {f.__name__: f for f in (kl.penalise, kl.adaptive_coefficient)},
    "Importance correction: `algorithm.rollout_correction`": {
        f.__name__: f for f in (correction.importance_correction, correction.mismatch)},
    "Rejection: `algorithm.rollout_rejection`": {correction.rejected.__name__: correction.rejected},
    "Tokens that teach: `algorithm.top_entropy_quantile`": {
        selection.of_high_entropy.__name__: selection.of_high_entropy},
    "Entropy: `algorithm.entropy_loss_fn`": entropy.ENTROPY_LOSSES,
    "Penalty on length: `overlong_penalty` in `default_reward_fn_type`": {
        shaping.overlong_penalty.__name__: shaping.overlong_penalty},
    "Sample strategies: `algorithm.sample_strategy`": sampling.SAMPLE_STRATEGIES,
    "Priorities of a replay": priority.PRIORITIES,
}


def page() -> str:
    """The generated half of the page."""
    return "\n".join(["## Algorithms by type", "", *_types(), "", *(_family(*pair) for pair in FAMILIES.items())])


def _types() -> list[str]:
    """A table of conf/algorithm; empty cells: the type lacks this part, or leaves it to the loss."""
    import yaml

    rows = [f"| algorithm_type | repeat_times | {' | '.join(PARTS)} |", "|---" * (len(PARTS) + 2) + "|"]
    for path in sorted((CONF / "algorithm").glob("*.yaml")):
        found = yaml.safe_load(path.read_text())
        if found["algorithm_type"] != path.stem:
            rows.append(f"| `{path.stem}` | another name of `{found['algorithm_type']}` |{' |' * len(PARTS)}")
            continue
        cells = [_cell(found, key) for key in PARTS]
        rows.append(f"| `{path.stem}` | {found['repeat_times']} | {' | '.join(cells)} |")
    return rows


def _cell(found: dict, key: str) -> str:
    given = ", ".join(f"{name}={value}" for name, value in found.get(f"{key}_args", {}).items())
    return f"{found.get(key, '')}{f' ({given})' if given else ''}"


def _family(title: str, table: dict[str, Callable]) -> str:
    shared = [_shared(kl)] if title == ESTIMATES else []  # the module defines their symbols
    return "\n".join([f"## {title}", "", *shared, *(_part(name, function, table) for name, function in table.items())])


def _shared(module: ModuleType) -> str:
    """A module's docstring below the first line, which applies to all its functions."""
    return f"```text\n{inspect.getdoc(module).partition(chr(10))[2].strip()}\n```\n"


def _part(name: str, function: Callable, table: dict[str, Callable]) -> str:
    first = next(other for other, f in table.items() if f is function)
    if first != name:
        return f"### `{name}`\n\nAnother name of `{first}`.\n"
    defaults = function().model_dump() if inspect.isclass(function) else {
        p.name: p.default for p in inspect.signature(function).parameters.values() if p.default is not p.empty}
    own = [f"`{key}={value!r}`" for key, value in defaults.items()]
    taken = ", ".join(f"`{column}`" for column in needed_columns(function))
    said = "; ".join([f"takes {taken}"] * bool(taken) + [f"arguments {', '.join(own)}"] * bool(own))
    lines = [f"### `{name}`", "", f"{said[0].upper()}{said[1:]}.", "", "```text", inspect.getdoc(function), "```", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
