"""Reward models as stages: what begins with whom, who asks whom, and what is refused."""

from pathlib import Path

import pytest

from ouroboros.pipeline.check.judge import judged
from ouroboros.pipeline.check.model import unfit_models
from ouroboros.pipeline.check.preflight import check
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.settings.config import AuxiliaryModel, Config
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store.digests import StageModel
from tests.configs import changed, element
from tests.plans import SFT, planned

SHOWN = "buffer.trainer_input.experience_buffer"
ASKED = {"buffer": {"explorer_input": {"taskset": {"default_reward_fn_type": "reward_model"}}}}
REWARD = {"stage_name": "judge", "algorithm": {"algorithm_type": "reward_model"}}
PAIRS = {"data_processor.task_pipeline.generator_args.pairs": 100}


def asking(path: str, **more) -> dict:
    model = plain(element(AuxiliaryModel, {"model_path": path}))
    return {"stage_name": "rft", "explorer": {"auxiliary_models": [model]}, **ASKED, **more}


def stages(*entries: dict, **values) -> dict:
    return {"stages": [{"stage_name": "sft", **SFT}, *entries], **PAIRS, **values}


def test_a_policy_goes_on_past_the_reward_model_that_it_asks(tmp_path):
    """The reward model begins with the warmup; rft does, too, and waits for the reward model. No engine answers tasks
    with a reward model, so it has no stage evaluate_judge."""
    made = {s.name: s for s in planned(tmp_path, stages(REWARD, asking("judge"))).stages}
    assert {name for name in made if name.startswith("evaluate")} == {"evaluate_sft", "evaluate_rft"}
    assert made["judge"].inputs["model"] == made["rft"].inputs["model"] == made["sft"].directory
    assert made["judge"].manifest in made["rft"].upstream
    path = made["rft"].config.explorer.auxiliary_models[0].model_path
    assert (path, Path(path).parent.name) == (made["judge"].directory, "store")


def test_an_explorer_counts_its_reward_model_by_the_stage_that_makes_it(tmp_path):
    found = []
    for rate in (1e-4, 2e-4):
        entry = {**REWARD, "algorithm": {**REWARD["algorithm"], "optimizer": {"lr": rate}}}
        found.append({s.name: s.identity for s in planned(tmp_path, stages(entry, asking("judge"))).stages})
    assert {name for name in found[0] if found[0][name] != found[1][name]} == {"judge", "rft", "evaluate_rft", "report"}


def test_a_run_that_begins_with_a_reward_model(tmp_path):
    made = {s.name: s for s in planned(tmp_path, {**PAIRS, "stages": [REWARD, asking("judge")]}).stages}
    assert made["judge"].inputs["model"] == made["rft"].inputs["model"] == made["model"].directory


@pytest.mark.parametrize(("entries", "key", "found"), [
    ([asking("sft")], "explorer.auxiliary_models.0.model_path", "sft"),
    ([{"stage_name": "explored", "mode": "explore"}, asking("explored")], "explorer.auxiliary_models.0.model_path",
     "explored"),
    ([REWARD, {"stage_name": "student", "algorithm": {"algorithm_type": "jsd"},
               "model": {"teacher_model_path": "judge"}}], "model.teacher_model_path", "judge")])
def test_models_that_cannot_do_what_they_are_asked(entries, key, found):
    (problem,) = unfit_models(Recipe(changed(stages(*entries))))
    assert (problem.key, problem.found) == (key, found)


def test_a_reward_model_of_a_stage_above_is_no_problem(tmp_path):
    report = check(changed(stages(REWARD, asking("judge"), checkpoint_root_dir=str(tmp_path))), data=False, code=False)
    assert report.problems == []
    assert isinstance(Recipe(changed(stages(REWARD, asking("judge")))).settings["rft"].explorer.auxiliary_models[
        0].model_path, StageModel)


@pytest.mark.parametrize(("word", "key"), [
    ("stages.judge.algorithm.kl_loss_fn=k2", "algorithm.kl_loss_fn"),
    ("stages.judge.algorithm.entropy_loss_fn=default", "algorithm.entropy_loss_fn"),
    ("stages.judge.algorithm.policy_loss_fn=dpo", "algorithm.policy_loss_fn"),
    ("stages.judge.algorithm.loss_agg_mode=seq-mean-token-sum-norm", "algorithm.loss_agg_mode"),
    ("stages.judge.model.lora_configs=[{}]", "model.lora_configs"),
    ("stages.judge.trainer.reference_update.interval=1", "trainer.reference_update.interval"),
    ("stages.judge.algorithm={algorithm_type: dpo, policy_loss_fn: reward_model}", "algorithm.policy_loss_fn"),
    (f"stages.judge.{SHOWN}.held_out_ratio=0.6", f"{SHOWN}.held_out_ratio"),
    (f"stages.sft.{SHOWN}={{path: x.jsonl, format: {{margin_key: m}}}}", f"{SHOWN}.format.margin_key"),
    ("stages.judge.mode=explore", "mode"),
    ("data_processor.task_pipeline.generator_args.pairs=0", "algorithm.algorithm_type")])
def test_settings_that_cannot_be_of_a_reward_model(word, key):
    _, problems = judged(["recipe=countdown_reward", word.replace("stages.judge", "stages.reward_model")])
    assert key in [problem.key for problem in problems]


def test_pairs_of_the_pool_have_margins_and_a_reward_model_has_no_reference(tmp_path):
    (tmp_path / "pairs.jsonl").write_text('{"question": "1", "answer": "1", "chosen": "1", "rejected": "2", "m": 1}\n')
    words = ["recipe=countdown_reward", "data_processor.task_pipeline.generator=null",
             "data_processor.task_pipeline.generator_args={}", f"data_processor.task_pipeline.inputs=[{tmp_path}/"
             "pairs.jsonl]", "data_processor.task_pipeline.format.margin_key=m"]
    assert judged(words)[1] == []
    margin = "buffer.trainer_input.auxiliary_buffers.x.format.margin_key"
    assert margin in [problem.key for problem in judged([*words, f"+{margin}=m"])[1]]
    own = f"stages.reward_model.{SHOWN}={{path: {tmp_path}/pairs.jsonl, format: {{prompt_key: question}}}}"
    assert words[-1].partition("=")[0] in [problem.key for problem in judged([*words, own])[1]]
    _, problems = judged([*words, "stages.reward_model.trainer.reference_update.interval=1"])
    assert [problem.key for problem in problems] == ["trainer.reference_update.interval"]


@pytest.mark.parametrize("size", [1, 2])
def test_an_estimated_kl_needs_two_pairs_in_a_batch(size):
    _, problems = judged(["recipe=countdown_reward", "stages.reward_model.algorithm={algorithm_type: kto, "
                          "policy_loss_fn_args: {estimate_kl: true}}", f"stages.reward_model.buffer.batch_size={size}"])
    assert ("buffer.batch_size" in [problem.key for problem in problems]) == (size == 1)


def test_a_policy_is_what_a_stage_makes_unless_it_is_a_reward_model():
    assert not Config().merged({"algorithm": {"algorithm_type": "reward_model"}}).makes_policy
    assert Config().merged({"algorithm": {"algorithm_type": "dpo"}}).makes_policy
