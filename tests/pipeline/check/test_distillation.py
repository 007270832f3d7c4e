"""The teacher of a stage that distils: who has one, which model it is, and what it takes."""

import json
from pathlib import Path

import pytest

from ouroboros.pipeline.check import machine, samples
from ouroboros.pipeline.check.fit import judge_bytes, scoring, teacher_problem, teacher_words, tight_teacher
from ouroboros.pipeline.check.memory import GIB, training
from ouroboros.pipeline.check.model import unfit_teachers
from ouroboros.pipeline.check.model_size import Sizes
from ouroboros.pipeline.check.preflight import check
from ouroboros.pipeline.check.stage import unread
from ouroboros.pipeline.compose.recipe import Recipe, effective
from ouroboros.pipeline.job.devices import Gpus
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.settings.explorer import AuxiliaryModel
from ouroboros.pipeline.store.errors import ModelError
from tests.configs import changed, element, places, problems_of
from tests.golden.messages import refuses, wording
from tests.pipeline.check.test_fit import rft
from tests.sizes import LARGE, QWEN2, SMALL, TOY, answered

DISTIL = {"algorithm.algorithm_type": "on_policy_distill"}
KEY = "model.teacher_model_path"
JSD = {"algorithm_type": "jsd"}
GRPO = {"stage_name": "big", "algorithm": {"algorithm_type": "grpo"}}
STUDENT = {"stage_name": "small", "after": "sft", "model": {"teacher_model_path": "big"}, "algorithm": JSD}


def teacher(root: Path, weights: str = "w", **settings) -> str:
    directory = root / "teacher"
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**QWEN2, **settings}))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_text(weights)
    return str(directory)


def staged(root: Path, **values):
    made = make_plan(changed({"checkpoint_root_dir": str(root), **DISTIL, **values}))
    return {stage.name: stage for stage in made.stages}


def with_stages(*stages: dict) -> dict:
    return {"stages": [{"stage_name": "sft", "algorithm": {"algorithm_type": "sft"}}, *stages]}


def test_a_stage_that_distils_reads_its_teacher_and_no_other_does(tmp_path):
    path = teacher(tmp_path)
    stages = staged(tmp_path, **{KEY: path})
    assert stages["rft"].inputs["teacher"] == path
    assert not any("teacher" in stages[name].inputs for name in stages if name != "rft")
    assert not hasattr(stages["rft"].config.model, "teacher_model_path")  # an input has a place, not a setting


def test_a_teacher_counts_by_content_and_not_by_path(tmp_path):
    stages = staged(tmp_path, **{KEY: teacher(tmp_path)})
    (tmp_path / "teacher").rename(tmp_path / "moved")
    moved = staged(tmp_path, **{KEY: str(tmp_path / "moved")})
    assert moved["rft"].identity == stages["rft"].identity
    (tmp_path / "moved" / "model.safetensors").write_text("other")
    other = staged(tmp_path, **{KEY: str(tmp_path / "moved")})
    assert other["rft"].identity != stages["rft"].identity
    assert other["sft"].identity == stages["sft"].identity


def test_a_stage_above_may_be_the_teacher(tmp_path):
    """The student begins with the warmup, as the teacher did."""
    made = make_plan(changed({"checkpoint_root_dir": str(tmp_path), **with_stages(GRPO, STUDENT)}))
    stages = {stage.name: stage for stage in made.stages}
    assert stages["small"].inputs["teacher"] == stages["big"].directory
    assert stages["small"].inputs["model"] == stages["big"].inputs["model"] == stages["sft"].directory
    assert stages["big"].manifest in stages["small"].upstream


@pytest.mark.parametrize(("change", "expected"), [
    (with_stages({"stage_name": "rft", "after": None, "model": {"model_path": "m", "init": {"enable": False},
                  "teacher_model_path": "m"}, "algorithm": JSD}), [f"rft: {KEY}"]),
    (DISTIL, ["rft: algorithm.advantage_fn"]), ({KEY: "models/x"}, [KEY]), ({}, []),
    (with_stages({"stage_name": "look", "mode": "explore", "algorithm": {"algorithm_type": "grpo"}},
                 {"stage_name": "rft", "model": {"teacher_model_path": "look"}, "algorithm": JSD}),
     [f"rft: {KEY}"])])
def test_a_teacher_that_is_missing_idle_or_not_trained_is_a_problem(change, expected):
    assert places(unfit_teachers(Recipe(changed(change)))) == expected


def test_a_stage_that_names_a_teacher_and_asks_none_is_told(tmp_path):
    named = {"teacher_model_path": teacher(tmp_path)}
    recipe = Recipe(changed({**DISTIL, "stages.sft.model": named, "stages.rft.model": named}))
    assert places(unread(recipe)) == [f"sft: {KEY}"]


def test_a_teacher_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refuses(ModelError, f"{KEY}=./none", "config.json"):
        staged(tmp_path, **{KEY: "./none"})
    for given, meant in (("./none", ""), ("sfft", "'sft'?")):
        (problem,) = check(changed({**DISTIL, KEY: given})).problems
        assert (problem.key, problem.found, meant in problem.do) == (KEY, given, True)
    teacher(tmp_path, max_position_embeddings=30)
    with refuses(Exception, f"{KEY}=", "30 tokens"):
        staged(tmp_path, **{KEY: str(tmp_path / "teacher")})


def test_what_a_teacher_takes_while_it_scores():
    """388 parameters of 2 bytes; of 100 tokens what a layer keeps, 168 (test_memory.py); of 64 positions the logits of
    10 words at 18 bytes."""
    config = rft(trainer__max_token_len_per_gpu=100, trainer__logprob_chunk_tokens=64)
    assert scoring(TOY, config, 2) == 2 * 388 + 100 * 168 + 64 * 10 * 18


def test_a_teacher_that_does_not_fit_beside_what_the_trainer_keeps():
    config = rft()
    fits, kept = scoring(LARGE, config, 2) / GIB, training(SMALL, config, 2).idle / GIB
    least = (fits + kept) / 0.9
    assert teacher_problem(LARGE, SMALL, config, 2, least + 0.1) is None
    problem = teacher_problem(LARGE, SMALL, config, 2, least - 0.1)
    assert problem.key == KEY
    wording(problem.needed, f"{fits:.1f} GiB", "GPU", f"{kept:.1f}")


def test_the_plan_says_what_the_teacher_costs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(samples, "preview", lambda config, stages, models: answered(models))
    gpu = {"cluster.gpu_per_node": 2, "cluster.gpu_memory_gib": 80.0}
    found = dict(check(changed({**DISTIL, **gpu, KEY: teacher(tmp_path)}), data=True).facts)
    wording(dict(found["rft"])["its teacher"], "0.9 GiB", "1 rank(s)")
    tight = check(changed({**DISTIL, **gpu, KEY: teacher(tmp_path), "cluster.gpu_memory_gib": 2.0}), data=True)
    assert f"rft: {KEY}" in places(tight.problems)


def test_a_teacher_above_is_counted_by_what_it_begins_with():
    config = changed(with_stages(GRPO, STUDENT))
    assert effective(config, STUDENT).model.teacher_model_path == "big"
    resolved = Recipe(config)
    assert resolved.teachers["small"] is config.model
    assert resolved.teachers["big"] is None


@pytest.mark.parametrize(("words", "keys"), [
    ((), []), (("model.temperature=0.5",), ["model.teacher_url"]), (("model.top_p=0.9",), ["model.teacher_url"]),
    ((f"{KEY}=null",), ["model.teacher_url"]), (("model.teacher_url=127.0.0.1:8000",), ["model.teacher_url"]),
    (("model.teacher_key_env=sk-1",), ["model.teacher_key_env"])], ids=str)
def test_a_teacher_on_a_server_gives_log_probs_at_temperature_1(tmp_path, words, keys):
    given = (f"{KEY}={teacher(tmp_path)}", "model.teacher_url=http://127.0.0.1:8000/v1", *words)
    found = problems_of("algorithm=on_policy_distill", *given)
    assert sorted({one.key for one in found if one.key.startswith(("model.teacher_url", "model.teacher_key"))}) == keys


def test_the_key_of_a_teachers_server_is_looked_for(monkeypatch):
    config = rft(model__teacher_url="http://127.0.0.1:8000/v1", model__teacher_key_env="OURO_TEST_TEACHER")
    assert [one.key for one in machine._keys(config)] == ["model.teacher_key_env"]
    monkeypatch.setenv("OURO_TEST_TEACHER", "x")
    assert machine._keys(config) == []


def test_a_teacher_on_a_server_takes_nothing_of_the_trainer():
    """Of 8,192 tokens the logits of 151,936 words, at 2 bytes and twice 4 of float32: 11.6 GiB."""
    config = rft(model__teacher_url="http://127.0.0.1:8000/v1", model__max_prompt_tokens=4096,
                 model__max_response_tokens=4096)
    told = teacher_words(LARGE, config, 2)
    assert f"{10 * 8192 * LARGE.vocabulary / GIB:.1f} GiB" in told
    assert "host memory" not in told


ENGINE = {"name": "big", "gpu_memory_utilization": 0.3}


def by_engine(**given):
    """Settings of a stage whose teacher an engine has, on one GPU."""
    config = rft(mode="colocate", model__teacher_name="big", model__teacher_model_path="/big",
                 algorithm__advantage_fn="on_policy_distill", model__max_prompt_tokens=4096, **given)
    config.explorer.auxiliary_models = [element(AuxiliaryModel, ENGINE | {"model_path": "/big"})]
    return config


def test_a_teacher_on_an_engine_takes_its_share_of_the_trainers_gpu():
    """0.3 of 80 GiB; of 1,024 tokens the logits of 152,064 words at 10 bytes, 1.5 GiB, besides its weights and the
    cache of a prompt: of each token keys and values of 28 layers, 4 heads of 128, 2 bytes."""
    config, room = by_engine(), Gpus(1, 80.0, True)
    assert judge_bytes(config, room, Sizes()) == 0.3 * 80 * GIB
    cache = 2 * 28 * 4 * 128 * 2 * (4096 + config.model.max_response_tokens)
    needed = (2 * LARGE.parameters + cache + 10 * 1024 * LARGE.vocabulary) / GIB
    assert tight_teacher(LARGE, config, 2, needed / 0.3 + 0.1) is None
    problem = tight_teacher(LARGE, config, 2, needed / 0.3 - 0.1)
    assert problem.key == "explorer.auxiliary_models.0.gpu_memory_utilization"
    wording(problem.needed, f"{needed:.1f}")
    wording(teacher_words(LARGE, config, 2), "big", "1.5 GiB")


@pytest.mark.parametrize(("words", "keys"), [
    ((), []), (("mode=colocate",), []), (("model.temperature=0.5",), ["model.teacher_name"]),
    (("model.teacher_name=other",), ["explorer.auxiliary_models", "model.teacher_name"]), ((f"{KEY}=/another",), [KEY]),
    (("buffer.explorer_input.default_reward_fn_type=judge_reward",
      "buffer.explorer_input.taskset.reward_fn_args={judge_model: big}"), ["model.teacher_name"]),
    (("mode=train",), ["mode", "model.teacher_name"]),
    (("algorithm.algorithm_type=grpo",), ["explorer.auxiliary_models", KEY, "model.teacher_name"])], ids=str)
def test_a_teacher_on_an_engine_is_a_model_of_the_run_that_nothing_else_asks(tmp_path, words, keys):
    own = teacher(tmp_path)
    given = (f"{KEY}={own}", "model.teacher_name=big",
             f"explorer.auxiliary_models=[{{name: big, model_path: {own}}}]", *words)
    found = {one.key for one in problems_of("algorithm=on_policy_distill", *given)}
    assert sorted(one for one in found if one.startswith(("model.teacher", "explorer.aux", "mode"))) == keys


def test_only_the_stage_that_asks_a_teacher_has_its_engine(tmp_path):
    """Of two entries with one directory the identity tells which answers; an evaluation has neither engine nor GPU."""
    path, gpus = teacher(tmp_path), {"cluster.gpu_per_node": 4, "explorer.auxiliary_models": []}
    two = [element(AuxiliaryModel, {"name": name, "model_path": path, "dtype": dtype})
           for name, dtype in (("x", "float32"), ("y", "bfloat16"))]
    none = staged(tmp_path, **{KEY: path, **gpus})
    x, y = (staged(tmp_path, **{KEY: path, **gpus, "explorer.auxiliary_models": two, "model.teacher_name": name})
            for name in "xy")
    assert len({one["rft"].identity for one in (none, x, y)}) == 3
    alone = staged(tmp_path, **{KEY: path, **gpus, "explorer.auxiliary_models": two[:1], "model.teacher_name": "x"})
    for name in ("evaluate_sft", "evaluate_rft"):
        assert alone[name].config.explorer.auxiliary_models == []
    assert alone["evaluate_sft"].identity == none["evaluate_sft"].identity
