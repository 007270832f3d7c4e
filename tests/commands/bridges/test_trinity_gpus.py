"""GPUs of the stages of a Trinity-RFT configuration, and of one that has several machines."""

import pytest

from tests.bridges import from_trinity, written
from tests.golden.messages import wording

STAGES = """
cluster: {gpu_per_node: 8}
explorer: {rollout_model: {engine_num: 4}}
stages:
- {stage_name: warmup, mode: train, algorithm: {algorithm_type: sft}}
- {stage_name: rft, mode: both}
- {stage_name: wide, explorer: {rollout_model: {engine_num: 7}}}
- {stage_name: full, explorer: {rollout_model: {tensor_parallel_size: 2}}}
- {stage_name: last, mode: bench}
"""


def test_every_stage_has_the_gpus_that_its_own_engines_leave():
    """Of 8 GPUs four engines leave 4, seven leave 1, four of two GPUs none; a stage that only trains has all 8."""
    made = from_trinity(STAGES)
    ranks = {key: value for key, value in written(made).items() if key.endswith("trainer.ranks")}
    assert ranks == {"trainer.ranks": 4, "stages.0.trainer.ranks": 8, "stages.2.trainer.ranks": 1}
    told = " ".join(made.chosen)
    wording(told, "trainer.ranks=8", "8 GPUs", "Trinity-RFT", "trainer.ranks", "8 of")


@pytest.mark.parametrize(("text", "ranks"), [
    (STAGES + "trainer: {ranks: 2}", 2),  # of the source, for every stage
    ("{mode: train, algorithm: {algorithm_type: dpo}, cluster: {gpu_per_node: 8}}", 8),  # given pairs need no engine
    ("cluster: {gpu_per_node: 4}\nexplorer: {rollout_model: {engine_num: 4}}", None)])  # nothing is left, which is said
def test_ranks_that_no_stage_works_out(text, ranks):
    made = from_trinity(text)
    assert [value for key, value in written(made).items() if key.endswith("trainer.ranks")] == [ranks] * bool(ranks)
    assert any(note.startswith("trainer.ranks") for note in made.chosen) == (ranks != 2)


@pytest.mark.parametrize(("machines", "engines", "share", "ranks"), [
    # 2 machines of 8 GPUs less 8 engines leave 8, 4 on each; 4 less 12 leave 20; 2 less 2 leave 14
    (2, 8, 8, 8), (4, 12, 12, 20), (2, 2, 2, 14),
    # 9 do not come out on 2 machines: 4 on one, which leave 4; 3 engines fit beside a trainer as they are
    (2, 9, 4, 4), (4, 13, 3, 5), (2, 3, 3, 5)])
def test_several_machines_have_as_many_engines_and_ranks_each_or_are_one(machines, engines, share, ranks):
    made = from_trinity(f"cluster: {{node_num: {machines}, gpu_per_node: 8}}\n"
                        f"explorer: {{rollout_model: {{engine_num: {engines}}}}}")
    found, whole = written(made), engines % machines == 0
    assert [found.get(key) for key in ("cluster.node_num", "explorer.rollout_model.engine_num", "trainer.ranks")] == [
        machines if whole else None, share, ranks]
    assert (made.left_out == []) == whole
    assert found["trainer.zero_stage"] == 3
    assert any(f"there {engines} on {machines} machines" in note for note in made.chosen) == (share != engines)
