"""What changes a stage's identity and what does not: settings, files and models of the user's."""

import json
from pathlib import Path

import pytest

from ouroboros.pipeline.store.digests import digest_tree
from ouroboros.pipeline.store.errors import ConfigError, DataError, ModelError
from tests.golden.messages import refuses
from tests.plans import AFTER_SFT, ALL, EVALS, identities, planned, re_run


def test_an_identity_has_eight_digits(tmp_path):
    assert {len(one) for one in identities(tmp_path).values()} == {8}


def test_the_same_configuration_has_the_same_identities_wherever_the_store_lies(tmp_path):
    assert identities(tmp_path / "a") == identities(tmp_path / "somewhere" / "else")


@pytest.mark.parametrize(("key", "value", "expected"), [
    ("stages.rft.algorithm.optimizer.lr", 4e-4, {"rft", "evaluate_rft", "report"}),
    ("algorithm.optimizer.lr", 4e-4, {"rft", "evaluate_rft", "report"}),  # sft sets its own
    ("stages.sft.algorithm.optimizer.lr", 5e-4, {"sft"} | AFTER_SFT),
    ("synchronizer.sync_interval", 3, {"rft", "evaluate_rft", "report"}),
    ("explorer.rollout_model.extra_engine_args.block_size", 64, AFTER_SFT),
    ("algorithm.repeat_times", 4, {"rft", "evaluate_rft", "report"}),
    (f"{EVALS}.0.limit", 5, {"evaluate_sft", "evaluate_rft", "report"}),
    ("model.temperature", 0.9, AFTER_SFT),
    ("explorer.env_vars.SANDBOX", "http://here", AFTER_SFT),
    ("model.init.num_hidden_layers", 2, {"model", "sft"} | AFTER_SFT),
    ("data_processor.task_pipeline.generator_args.tasks", 2600, ALL - {"model"}),
    ("seed", 2, ALL),
    ("name", "other", {"report"}),
    ("repetition", 7, {"sft", "evaluate_sft", "rft", "evaluate_rft", "report"}),
    ("model.custom_chat_template", "x", {"sft"} | AFTER_SFT),
    ("model.enable_thinking", False, {"sft"} | AFTER_SFT),
    # steps that do not wait for all tasks, and answers that go on under newer weights
    ("explorer.over_rollout.ratio", 0.25, {"rft", "evaluate_rft", "report"}),
    ("explorer.partial_rollout", True, {"rft", "evaluate_rft", "report"})])
def test_what_re_runs_what(tmp_path, key, value, expected):
    assert re_run(tmp_path, {key: value}) == expected


def test_what_only_says_how_re_runs_nothing(tmp_path):
    assert re_run(tmp_path, {
        "monitor.monitor_type": "none", "monitor.monitor_args.uri": "sqlite:///x.db", "cluster.gpu_per_node": 2,
        "trainer.ranks": 2, "trainer.zero_stage": 3, "trainer.max_token_len_per_gpu": 999, "trainer.save_interval": 7,
        "trainer.attention": "padded", "trainer.enable_gradient_checkpointing": True, "mode": "colocate",
        "explorer.rollout_model.gpu_memory_utilization": 0.5, "synchronizer.sync_timeout": 9.0, "log.level": "DEBUG",
        "explorer.max_failed_ratio": 0.9, "continue_from_checkpoint": False, "model.min_response_tokens": 0,
        "model.repetition_penalty": 1.0, "model.enable_prompt_truncation": True,
        "explorer.over_rollout.wait_after_min": 30.0, "explorer.runner_concurrency": "auto",
    }) == set()


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


def test_the_content_of_the_curation_recipe_counts_and_comments_in_it_do_not(tmp_path):
    recipe = tmp_path / "recipe.yaml"

    def identities_of(text: str) -> dict[str, str]:
        recipe.write_text(text)
        return identities(tmp_path, {"data_processor.task_pipeline.config_path": str(recipe)})

    first = identities_of("text_keys: question\nprocess: [{text_length_filter: {min_len: 1, max_len: 9}}]\n")
    other = identities_of("text_keys: question\nprocess: [{text_length_filter: {min_len: 1, max_len: 8}}]\n")
    assert {name for name in first if first[name] != other[name]} == ALL - {"model", "tasks"}
    assert identities_of("# why\nprocess:\n- text_length_filter: {max_len: 9, min_len: 1}\n"
                         "text_keys: question\n") == first


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
        with refuses(DataError, f"{name} {words}"):
            planned(tmp_path, inputs(tmp_path / name))


def test_a_chat_template_counts_by_its_content(tmp_path):
    def of(place: str, text: str):
        path = tmp_path / place
        path.write_text(text)
        return identities(tmp_path, {"model.chat_template_path": str(path)})

    assert of("a.jinja", "one") == of("b.jinja", "one")
    first, second = of("a.jinja", "one"), of("a.jinja", "two")
    assert {n for n in first if first[n] != second[n]} == {"sft"} | AFTER_SFT


def model(path: Path, *names: str) -> Path:
    path.mkdir(parents=True)
    for name in names:
        (path / name).write_text('{"model_type": "qwen2"}' if name == "config.json" else "{}")
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
        with refuses(ModelError, words):
            planned(tmp_path, {"model.init.enable": False, "model.model_path": str(path)})
    with refuses(ConfigError, "model.model_path"):
        planned(tmp_path, {"model.init.enable": False})


def test_a_model_that_is_too_short_is_named(tmp_path):
    """24 + 12 tokens; without the number in its configuration nothing can be said."""
    path = model(tmp_path / "short", "tokenizer.json")
    values = {"model.init.enable": False, "model.model_path": str(path)}
    for room in ({"max_position_embeddings": 36}, {}):
        (path / "config.json").write_text(json.dumps({"model_type": "qwen2", **room}))
        planned(tmp_path, values)
    (path / "config.json").write_text('{"model_type": "qwen2", "max_position_embeddings": 35}')
    with refuses(ConfigError, "35 tokens", "is 36"):
        planned(tmp_path, values)


def test_what_the_parts_of_an_algorithm_leave_unused_makes_no_other_stage(tmp_path):
    critic = {"trainer.critic.cliprange_value": 0.7, "trainer.critic.optimizer.lr": 1.0}
    coefficients = {f"algorithm.{part}_args": {coefficient: 0.3} for part, coefficient in (
        ("kl_loss_fn", "kl_coef"), ("kl_penalty_fn", "kl_coef"), ("entropy_loss_fn", "entropy_coef"))}
    none = {"algorithm.entropy_loss_fn": "none"}
    assert identities(tmp_path, {**none, **critic, **coefficients}) == identities(tmp_path, none)
    stage = next(s for s in planned(tmp_path, critic).stages if s.name == "rft")
    assert stage.config.trainer.critic.cliprange_value == 0.5  # the default: it cannot be read either
    ppo = {"algorithm.advantage_fn": "ppo"}
    assert identities(tmp_path, {**ppo, **critic})["rft"] != identities(tmp_path, ppo)["rft"]
    penalised = {"algorithm.kl_penalty_fn": "k1"}
    assert identities(tmp_path, {**penalised, **coefficients})["rft"] != identities(tmp_path, penalised)["rft"]


def test_updates_of_a_reference_that_nothing_asks_are_in_no_identity(tmp_path):
    update, none = {"trainer.reference_update.interval": 2}, {"algorithm.kl_loss_fn": "none"}
    assert identities(tmp_path, {**none, **update}) == identities(tmp_path, none)
    for asks in ({"algorithm.kl_loss_fn": "k2"}, {**none, "algorithm.kl_penalty_fn": "k1"}):
        mixed = {**asks, "trainer.reference_update.mix": 0.5}
        assert identities(tmp_path, mixed) == identities(tmp_path, asks)
        assert identities(tmp_path, {**mixed, **update})["rft"] != identities(tmp_path, {**asks, **update})["rft"]


def test_the_program_of_verifiers_is_in_identities_of_stages_that_run_it(tmp_path, monkeypatch):
    def made(text, **values):
        monkeypatch.setattr("ouroboros.pipeline.store.locked.PROGRAM", tmp_path / "program.py")
        (tmp_path / "program.py").write_text(text)
        return identities(tmp_path, values)

    workflow = {"buffer.explorer_input.default_workflow_type": "verifiers_workflow"}
    assert made("a") == made("b")
    before, after = made("a", **workflow), made("b", **workflow)
    assert {name for name in before if before[name] != after[name]} == AFTER_SFT
