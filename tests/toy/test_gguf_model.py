"""A project whose model is a GGUF file of some kB: check, a step of rft, and a model to go on with."""

import json

import pytest
from safetensors.numpy import load_file

from tests import gguf_files
from tests.toy.test_models import JUDGE, TRANSFORMERS, ouro

pytestmark = pytest.mark.slow

RECIPE = """# @package _global_
name: tiny
checkpoint_root_dir: .
model: {model_path: tiny.gguf, max_prompt_tokens: 40, max_response_tokens: 8, dtype: float32}
data_processor: {task_pipeline: {generator: null, config_path: null}}
buffer:
  batch_size: 2
  total_steps: 1
  explorer_input: {default_reward_fn_type: "judge:variety", taskset: {name: sums, path: sums.jsonl}}
algorithm: {algorithm_type: grpo, repeat_times: 4, optimizer: {lr: 1e-3}}
explorer: {eval_on_startup: false}
synchronizer: {sync_interval: 1, sync_offset: 0}
monitor: {monitor_type: none}
stages: [{stage_name: rft}]
"""


def test_a_gguf_file_is_trained(tmp_path):
    gguf_files.write(tmp_path / "tiny.gguf")
    rows = [{"question": f"{i} + 1", "answer": str(i + 1)} for i in range(8)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "conf" / "recipe").mkdir(parents=True)
    (tmp_path / "conf" / "recipe" / "tiny.yaml").write_text(RECIPE)
    done = ouro(tmp_path, "run", "recipe=tiny", TRANSFORMERS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    (read,) = (tmp_path / "store" / "gguf").iterdir()
    before, after = load_file(read / "tiny" / "model.safetensors"), load_file(
        tmp_path / "runs/ouroboros/tiny/stages/rft/model/model.safetensors")
    assert before.keys() == after.keys()
    assert all((before[name] != after[name]).any() for name in before if "proj" in name)
