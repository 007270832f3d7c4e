"""The inputs and the output of `ouro replay`: the stage, the alternatives to its section `algorithm`, the weights
before a step, the verification.

stages/counterfactual.py does the work, in a separate process. Nothing is written into the run.
"""

from itertools import zip_longest
from pathlib import Path
from typing import Any

from ouroboros.pipeline.check import named_functions, user_code
from ouroboros.pipeline.check.data import lacking
from ouroboros.pipeline.check.judge import rules_of_stage
from ouroboros.pipeline.compose import axes
from ouroboros.pipeline.compose.recipe import Recipe, entries, merged
from ouroboros.pipeline.job.context import our_environment
from ouroboros.pipeline.job.shares import cores
from ouroboros.pipeline.job.threads import recorded_threads, thread_environment
from ouroboros.pipeline.results.difference import frozen
from ouroboros.pipeline.results.query import Answer, aligned, short, show
from ouroboros.pipeline.results.view import Node, View
from ouroboros.pipeline.settings import schema
from ouroboros.pipeline.settings.algorithm import Algorithm
from ouroboros.pipeline.settings.algorithms import filled
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.setting import Section, at, given, plain
from ouroboros.pipeline.store import checkpoints, files, launch, tables
from ouroboros.pipeline.store.errors import ConfigError, DataError, ModelError, StageError, nearest

ORIGINAL = "as it was"  # label of the stage's own algorithm in the output


def choose_stage(shown: View, name: str | None) -> Node:
    """Returns the stage of that name, or the run's last one that trains on rollouts. Raises DataError without one."""
    able = [stage for stage in shown.stages if stage.kind.learns_from_rollouts]
    if name is None and able:
        return able[-1]
    found = next((stage for stage in shown.stages if stage.name == name), None)
    which = f"Stages that can be replayed: {', '.join(stage.name for stage in able) or 'none'}."
    if name is None:
        raise DataError(f"{shown.run} has no stage that trains on rollouts; only their batches have advantages.")
    if found is None:
        names = [stage.name for stage in shown.stages]
        raise DataError(f"{shown.run} has no stage '{name}'.{nearest(name, names)} {which}")
    if found not in able:
        raise DataError(f"stage '{name}' does not train on rollouts, so its batches have no advantages. {which}")
    return found


def prepare(shown: View, stage: Node, step: int | None, overrides: list[str]) -> dict[str, Any]:
    """Builds the request for stages/counterfactual.py. step: null for the last one that can be replayed.

    Raises DataError for a step that cannot be replayed, ConfigError with every problem of the alternatives.
    """
    if not (stage.directory / "stage.json").exists():
        raise DataError(f"{stage.directory} is not there; `ouro run` with the run's overrides makes it again.")
    spec = files.read_json(stage.directory / "stage.json")
    config = Config.of_stage(spec["kind"], spec["config"])
    if at(config, "trainer.ppo_epochs", 1) > 1 or at(config, "trainer.ppo_mini_batch_size"):
        raise DataError(f"stage '{stage.name}' makes several optimizer steps over a train batch (trainer.ppo_epochs, "
                        "ppo_mini_batch_size), and a replay is the gradient of one.")
    if at(config, "trainer.reference_update.interval"):
        raise DataError(f"stage '{stage.name}' has a reference that follows the policy (trainer.reference_update), and "
                        "a replay has only the one that the stage began with.")
    critic = config.algorithm.has_critic
    able = replayable(stage.directory, files.inputs_of(stage.directory)["model"], critic)
    step = _choose_step(stage, step, able, critic)
    if critic and config.trainer.zero_stage == 3 and step > 1:
        raise ModelError("the critic's values are needed, and under trainer.zero_stage=3 its checkpoint is in parts, "
                         "which only DeepSpeed puts together. Step 1 can be replayed.")
    return {"directory": str(stage.directory), "step": step, "weights": str(able[step]) if able[step] else None,
            "alternatives": plain(alternatives(shown.path, stage.name, config.algorithm, overrides))}


def replayable(directory: Path, model: Path, critic: bool) -> dict[int, Path | None]:
    """Maps every recorded trainer step to the directory with the weights before it, if they exist; null is the stage's
    initial model.

    critic: whether the critic's weights are needed too, which only checkpoints contain.
    """
    found: dict[int, Path | None] = {1: None} if model.exists() else {}
    if not critic:
        published = (directory / "weights").glob(f"version=*/{files.MANIFEST}")
        versions = {int(path.parent.name.removeprefix("version=")): path.parent for path in published}
        found |= {version + 1: path for version, path in versions.items() if version}
    kept = checkpoints.complete_checkpoints(directory)
    found |= {step + 1: checkpoints.checkpoint_directory(directory, step) for step in kept}
    return {step: found[step] for step in tables.steps_present(directory, "steps") if step in found}


def _choose_step(stage: Node, step: int | None, able: dict[int, Path | None], critic: bool) -> int:
    if step is None and able:
        return max(able)
    if step in able:
        return step
    made = tables.steps_present(stage.directory, "steps")
    keep = ("Checkpoints are kept every trainer.save_interval steps, the newest trainer.max_checkpoints_to_keep of "
            "them: a smaller interval and a larger number keep more.")
    if not able:
        raise DataError(f"stage '{stage.name}' has no step whose weights are still there, of {len(made)}. {keep}")
    ready = f"Steps that can be replayed: {', '.join(map(str, able))}."
    if step not in made:
        raise DataError(f"stage '{stage.name}' has no trainer step {step}; it made {made[0]} to {made[-1]}. {ready}")
    closest = min(able, key=lambda one: (abs(one - step), one))
    needed = "its critic's weights before it" if critic else "the weights before it"
    raise DataError(f"trainer step {step} of stage '{stage.name}' cannot be replayed: {needed} (step {step - 1}) are "
                    f"not kept. The nearest that can be is {closest}. {ready} {keep}")


# ------------------------------------------------------------------------------------------------------------ process


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer of stages/counterfactual.py. Raises StageError with its last output when it fails."""
    threads = recorded_threads(Path(request["directory"])).get("trainer", len(cores()))
    quiet = {"TQDM_DISABLE": "1"}  # otherwise its last output would be progress bars
    try:
        found = launch.ask("ouroboros.stages.counterfactual", request,
                           our_environment() | thread_environment(threads) | quiet)
    except StageError as error:
        raise StageError(f"the batch could not be replayed:\n{str(error).partition(chr(10))[2]}") from None
    return {**found, "rows": {name: found["rows"][name] for name in (ORIGINAL, *request["alternatives"])}}


# -------------------------------------------------------------------------------------------------------------- words


def is_faithful(proof: list[list]) -> bool:
    """Returns whether the stage's own numbers were reproduced."""
    return all(abs(found - stored) <= allowed for _, stored, found, allowed in proof)


def proof_lines(proof: list[list]) -> list[str]:
    """Compares the stage's own numbers with the recomputed ones, in text."""
    lines = [f"  {what}: {found:.6g}" + (f", stored {stored:.6g}" if stored else "")
             + ("" if abs(found - stored) <= allowed else "  DIFFERS") for what, stored, found, allowed in proof]
    if is_faithful(proof):
        return ["faithful: recomputed under the stage's own algorithm, the batch gives what the stage stored", *lines]
    return ["NOT FAITHFUL: the stage stored other numbers, so those below are not what it would have seen. Another "
            "kind of device, or code that has changed since, may be why.", *lines]


def table(rows: dict[str, dict[str, Any]], form: str) -> str:
    """Returns one column per algorithm for display; one row per algorithm as CSV and JSON."""
    if form != "table":
        lines = [(name, *(row[measure] for measure in MEANINGS)) for name, row in rows.items()]
        return show(Answer(["algorithm", *MEANINGS], lines), form)
    lines = [(meaning, *(_cell(row[measure]) for row in rows.values())) for measure, meaning in MEANINGS.items()
             if measure != LEAST and any(row[measure] is not None for row in rows.values())]
    groups = [(row[LEAST] or "-").split(", ") for row in rows.values()]
    lines += [("" if place else MEANINGS[LEAST], *cells)
              for place, cells in enumerate(zip_longest(*groups, fillvalue=""))]
    return aligned(["", *rows], lines)


def _cell(value: float | str | None) -> str:
    if value is None:
        return "-"
    return short(value, 4) if isinstance(value, float) else str(value)


MEANINGS = {
    "rows": "rows trained on",
    "advantage_mean": "advantage, mean",
    "advantage_std": "advantage, std",
    "advantage_correlation": "correlation with the original's",
    "same_sign": "share of rows with the same sign",
    "loss": "loss",
    "clip_fraction": "share of tokens clipped",
    "kl": "KL to the policy that sampled",
    "kl_loss": "KL to the reference",
    "entropy": "entropy",
    "grad_norm": "gradient norm",
    "cosine": "cosine to the original's gradient",
    "least_alike": "parts whose cosine is smallest",
}
LEAST = "least_alike"


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
    explorer = recipe.explored[stage] if recipe.kinds[stage].is_offline else stage
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
