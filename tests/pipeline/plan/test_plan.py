"""The stages of a plan, their order, the modes, and what a plan leaves on the disk."""

import json
import os
from pathlib import Path

import pytest

from ouroboros.pipeline.plan import requests
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.store import checkpoints, files
from ouroboros.pipeline.store.errors import ConfigError
from tests.configs import changed
from tests.golden.messages import refuses
from tests.plans import ALL, EVALS, SFT, identities, planned, re_run, reads


def test_stages_in_order_and_what_they_read(tmp_path):
    plan = planned(tmp_path)
    inputs = {s.name: {role: Path(d).name.split("-")[0] for role, d in s.inputs.items()} for s in plan.stages}
    assert list(inputs) == ["tasks", "curate", "model", "sft", "evaluate_sft", "rft", "evaluate_rft", "report"]
    assert inputs["curate"] == {"tasks": "tasks"}
    assert inputs["sft"] == {"tasks": "curate", "model": "model"}
    assert inputs["rft"] == {"tasks": "curate", "model": "sft"}
    assert inputs["evaluate_sft"] == {"tasks": "curate", "trained": "curate", "model": "sft"}
    assert inputs["evaluate_rft"] == {"tasks": "curate", "trained": "curate", "model": "rft"}
    assert set(inputs["report"]) == ALL - {"report"}


def test_engines_and_training_take_the_whole_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    threads = {s.name: s.threads for s in planned(tmp_path).stages}
    assert {name for name, count in threads.items() if count == 8} == {"sft", "evaluate_sft", "rft", "evaluate_rft"}
    assert set(threads.values()) == {1, 8}


def test_with_gpus_a_stage_takes_its_share_of_the_machine(tmp_path, monkeypatch):
    """8 GPUs and 64 cores, 8 a GPU. rft: two ranks and an engine over two GPUs; an evaluation the engine alone."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    values = {"cluster.gpu_per_node": 8, "trainer.ranks": 2, "explorer.rollout_model.tensor_parallel_size": 2}
    asked = {s.name: (s.gpus, s.threads) for s in planned(tmp_path, {**values, "mode": "both"}).stages}
    assert asked["tasks"] == asked["report"] == (0, 1)
    assert asked["sft"] == (2, 16)
    assert asked["rft"] == (4, 32)
    assert asked["evaluate_rft"] == (2, 16)
    in_turns = {s.name: s.gpus for s in planned(tmp_path, {**values, "mode": "colocate"}).stages}
    assert in_turns["rft"] == 2
    assert {s.gpus for s in planned(tmp_path, {**values, "cluster.gpu_per_node": 0}).stages} == {0}


def test_a_stage_waits_for_the_manifests_of_its_inputs(tmp_path):
    rft = next(s for s in planned(tmp_path).stages if s.name == "rft")
    assert sorted(rft.upstream) == sorted(os.path.join(d, "manifest.json") for d in rft.inputs.values())
    assert rft.manifest == os.path.join(tmp_path, "store", f"rft-{rft.identity}", "manifest.json")


def test_what_the_first_stage_begins_with_is_evaluated_too(tmp_path):
    """The default recipe begins with random weights and leaves it out."""
    plan = planned(tmp_path, {"explorer.eval_on_startup": True})
    (base,) = (s for s in plan.stages if s.name not in ALL)
    assert (base.name, base.kind) == ("evaluate_base", "evaluate")
    assert Path(base.inputs["model"]).name.startswith("model-")
    assert identities(tmp_path, {"explorer.eval_on_startup": True, EVALS: []}).keys() == identities(
        tmp_path, {EVALS: []}).keys()


def test_a_model_is_evaluated_before_a_stage_goes_on_from_it(tmp_path):
    """Two stages train one after the other: evaluate_base and what it needs have two below them, sft one."""
    found = planned(tmp_path, {"explorer.eval_on_startup": True}).stages
    priority = requests.priorities(found)
    assert {one.name: priority[one.manifest] for one in found} == {
        "tasks": 2, "curate": 2, "model": 2, "evaluate_base": 2, "sft": 1, "evaluate_sft": 1, "rft": 0,
        "evaluate_rft": 0, "report": 0}


def test_what_an_rft_stage_watches_itself_by_does_not_make_another_of_it(tmp_path):
    by_name = {s.name: s.config for s in planned(tmp_path).stages}
    assert by_name["rft"].buffer.explorer_input.eval_tasksets[0].name == "countdown_test"
    assert not hasattr(by_name["sft"].buffer.explorer_input, "eval_tasksets")
    assert re_run(tmp_path, {"explorer.eval_interval": 10}) == set()


def test_what_demonstrations_need_does_not_limit_the_answers_of_an_evaluation(tmp_path):
    """The recipe allows answers of 12 tokens; both models are compared on answers of that length."""
    limits = {s.name: s.config.model.max_response_tokens for s in planned(
        tmp_path, {"stages.sft.model.max_response_tokens": 40, "explorer.eval_on_startup": True}).stages
        if s.kind in ("train", "rft", "evaluate")}
    assert limits == {"sft": 40, "rft": 12, "evaluate_base": 12, "evaluate_sft": 12, "evaluate_rft": 12}
    apart = {"stage_name": "apart", "after": [], "model": {"max_model_len": 64}}
    stages = [{"stage_name": "sft", **SFT}, {"stage_name": "rft"}, apart]
    assert identities(tmp_path, {"stages": stages})["evaluate_sft"] == identities(
        tmp_path, {"stages": stages[:2]})["evaluate_sft"]


def test_without_evaluation_sets_there_is_no_evaluation(tmp_path):
    assert [s.name for s in planned(tmp_path, {EVALS: []}).stages] == [
        "tasks", "curate", "model", "sft", "rft", "report"]


def test_a_stage_is_handed_only_what_is_in_its_identity_or_says_how(tmp_path):
    by_name = {s.name: s.config for s in planned(tmp_path).stages}
    assert not hasattr(by_name["tasks"], "algorithm")
    assert not hasattr(by_name["evaluate_rft"].buffer, "batch_size")
    assert by_name["sft"].algorithm.optimizer.lr == 1e-3
    assert by_name["curate"].log.level == "INFO"  # how


@pytest.mark.parametrize("name", ["tasks", "report", "evaluate_first"])
def test_a_stage_name_twice_is_refused(tmp_path, name):
    stages = {"stages": [{"stage_name": "first"}, {"stage_name": name}]}
    with refuses(ConfigError, f"'{name}'"):
        planned(tmp_path, stages)


def test_a_recipe_without_stages_is_one_stage(tmp_path):
    assert reads(tmp_path, [])["rft"] == {"tasks": "curate", "model": "model"}
    assert "sft" in reads(tmp_path, [], {"algorithm.algorithm_type": "sft"})


def test_stages_may_branch_and_join(tmp_path):
    """sft -> (low, high), both on sft's model; last on that of the first it names, and it waits for the other."""
    found = reads(tmp_path, [
        {"stage_name": "sft", **SFT}, {"stage_name": "low", "algorithm": {"optimizer": {"lr": 1e-5}}},
        {"stage_name": "high", "after": "sft"}, {"stage_name": "last", "after": ["high", "low"]},
        {"stage_name": "alone", "after": []}])
    assert found["low"]["model"] == found["high"]["model"] == "sft"
    assert "waits" not in found["high"]
    assert (found["last"]["model"], found["last"]["waits"]) == ("high", "low")
    assert found["alone"] == {"tasks": "curate", "model": "model"}


def test_a_stage_may_bring_its_own_model_and_its_own_tasks(tmp_path):
    found = reads(tmp_path, [
        {"stage_name": "first", **SFT}, {"stage_name": "wide", "model": {"init": {"hidden_size": 128}}},
        {"stage_name": "more", "data_processor": {"task_pipeline": {"generator_args": {"tasks": 9}}}}])
    assert found["wide"] == {"tasks": "curate", "model": "model_wide", "waits": "first"}
    assert found["more"] == {"tasks": "curate_more", "model": "wide"}
    assert found["curate_more"] == {"tasks": "tasks_more"}


def kinds(root: Path, stages: list, values: dict | None = None) -> dict[str, str]:
    return {s.name: s.kind for s in planned(root, {"stages": stages, **(values or {})}).stages}


LOOK, LEARN = {"stage_name": "look", "mode": "explore"}, {"stage_name": "learn", "mode": "train"}
TWO = [{"stage_name": "sft", **SFT}, {"stage_name": "b", **SFT, "after": []}]


def test_what_one_stage_explored_another_trains_on(tmp_path):
    """look makes no model: learn begins with what look began with, and evaluations follow what is trained. A stage that
    trains on something else waits for it."""
    found = reads(tmp_path, [{"stage_name": "sft", **SFT}, LOOK, LEARN])
    assert found["look"] == {"tasks": "curate", "model": "sft"}
    assert found["learn"] == {"experience": "look", "model": "sft"}
    made = kinds(tmp_path, [{"stage_name": "sft", **SFT}, LOOK, LEARN])
    assert [name for name, kind in made.items() if kind == "evaluate"] == ["evaluate_sft", "evaluate_learn"]
    assert (made["look"], made["learn"]) == ("rollout", "offline")
    after = reads(tmp_path, [LOOK, {"stage_name": "sft", **SFT}])
    assert after["sft"] == {"tasks": "curate", "model": "model", "waits": "look"}


def test_training_begins_with_what_was_trained_though_a_stage_that_only_explores_is_named_first(tmp_path):
    """look answers with the untrained model, or with one of its own; what it makes is experience, never a model."""
    for own in ({}, {"model": {"model_path": None}}):
        found = reads(tmp_path, [{"stage_name": "sft", **SFT}, {**LOOK, "after": [], **own},
                                 {**LEARN, "after": ["look", "sft"]}])
        assert found["look"]["model"] == "model"
        assert found["learn"] == {"experience": "look", "model": "sft"}


@pytest.mark.parametrize(("stages", "values", "changed"), [
    ([LOOK, LEARN], {"algorithm.optimizer.lr": 1e-5, "algorithm.policy_loss_fn_args": {"clip_range_low": 0.1}},
     {"learn", "evaluate_learn"}),  # what was explored stays
    ([LOOK, LEARN], {"buffer.batch_size": 32}, {"look", "learn", "evaluate_learn"}),
    ([{"stage_name": "rft"}], {"stages": [{"stage_name": "rft", "seed": 7}]}, {"rft", "evaluate_rft"}),
    # what a stage only waits for
    ([*TWO, {"stage_name": "c", "after": ["sft", "b"]}], {"stages": [*TWO, {"stage_name": "c", "after": "sft"}]},
     set())])
def test_which_stages_a_change_makes_again(tmp_path, stages, values, changed):
    def of(values):
        return {s.name: s.identity for s in planned(tmp_path, values).stages}

    before, after = of({"stages": stages}), of({"stages": stages, **values})
    assert {name for name in before if before[name] != after[name]} - {"report"} == changed


def test_a_bench_evaluates_what_stands_before_it(tmp_path):
    """The last checkpoint of a stage is its model, which its evaluation has scored: only the others are new."""
    two = [{"stage_name": "sft", **SFT}, {"stage_name": "rft"}, {"stage_name": "judge", "mode": "bench"}]
    found = kinds(tmp_path, two)
    assert {name: kind for name, kind in found.items() if name.startswith(("judge", "evaluate"))} == {
        "evaluate_sft": "evaluate", "evaluate_rft": "evaluate", "judge_sft": "bench", "judge_rft": "bench"}
    assert reads(tmp_path, two, {EVALS: planned(tmp_path).config.buffer.explorer_input.eval_tasksets})[
        "judge_rft"] == {"tasks": "curate", "model": "rft"}


def test_a_bench_with_an_evaluation_of_its_own_scores_the_models_too(tmp_path):
    judge = {"stage_name": "judge", "mode": "bench", "model": {"temperature": 0.5}}
    found = kinds(tmp_path, [{"stage_name": "rft"}, judge], {"explorer.eval_on_startup": True})
    assert [name for name in found if name.startswith(("judge", "evaluate"))] == [
        "evaluate_base", "evaluate_rft", "judge_base", "judge_rft", "judge_rft_last"]
    latest = kinds(tmp_path, [{"stage_name": "rft"}, judge], {"explorer.bench_on_latest_checkpoint": True})
    assert [name for name in latest if name.startswith("judge")] == ["judge_rft_last"]


def test_a_run_that_only_evaluates_must_have_been_trained(tmp_path):
    trained = planned(tmp_path)
    with refuses(ConfigError, "mode=bench", "rft"):
        planned(tmp_path, {"mode": "bench"})
    for stage in trained.stages:
        if stage.name in ("sft", "rft"):
            files.write_json(Path(stage.manifest), {})
    plan = planned(tmp_path, {"mode": "bench"})
    same = {s.name: s.identity for s in trained.stages if s.name != "report"}
    assert {s.name: s.identity for s in plan.stages if s.name in same} == same
    assert [s.name for s in plan.stages if s.name not in same] == ["bench_sft", "bench_rft", "report"]


def test_the_steps_of_a_bench_must_be_kept(tmp_path):
    """Of sft checkpoints 5 and 9 are there, of rft 9 alone: only sft has a step to evaluate beside its model."""
    for stage in planned(tmp_path).stages:
        if stage.name in ("sft", "rft"):
            files.write_json(Path(stage.manifest), {})
            for step in (5, 9) if stage.name == "sft" else (9,):
                saved = checkpoints.checkpoint_directory(Path(stage.directory), step)
                (saved / "model").mkdir(parents=True)
                files.write_json(saved / files.MANIFEST, {"step": step})
    asked = {"mode": "bench", "explorer.bench_steps": [5]}
    assert [s.name for s in planned(tmp_path, asked).stages if s.kind == "bench"] == ["bench_sft"]
    with refuses(ConfigError, "of 7", "sft-", "5, 9; rft-", " 9"):
        planned(tmp_path, asked | {"explorer.bench_steps": [5, 7]})


def test_freezing_writes_what_stages_read_and_a_view_of_links_and_planning_alone_no_run(tmp_path):
    plan = planned(tmp_path)
    assert not (tmp_path / "runs").exists()
    assert not list((tmp_path / "store").glob("*-*"))
    plan.freeze()
    for stage in plan.stages:
        link = tmp_path / "runs" / "ouroboros" / "countdown" / "stages" / stage.name
        assert json.loads((link / "stage.json").read_text())["identity"] == stage.identity
        assert link.resolve() == Path(stage.directory).resolve()
        assert not os.path.isabs(os.readlink(link))
        assert not files.is_complete(link)
    other = planned(tmp_path, {EVALS: []})
    other.freeze()
    assert sorted(p.name for p in (other.view / "stages").iterdir()) == sorted(s.name for s in other.stages)


def test_what_a_stage_reads_is_written_again_only_when_it_changes(tmp_path):
    """A new file would be left half-written in a complete stage, which nobody cleans, by a kill between two writes."""
    def written(plan) -> dict[str, int]:
        return {stage.name: (Path(stage.directory) / "stage.json").stat().st_mtime_ns for stage in plan.stages}

    plan = planned(tmp_path)
    plan.freeze()
    first = written(plan)
    plan.freeze()
    assert written(plan) == first
    (Path(plan.stages[0].directory) / "stage.json").write_text("{}")
    faster = planned(tmp_path, {"trainer.max_token_len_per_gpu": 5000})  # `how`: the same stages
    faster.freeze()
    assert {"sft", "rft"} <= {name for name, when in written(faster).items() if when != first[name]}
    assert json.loads((Path(plan.stages[0].directory) / "stage.json").read_text())["name"] == "tasks"


def test_a_stage_reads_what_was_configured(tmp_path):
    """Whatever an argument is called: one that sounds like a secret was once handed over as ***."""
    plan = planned(tmp_path, {"buffer.explorer_input.taskset.reward_fn_args.end_token": "</answer>"})
    plan.freeze()
    (rft,) = (s for s in plan.stages if s.name == "rft")
    frozen = json.loads((Path(rft.directory) / "stage.json").read_text())
    assert frozen["config"]["buffer"]["explorer_input"]["taskset"]["reward_fn_args"] == {"end_token": "</answer>"}


def test_a_name_that_a_bench_gives_to_an_evaluation_is_told_as_such():
    stages = [{"stage_name": "judge_a"}, {"stage_name": "a"}, {"stage_name": "judge", "mode": "bench"}]
    with refuses(ConfigError, "'judge_a'", "run's", "<bench>_<stage>"):
        make_plan(changed({"stages": stages}))
