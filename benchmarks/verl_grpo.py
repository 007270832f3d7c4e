"""verl's GRPO with the model, prompts, lengths, reward and optimizer of benchmarks/gpu_peers.py, which starts it.

verl 0.9.1 requires transformers below 5.11 and Ray, and its model classes clash with TRL 1.16: its packages
are installed into their own directory, without trl (`pip install --target DIR verl==0.9.1 'transformers<5.11'
tensordict==0.10 ray==2.50.1 TransferQueue==0.1.11`), which `--verl DIR` puts before all others, and flash-attn into
another. One GPU, FSDP with float32 master weights, vLLM asleep during the update: verl's defaults, except for what the
comparison fixes, and few actors, since its default of them needs more cores than a machine with one GPU has. It takes
four minutes to its first sample.
"""

import math
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np

from benchmarks.gpu_path import PROMPT_TOKENS, RESPONSE_TOKENS

REWARD = """import hashlib


def hash_reward(data_source, solution_str, ground_truth, extra_info=None, **_):
    return float(hashlib.sha256(solution_str.encode()).digest()[0] % 2)
"""
TASKS = 64  # of a step
PARTS = ("timing_s/gen", "timing_s/old_log_prob", "timing_s/update_actor", "timing_s/update_weights")
FEW_ACTORS = [
    "actor_rollout_ref.rollout.agent.num_workers=4", "reward.num_workers=2", "data.dataloader_num_workers=0",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=2", "ray_kwargs.ray_init.num_cpus=16",
    "+ray_kwargs.ray_init.include_dashboard=False"]
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_memory_monitor_refresh_ms": "0",
               "VLLM_DISABLE_COMPILE_CACHE": "0", "VLLM_NO_USAGE_STATS": "1", "WANDB_MODE": "disabled"}


def overrides(root: Path, steps: int) -> list[str]:
    actor = "actor_rollout_ref.actor"
    rollout = "actor_rollout_ref.rollout"
    return [
        "algorithm.adv_estimator=grpo", "algorithm.use_kl_in_reward=False", f"{actor}.use_kl_loss=False",
        f"{actor}.entropy_coeff=0", f"{actor}.optim.lr=1e-6", f"{rollout}.temperature=1.0", f"{rollout}.n=8",
        f"data.train_files={root}/train.parquet", f"data.val_files={root}/train.parquet",
        f"data.train_batch_size={TASKS}", f"data.max_prompt_length={PROMPT_TOKENS}",
        f"data.max_response_length={RESPONSE_TOKENS}",
        "data.filter_overlong_prompts=False", "data.truncation=error", "data.shuffle=False",
        f"actor_rollout_ref.model.path={root}/model", "actor_rollout_ref.model.use_remove_padding=True",
        "actor_rollout_ref.model.enable_gradient_checkpointing=True",
        f"{actor}.ppo_mini_batch_size={TASKS}", f"{actor}.use_dynamic_bsz=True",
        f"{actor}.ppo_max_token_len_per_gpu=32768", f"{rollout}.log_prob_use_dynamic_bsz=True",
        f"{rollout}.log_prob_max_token_len_per_gpu=32768", f"{rollout}.name=vllm",
        f"{rollout}.tensor_model_parallel_size=1", f"{rollout}.gpu_memory_utilization=0.4",
        f"{rollout}.max_num_seqs=512", f"{rollout}.ignore_eos=True",
        f"reward.custom_reward_function.path={root}/reward.py", "reward.custom_reward_function.name=hash_reward",
        "trainer.critic_warmup=0", "trainer.logger=[console]", "trainer.n_gpus_per_node=1", "trainer.nnodes=1",
        "trainer.save_freq=-1", "trainer.test_freq=-1", "trainer.val_before_train=False",
        f"trainer.total_training_steps={steps}", "trainer.total_epochs=100", *FEW_ACTORS]


def train(root: Path, model: Path, steps: int, limit: float, further: list[str]) -> list[dict]:
    """Runs verl's trainer; returns the seconds of its steps and their parts, as it prints them.

    limit: seconds, after which it is ended; the steps until then are returned. further: overrides.
    """
    import pandas as pd

    from benchmarks.gpu_peers import run_limited

    root.mkdir(parents=True, exist_ok=True)
    shutil.copytree(model, root / "model", dirs_exist_ok=True)
    (root / "model" / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message['content'] }}{% endfor %}")
    (root / "reward.py").write_text(REWARD)
    random = np.random.default_rng(0)
    pd.DataFrame([{"data_source": "hash", "ability": "none", "reward_model": {"style": "rule", "ground_truth": "0"},
                   "prompt": [{"role": "user", "content": "".join(map(chr, random.integers(97, 123, PROMPT_TOKENS)))}],
                   "extra_info": {"index": i}} for i in range(8 * TASKS)]).to_parquet(root / "train.parquet")
    words = [sys.executable, "-m", "verl.trainer.main_ppo", *overrides(root, steps), *further]
    ended = run_limited(words, root / "output", limit, env=os.environ | ENVIRONMENT)
    printed = (root / "output").read_text()
    found = [read(line) for line in re.findall(r"step:\d+ - (.*)", printed)]
    if not found:
        raise RuntimeError(f"verl: {ended} before its first step: {printed[-2500:]}")
    return [{"seconds": one["timing_s/step"], "torch_gib": one.get("perf/max_memory_allocated_gb", math.nan),
             **{part: one.get(part, math.nan) for part in PARTS}} for one in found]


def read(line: str) -> dict[str, float]:
    """The metrics of a step, from `key:value - key:value`; a value may be written as `np.float64(1.5)`."""
    pairs = (one.rpartition(":") for one in line.split(" - "))
    return {key.removeprefix("actor/"): float(re.sub(r".*\(|\)", "", value)) for key, _, value in pairs}
