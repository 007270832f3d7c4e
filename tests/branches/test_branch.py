"""A stage that changes settings on its way, taken from a trunk and made from nothing in another root."""

import json

import pytest

from ouroboros.pipeline.results import equality
from ouroboros.pipeline.store import files

pytestmark = pytest.mark.branches
OFFSET, BATCH = "synchronizer.sync_offset", "buffer.train_batch_size"
LR = {"algorithm.optimizer.lr": 1e-3}


def changing(step: int, values: dict) -> str:
    return f"changes={json.dumps({str(step): values})}"


CASES = {  # -> settings, steps of the trunk and of the branch, step and values of the change, steps that are taken
    "sft": (("algorithm.algorithm_type=sft",), 5, 6, 4, LR, 4),
    "grpo, one step off": ((f"{OFFSET}=1", "trainer.max_checkpoints_to_keep=null"), 5, 6, 4, LR, 4),
    "sampling, one step off": ((f"{OFFSET}=1", "trainer.max_checkpoints_to_keep=null"), 5, 6, 4,
                               {"model.temperature": 0.5}, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_a_branch_is_the_stage_with_this_change_from_nothing(name, planned, run):
    settings, first, then, at, values, taken = CASES[name]
    trunk = run(planned("here", *settings, f"buffer.total_steps={first}"))
    branch, alone = (run(planned(root, *settings, f"buffer.total_steps={then}", changing(at, values)))
                     for root in ("here", "other"))
    manifests = [files.read_json(stage / files.MANIFEST) for stage in (branch, alone)]
    assert list(equality.differences(branch, alone)) == []
    assert manifests[0]["taken"] == {trunk.name: taken}
    assert "taken" not in manifests[1]
