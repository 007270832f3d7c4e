"""Variables of a script that only its start or an alternative decides: SLURM's, and those that branches set."""

import re
from collections.abc import Sequence

from pipeline.bridges.shell_syntax import Construct, hole, reason
from pipeline.bridges.shell_words import Value

DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(--nodes|-N|--gpus-per-node|--gres)[= \t]+(?:gpu:(?:[\w.-]+:)?)?(\d+)\b",
                       re.MULTILINE)
OF_NODES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
OF_JOBS = {"--nodes": OF_NODES, "-N": OF_NODES, "--gpus-per-node": ("SLURM_GPUS_PER_NODE",),
           "--gres": ("SLURM_GPUS_ON_NODE",)}  # option of sbatch -> the variables that hold its value


def job_variables(text: str) -> dict[str, Value]:
    """Returns the numbers of nodes and GPUs that SLURM sets by the `#SBATCH` lines before the first command."""
    head = re.match(r"(?:[ \t]*(?:#[^\n]*)?(?:\n|\Z))*", text.replace("\r", ""))[0]
    return {name: value for option, value in DIRECTIVE.findall(head) for name in OF_JOBS[option]}


def merged(before: dict[str, Value], ends: Sequence[dict[str, Value]],
           construct: Construct) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Merges variables after alternatives of which an unknown one applies; returns them and the unknown ones' names."""
    values = {name: [end.get(name) for end in ends] for end in ends for name in end}
    changed = tuple(name for name, held in values.items() if any(value != held[0] for value in held))
    return ends[0] | {name: doubted(name, before.get(name), values[name], construct) for name in changed}, changed


def doubted(name: str, before: Value, values: Sequence[Value], construct: Construct) -> Value:
    """Returns a variable after a construct: its old value, plus unknown words for what only some alternatives add."""
    added = [_added(before, value) for value in values]
    if None in added:
        return hole(f"${{{name}}}", f"{name}, which {construct} sets")
    sure = [word for word in added[0] if all(word in words for words in added)]
    unsure = dict.fromkeys(word for words in added for word in words if word not in sure)
    words = [*sure, *(word if reason(word) else word + hole("", f"what only {construct} adds") for word in unsure)]
    return " ".join([before, *words]) if isinstance(before, str) else [*(before or []), *words]


def _added(before: Value, value: Value) -> list[str] | None:
    """Returns the words that a value adds to a former one; None if it does not start with that."""
    if isinstance(value, list) and not isinstance(before, str):
        size = len(before or [])
        return value[size:] if value[:size] == (before or []) else None
    if before and isinstance(before, str) and isinstance(value, str) and value.startswith(before):
        return None if value[len(before):][:1].strip() else value[len(before):].split()
    return None
