"""What changes a stage's identity, what does not, and what a plan leaves on the disk."""

import importlib
import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest

from pipeline import files
from pipeline.config import AuxiliaryModel
from pipeline.data_config import Taskset
from pipeline.errors import ConfigError, DataError, ModelError
from pipeline.external import digest_tree
from pipeline.launch import checked_plan
from pipeline.plan import make_plan
from tests.configs import changed, composed, element


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


AFTER_SFT = {"evaluate_sft", "rft", "evaluate_rft", "report"}
EVALS = "buffer.explorer_input.eval_tasksets"
ALL = {"tasks", "curate", "model", "sft"} | AFTER_SFT


# -------------------------------------------------------------------------------------------------------- the stages


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


def test_what_an_rft_stage_watches_itself_by_does_not_make_another_of_it(tmp_path):
    by_name = {s.name: s.config for s in planned(tmp_path).stages}
    assert by_name["rft"]["buffer"]["explorer_input"]["eval_tasksets"][0]["name"] == "countdown_test"
    assert "eval_tasksets" not in by_name["sft"]["buffer"]["explorer_input"]
    assert re_run(tmp_path, {"explorer.eval_interval": 10}) == set()


def test_without_evaluation_sets_there_is_no_evaluation(tmp_path):
    assert [s.name for s in planned(tmp_path, {EVALS: []}).stages] == [
        "tasks", "curate", "model", "sft", "rft", "report"]


def test_a_stage_is_handed_only_what_is_in_its_identity_or_says_how(tmp_path):
    by_name = {s.name: s.config for s in planned(tmp_path).stages}
    assert "algorithm" not in by_name["tasks"]
    assert "batch_size" not in by_name["evaluate_rft"].get("buffer", {})
    assert by_name["sft"]["algorithm"]["optimizer"]["lr"] == 1e-3
    assert by_name["curate"]["log"]["level"] == "INFO"  # how


@pytest.mark.parametrize("name", ["tasks", "report", "evaluate_first"])
def test_a_stage_name_twice_is_refused(tmp_path, name):
    stages = {"stages": [{"stage_name": "first"}, {"stage_name": name}]}
    with pytest.raises(ConfigError, match=f"two stages are called '{name}'"):
        planned(tmp_path, stages)


# ------------------------------------------------------------------------------------------------------- their order


def reads(root: Path, stages: list, values: dict | None = None) -> dict[str, dict[str, str]]:
    """stage -> {role: name of the stage whose directory it reads}, waits under `waits`."""
    plan = planned(root, {"stages": stages, EVALS: [], **(values or {})})
    names = {s.directory: s.name for s in plan.stages}
    made = {s.name: {role: names.get(d, d) for role, d in s.inputs.items()} for s in plan.stages}
    for stage in plan.stages:
        if stage.waits:
            made[stage.name]["waits"] = ",".join(names[d] for d in stage.waits)
    return made


SFT = {"algorithm": {"algorithm_type": "sft"}}


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
        {"stage_name": "first", **SFT},
        {"stage_name": "wide", "model": {"init": {"hidden_size": 128}}},
        {"stage_name": "more", "data_processor": {"task_pipeline": {"generator_args": {"tasks": 9}}}}])
    assert found["wide"] == {"tasks": "curate", "model": "model_wide", "waits": "first"}
    assert found["more"] == {"tasks": "curate_more", "model": "wide"}
    assert found["curate_more"] == {"tasks": "tasks_more"}


def test_another_seed_of_a_stage_trains_anew_on_the_same_tasks(tmp_path):
    assert re_run(tmp_path, {"stages.rft.seed": 7}) == {"rft", "evaluate_rft", "report"}


def test_what_a_stage_waits_for_is_not_in_its_identity(tmp_path):
    def of(after):
        plan = planned(tmp_path, {"stages": [{"stage_name": "a", **SFT}, {"stage_name": "b", **SFT, "after": []},
                                             {"stage_name": "c", "after": after}]})
        return next(s.identity for s in plan.stages if s.name == "c")

    assert of(["a", "b"]) == of("a") == of(["a"])


# ------------------------------------------------------------------------------------------------------------- modes


def kinds(root: Path, stages: list, values: dict | None = None) -> dict[str, str]:
    return {s.name: s.kind for s in planned(root, {"stages": stages, **(values or {})}).stages}


LOOK, LEARN = {"stage_name": "look", "mode": "explore"}, {"stage_name": "learn", "mode": "train"}


def test_what_one_stage_explored_another_trains_on(tmp_path):
    """look makes no model: learn begins with what look began with, and evaluations follow what is trained."""
    found = reads(tmp_path, [{"stage_name": "sft", **SFT}, LOOK, LEARN])
    assert found["look"] == {"tasks": "curate", "model": "sft"}
    assert found["learn"] == {"experience": "look", "model": "sft"}
    made = kinds(tmp_path, [{"stage_name": "sft", **SFT}, LOOK, LEARN])
    assert [name for name, kind in made.items() if kind == "evaluate"] == ["evaluate_sft", "evaluate_learn"]
    assert (made["look"], made["learn"]) == ("rollout", "offline")


def test_a_stage_waits_for_one_that_only_explores(tmp_path):
    found = reads(tmp_path, [LOOK, {"stage_name": "sft", **SFT}])
    assert found["sft"] == {"tasks": "curate", "model": "model", "waits": "look"}


def test_how_what_was_explored_is_trained_on_does_not_explore_anew(tmp_path):
    def of(values):
        return {s.name: s.identity for s in planned(tmp_path, {"stages": [LOOK, LEARN], **values}).stages}

    before = of({})
    after = of({"algorithm.optimizer.lr": 1e-5, "algorithm.policy_loss_fn_args": {"clip_range_low": 0.1}})
    assert {name for name in before if before[name] != after[name]} == {"learn", "evaluate_learn", "report"}
    seen = of({"buffer.batch_size": 32})
    assert {name for name in before if before[name] != seen[name]} == {"look", "learn", "evaluate_learn", "report"}


def test_a_bench_evaluates_what_stands_before_it(tmp_path):
    """The last checkpoint of a stage is its model, which its evaluation has scored: only the others are new."""
    two = [{"stage_name": "sft", **SFT}, {"stage_name": "rft"}, {"stage_name": "judge", "mode": "bench"}]
    found = kinds(tmp_path, two)
    assert {name: kind for name, kind in found.items() if name.startswith(("judge", "evaluate"))} == {
        "evaluate_sft": "evaluate", "evaluate_rft": "evaluate", "judge_sft": "bench", "judge_rft": "bench"}
    assert reads(tmp_path, two, {EVALS: planned(tmp_path).config["buffer"]["explorer_input"]["eval_tasksets"]})[
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
    with pytest.raises(ConfigError, match=r"mode=bench trains nothing, and not complete is: sft \(.*\), rft \(.*\)\."):
        planned(tmp_path, {"mode": "bench"})
    for stage in trained.stages:
        if stage.name in ("sft", "rft"):
            files.write_json(Path(stage.manifest), {})
    plan = planned(tmp_path, {"mode": "bench"})
    same = {s.name: s.identity for s in trained.stages if s.name != "report"}
    assert {s.name: s.identity for s in plan.stages if s.name in same} == same
    assert [s.name for s in plan.stages if s.name not in same] == ["bench_sft", "bench_rft", "report"]


# -------------------------------------------------------------------------------------------------------- identities


def test_the_same_configuration_has_the_same_identities(tmp_path):
    assert identities(tmp_path / "a") == identities(tmp_path / "b")


@pytest.mark.parametrize(("key", "value", "expected"), [
    ("stages.rft.algorithm.optimizer.lr", 4e-4, {"rft", "evaluate_rft", "report"}),
    ("algorithm.optimizer.lr", 4e-4, {"rft", "evaluate_rft", "report"}),  # sft sets its own
    ("stages.sft.algorithm.optimizer.lr", 5e-4, {"sft"} | AFTER_SFT),
    ("synchronizer.sync_interval", 3, {"rft", "evaluate_rft", "report"}),
    ("explorer.rollout_model.extra_engine_args.quantization", "fp8", AFTER_SFT),
    ("algorithm.repeat_times", 4, {"rft", "evaluate_rft", "report"}),
    (f"{EVALS}.0.limit", 5, {"evaluate_sft", "evaluate_rft", "report"}),
    ("model.temperature", 0.9, AFTER_SFT),
    ("explorer.env_vars.SANDBOX", "http://here", AFTER_SFT),
    ("model.init.num_hidden_layers", 2, {"model", "sft"} | AFTER_SFT),
    ("data_processor.task_pipeline.generator_args.tasks", 2600, ALL - {"model"}),
    ("seed", 2, ALL),
    ("name", "other", {"report"}),
])
def test_what_re_runs_what(tmp_path, key, value, expected):
    assert re_run(tmp_path, {key: value}) == expected


def test_what_only_says_how_re_runs_nothing(tmp_path):
    assert re_run(tmp_path, {
        "monitor.monitor_type": "none", "monitor.monitor_args.uri": "sqlite:///x.db", "cluster.gpu_per_node": 2,
        "trainer.ranks": 2, "trainer.zero_stage": 3, "trainer.max_token_len_per_gpu": 999, "trainer.save_interval": 7,
        "trainer.attention": "padded", "trainer.enable_gradient_checkpointing": True, "mode": "colocate",
        "explorer.rollout_model.gpu_memory_utilization": 0.5, "synchronizer.sync_timeout": 9.0, "log.level": "DEBUG",
        "explorer.max_failed_ratio": 0.9, "continue_from_checkpoint": False,
    }) == set()


def test_where_the_store_lies_changes_nothing(tmp_path):
    assert identities(tmp_path / "a") == identities(tmp_path / "somewhere" / "else")


# ----------------------------------------------------------------------------------------------------- external files


def inputs(*paths: Path) -> dict:
    return {"data_processor.task_pipeline.generator": None,
            "data_processor.task_pipeline.inputs": [str(path) for path in paths]}


def test_the_content_of_an_input_counts_and_its_path_does_not(tmp_path):
    def of(path: Path, content: str):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return identities(tmp_path, inputs(path))

    first = of(tmp_path / "a.jsonl", '{"question": "q", "answer": "1"}')
    moved = of(tmp_path / "elsewhere" / "b.jsonl", '{"question": "q", "answer": "1"}')
    edited = of(tmp_path / "a.jsonl", '{"question": "q", "answer": "2"}')
    assert moved == first
    assert {name for name in first if edited[name] != first[name]} == ALL - {"model"}


def test_the_content_of_the_curation_recipe_counts(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("process: []\n")
    key = {"data_processor.task_pipeline.config_path": str(recipe)}
    first = identities(tmp_path, key)
    recipe.write_text("process: [{text_length_filter: {min_len: 1}}]\n")
    second = identities(tmp_path, key)
    assert {name for name in first if first[name] != second[name]} == ALL - {"model", "tasks"}


def test_a_directory_is_hashed_by_names_and_contents(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").write_text("1")
    first = digest_tree(data, str(tmp_path))
    (data / "a").rename(data / "b")
    renamed = digest_tree(data, str(tmp_path))
    (data / "b").write_text("22")
    edited = digest_tree(data, str(tmp_path))
    data.rename(tmp_path / "moved")
    assert len({first, renamed, edited}) == 3
    assert digest_tree(tmp_path / "moved", str(tmp_path)) == edited


def test_a_missing_or_empty_input_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    for name, words in (("nothing.jsonl", "does not exist"), ("empty", "is an empty directory")):
        with pytest.raises(DataError, match=rf"{name} {words}"):
            planned(tmp_path, inputs(tmp_path / name))


# ------------------------------------------------------------------------------------------------------- user's code


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """(path of a module in the user's project, its dotted name)"""
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    path = tmp_path / "project" / "ouro_test_rewards.py"
    path.parent.mkdir()
    path.write_text("def mine(response, answer):\n    return {'accuracy': 1.0}\n")
    importlib.invalidate_caches()
    return path, "ouro_test_rewards:mine"


def test_an_edited_reward_function_is_another_stage(tmp_path, user_module):
    path, name = user_module
    key = {"buffer.explorer_input.default_reward_fn_type": name}
    first = identities(tmp_path, key)
    path.write_text(path.read_text().replace("1.0", "0.5"))
    second = identities(tmp_path, key)
    assert {n for n in first if first[n] != second[n]} == AFTER_SFT


def test_a_reward_function_of_one_evaluation_set_counts_there(tmp_path, user_module):
    path, name = user_module
    key = {f"{EVALS}.0.default_reward_fn_type": name}
    first = identities(tmp_path, key)
    path.write_text(path.read_text().replace("1.0", "0.5"))
    second = identities(tmp_path, key)
    assert {n for n in first if first[n] != second[n]} == {"evaluate_sft", "evaluate_rft", "report"}


def test_a_reward_function_in_a_list_counts_too(tmp_path, user_module):
    path, name = user_module
    key = {"buffer.explorer_input.default_reward_fn_type": ["format_reward", name]}
    first = identities(tmp_path, key)
    path.write_text(path.read_text().replace("1.0", "0.5"))
    assert {n for n, identity in identities(tmp_path, key).items() if identity != first[n]} == AFTER_SFT


def with_judge(directory: Path, **settings) -> dict:
    """A reward model for rft and the evaluations, as the schema reads it."""
    (directory / "weights").parent.mkdir(exist_ok=True)
    (directory / "weights").touch()
    return {"explorer.auxiliary_models": [element(AuxiliaryModel, {"model_path": str(directory), **settings})]}


def test_a_reward_model_counts_by_content_and_what_it_makes_not_by_how_it_runs(tmp_path):
    first = identities(tmp_path, with_judge(tmp_path / "judge"))

    def changed_by(values: dict) -> set[str]:
        return {name for name, identity in identities(tmp_path, values).items() if identity != first[name]}

    shutil.copytree(tmp_path / "judge", tmp_path / "elsewhere")
    assert changed_by(with_judge(tmp_path / "elsewhere")) == set()
    assert changed_by(with_judge(tmp_path / "judge", engine_num=2, max_token_len=99)) == set()
    assert changed_by(with_judge(tmp_path / "judge", dtype="bfloat16")) == AFTER_SFT
    (tmp_path / "elsewhere" / "weights").write_text("others")
    assert changed_by(with_judge(tmp_path / "elsewhere")) == AFTER_SFT
    stage = next(s for s in planned(tmp_path, with_judge(tmp_path / "judge", engine_num=2)).stages if s.name == "rft")
    assert stage.config["explorer"]["auxiliary_models"][0]["model_path"] == str(tmp_path / "judge")
    assert stage.config["explorer"]["auxiliary_models"][0]["engine_num"] == 2


def test_a_reward_model_that_is_not_there_is_named(tmp_path):
    values = with_judge(tmp_path / "judge")
    shutil.rmtree(tmp_path / "judge")
    with pytest.raises(DataError, match=r"judge does not exist"):
        planned(tmp_path, values)


@pytest.mark.parametrize(("file", "expected"), [
    ("workflows/reward_model.py", AFTER_SFT),
    ("operators/generate.py", ALL - {"model"}), ("operators/curation.py", ALL - {"tasks", "model"}),
    ("operators/advantage.py", {"rft", "evaluate_rft", "report"}), ("operators/statistics.py", {
        "evaluate_sft", "evaluate_rft", "report"}), ("stages/model.py", ALL - {"tasks", "curate"})])
def test_our_own_code_that_settings_name_counts_where_it_is_used(tmp_path, monkeypatch, file, expected):
    hash_file = files.hash_file
    monkeypatch.setattr(files, "hash_file", lambda path: "edited" if str(path).endswith(file) else hash_file(path))
    assert re_run(tmp_path, {}) == expected


def test_settings_that_a_stage_does_not_read_are_refused_there(tmp_path):
    values = {"stages.sft.synchronizer.sync_interval": 2, "stages.sft.buffer.explorer_input.taskset.limit": 9}
    with pytest.raises(ConfigError, match=r"'sft' does not read buffer\.explorer_input\.taskset\.limit, sync"):
        checked_plan(changed(values))


@pytest.mark.parametrize("name", ["nowhere_at_all:f", "nowhere.at.all:f", "sys:exit", "pipeline..x:f"])
def test_code_that_is_not_there_is_named(tmp_path, name):
    with pytest.raises(ConfigError, match=rf"'{name}': no such module.*PYTHONPATH"):
        planned(tmp_path, {"buffer.explorer_input.default_reward_fn_type": name})


def test_a_function_that_is_not_in_the_module_is_named(tmp_path, user_module):
    path, name = user_module
    planned(tmp_path, {"buffer.explorer_input.default_reward_fn_type": name})
    with pytest.raises(ConfigError, match=r"has no 'mime'\. Did you mean 'mine'"):
        planned(tmp_path, {"buffer.explorer_input.default_reward_fn_type": "ouro_test_rewards:mime"})
    path.write_text("from elsewhere import *\nimport other as mime\n")
    planned(tmp_path, {"buffer.explorer_input.default_reward_fn_type": name})  # it may come with the star
    path.write_text("def mine(:\n")
    with pytest.raises(ConfigError, match=r"ouro_test_rewards\.py, line 1: "):
        planned(tmp_path, {"buffer.explorer_input.default_reward_fn_type": name})


def test_a_text_with_a_colon_is_no_code(tmp_path):
    plan = planned(tmp_path, {"buffer.explorer_input.system_prompt": "Answer:briefly"})
    assert plan.config["buffer"]["explorer_input"]["system_prompt"] == "Answer:briefly"


# ------------------------------------------------------------------------------------------------------ user's model


def model(path: Path, *names: str) -> Path:
    path.mkdir(parents=True)
    for name in names:
        (path / name).write_text("{}")
    return path


def test_a_model_of_the_user_counts_by_content(tmp_path):
    ours = model(tmp_path / "store" / "qwen", "config.json", "tokenizer.json", "model.safetensors")
    root = tmp_path / "root"
    keys = {"model.init.enable": False, "model.model_path": str(ours)}
    plan = planned(root, keys)
    assert "model" not in [s.name for s in plan.stages]
    sft = next(s for s in plan.stages if s.name == "sft")
    assert len(sft.upstream) == 1  # curate alone: that its directory is called store makes the model no stage
    (ours / "model.safetensors").write_text("other")
    assert next(s for s in planned(root, keys).stages if s.name == "sft").identity != sft.identity


def test_a_model_that_lacks_something_is_named(tmp_path):
    for path, words in ((tmp_path / "none", "no config.json there"),
                        (model(tmp_path / "bare", "config.json"), "the model has no tokenizer")):
        with pytest.raises(ModelError, match=words):
            planned(tmp_path, {"model.init.enable": False, "model.model_path": str(path)})
    with pytest.raises(ConfigError, match="no model: set"):
        planned(tmp_path, {"model.init.enable": False})


def test_a_model_that_is_too_short_is_named(tmp_path):
    """24 + 12 tokens; without the number in its configuration nothing can be said."""
    path = model(tmp_path / "short", "tokenizer.json")
    values = {"model.init.enable": False, "model.model_path": str(path)}
    for room in ({"max_position_embeddings": 36}, {}):
        (path / "config.json").write_text(json.dumps(room))
        planned(tmp_path, values)
    (path / "config.json").write_text('{"max_position_embeddings": 35}')
    with pytest.raises(ConfigError, match=r"has room for 35 tokens .*prompt \+ response, is 36\. Shorten"):
        planned(tmp_path, values)


# ------------------------------------------------------------------------------------------------------- on the disk


def test_planning_alone_writes_no_run(tmp_path):
    planned(tmp_path)
    assert not (tmp_path / "runs").exists()
    assert not list((tmp_path / "store").glob("*-*"))


def test_freezing_writes_what_stages_read_and_a_view_of_links(tmp_path):
    plan = planned(tmp_path)
    plan.freeze()
    for stage in plan.stages:
        link = tmp_path / "runs" / "ouroboros" / "countdown" / "stages" / stage.name
        assert json.loads((link / "stage.json").read_text())["identity"] == stage.identity
        assert link.resolve() == Path(stage.directory).resolve()
        assert not os.path.isabs(os.readlink(link))
        assert not files.is_complete(link)


def test_freezing_another_configuration_shows_the_stages_of_that_one(tmp_path):
    planned(tmp_path).freeze()
    other = planned(tmp_path, {EVALS: []})
    other.freeze()
    assert sorted(p.name for p in (other.view / "stages").iterdir()) == sorted(s.name for s in other.stages)


def test_a_stage_reads_what_was_configured(tmp_path):
    """Whatever an argument is called: one that sounds like a secret was once handed over as ***."""
    plan = planned(tmp_path, {"buffer.explorer_input.taskset.reward_fn_args.end_token": "</answer>"})
    plan.freeze()
    (rft,) = (s for s in plan.stages if s.name == "rft")
    frozen = json.loads((Path(rft.directory) / "stage.json").read_text())
    assert frozen["config"]["buffer"]["explorer_input"]["taskset"]["reward_fn_args"] == {"end_token": "</answer>"}


# ---------------------------------------------------------------------------------------------------------- tasksets

SOURCE = "buffer.explorer_input"


def jsonl(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def sets(root: Path, place: str = "", edited: str = "") -> dict:
    """Two training sets, an evaluation set and demonstrations, each with a file of its own, in a directory `place`."""
    files_of = {name: jsonl(root / place / f"{name}.jsonl", f"{name} {edited if edited.startswith(name) else ''}")
                for name in ("first", "second", "held", "shown")}
    return {"data_processor.task_pipeline.generator": None,
            f"{SOURCE}.tasksets": [element(Taskset, {"name": n, "path": files_of[n]}) for n in ("first", "second")],
            f"{EVALS}.0.path": [files_of["held"]], "buffer.trainer_input.experience_buffer.path": files_of["shown"]}


RFT = {"tasks_rft", "curate_rft", "rft", "evaluate_rft", "report"}
EVAL = {"tasks_eval", "curate_eval", "evaluate_sft", "evaluate_rft", "report"}
LATER = {"rft", "evaluate_rft", "report"}


def test_the_content_of_the_file_of_every_set_counts_where_it_is_read_and_its_path_does_not(tmp_path):
    first = identities(tmp_path, sets(tmp_path))
    assert identities(tmp_path, sets(tmp_path, "elsewhere")) == first
    warmup = {"tasks", "curate", "sft"} | AFTER_SFT
    for name, expected in (("first", RFT), ("second", RFT), ("held", EVAL), ("shown", warmup)):
        edited = identities(tmp_path, sets(tmp_path, edited=f"{name}, edited"))
        assert {n for n in first if first[n] != edited[n]} == expected, name


@pytest.mark.parametrize(("key", "value", "expected"), [
    ("tasksets.1.reward_fn_args.x", 1, LATER), ("tasksets.1.limit", 3, LATER),
    ("tasksets.0.data_selector.selector_type", "random", LATER), ("tasksets.0.format.prompt_key", "q", RFT),
    ("tasksets.0.name", "renamed", RFT), ("eval_tasksets.0.limit", 3, EVAL - {"tasks_eval", "curate_eval"}),
    ("eval_tasksets.0.format.response_key", "a", EVAL),
    ("default_eval_workflow_type", "simple_workflow", EVAL - {"tasks_eval", "curate_eval"})])
def test_what_of_a_set_re_runs_what(tmp_path, key, value, expected):
    first = identities(tmp_path, sets(tmp_path))
    second = identities(tmp_path, {**sets(tmp_path), f"{SOURCE}.{key}": value})
    assert {name for name in first if first[name] != second[name]} == expected


def test_a_set_without_files_is_no_part_of_the_pool(tmp_path):
    """It may be renamed, or another be evaluated on, and the pool is what it was."""
    assert re_run(tmp_path, {f"{SOURCE}.taskset.name": "renamed"}) == LATER
    more = [composed()["buffer"]["explorer_input"]["eval_tasksets"][0] | {"name": n} for n in ("a", "b")]
    assert re_run(tmp_path, {EVALS: more}) == {"evaluate_sft", "evaluate_rft", "report"}
    path = jsonl(tmp_path / "held.jsonl", "x")
    before, after = identities_of_default(), identities(tmp_path, {EVALS: [*more, element(Taskset, {"path": path})]})
    assert {n for n in after if after[n] != before.get(n)} == EVAL


def test_a_stage_is_handed_the_sets_it_reads_with_their_paths(tmp_path):
    by_name = {s.name: s.config for s in planned(tmp_path, sets(tmp_path)).stages}
    (first, second) = by_name["tasks_rft"]["buffer"]["explorer_input"]["tasksets"]
    assert [Path(one["path"]).name for one in (first, second)] == ["first.jsonl", "second.jsonl"]
    assert set(first) == {"name", "path", "subset_name", "split", "format"}
    assert by_name["tasks_rft"]["buffer"]["explorer_input"]["eval_tasksets"] == []
    assert by_name["tasks_rft"]["buffer"]["trainer_input"]["experience_buffer"]["path"] is None
    (held,) = by_name["evaluate_rft"]["buffer"]["explorer_input"]["eval_tasksets"]
    assert (Path(held["path"][0]).name, held["repeat_times"]) == ("held.jsonl", 8)
    assert by_name["curate_eval"]["data_processor"]["task_pipeline"]["num_process"] == 1


def test_a_file_of_a_set_that_is_not_there_is_named_with_its_setting(tmp_path):
    values = sets(tmp_path) | {f"{SOURCE}.tasksets": [element(Taskset, {"path": "openai/gsm8k"})]}
    with pytest.raises(DataError, match=r"^openai/gsm8k does not exist .*Check buffer\.explorer_input\.tasksets\.0\.p"
                                        r"ath.*hf download --repo-type dataset openai/gsm8k"):
        planned(tmp_path, values)


def test_stages_that_read_the_same_data_share_it(tmp_path):
    """The warmup of the guide has demonstrations of its own; evaluation and rft have the pool of the recipe."""
    shown = jsonl(tmp_path / "shown.jsonl", "x")

    def curated(values):
        return {s.name: Path(s.inputs["tasks"]).name.rsplit("-", 1)[0] for s in planned(tmp_path, values).stages
                if s.kind in ("train", "rft", "evaluate")}

    assert curated({"stages.sft.buffer.trainer_input.experience_buffer.path": shown}) == {
        "sft": "curate", "rft": "curate_pool", "evaluate_sft": "curate_pool", "evaluate_rft": "curate_pool"}
    assert curated({"stages.rft.data_processor.task_pipeline.split": "train"}) == curated({})  # what it is anyway
    assert curated({"stages.rft.seed": 7}) == curated({})  # the same tasks, otherwise sampled
    assert curated({"stages.rft.data_processor.task_pipeline.generator_args.tasks": 100}) == {
        "sft": "curate", "evaluate_sft": "curate", "rft": "curate_rft", "evaluate_rft": "curate_rft"}
    assert curated({"stages.rft.data_processor.task_pipeline.config_path": None}) == {
        "sft": "curate", "evaluate_sft": "curate", "rft": "curate_rft", "evaluate_rft": "curate_rft"}


def test_the_seed_is_no_part_of_what_is_read_from_files(tmp_path):
    values = sets(tmp_path)
    first, second = identities(tmp_path, values), identities(tmp_path, values | {"seed": 2})
    assert {n for n in first if first[n] == second[n]} == {
        f"{kind}{who}" for kind in ("tasks", "curate") for who in ("", "_rft", "_eval")}


def test_a_chat_template_counts_by_its_content(tmp_path):
    def of(place: str, text: str):
        path = tmp_path / place
        path.write_text(text)
        return identities(tmp_path, {"model.chat_template_path": str(path)})

    assert of("a.jinja", "one") == of("b.jinja", "one")
    first, second = of("a.jinja", "one"), of("a.jinja", "two")
    assert {n for n in first if first[n] != second[n]} == {"sft"} | AFTER_SFT
    for key, value in (("custom_chat_template", "x"), ("enable_thinking", False)):
        assert re_run(tmp_path, {f"model.{key}": value}) == {"sft"} | AFTER_SFT
    for key, value in (("min_response_tokens", 0), ("repetition_penalty", 1.0), ("enable_prompt_truncation", True)):
        assert re_run(tmp_path, {f"model.{key}": value}) == set()


def test_evaluation_on_the_way_reads_the_eval_sets_and_they_change_nothing_of_the_training(tmp_path):
    """The explorer of rft is given the tasks to evaluate on beside those to train on, by role."""
    def rft(edited: str):
        plan = planned(tmp_path, sets(tmp_path, edited=edited) | {"explorer.eval_interval": 2})
        return next(s for s in plan.stages if s.name == "rft")

    before, after = rft(""), rft("held, edited")
    assert {role: Path(d).name.rsplit("-", 1)[0] for role, d in before.inputs.items()} == {
        "tasks": "curate_rft", "held": "curate_eval", "model": "sft"}
    assert before.config["buffer"]["explorer_input"]["eval_tasksets"][0]["path"] == [str(tmp_path / "held.jsonl")]
    assert before.inputs["held"] != after.inputs["held"]
    assert before.identity == after.identity
