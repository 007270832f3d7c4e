"""Keys of older releases of Trinity-RFT, and keys of its code that its guide does not have."""

import pytest

from tests.bridges import from_trinity, left_out_of_trinity, values_of_trinity

FIRST = """
mode: both
data: {dataset_path: /d/tasks, train_split: train, eval_split: test, format_config: {prompt_key: q, response_key: a},
       total_epochs: 3, batch_size: 24, default_workflow_type: math_workflow, db_url: '', agent_model_name: m}
model: {model_path: /m, max_prompt_tokens: 100, max_response_tokens: 200, checkpoint_path: /c}
buffer: {train_dataset: {name: b, storage_type: queue, path: 'sqlite:///b.db'}}
explorer: {engine_type: vllm_async, engine_num: 2, tensor_parallel_size: 1, repeat_times: 6, temperature: 0.9,
           backend: nccl}
synchronizer: {sync_iteration_interval: 4}
trainer: {algorithm_type: grpo, eval_interval: 7, actor_grad_clip: 0.5, sft_warmup_iteration: 0}
monitor: {project: p, name: n, cache_root_dir: ''}
"""


def test_the_first_release_is_read_as_today():
    """Each value stands where its key is now; data.eval_split makes a set of the same data."""
    sets = "buffer.explorer_input"
    found = values_of_trinity(FIRST)
    assert {key: found[key] for key in found if key.endswith((".path", ".split", "_key"))} == {
        f"{sets}.taskset.path": "/d/tasks", f"{sets}.taskset.split": "train", f"{sets}.taskset.format.prompt_key": "q",
        f"{sets}.taskset.format.response_key": "a", f"{sets}.eval_tasksets.0.path": "/d/tasks",
        f"{sets}.eval_tasksets.0.split": "test", f"{sets}.eval_tasksets.0.format.prompt_key": "q",
        f"{sets}.eval_tasksets.0.format.response_key": "a"}
    expected = {"buffer.total_epochs": 3, "buffer.batch_size": 24, "algorithm.algorithm_type": "grpo",
                "algorithm.repeat_times": 6, "model.temperature": 0.9, "explorer.rollout_model.engine_num": 2,
                "explorer.eval_interval": 7, "synchronizer.sync_interval": 4, "trainer.grad_clip": 0.5, "project": "p",
                "name": "n", "checkpoint_root_dir": "/c", f"{sets}.default_workflow_type": "simple_workflow"}
    assert {key: found[key] for key in expected} == expected


def test_a_key_that_stands_under_todays_name_too_wins():
    made = from_trinity("explorer: {engine_num: 2, rollout_model: {engine_num: 3}}")
    assert [given.key for given in made.kept] == ["explorer.rollout_model.engine_num"]
    assert [given.key for given, _ in made.left_out] == ["explorer.engine_num"]


def test_demonstrations_of_the_warm_up_are_those_that_are_mixed_in():
    """Only with an algorithm that mixes: elsewhere a warm-up is a stage of its own."""
    text = ("algorithm: {algorithm_type: %s}\nbuffer: {trainer_input: {sft_warmup_dataset: {path: /d/e, "
            "algorithm_type: sft, format: {prompt_type: messages, messages_key: m}}}}")
    to = "buffer.trainer_input.auxiliary_buffers.sft_dataset"
    found = values_of_trinity(text % "mix_chord")
    assert (found[f"{to}.path"], found[f"{to}.format.messages_key"]) == ("/d/e", "m")
    assert left_out_of_trinity(text % "mix_chord")[f"{to}.algorithm_type"].startswith("the algorithm says")
    assert [key for key in values_of_trinity(text % "grpo") if "auxiliary" in key] == []


def test_a_queue_with_priorities_is_a_replay_buffer():
    text = ("buffer: {trainer_input: {experience_buffer: {use_priority_queue: true, "
            "replay_buffer_kwargs: {priority_fn: linear_decay, decay: 0.1}, replay_buffer: {reuse_cooldown_time: 2}}}}")
    below = "buffer.trainer_input.experience_buffer.replay_buffer"
    found = {key: value for key, value in values_of_trinity(text).items() if key.startswith(below)}
    assert found == {f"{below}.enable": True, f"{below}.priority_fn": "linear_decay",
                     f"{below}.priority_fn_args.decay": 0.1, f"{below}.reuse_cooldown_time": 1}


ARGUMENT = "policy_loss_fn_args: {loss_agg_mode: seq-mean-token-sum}"


@pytest.mark.parametrize(("text", "key", "value"), [
    ("data_processor: {task_pipeline: {input_buffers: [{path: /a, raw: true}, {path: /b}]}}\n"
     "buffer: {explorer_input: {taskset: {path: /curated}}}", "buffer.explorer_input.taskset.path", ["/a", "/b"]),
    (f"algorithm: {{algorithm_type: grpo, {ARGUMENT}}}", "algorithm.loss_agg_mode", "seq-mean-token-sum"),
    (f"algorithm: {{algorithm_type: grpo, loss_agg_mode: token-mean, {ARGUMENT}}}", "algorithm.loss_agg_mode",
     "token-mean")])
def test_other_keys_of_before(text, key, value):
    assert values_of_trinity(text)[key] == value
