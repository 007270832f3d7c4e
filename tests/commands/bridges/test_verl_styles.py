"""Whole scripts in the styles that people write, from the file to a recipe that composes.

Expected numbers by hand, e.g. ppo_functions.sh: 512 / 128 = 4 optimizer steps a step of veRL, so that a critic's warmup
of 2 is 8; dapo_ray.sh: 512 / 32 = 16 and 10 x 16 = 160.
"""

import pytest
import yaml

from ouroboros.commands import cli
from tests.bridges import SOURCES, flat, from_verl

STYLES = SOURCES / "styles"
WANTED = {
    "ppo_functions.sh": {
        "algorithm.algorithm_type": "ppo", "synchronizer.sync_interval": 4, "trainer.critic_warmup": 8,
        "buffer.train_batch_size": 128, "model.critic_model_path": "/models/seven", "name": "ppo_functions",
        "buffer.explorer_input.eval_tasksets.0.split": "test"},
    "grpo_lora.sh": {
        "algorithm.algorithm_type": "grpo", "synchronizer.sync_interval": 1, "buffer.train_batch_size": 80,
        "algorithm.kl_loss_fn_args.kl_coef": 0.001, "trainer.ranks": 2,
        "buffer.explorer_input.tasksets.0.data_selector.selector_type": "sequential"},
    "dapo_ray.sh": {
        "algorithm.algorithm_type": "dapo", "synchronizer.sync_interval": 16, "algorithm.repeat_times": 16,
        "algorithm.optimizer.lr_warmup_steps": 160, "algorithm.policy_loss_fn_args.clip_range_high": 0.28,
        "algorithm.loss_agg_mode": "token-mean", "trainer.max_token_len_per_gpu": 6144, "trainer.ranks": 128},
    "gspo_slurm.sbatch": {
        "algorithm.policy_loss_fn": "gspo", "algorithm.loss_agg_mode": "seq-mean-token-mean",
        "buffer.total_steps": 2000, "model.max_response_tokens": 8192, "cluster.gpu_per_node": 8,
        "algorithm.policy_loss_fn_args.clip_range_low": 0.0003},
    "rloo_arrays.sh": {
        "algorithm.algorithm_type": "rloo", "algorithm.kl_penalty_fn": "k1", "buffer.train_batch_size": 1280,
        "buffer.total_epochs": 15, "model.max_prompt_tokens": 512, "trainer.ranks": 8},
    "remax_loop.sh": {
        "algorithm.algorithm_type": "remax", "synchronizer.sync_interval": 4, "algorithm.repeat_times": 4},
    "sft_torchrun.sh": {
        "algorithm.algorithm_type": "sft", "algorithm.optimizer.lr": 1e-4, "model.model_path": "/models/half",
        "buffer.trainer_input.experience_buffer.format.prompt_key": "extra_info.question", "buffer.total_epochs": 2},
    "grpo_nodes_case.sh": {
        "algorithm.algorithm_type": "grpo", "buffer.batch_size": 64, "trainer.ranks": 16, "algorithm.repeat_times": 8,
        "explorer.rollout_model.tensor_parallel_size": 2},
}
UNKNOWN = {
    "ppo_functions.sh": ["trainer.experiment_name"], "remax_loop.sh": ["actor_rollout_ref.actor.optim.lr"],
    "sft_torchrun.sh": ["trainer.default_local_dir", "trainer.n_gpus_per_node"],
    "grpo_nodes_case.sh": ["data.train_batch_size"],
}
# lost, in the order of the lines; what stands on a branch of its own (adapters, dynamic sampling) is not looked at here
LEFT = {
    "sft_torchrun.sh": ["data.val_files"], "grpo_nodes_case.sh": ["data.max_prompt_length", "trainer.critic_warmup"],
}


@pytest.mark.parametrize("name", WANTED)
def test_a_script_becomes_a_recipe_with_its_values(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    code = cli.main(["import", "verl", str(STYLES / name), "--output", "recipe.yaml"])
    told = capsys.readouterr().out
    found = flat(yaml.safe_load((tmp_path / "recipe.yaml").read_text()))
    number = {key: float(found[key]) for key in found if key.endswith(".lr")}  # YAML 1.1 reads 1e-6 as a text
    assert {key: number.get(key, found.get(key)) for key in WANTED[name]} == WANTED[name]
    is_open = "our defaults stand where a value is unknown that decides what is made" in told
    assert is_open == (name in ("remax_loop.sh", "grpo_nodes_case.sh"))
    assert (code, "it composes" in told) == (int(is_open), True)


@pytest.mark.parametrize("name", WANTED)
def test_what_a_script_does_not_tell_is_unknown_and_what_is_lost_is_left_out(name):
    made = from_verl((STYLES / name).read_text(), name)
    assert sorted(u.given.key for u in made.unknown) == UNKNOWN.get(name, [])
    assert [g.key for g, why in made.left_out if "no counterpart known" in why] == []
    if name in LEFT:
        assert sorted(g.key for g, _ in made.left_out) == LEFT[name]
