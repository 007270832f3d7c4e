"""A part of the task itself that an import loses: the command exits with 1, names it first, and marks the recipe."""

import pytest

from ouroboros.commands import cli
from ouroboros.commands.bridges.translation import TASK
from tests.bridges import from_trinity, from_verl, launch, written
from tests.golden.messages import wording

SFT = "torchrun -m verl.trainer.fsdp_sft_trainer data.train_files=/d/a.parquet model.partial_pretrain=/m "
ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
WHOLE = ("algorithm.adv_estimator=grpo", "data.train_files=/d/gsm8k/train.parquet", "data.response_key=answer",
         "actor_rollout_ref.model.path=/models/seven", f"{ROLLOUT}.n=8")
GSM8K = """
algorithm: {algorithm_type: grpo, repeat_times: 8}
model: {model_path: /models/seven}
buffer: {explorer_input: {taskset: {path: /d/gsm8k, format: {prompt_key: question, response_key: answer}}}}
"""


@pytest.mark.parametrize(("override", "part"), [
    ("reward_model.reward_kwargs.num_examine=3", "reward"), ("'custom_reward_function={path:r.py}'", "reward"),
    (f"'{ROLLOUT}.multi_turn={{tool_config_path:t.yaml}}'", "tools"),
    ("data.custom_cls.path=my/data.py", "dataset class"), ("data.datagen.path=my/gen.py", "dataset class"),
    ("data.sampler.class_path=my.sampler", "dataset class"), ("custom_reward_function.path=my/reward.py", "reward"),
    ("reward.custom_reward_function.path=$(pwd)/reward.py", "reward"), ("reward_model.reward_manager=mine", "reward"),
    ("reward.reward_manager.name=gdpo", "reward"), ("reward_model.sandbox_fusion.url=http://sandbox", "reward"),
    ("data.val_files=/d/livecodebench/test.parquet", "reward"),
    ("data.val_files=/d/searchR1_direct/test.parquet", "reward"),
    (f"{ROLLOUT}.multi_turn.tool_config_path=tools.yaml", "tools"), ("data.tool_config_path=tools.yaml", "tools"),
    (f"{ROLLOUT}.multi_turn.enable=True", "multi-turn"), ("env.train.num_envs=8", "multi-turn"),
    (f"{ROLLOUT}.multi_turn.interaction_config_path=user.yaml", "multi-turn"),
    (f"{ROLLOUT}.agent.default_agent_loop=tool_agent", "multi-turn"), ("reward_model.enable=True", "judge or teacher"),
    ("reward_model.reward_kwargs.llm_judge_kwargs.model=big", "judge or teacher"),
    (f"{ROLLOUT}.quantization=fp8", "quantization"), (f"{ACTOR}.fsdp_config.qat.enable=True", "quantization"),
    (f"{ACTOR}.megatron.override_transformer_config.fp8=hybrid", "quantization"),
    (f"{ROLLOUT}.engine_kwargs.vllm.kv_cache_dtype=fp8", "quantization"), ("data.video_key=videos", "images"),
    ("data.val_files=/d/geo3k/test.parquet", "images")])
def test_a_part_of_verls_task_is_lost(override, part):
    assert set(from_verl(launch(*WHOLE, override)).lacking) == {part}


@pytest.mark.parametrize("override", [
    "data.custom_cls.path=null", "custom_reward_function.name=compute_score", "reward_model.reward_manager=dapo",
    "reward.reward_manager.name=naive", "reward_model.enable=False", "data.sampler.class_path=null",
    f"{ROLLOUT}.multi_turn.enable=False", f"{ROLLOUT}.multi_turn.format=hermes", f"{ROLLOUT}.quantization=null",
    f"{ROLLOUT}.agent.default_agent_loop=single_turn_agent", f"{ROLLOUT}.agent.num_workers=8",
    f"{ACTOR}.fsdp_config.qat.enable=False", f"{ACTOR}.freeze_vision_tower=False", "data.image_key=null",
    "data.image_key=images",
    f"{ACTOR}.megatron.override_transformer_config.fp8=null", f"{ACTOR}.optim.override_optimizer_config.fp8_recipe=x",
    "trainer.device=npu", f"{ROLLOUT}.name=sglang", "data.val_files=/apps/geo3k/d/gsm8k/test.parquet"])
def test_everything_else_is_a_note(override):
    assert from_verl(launch(*WHOLE, override)).lacking == {}


@pytest.mark.parametrize(("model", "reads"), [
    ("Qwen/Qwen2.5-VL-7B-Instruct", False), ("Qwen/Qwen3-VL-30B-A3B-Instruct", True),
    ("zai-org/GLM-4.1V-9B-Thinking", True), ("openbmb/MiniCPM-o-2_6", True),
    ("/models/InternVL3-8B", True), ("OpenGVLab/InternVL3-8B-hf", False), ("HuggingFaceTB/SmolVLM-Instruct", False),
    ("HuggingFaceTB/SmolVLM2-2.2B-Instruct", True), ("Qwen/Qwen3-8B", False), ("/vl/models/seven", False),
    ("Qwen/Qwen2.5-Coder", False)])
def test_a_model_that_reads_images_says_so_by_its_name(model, reads):
    assert ("images" in from_verl(launch(*WHOLE[:3], f"actor_rollout_ref.model.path={model}")).lacking) == reads


@pytest.mark.parametrize(("model", "has_tower"), [
    ("google/gemma-3-4b-it", True), ("google/gemma-3-1b-it", False), ("google/gemma-3n-E4B-it", False),
    ("Qwen/Qwen3.5-9B", True), ("Qwen/Qwen3.5-35B-A3B", False)])
def test_a_tower_that_verl_trains_is_a_choice_here(model, has_tower):
    found = from_verl(launch(*WHOLE[:3], f"actor_rollout_ref.model.path={model}"))
    assert any(key.endswith("trainer.freeze_vision_tower") for key in written(found)) == has_tower


@pytest.mark.parametrize(("override", "part"), [
    ("data.custom_cls.path=my/data.py", "dataset class"),
    ("model.partial_pretrain=OpenGVLab/InternVL3-8B", "images"), ("data.video_key=videos", "images"),
    ("engine.qat.enable=True", "quantization")])
def test_a_part_of_a_demonstrations_task_is_lost(override, part):
    assert set(from_verl(SFT + override).lacking) == {part}


def test_a_model_that_a_function_of_the_script_asks_is_a_judge_and_no_classifier():
    made = from_verl(launch(*WHOLE, "reward_model.enable=True", "reward_model.model.path=/models/judge",
                            "custom_reward_function.path=my/reward.py"))
    assert set(made.lacking) == {"reward", "judge or teacher"}
    assert not [key for key in written(made) if "auxiliary_models" in key]


def test_a_penalty_that_two_versions_of_verl_read_is_not_lost():
    penalty = [f"{section}.{name}" for section in ("reward_model.overlong_buffer",
                                                   "reward_model.reward_kwargs.overlong_buffer_cfg")
               for name in ("enable=True", "len=4096", "penalty_factor=1.0")]
    made = from_verl(launch(*WHOLE, "data.max_response_length=8192", *penalty))
    assert made.lacking == {}
    assert written(made)["buffer.explorer_input.default_reward_fn_type"] == ["accuracy_reward", "overlong_penalty"]


@pytest.mark.parametrize(("text", "part"), [
    ("buffer: {explorer_input: {taskset: {path: /d, format: {video_key: videos}}}}", "images"),
    ("buffer: {explorer_input: {taskset: {path: /d, format: {reward_fn_key: reward}}}}", "reward"),
    ("buffer: {explorer_input: {default_workflow_type: math_ruler_workflow}}", "judge or teacher"),
    ("buffer: {explorer_input: {default_workflow_type: alfworld_workflow}}", "multi-turn"),
    ("buffer: {explorer_input: {default_workflow_type: my_own_workflow}}", "multi-turn"),
    ("trainer: {trainer_config: {actor_rollout_ref: {actor: {megatron: {qat: {enable: true}}}}}}", "quantization"),
    ("explorer: {rollout_model: {quantization: fp8}}", "quantization"), ("mode: serve", "mode"),
    ("buffer: {trainer_input: {sft_warmup_steps: 9}}", "demonstrations"),
    ("buffer: {explorer_input: {taskset: {path: /d, default_reward_fn_type: math_reward, reward_fn_args: {weights: "
     "{accuracy: 0.9}}}}}", "reward"),
    ("explorer: {rollout_model: {kv_cache_dtype: fp8_e5m2}}", "quantization"),
    # what only measures, and what is not read there, loses nothing
    ("data_processor: {experience_pipeline: {operators: [{name: pass_rate_calculator}]}}", None),
    ("trainer: {trainer_config: {custom_reward_function: {path: null, name: compute_score}, data: {video_key: v}}}",
     None)])
def test_a_part_of_trinitys_task_is_lost(text, part):
    lacking = from_trinity(text).lacking
    assert part in lacking if part else lacking == {}


@pytest.mark.parametrize(("below", "lost"), [
    ("", True), ("default_workflow_type: simple_workflow", True), ("default_workflow_type: math_workflow", False),
    ("default_reward_fn_type: format_reward", False), ("default_workflow_type: on_policy_distill_workflow", False)])
def test_a_source_that_names_no_reward_is_not_one_for_countdown(below, lost):
    """Our own default is countdown_reward; the guide's GRPO example names none for gsm8k."""
    made = from_trinity(f"buffer: {{explorer_input: {{taskset: {{path: /d/gsm8k}}, {below}}}}}")
    assert ("reward" in made.lacking) == lost
    assert written(made)["buffer.explorer_input.default_reward_fn_type"] == (
        ["accuracy_reward", "format_reward"] if "math" in below else
        "format_reward" if "format" in below else "accuracy_reward")


@pytest.mark.parametrize(("kind", "text", "parts"), [
    ("verl", launch(*WHOLE, "data.video_key=videos", f"{ROLLOUT}.multi_turn.tool_config_path=t.yaml",
                    "data.custom_cls.path=d.py"), ("dataset class", "tools", "images")),
    ("trinity", GSM8K, ("reward",))])
def test_an_incomplete_recipe_is_written_marked_and_ends_with_1(kind, text, parts, tmp_path, capsys):
    """The parts stand in one order, before everything else, on the terminal and in the recipe."""
    source, recipe = tmp_path / "source", tmp_path / "recipe.yaml"
    source.write_text(text)
    assert cli.main(["import", kind, str(source), "--output", str(recipe)]) == 1
    told = capsys.readouterr().out
    assert "it composes" in told
    second = recipe.read_text().splitlines()[1]
    for first in (second, next(line for line in told.splitlines()[1:] if line)):
        assert "INCOMPLETE" in first
    assert sorted(parts, key=TASK.index) == sorted(parts, key=told.index)


def test_a_complete_recipe_ends_with_0(tmp_path, capsys):
    (tmp_path / "run.sh").write_text(launch(*WHOLE))
    assert cli.main(["import", "verl", str(tmp_path / "run.sh"), "--stdout"]) == 0
    assert "INCOMPLETE" not in capsys.readouterr().err


def test_arguments_of_an_unknown_workflow_are_no_problems_of_their_own(tmp_path, capsys):
    sets = ("default_workflow_type: alfworld_workflow, path: /d, default_reward_fn_type: accuracy_reward, "
            "workflow_args: {max_turns: 3, judge: x, speed: 2}")
    (tmp_path / "c.yaml").write_text(GSM8K.partition("buffer")[0] + f"buffer: {{explorer_input: {{taskset: {{{sets}}}, "
                                     f"eval_tasksets: [{{name: eval, {sets}}}]}}}}")
    assert cli.main(["import", "trinity", str(tmp_path / "c.yaml"), "--stdout"]) == 1
    wording(capsys.readouterr().err, "1 problem")


def test_images_of_demonstrations_are_those_of_their_buffer():
    found = from_verl(SFT + "data.image_key=images model.partial_pretrain=Qwen/Qwen2.5-VL-3B-Instruct")
    assert (found.lacking, written(found)["trainer.freeze_vision_tower"]) == ({}, True)
    assert written(found)["buffer.trainer_input.experience_buffer.format.image_key"] == "images"


def test_images_of_verls_rows_are_those_of_every_set():
    """A file whose name tells of images has lost nothing then."""
    found = from_verl(launch(*WHOLE, "data.image_key=images", "data.val_files=/d/geo3k/test.parquet"))
    assert found.lacking == {}
    assert sorted(value for key, value in written(found).items() if key.endswith("format.image_key")) == ["images"] * 2
