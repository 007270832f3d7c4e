"""The table `curated` of an explorer step, and of a stage that scores."""

from dataclasses import replace

from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.settings.explorer import depends_on_time
from ouroboros.pipeline.settings.kinds import KINDS
from ouroboros.pipeline.store import records, tables
from ouroboros.stages.curation import curation_of
from tests.configs import overridden, problems_of
from tests.factories import row
from tests.stages.conftest import publish_model, step
from tests.stages.test_rescore import LONGER, score  # noqa: F401

KEY = "data_processor.experience_pipeline.operators"
SHAPED = f"{KEY}=[{{name: reward_shaping_mapper, args: {{reward_shaping_configs: [{{stats_key: reward}}]}}}}]"


def brief(rows):
    for one in rows:
        one["scores"]["truth"] = float(len(one["answer"]))
        one["reason"] = "asked twice" if one["run_index"] else None


def read(directory, table):
    return tables.read(tables.step_file(directory, table, 1), records.TABLES[table]).to_pylist()


def test_an_explorer_writes_a_verdict_for_each_row_that_is_ok_and_experience_stays(stage):
    """Task t0 is asked twice; run 1 of it is dropped, and run 0 is then alone in its group."""
    context = stage(f"{KEY}=[{{name: 'tests.stages.test_curation:brief'}}]")
    step(publish_model(context, 0))
    rows, found = read(context.directory, "experience"), read(context.directory, "curated")
    good = [one for one in rows if one["status"] == "ok"]
    assert [(one["experience_id"], one["operator"]) for one in found] == [
        (good[0]["experience_id"], "group"), (good[1]["experience_id"], "tests.stages.test_curation:brief")]
    assert [one["reward"] for one in found] == [one["reward"] for one in good]
    assert [dict(one["scores"]) for one in found] == [{"truth": 32.0}] * 2


def test_without_operators_there_is_no_table(stage):
    context = stage()
    step(publish_model(context, 0))
    assert tables.steps_present(context.directory, "curated") == []


def test_a_stage_that_scores_shapes_its_own_rewards(score, tmp_path):  # noqa: F811
    """The reward of the scorer is the number of characters, to which its only component, `reward`, is added."""
    _, _, after = score(LONGER, SHAPED)
    found = {one["experience_id"]: one["reward"] for one in read(tmp_path / "again", "curated")}
    assert found == {one["experience_id"]: 2.0 * one["reward"] for one in after if one["status"] == "ok"}


def test_all_turns_of_an_attempt_have_the_verdict_on_its_last():
    config = overridden(f"{KEY}=[{{name: text_length_filter, args: {{max_len: 4, min_len: 1}}}}]")
    made = [row(records.Experience, experience_id=f"a/{slot}/{turn}", status="ok", slot=slot, turn=turn, group_id="g",
                task_id="t", response=text, reward=1.0)
            for slot, texts in enumerate((["much longer", "four"], ["ab", "too long"], ["abc"]))
            for turn, text in enumerate(texts)]
    found = curation_of(config, 3, [row(records.Task, task_id="t")]).of_step([*made, replace(
        made[0], experience_id="f", status="workflow_failed")])
    assert [(one.experience_id, one.operator) for one in found] == [
        ("a/0/0", None), ("a/0/1", None), ("a/1/0", "text_length_filter"), ("a/1/1", "text_length_filter"),
        ("a/2/0", None)]


def test_each_player_of_an_attempt_has_a_verdict_compared_with_the_same_role():
    """Two attempts, in which white earns 1 and 3, and black, who moves last, -1 and -1: black's group has no spread."""
    config = overridden(f"{KEY}=[{{name: reward_std_filter}}, {{name: pass_rate_calculator}}]")
    made = [row(records.Experience, experience_id=f"{slot}/{turn}", status="ok", slot=slot, turn=turn, group_id="g",
                task_id="t", role=role, reward=reward)
            for slot, earned in enumerate((1.0, 3.0))
            for turn, (role, reward) in enumerate([("white", earned), ("black", -1.0)] * 2)]
    found = curation_of(config, 2, [row(records.Task, task_id="t")]).of_step(made)
    assert [(one.reward, one.operator, dict(one.scores)) for one in found] == [
        (1.0, None, {"pass_rate": 2.0}), (-1.0, "reward_std_filter", {})] * 2 + [
        (3.0, None, {"pass_rate": 2.0}), (-1.0, "reward_std_filter", {})] * 2


def test_operators_are_in_the_identity_of_what_explores_and_of_what_trains_on_it():
    def stages(*words):
        return {one.name: one.identity for one in make_plan(overridden(*words)).stages}
    plain, shaped = stages(), stages(SHAPED)
    assert {name for name in plain if plain[name] != shaped[name]} == {"rft", "evaluate_rft", "report"}
    assert plain == stages("data_processor.experience_pipeline.save_input=true")


def test_wrong_operators_are_problems_of_their_keys():
    def keys(operators):
        return {one.key.removeprefix(f"{KEY}.") for one in problems_of(f"{KEY}={operators}")}
    assert keys("[{args: {}}]") == {"0"}
    assert keys("[{name: data_juicer}]") == {"0.args"}
    assert keys("[{name: reward_filter}, {name: reward_filter, args: {least: 1}}]") == {"1.args"}
    assert keys("[{name: reward_shaping_mapper, args: {reward_shaping_configs: [{stats_key: a, op_type: POW}]}}]") == {
        "0.args.reward_shaping_configs.0.op_type"}
    assert keys("[{name: python_file_mapper}]") == {"0.name"}
    assert {one.key for one in problems_of(SHAPED, "algorithm.algorithm_type=remax")} == {KEY}


def test_curation_that_asks_a_model_is_marked_too():
    operators = "data_processor.task_pipeline={config_path: null, operators: [{name: llm_difficulty_score_filter}]}"
    assert [depends_on_time(KINDS["curate"], overridden(*words)) for words in ((operators,), ())] == [
        ["data_processor.task_pipeline"], []]


def test_operators_that_ask_a_model_are_marked(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("process: [{llm_quality_score_filter: {api_or_hf_model: judge}}]")
    given = {"[{name: llm_difficulty_score_filter}]": True, "[{name: text_length_filter}]": False,
             "[{name: data_juicer, args: {operators: [{name: random_selector}]}}]": True,
             f"[{{name: data_juicer, args: {{config_path: {recipe}}}}}]": True}
    for operators, varies in given.items():
        config = overridden(f"{KEY}={operators}")
        assert [bool(depends_on_time(KINDS[kind], config)) for kind in ("rft", "rollout", "scored", "offline")] == [
            varies, varies, varies, False]
