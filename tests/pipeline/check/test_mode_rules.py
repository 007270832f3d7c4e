"""Rules for the order of modes, and what a stage of each mode is asked for."""

import pytest

from ouroboros.pipeline.check.judge import rules_of_stage
from ouroboros.pipeline.check.stage import partly_measured, unfit_order
from ouroboros.pipeline.compose.recipe import Recipe
from tests import plans
from tests.configs import changed, check, overridden, places
from tests.plans import reads

SFT = {"algorithm": {"algorithm_type": "sft"}}


def recipe(*stages: dict) -> Recipe:
    return Recipe(changed({"stages": list(stages)}))


LOOK, LEARN = {"stage_name": "look", "mode": "explore"}, {"stage_name": "learn", "mode": "train"}


def taskset(**given) -> dict:
    return {"buffer": {"explorer_input": {"taskset": given}}}


MEASURED = {"selector_type": "offline_easy2hard", "feature_keys": ["stages.look.avg_at_k"]}


@pytest.mark.parametrize(("stages", "expected"), [
    # 4 tasks x 8 rollouts are 32 rows a step: 16 divides it, 64 is twice it, 24 is neither
    *(([LOOK | {"buffer": {"batch_size": 4}}, LEARN | {"buffer": {"train_batch_size": batch}}], found)
      for batch, found in ((None, []), (16, []), (64, []), (24, ["learn: buffer.train_batch_size"]))),
    # recorded experience needs a stage that explores, a bench one that trains
    ([{"stage_name": "sft", **SFT}, LEARN], ["learn: mode"]),
    ([LOOK, {"stage_name": "judge", "mode": "bench"}], ["judge: mode"]),
    ([{"stage_name": "sft", **SFT, "mode": "train"}], []),
    # rates are of the set with the same name
    *(([LOOK | taskset(name="sums"), {"stage_name": "rft", **taskset(name=name, data_selector=MEASURED)}], found)
      for name, found in (("sums", []), ("more", ["rft: buffer.explorer_input.taskset.name"])))])
def test_what_a_stage_needs_of_those_before_it(stages, expected):
    assert places(unfit_order(recipe(*stages))) == expected


@pytest.mark.parametrize(("values", "expected"), [
    ({"mode": "explore", "algorithm.algorithm_type": "sft"}, ["mode"]),
    ({"mode": "explore", "algorithm.algorithm_type": "dpo", "stages": []}, ["mode"]),  # nor asked for a file of pairs
    ({"mode": "bench", "buffer.explorer_input.eval_tasksets": []}, ["bench: mode"]),
    # the stages of a run in mode bench are judged as they were trained: it is not the bench that reads pairs
    ({"mode": "bench", "algorithm.algorithm_type": "dpo"}, ["rft: algorithm.algorithm_type"])])
def test_combinations_with_a_mode_that_are_refused(values, expected):
    assert places(check(changed(values))) == expected


@pytest.mark.parametrize("values", [
    {"mode": "explore", "algorithm.repeat_times": 1},  # what compares its groups is the stage that trains on them
    {"mode": "explore", "algorithm.algorithm_type": "mix"},
    {"mode": "explore", "algorithm.algorithm_type": "remax", "algorithm.greedy_baseline": False},
    {"mode": "explore", "algorithm.optimizer.betas": [2]}, {"mode": "bench", "algorithm.optimizer.betas": [2]},
    {"mode": "bench", "algorithm.algorithm_type": "dpo"}, {"mode": "bench", "algorithm.algorithm_type": "mix"},
    {"mode": "bench", "algorithm.algorithm_type": "cpt"}, {"mode": "bench", "model.top_p": 0.5},
    {"mode": "train", "model.top_k": 5}, {"mode": "train", "algorithm.repeat_times": 1},
    {"mode": "train", "algorithm.max_resample_rounds": 1, "algorithm.algorithm_type": "ppo"}])
def test_a_stage_is_not_asked_for_what_its_mode_does_not_read(values):
    rft = {key: value for key, value in values.items() if key != "mode"}
    assert rules_of_stage(overridden("mode=" + values["mode"], *(f"{key}={value}" for key, value in rft.items()))) == []


SERVER = {"explorer": {"rollout_model": {"engine_type": "openai", "external": {
    "base_url": "http://127.0.0.1:1/v1", "model_name": "m"}}}}


def test_recorded_experience_needs_no_stage_that_explored(tmp_path):
    """Its content is the identity of a stage, and where a stage explored, its rows are taken."""
    path = tmp_path / "desk" / "rollouts"
    path.mkdir(parents=True)
    (path / "step=000001.parquet").write_text("x")
    learn = {"stage_name": "learn", "mode": "train", "after": [],
             "buffer": {"trainer_input": {"experience_buffer": {"path": str(tmp_path / "desk")}}}}
    assert unfit_order(recipe(learn)) == []
    read = reads(tmp_path, [learn])
    assert read["learn"] == {"experience": "recorded", "model": "model"}
    look = {"stage_name": "look", "mode": "explore", "buffer": {"batch_size": 4}}
    assert reads(tmp_path, [look, {**learn, "after": ["look"]}])["learn"]["experience"] == "look"


def test_operators_that_would_judge_no_row_are_refused():
    """What a stage with mode=train reads was judged by the stage that wrote it: other operators there are ignored."""
    def with_operators(stage, *names):
        listed = [{"name": one} for one in names]
        return {**stage, "data_processor": {"experience_pipeline": {"operators": listed}}}

    look, learn, again = LOOK, LEARN, {"stage_name": "again", "mode": "score"}
    refused = ["learn: data_processor.experience_pipeline.operators"]
    assert places(unfit_order(recipe(look, with_operators(learn, "reward_filter")))) == refused
    assert places(unfit_order(recipe(with_operators(look, "reward_filter"), with_operators(learn, "reward_std_filter")))
                  ) == refused
    for stages in ((with_operators(look, "reward_filter"), learn),
                   (with_operators(look, "reward_filter"), with_operators(learn, "reward_filter")),
                   (look, with_operators(again, "reward_filter"), with_operators(learn, "reward_filter"))):
        assert unfit_order(recipe(*stages)) == []
    recorded = {**learn, "after": [], "buffer": {"trainer_input": {"experience_buffer": {"path": "desk"}}}}
    assert places(unfit_order(recipe(with_operators(recorded, "reward_filter")))) == refused
    shown = with_operators({"stage_name": "learn", **SFT}, "reward_filter")
    assert places(unfit_order(recipe(shown, {"stage_name": "rft"}))) == refused


def test_a_server_is_evaluated_and_nothing_begins_with_its_model(tmp_path):
    theirs = {"stage_name": "theirs", "mode": "bench", **SERVER}
    assert unfit_order(recipe(theirs)) == []
    assert places(unfit_order(recipe(theirs, {"stage_name": "rft"}))) == ["rft: after"]
    stages = {stage.name: stage for stage in plans.planned(
        tmp_path, {"stages": [theirs, {"stage_name": "sft", **SFT, "after": []}]}).stages}
    assert stages["theirs_server"].inputs["model"] == stages["server"].directory
    assert stages["evaluate_sft"].inputs["model"] == stages["sft"].directory


def test_a_server_explores_and_what_follows_begins_with_the_runs_model(tmp_path):
    theirs = {"stage_name": "theirs", "mode": "explore", **SERVER}
    stages = {stage.name: stage for stage in plans.planned(
        tmp_path, {"stages": [theirs, {"stage_name": "sft", **SFT}]}).stages}
    assert stages["theirs"].inputs["model"] == stages["server"].directory
    assert stages["sft"].inputs["model"] == stages["model"].directory
    assert places(unfit_order(recipe(theirs, {"stage_name": "fit", "mode": "train"}))) == ["fit: mode"]


def test_a_server_is_not_trained():
    assert places(check(recipe({"stage_name": "rft", **SERVER}).run)) == ["explorer.rollout_model.engine_type"]
    missing = {"explorer": {"rollout_model": {"engine_type": "openai"}}}
    assert places(check(recipe({"stage_name": "x", "mode": "bench", **missing}).run)) == [
        "explorer.rollout_model.external.base_url", "explorer.rollout_model.external.model_name"]
    assert places(check(recipe({"stage_name": "x", "mode": "bench", "model": {"top_k": 20}, **SERVER}).run)) == [
        "model.top_k"]


def test_features_that_an_earlier_stage_measures_are_its_table(tmp_path):
    """The stage that measures and the one that learns read the same tasks; a record's key counts beside it."""
    key = "buffer.explorer_input.taskset.data_selector"
    look = LOOK
    chosen = taskset(data_selector={**MEASURED, "feature_keys": ["stages.look.avg_at_k", "level"]})
    stages = [look, {"stage_name": "rft", **chosen}]
    made = reads(tmp_path, stages)
    assert made["rft"]["profile_look"] == "look"
    assert unfit_order(recipe(*stages)) == []
    for wrong in ([{"stage_name": "rft", **chosen}, look], [{**look, "mode": "both"}, {"stage_name": "rft", **chosen}],
                  [{**look, **chosen}, {"stage_name": "rft"}]):
        (found,) = places(unfit_order(recipe(*wrong)))
        assert found.endswith(f"{key}.feature_keys")


@pytest.mark.parametrize(("buffer", "told"), [
    ({"total_steps": None}, 1), ({"total_steps": 2}, 1), ({"total_steps": 3}, 0),
    ({"total_steps": None, "total_epochs": 2}, 0)])
def test_tasks_that_a_measuring_stage_leaves_out_are_told(tmp_path, buffer, told):
    """Ten tasks by four: one pass has two steps of four; two passes have five steps."""
    (tmp_path / "a.jsonl").write_text('{"question": "q", "answer": "1"}\n' * 10)
    rows = {"buffer": {"batch_size": 4, **buffer, "explorer_input": {"taskset": {"path": str(tmp_path / "a.jsonl")}}}}
    found = partly_measured(recipe({**LOOK, **rows}, {"stage_name": "rft", **taskset(data_selector=MEASURED)}))
    assert places(found) == ["look: buffer.total_steps"] * told


def test_tasks_are_the_same_with_and_without_a_measured_feature(tmp_path):
    def tasks(*keys):
        selector = {"selector_type": "offline_easy2hard", "feature_keys": [*keys]} if keys else {}
        stages = [LOOK, {"stage_name": "rft", **taskset(data_selector=selector)}]
        return [one.identity for one in plans.planned(tmp_path, {"stages": stages}).stages if one.kind == "tasks"]

    assert tasks("stages.look.avg_at_k") == tasks()
    assert tasks("level") != tasks()
