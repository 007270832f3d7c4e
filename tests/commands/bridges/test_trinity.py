"""Configurations of Trinity-RFT as recipes: what stays, what is called otherwise, what is left out and why."""

import pytest

from ouroboros.commands.bridges.report import value_text, write
from ouroboros.commands.bridges.source import read_yaml
from ouroboros.commands.cli import main
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.yaml_values import scalar
from tests.bridges import SOURCES, from_trinity, written
from tests.bridges import left_out_of_trinity as left_out
from tests.bridges import values_of_trinity as values
from tests.golden.messages import wording

# -------------------------------------------------------------------------------------------------------------- fates


def test_every_key_of_the_guide_is_accounted_for():
    made = from_trinity((SOURCES / "every_key.yaml").read_text(), "every_key.yaml")
    assert made.keys == len(read_yaml((SOURCES / "every_key.yaml").read_text(), "every_key.yaml")) == 173
    assert sorted(given.key for given, _ in made.renamed) == [
        "algorithm.optimizer.warmup_style", "buffer.trainer_input.experience_buffer.format.chat_template",
        "data_processor.task_pipeline.inputs", "stages.0.buffer.train_batch_size", "trainer.total_steps",
        "trainer.trainer_strategy"]
    assert [given.key for given, why in made.left_out if "of the guide" in why] == []


def test_an_operator_that_asks_people_is_not_whole_without_its_key():
    made = from_trinity("data_processor: {task_pipeline: {operators: [{name: human_preference_annotation_mapper, "
                        "args: {api_key: abc}}]}}")
    assert list(made.lacking) == ["demonstrations"]


def test_a_warm_up_on_demonstrations_is_a_stage_before_the_others():
    rows = "buffer: {trainer_input: {sft_warmup_steps: 7, sft_warmup_dataset: {path: /d/e, format: {prompt_key: q}}}}"
    found = values(f"algorithm: {{algorithm_type: grpo}}\n{rows}")
    assert {key: value for key, value in found.items() if key.startswith("stages")} == {
        "stages.0.stage_name": "sft_warmup", "stages.0.mode": "train", "stages.0.algorithm.algorithm_type": "sft",
        "stages.0.buffer.total_steps": 7, "stages.0.buffer.trainer_input.experience_buffer.path": "/d/e",
        "stages.0.buffer.trainer_input.experience_buffer.format.prompt_key": "q", "stages.1.stage_name": "rft"}


def test_keys_that_work_stay_and_interpolations_survive_untouched():
    found = values("""
project: p
checkpoint_root_dir: ${oc.env:ROOT,./checkpoints}
algorithm: {algorithm_type: ppo, optimizer: {lr: 1e-6}, policy_loss_fn_args: {clip_range_low: 0.1}}
explorer: {rollout_model: {extra_engine_args: {mine: [1, 2]}}}
model: {model_path: "${oc.env:MODEL}", critic_model_path: "${model.model_path}"}
buffer: {batch_size: 4}
""")
    assert found == {"project": "p", "checkpoint_root_dir": "${oc.env:ROOT,./checkpoints}", "buffer.batch_size": 4,
                     "algorithm.algorithm_type": "ppo", "algorithm.optimizer.lr": 1e-6,
                     "algorithm.policy_loss_fn_args.clip_range_low": 0.1,
                     "algorithm.kl_loss_fn": "k2", "algorithm.kl_loss_fn_args.kl_coef": 0.001,  # its defaults
                     "explorer.rollout_model.extra_engine_args.mine": [1, 2],
                     "model.model_path": "${oc.env:MODEL}", "model.critic_model_path": "${model.model_path}",
                     "trainer.max_checkpoints_to_keep": None}  # all, the original's default


@pytest.mark.parametrize(("theirs", "key", "value"), [
    ("trainer: {trainer_strategy: fsdp2}", "trainer.zero_stage", 3),
    ("trainer: {param_offload: true}", "trainer.offload_param", True),
    ("trainer: {total_steps: 70}", "buffer.total_steps", 70),
    ("trainer: {ppo_max_token_len_per_gpu: 9000}", "trainer.max_token_len_per_gpu", 9000),
    ("algorithm: {optimizer: {warmup_style: cosine}}", "algorithm.optimizer.lr_scheduler_type", "cosine"),
    ("algorithm: {optimizer: {lr_warmup_steps: -1}}", "algorithm.optimizer.lr_warmup_steps", 0),
    ("synchronizer: {sync_method: offline}", "synchronizer.sync_method", "checkpoint"),
    ("explorer: {rollout_model: {dtype: bfloat16}}", "model.dtype", "bfloat16"),
    ("explorer: {rollout_model: {enable_prefix_caching: false}}",
     "explorer.rollout_model.extra_engine_args.enable_prefix_caching", False),
    ("buffer: {explorer_input: {tasksets: [{path: a}, {path: b, task_selector: {selector_type: random}}]}}",
     "buffer.explorer_input.tasksets.1.data_selector.selector_type", "random"),
    ("stages: [{stage_name: a, trainer: {trainer_strategy: fsdp}}]", "stages.0.trainer.zero_stage", 3),
    ("trainer: {trainer_config: {critic: {optim: {lr: 1e-5}}}}", "trainer.critic.optimizer.lr", 1e-5),
    ("trainer: {trainer_config: {actor_rollout_ref: {model: {enable_gradient_checkpointing: true}}}}",
     "trainer.enable_gradient_checkpointing", True),
    ("model: {lora_configs: [{lora_rank: 8}]}", "model.lora_configs.0.lora_rank", 8),
    ("explorer: {rollout_model: {engine_num: 3, data_parallel_size: 2}}", "explorer.rollout_model.engine_num", 6),
    ("explorer: {rollout_model: {data_parallel_size: 2}}", "explorer.rollout_model.engine_num", 2),
    ("explorer: {rollout_model: {rope_theta: 10000}}", "model.rope_theta", 10000),
    ("synchronizer: {explorer_sync_interval: 4, trainer_sync_interval: 4}", "synchronizer.sync_interval", 4),
    *((f"synchronizer: {{sync_style: {side}_driven, explorer_sync_interval: 4, trainer_sync_interval: 5, sync_offset: "
       "1, sync_interval: 3}", "synchronizer.sync_interval", own) for side, own in (("explorer", 4), ("trainer", 5))),
    ("{synchronizer: {sync_style: trainer_driven}, algorithm: {sample_strategy: staleness_control, "
     "sample_strategy_args: {max_staleness: 3}}}", "synchronizer.max_staleness", 3),
    ("explorer: {max_retry_times: 2}", "explorer.max_retry_times", 2),
    ("trainer: {trainer_config: {actor_rollout_ref: {model: {lora_rank: 8}}}}", "model.lora_configs.0.lora_rank", 8)])
def test_a_renamed_key_stands_under_its_name_with_its_value(theirs, key, value):
    assert values(theirs)[key] == value


def test_a_key_under_our_own_name_wins_unless_it_is_null():
    both = "{buffer: {total_steps: 5}, trainer: {total_steps: 7}}"
    assert values(both)["buffer.total_steps"] == 5
    wording(left_out(both)["trainer.total_steps"], "as 5")
    assert values("{buffer: {total_steps: null}, trainer: {total_steps: 7}}")["buffer.total_steps"] == 7


# --------------------------------------------------------------------------------------------------- several at once


REPEATS = "explorer.max_repeat_times_per_runner"


@pytest.mark.parametrize(("text", "found"), [
    ("{trainer: {total_steps: 70, save_interval: '${trainer.total_steps}'}}",  # renamed
     {"trainer.save_interval": "${buffer.total_steps}"}),
    (f"{{explorer: {{max_repeat_times_per_runner: 90}}, synchronizer: {{sync_timeout: '${{{REPEATS}}}'}}, "
     f"name: 'a${{{REPEATS}}}b'}}", {"synchronizer.sync_timeout": 90, "name": "a90b"}),  # left out
    ("monitor: {monitor_args: {api_key: '${oc.env:KEY}'}}", {"monitor.monitor_args.api_key": "${oc.env:KEY}"}),
    ("{ray_namespace: '${name}', name: '${ray_namespace}'}", {"name": "${name}"}),  # a circle
])
def test_a_reference_follows_its_key(text, found):
    assert found.items() <= values(text).items()


def test_a_reference_to_a_secret_brings_it_into_no_other_key():
    text = "{monitor: {monitor_args: {password: hunter2}}, name: 'a${monitor.monitor_args.password}'}"
    assert "hunter2" not in write(from_trinity(text), "x")


@pytest.mark.parametrize("stored", ["storage_type: queue, path: 'sqlite:///b.db'", "path: 'postgresql://h/b'",
                                    "storage_type: sql, path: b.db", "storage_type: queue, path: b.jsonl"])
def test_an_experience_database_is_left_out_and_a_file_stays(stored):
    theirs = "buffer: {batch_size: 1, trainer_input: {experience_buffer: {name: b, %s}}}"
    assert "buffer.trainer_input.experience_buffer.path" not in values(theirs % stored)
    kept = values(theirs % "storage_type: file, path: d.jsonl")
    assert kept["buffer.trainer_input.experience_buffer.path"] == "d.jsonl"


ROOT = "buffer.explorer_input"


def test_sets_to_train_on_are_sampled_as_they_say():
    theirs = ("{model: {temperature: 0.9}, buffer: {batch_size: 1, explorer_input: {taskset: {rollout_args: "
              "{temperature: 0.7, max_tokens: 9, top_k: 20, top_p: 1.0}}}}}")
    found, place = values(theirs), f"{ROOT}.taskset.rollout_args"
    assert (found[f"{place}.temperature"], found[f"{place}.max_tokens"], found[f"{place}.top_k"]) == (0.7, 9, 20)
    assert left_out(theirs) == {}
    assert set(left_out(theirs.replace("top_k: 20, top_p: 1.0", "top_p: 0.9"))) == {f"{place}.top_p"}
    assert left_out(theirs.replace("top_k: 20, top_p: 1.0", "top_p: 0.9").replace(
        "temperature: 0.9", "top_k: 30")) == {}


def test_the_number_of_responses_is_one_for_all_sets_to_train_on():
    theirs = "buffer: {batch_size: 1, explorer_input: {tasksets: [{name: a, rollout_args: {n: 8}}, {name: b, %s}]}}"
    assert values(theirs % "rollout_args: {n: 8}")["algorithm.repeat_times"] == 8
    assert f"{ROOT}.tasksets.1.rollout_args.n" in left_out(theirs % "rollout_args: {n: 4}")
    one = "{algorithm: {algorithm_type: rloo}, buffer: {explorer_input: {taskset: {rollout_args: {%s}}}}}"
    assert [any("repeat_times" in said for said in from_trinity(one % given).chosen)
            for given in ("n: 8", "")] == [False, True]
    held = "buffer: {explorer_input: {eval_tasksets: [{name: a, rollout_args: {n: 4, top_p: 0.7}}, %s]}}"
    found = values(held % "{path: a, repeat_times: 4}")
    assert [found[f"{ROOT}.eval_tasksets.{one}.repeat_times"] for one in (0, 1)] == [4, 4]
    assert found[f"{ROOT}.eval_tasksets.0.rollout_args.top_p"] == 0.7


def test_the_stage_of_the_guide():
    """In sft the original counts rows by train_batch_size; ours by batch_size. Messages are its default."""
    found = values("""
stages:
  - stage_name: sft_warmup
    mode: train
    algorithm: {algorithm_type: sft}
    buffer: {train_batch_size: 64, total_steps: 100, trainer_input: {experience_buffer: {name: b, path: "${oc.env:D}"}}}
  - stage_name: rft
""")
    assert {k: v for k, v in found.items() if k.startswith("stages.")} == {
        "stages.0.stage_name": "sft_warmup", "stages.0.mode": "train", "stages.0.algorithm.algorithm_type": "sft",
        "stages.0.buffer.batch_size": 64, "stages.0.buffer.total_steps": 100,
        "stages.0.buffer.trainer_input.experience_buffer.name": "b",
        "stages.0.buffer.trainer_input.experience_buffer.format.prompt_type": "messages",
        "stages.0.buffer.trainer_input.experience_buffer.format.messages_key": "message",
        "stages.0.buffer.trainer_input.experience_buffer.path": "${oc.env:D}", "stages.1.stage_name": "rft"}


@pytest.mark.parametrize(("theirs", "ranks"), [
    ("cluster: {node_num: 1, gpu_per_node: 8}", 7), ("cluster: {gpu_per_node: 4}", 3),
    ("{cluster: {gpu_per_node: 8}, explorer: {rollout_model: {tensor_parallel_size: 2}}}", 6),
    ("{mode: train, cluster: {gpu_per_node: 8}}", 8), ("{mode: colocate, cluster: {gpu_per_node: 1}}", None),
    ("cluster: {gpu_per_node: 2}", None), ("{cluster: {gpu_per_node: 8}, trainer: {ranks: 2}}", 2),
    # 8 - 2 engines of one GPU - 2 copies of one model - 1 of another
    ("{cluster: {gpu_per_node: 8}, explorer: {rollout_model: {engine_num: 2}, auxiliary_models: ["
     "{model_path: /a, engine_num: 2}, {model_path: /b}]}}", 3)])
def test_the_trainer_gets_the_gpus_that_the_engine_leaves(theirs, ranks):
    assert values(theirs).get("trainer.ranks") == ranks


@pytest.mark.parametrize(("lengths", "prompt", "response"), [
    ("max_model_len: 1000", 500, 500), ("{max_model_len: 1000, max_response_tokens: 700}", 300, 700),
    ("{max_model_len: 1000, max_prompt_tokens: 100}", 100, 900), ("max_prompt_tokens: 5", 5, None)])
def test_lengths_that_are_missing_are_filled_in_as_in_the_original(lengths, prompt, response):
    found = values(f"model: {{{lengths.strip('{}')}}}")
    assert (found.get("model.max_prompt_tokens"), found.get("model.max_response_tokens")) == (prompt, response)


def test_the_budget_holds_the_longest_sequence():
    found = values("model: {max_prompt_tokens: 4096, max_response_tokens: 16384}")
    assert found["trainer.max_token_len_per_gpu"] == 2 * 20480


def test_defaults_that_differ_are_written():
    held_out = "{path: b, format: {prompt_key: q}}"
    found = values(f"buffer: {{explorer_input: {{taskset: {{path: a}}, eval_tasksets: [{held_out}]}}}}")
    root = "buffer.explorer_input"
    assert (found[f"{root}.taskset.format.prompt_key"], found[f"{root}.taskset.format.response_key"]) == (
        "prompt", "response")
    assert found[f"{root}.eval_tasksets.0.format.prompt_key"] == "q"
    assert (found["buffer.batch_size"], found["explorer.eval_interval"]) == (1, 100)
    assert found["explorer.eval_on_startup"] is True


def test_a_math_workflow_is_a_simple_one_with_its_two_rewards():
    made = from_trinity("buffer: {explorer_input: {default_workflow_type: math_workflow}}")
    found = written(made)
    assert found["buffer.explorer_input.default_workflow_type"] == "simple_workflow"
    assert found["buffer.explorer_input.default_reward_fn_type"] == ["accuracy_reward", "format_reward"]
    wording(made.chosen[0], "accuracy_reward", "math_workflow")


def test_a_name_that_cannot_be_a_directory_is_mended():
    assert values("name: a/b c")["name"] == "a-b-c"
    assert values("name: ${oc.env:N}")["name"] == "${oc.env:N}"


# --------------------------------------------------------------------------------------------------------------- YAML


@pytest.mark.parametrize(("text", "said"), [
    ("a: [1", "c.yaml, line 1, column 6 is no YAML"), ("a:\n  b: `x`", "line 2, column 6"),
    ("a: 1\nb: {c: 1, c: 2}", "line 2: the key 'c' is there twice, first in line 2"), ("a: &x [*x]", "recursive"),
    ("a: !!python/object:os.system x", "is no YAML"), ("", "holds no settings"), ("3", "holds no settings"),
    ("{}", "holds no settings"), ("? [a]\n: 1", "is no text"), ("a: 1\n---\nb: 2", "is no YAML"),
    ("a: *nowhere", "line 1"), ("\x00", "is no YAML")])
def test_yaml_that_is_none_is_refused_with_its_place(text, said):
    with pytest.raises(ConfigError) as caught:
        from_trinity(text)
    assert said in str(caught.value)


def test_lines_anchors_and_merges():
    given = read_yaml("a: &x {p: 1, q: 2}\nb:\n  <<: *x\n  q: 3\nc: *x\n", "c.yaml")
    assert [(g.key, g.value, g.line) for g in given] == [
        ("a.p", 1, 1), ("a.q", 2, 1), ("b.p", 1, 1), ("b.q", 3, 4), ("c.p", 1, 1), ("c.q", 2, 1)]


@pytest.mark.parametrize(("text", "value"), [
    ("1e-6", 1e-6), ("1.0", 1.0), ("2024-01-01", "2024-01-01"), ("yes", True), ("null", None), ("x: y: z", "x: y: z"),
    ("[a, 1]", ["a", 1]), ("0x10", 16)])
def test_a_word_is_read_as_omegaconf_reads_it(text, value):
    assert scalar(text) == value


@pytest.mark.parametrize(("value", "text"), [
    (1e-6, "1e-6"), (1e-5, "1e-5"), (0.1, "0.1"), (1.0, "1.0"), (True, "true"), (None, "null"), ("1e-6", "'1e-6'"),
    ("a\nb", '"a\\nb"'), (["a, b", "c"], "['a, b', c]"), ("${oc.env:X}/y", "${oc.env:X}/y"), ({"a": [1]}, "{a: [1]}")])
def test_a_value_is_written_on_one_line_as_it_is_read(value, text):
    assert value_text(value) == text
    assert scalar(text) == value


def test_a_replay_of_theirs_is_by_seconds_and_none_without_them():
    """A trainer step is taken as a minute: 150 s are 2 steps, 5 s one; without a cool-down a row is used once."""
    replay = "buffer: {{trainer_input: {{experience_buffer: {{replay_buffer: {{enable: true{}}}}}}}}}"
    key = "buffer.trainer_input.experience_buffer.replay_buffer"
    for seconds, steps in ((150, 2), (5, 1)):
        made = from_trinity(replay.format(f", reuse_cooldown_time: {seconds}, priority_fn: linear_decay"), "x.yaml")
        assert [made.value(*key.split("."), name) for name in ("enable", "reuse_cooldown_time", "priority_fn")] == [
            True, steps, "linear_decay"]
        assert (made.left_out, made.asked) == ([], [])
    made = from_trinity(replay.format(""), "x.yaml")
    assert ([given.key for given, _ in made.left_out], made.asked) == ([f"{key}.enable"], [])
    made = from_trinity(replay.format(", reuse_cooldown_time: 60").replace("true", "false"), "x.yaml")
    assert ([given.key for given in made.kept], [given.key for given, _ in made.idle]) == (
        [f"{key}.enable"], [f"{key}.reuse_cooldown_time"])


def test_the_trainer_of_an_asynchronous_pair_is_a_run_of_its_tasks():
    """768 rows of 8 rollouts each are 96 tasks; one GPU of four is the engine's. An explorer explores alone."""
    half = ("mode: {}\nalgorithm: {{algorithm_type: grpo, repeat_times: 8}}\ncluster: {{gpu_per_node: 4}}\n"
            "buffer: {{train_batch_size: 768, explorer_input: {{taskset: {{path: /d}}}}}}")
    made = from_trinity(half.format("train"))
    assert (made.value("mode"), made.value("buffer", "batch_size"), made.value("trainer", "ranks")) == ("both", 96, 3)
    assert from_trinity(half.format("explore")).value("mode") == "explore"
    assert from_trinity(half.format("train").replace("path: /d", "name: d")).value("mode") == "train"


def test_an_unknown_key_of_an_auxiliary_buffer_is_left_out_like_any_other():
    sets = "buffer.trainer_input.auxiliary_buffers.sft"
    made = from_trinity("buffer: {trainer_input: {auxiliary_buffers: {sft: {path: /d/a.jsonl, speed: 25, "
                        "format: {prompt_key: q, nonsense: 1}}}}}")
    assert {given.key for given, _ in made.left_out} == {f"{sets}.speed", f"{sets}.format.nonsense"}
    wording(why for _, why in made.left_out)
    assert [given.key for given in made.kept] == [f"{sets}.path", f"{sets}.format.prompt_key"]


@pytest.mark.parametrize("source", ["trinity", "verl"])
@pytest.mark.parametrize(("name", "text", "program"), [
    ("a.yml", "base_model: x\nseed: 1\nlora_r: 8", "axolotl"), ("a.yml", "sequence_len: 8\nadapter: lora", "axolotl"),
    ("a.yaml", "model_name_or_path: x", "TRL"), ("a.yaml", "num_generations: 8\nlearning_rate: 1.0e-5", "TRL"),
    ("a.yaml", "model_name_or_path: x\nstage: sft\nfinetuning_type: lora", "LLaMA-Factory"),
    ("a.yaml", "orchestrator: {a: 1}\ntrainer: {b: 1}", "prime-rl"), ("a.toml", "[model]\nname = 'x'", "prime-rl"),
    ("a.TOML", "[orchestrator]\nbatch_size = 1", "prime-rl"), ("a.toml", "base_model = 'x'", "axolotl"),
    ("a.toml", "no = [", "prime-rl")])
def test_a_file_of_another_program_is_named_and_nothing_written(tmp_path, monkeypatch, capsys, source, name, text,
                                                                program):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    assert main(["import", source, name]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert program in error
    assert "ouro init" in error
    assert [path.name for path in tmp_path.iterdir()] == [name]
