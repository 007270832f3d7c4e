"""Plans of the default recipe in which a test changes what it is about: their stages, who reads whom, identities."""

import tempfile
from functools import cache
from pathlib import Path

from ouroboros.pipeline.plan.plan import make_plan
from tests.configs import changed

AFTER_SFT = {"evaluate_sft", "rft", "evaluate_rft", "report"}
EVALS = "buffer.explorer_input.eval_tasksets"
ALL = {"tasks", "curate", "model", "sft"} | AFTER_SFT
SFT = {"algorithm": {"algorithm_type": "sft"}}


def planned(root: Path, values: dict | None = None):
    return make_plan(changed({"checkpoint_root_dir": str(root), **(values or {})}))


def identities(root: Path, values: dict | None = None) -> dict[str, str]:
    return {stage.name: stage.identity for stage in planned(root, values).stages}


@cache
def identities_of_default() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as root:
        return identities(Path(root))


def re_run(root: Path, values: dict) -> set[str]:
    """Names of the stages whose identity changes with `values`."""
    before, after = identities_of_default(), identities(root, values)
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


def reads(root: Path, stages: list, values: dict | None = None) -> dict[str, dict[str, str]]:
    """stage -> {role: name of the stage whose directory it reads}, waits under `waits`."""
    plan = planned(root, {"stages": stages, EVALS: [], **(values or {})})
    names = {s.directory: s.name for s in plan.stages}
    made = {s.name: {role: names.get(d, d) for role, d in s.inputs.items()} for s in plan.stages}
    for stage in plan.stages:
        if stage.waits:
            made[stage.name]["waits"] = ",".join(names[d] for d in stage.waits)
    return made
