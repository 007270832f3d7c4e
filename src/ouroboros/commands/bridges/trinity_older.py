"""Converts keys of older Trinity-RFT releases (0.1 and 0.2) to their current names.

A key is dotted, without its stage; keys below it are converted too (`today` in tables/trinity.yaml).
"""

from functools import cache

from ouroboros.commands.bridges.source import Given
from ouroboros.commands.bridges.tables import table
from ouroboros.commands.bridges.translation import Path, Translation
from ouroboros.commands.bridges.trinity_data import INPUTS

EVAL_SET, TASKSET = ("buffer", "explorer_input", "eval_tasksets", 0), "buffer.explorer_input.taskset"
INPUT_BUFFERS = ("data_processor", "task_pipeline", "input_buffers")
# with an algorithm that mixes demonstrations, these were for the warm-up
MIXED, WARMUP = ("mix", "mix_chord"), "buffer.trainer_input.sft_warmup_dataset"
EXPERTS = {WARMUP: "buffer.trainer_input.auxiliary_buffers.sft_dataset"}
INPUT = ("buffer", "trainer_input")
HELD_OUT = "data.eval_split"  # now a separate set: the same data, another split
SHARED = ("data.dataset_path", "data.subset_name", "data.format", "data.format_config")


@cache
def names_of_today() -> dict[str, str]:
    """Maps older keys to current ones."""
    read = table("trinity")
    return read["today"] | {f"explorer.{n}": f"explorer.rollout_model.{n}" for n in read["of_engine"].split()}


def as_today(made: Translation, given: list[Given]) -> list[Given]:
    """Returns the keys under current names, each with value and line; existing current keys take precedence."""
    there, read_as, found = {one.path for one in given}, {}, []
    is_mixed = any(one.key.endswith("algorithm_type") and str(one.value) in MIXED for one in given)
    known = names_of_today() | (EXPERTS if is_mixed else {})
    for one in (one for one in given if one.key != HELD_OUT):
        path, names = _today(one.path, known)
        if path is None:
            found.append(one)
            continue
        if path in there:
            made.leave(one, f"{'.'.join(map(str, path))} is given too, and counts.")
            continue
        there.add(path)
        found.append(Given(path, one.value, one.line))
        read_as[names] = None
    if read_as:
        made.note("older_names", names="; ".join(f"{old} as {new}" for old, new in read_as))
    found += _held_out(made, given)
    paths = [one for one in found if one.path[:3] == INPUT_BUFFERS and one.path[-1] == "path"]
    if not paths or any(one.path == INPUTS for one in found):
        return found
    return [*(one for one in found if one not in paths), Given(INPUTS, [one.value for one in paths], paths[0].line)]


def _today(path: Path, known: dict[str, str]) -> tuple[Path | None, tuple[str, str]]:
    """Returns the current path of an older key, or of one below it, and (older name, name); None if it is current."""
    stage, parts = (path[:2], path[2:]) if path[0] == "stages" else ((), path)
    for size in range(len(parts), 0, -1):
        old = ".".join(map(str, parts[:size]))
        if new := known.get(old):
            return (*stage, *new.split("."), *parts[size:]), (old, new)
    return None, ("", "")


def _held_out(made: Translation, given: list[Given]) -> list[Given]:
    """Builds the set of `data.eval_split`: the task settings of `data`, with that split."""
    split = next((one for one in given if one.key == HELD_OUT and one.value), None)
    shared = [one for one in given if any(f"{one.key}.".startswith(f"{key}.") for key in SHARED)
              and one.value not in (None, "")]
    if split is None or not any(one.key == SHARED[0] for one in shared):
        return []
    made.chosen.append(f"{HELD_OUT}={split.value}: the same data, as an evaluation set.")
    size, known = len(TASKSET.split(".")), names_of_today()
    return [Given((*EVAL_SET, "name"), "eval", split.line), Given((*EVAL_SET, "split"), split.value, split.line),
            *(Given((*EVAL_SET, *_today(one.path, known)[0][size:]), one.value, one.line) for one in shared)]


def warmed_up(made: Translation, given: list[Given]) -> list[Given]:
    """Returns the keys with a warm-up on demonstrations as a stage before the others; unchanged where there is none, or
    where the source has stages itself."""
    values = {one.path: one.value for one in given}
    steps, dataset = (*INPUT, "sft_warmup_steps"), (*INPUT, "sft_warmup_dataset")
    has_rows = any(path[:3] == dataset and path[-1] == "path" for path in values)
    if not has_rows or not isinstance(values.get(steps), int) or values[steps] < 1 or any(
            path[0] == "stages" for path in values):
        return given
    line = next(one.line for one in given if one.path == steps)
    stage = ("stages", 0)
    found = [Given(("stages", i, "stage_name"), name, line) for i, name in enumerate(table("trinity")["warmed_up"])]
    found += [Given((*stage, "mode"), "train", line), Given((*stage, "algorithm", "algorithm_type"), "sft", line)]
    for one in given:
        if one.path == steps:
            found.append(Given((*stage, "buffer", "total_steps"), one.value, one.line))
        elif one.path[:3] == dataset:
            found.append(Given((*stage, *INPUT, "experience_buffer", *one.path[3:]), one.value, one.line))
        else:
            found.append(one)
    made.note("warmed_up", steps=values[steps])
    return found
