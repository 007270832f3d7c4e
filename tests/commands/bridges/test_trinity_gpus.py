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


def test_ranks_that_the_source_gives_hold_for_every_stage():
    made = from_trinity(STAGES + "trainer: {ranks: 2}")
    found = written(made)
    assert [note for note in made.chosen if note.startswith("trainer.ranks")] == []
    assert {key: found[key] for key in found if key.endswith("trainer.ranks")} == {"trainer.ranks": 2}


def test_a_run_on_given_pairs_has_no_engine_to_leave_gpus():
    made = from_trinity("{mode: train, algorithm: {algorithm_type: dpo}, cluster: {gpu_per_node: 8}}")
    assert written(made)["trainer.ranks"] == 8
    wording(made.chosen[0], "trainer.ranks=8", "8 GPUs", "Trinity-RFT")


@pytest.mark.parametrize(("machines", "engines", "ranks"), [(2, 8, 8), (4, 12, 20), (2, 2, 14)])
def test_several_machines_have_as_many_engines_and_ranks_each(machines, engines, ranks):
    """2 machines of 8 GPUs less 8 engines leave 8, 4 on each; 4 less 12 leave 20; 2 less 2 leave 14."""
    made = from_trinity(f"cluster: {{node_num: {machines}, gpu_per_node: 8}}\n"
                        f"explorer: {{rollout_model: {{engine_num: {engines}}}}}")
    found = written(made)
    assert [found[key] for key in ("cluster.node_num", "explorer.rollout_model.engine_num", "trainer.ranks")] == [
        machines, engines, ranks]
    assert made.left_out == []


@pytest.mark.parametrize(("machines", "engines", "share", "ranks"), [(2, 9, 4, 4), (4, 13, 3, 5), (2, 3, 3, 5)])
def test_engines_that_do_not_come_out_on_several_machines_are_those_of_one(machines, engines, share, ranks):
    """9 engines on 2 machines of 8 GPUs are 4 on one, and leave 4; 3 engines fit beside a trainer as they are."""
    made = from_trinity(f"cluster: {{node_num: {machines}, gpu_per_node: 8}}\n"
                        f"explorer: {{rollout_model: {{engine_num: {engines}}}}}")
    found = written(made)
    assert (found["explorer.rollout_model.engine_num"], found["trainer.ranks"]) == (share, ranks)
    assert found["trainer.zero_stage"] == 3
    assert any(f"there {engines} on {machines} machines" in note for note in made.chosen) == (share != engines)


def test_engines_that_leave_the_trainer_nothing_are_said():
    made = from_trinity("cluster: {gpu_per_node: 4}\nexplorer: {rollout_model: {engine_num: 4}}")
    assert "trainer.ranks" not in written(made)
    wording(made.chosen[-1], "trainer.ranks", "4 of", "4 GPUs")
