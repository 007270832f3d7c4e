"""`data_processor.task_pipeline.inputs` of Trinity-RFT: what its operators leave of them is what a set then reads.

The original writes the output over the path of the first taskset, or of the experience buffer where only that is
trained on. Here operators curate the rows of every set, so the set reads the inputs themselves, in its own format.
"""

from typing import Any

from pipeline.bridges.source import Given
from pipeline.bridges.translation import Path, Translation

INPUTS = ("data_processor", "task_pipeline", "inputs")
EXPLORED = (("buffer", "explorer_input", "taskset"), ("buffer", "explorer_input", "tasksets", 0))
SHOWN = ("buffer", "trainer_input", "experience_buffer")


def read_by_a_set(made: Translation, given: list[Given], values: dict[Path, Any]) -> list[Given]:
    """What is left to translate once a set reads the inputs: its own path, which they replace, is left out.

    values: of the source; the set's path among them becomes the inputs.
    """
    inputs, of_set = values.get(INPUTS), _reader(values)
    if not inputs or not isinstance(inputs, list) or of_set is None:
        return given
    path, read = (*of_set, "path"), inputs[0] if len(inputs) == 1 else inputs
    own, values[path] = values.get(path), read
    rest = []
    for one in given:
        if one.path == INPUTS:
            made.rename(one, path, read, f"{one.key}: operators curate the rows of every set")
        elif one.path == path and own != read:
            made.leave(one, "Trinity-RFT writes there what the operators leave of data_processor.task_pipeline.inputs: "
                            "here the set reads those, and the operators curate its rows.")
        elif one.path == path:
            made.kept.append(one)
        else:
            rest.append(one)
    return rest


def _reader(values: dict[Path, Any]) -> Path | None:
    """The set that reads the output: of those that the source has."""
    algorithm = values.get(("algorithm", "algorithm_type"))
    is_shown = values.get(("mode",)) == "train" and algorithm in ("sft", "dpo")
    return next((of_set for of_set in ((SHOWN,) if is_shown else EXPLORED)
                 if any(path[:len(of_set)] == of_set for path in values)), None)
