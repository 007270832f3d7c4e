"""Removes from a recipe arguments that their function lacks, and bounds of sampling that training cannot have."""

from collections.abc import Iterator

from ouroboros.commands.bridges.tables import said
from ouroboros.commands.bridges.translation import Entry, Path, Translation, places
from ouroboros.commands.bridges.trinity_values import TRAINING_SET
from ouroboros.pipeline.check.named_functions import PARTS, part_taker, reward_taker, workflow_taker
from ouroboros.pipeline.settings.algorithms import facts, parts
from ouroboros.pipeline.settings.arguments.base import Taker, unknown
from ouroboros.pipeline.settings.guide import general
from ouroboros.pipeline.settings.truncation import MOST
from ouroboros.pipeline.store.errors import ConfigError

SECTION, SOURCE = "algorithm", ("buffer", "explorer_input")
SPLIT = ("trainer", "ulysses_sequence_parallel_size")


def leave_out_unknown(made: Translation) -> None:
    """Removes every argument that no stage's function has; the reason lists the arguments it has."""
    _of_sets(made)
    for path in list(made.entries):
        scope, inner = (path[:2], path[2:]) if path[0] == "stages" else ((), path)
        if len(inner) < 3 or inner[0] != SECTION or not str(inner[1]).endswith("_args"):
            continue
        part = str(inner[1]).removesuffix("_args")
        whys = [_why(name, [taker], str(inner[2])) for name, taker in _functions(made, part, scope)]
        if whys and all(whys):
            made.withdraw(path, whys[0])


def _of_sets(made: Translation) -> None:
    """Does the same for the workflows and rewards of sets, if a set names ours."""
    for path in list(made.entries):
        size = next((i for i, part in enumerate(path) if part in ("workflow_args", "reward_fn_args")), len(path) - 1)
        if size == len(path) - 1 or SOURCE[1] not in path[:size]:
            continue
        of_set, is_workflow = path[:size], path[size] == "workflow_args"
        name = _of_set(made, of_set, "default_workflow_type" if is_workflow else "default_reward_fn_type")
        if name is None and not is_workflow:
            made.withdraw(path, "no reward function is named that takes it: there a workflow brings one.")
            continue
        names = [name or "simple_workflow"] if not isinstance(name, list) else name
        found = [(workflow_taker if is_workflow else reward_taker)(str(n), {}) for n in names]
        if why := _why(", ".join(map(str, names)), found, str(path[size + 1])):
            if not is_workflow and made.entries[path].value is not None:
                made.lack("reward", ".".join(map(str, path[size:])))
            made.withdraw(path, why)


def _of_set(made: Translation, of_set: Path, name: str) -> object:
    """Returns the name set by a set, or by the section explorer_input; an evaluation set's workflow has its own key."""
    section = of_set[:of_set.index(SOURCE[1]) + 1]
    of_all = "default_eval_workflow_type" if name == "default_workflow_type" and "eval_tasksets" in of_set else name
    named = [place for path in ((*of_set, name), (*section, of_all), (*section, name)) for place in places(path)]
    return next((made.entries[place].value for place in named if place in made.entries
                 and made.entries[place].value is not None), None)


def _why(name: str, takers: list[Taker | None], argument: str) -> str | None:
    return next(iter(unknown(name, takers, [argument])), None)


def _functions(made: Translation, part: str, scope: Path) -> Iterator[tuple[str, Taker | None]]:
    """Returns (name, parameters) of a component's function in a stage, or in every stage; None if unknown."""
    stages = sorted({path[:2] for path in made.entries if path[0] == "stages"}, key=str)
    for one in [scope] if scope else stages or [()]:
        name = _function(made, part, one)
        yield str(name), part_taker(part, name, {}) if name and part in PARTS else None


def _function(made: Translation, part: str, stage: Path) -> str | None:
    """Returns the function of a component: the configured one, or the algorithm's own."""
    def given(name: str) -> object:
        of_all = (SECTION, name)
        return made.entries.get((*stage, *of_all), made.entries.get(of_all, Entry(None))).value

    algorithm_type, named = str(given("algorithm_type")), given(part)
    if facts(algorithm_type).on_given_tokens:
        return None
    try:
        return parts(algorithm_type).get(part) if named is None else named
    except ConfigError:
        return None


def leave_out_untrainable(made: Translation) -> None:
    """Withdraws a top_k that is too large to be kept with each token, then a top_p without a top_k: rollouts to
    train on cannot have them (pipeline/settings/truncation.py). Rows with images are not split."""
    if SPLIT in made.entries and any(one.value for path, one in made.entries.items() if path[-1] == "image_key"):
        made.withdraw(SPLIT, said("split_images"))
    for name, reason in (("top_k", "too_many_kept"), ("top_p", "needs_top_k")):
        trained_on = [path for path in made.entries if path[-1] == name and (
            path[-2] == "model" or TRAINING_SET.match(general(".".join(map(str, path)))))]
        for path in trained_on:
            top_k, own = _top_k(made, path), made.entries[path].value
            if top_k > MOST if name == "top_k" else own is not None and own < 1 and not 1 <= top_k <= MOST:
                made.withdraw(path, said(reason, most=MOST))


def _top_k(made: Translation, path: Path) -> int:
    """Returns the top_k that comes with a bound: of the set, else that of the model; -1 for none."""
    own = (*path[:-1], "top_k")
    of_model = (*(path[:2] if path[0] == "stages" else ()), "model", "top_k")
    found = [made.value(*place) for one in (own, of_model) for place in places(one)]
    return next((one for one in found if isinstance(one, int)), -1)
