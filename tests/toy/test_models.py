"""Random models in the shapes of known families through a whole pipeline of own data, by the product's own commands.

`make test-models` prints the table of docs/models.md; `make test` runs one (test_own_project.py).
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.store import records, tables
from tests import zoo
from tests.toy.conftest import REPOSITORY

RECIPE = """# @package _global_
name: sums
checkpoint_root_dir: .
model: {model_path: model, max_prompt_tokens: 160, max_response_tokens: 16}
data_processor: {task_pipeline: {generator: null, config_path: null}}
buffer:
  batch_size: 4
  total_steps: 2
  explorer_input:
    default_reward_fn_type: judge:variety
    taskset: {name: sums, path: sums.jsonl}
    eval_tasksets: [{name: held, path: held.jsonl, repeat_times: 2}]
algorithm: {algorithm_type: grpo, repeat_times: 4, optimizer: {lr: 1e-3}}
explorer: {eval_on_startup: false}
synchronizer: {sync_interval: 1, sync_offset: 0}
monitor: {monitor_type: none}
stages:
  - stage_name: sft
    algorithm: {algorithm_type: sft}
    buffer:
      batch_size: 8
      explorer_input: {eval_tasksets: []}
      trainer_input:
        experience_buffer: {path: sums.jsonl, format: {prompt_key: question, response_key: answer}}
  - stage_name: rft
"""
JUDGE = '''"""A reward that differs between the responses of a model that knows nothing."""


def variety(response: str, answer: str) -> dict[str, float]:
    return {"variety": len(set(response)) / 16, "accuracy": float(response.strip() == answer)}
'''
TEMPLATES = {
    "llama": "Llama 3: its own BOS, headers", "mistral": "[INST], no system role", "qwen2": "ChatML, default system",
    "qwen3": "ChatML, enable_thinking", "gemma": "turns, no system role", "gemma2": "turns, no system role",
    "phi": "Instruct / Output", "phi3": "a tag for each role, end token", "qwen3_moe": "ChatML, enable_thinking",
    "qwen2_moe": "ChatML, default system", "mixtral": "[INST], no system role"}
TOKENIZERS = {zoo.byte_level: "byte-level BPE", zoo.tiktoken_like: "tiktoken-like BPE",
              zoo.sentencepiece_like: "SentencePiece-like", zoo.without_prefix: "SentencePiece-like, no prefix"}
LIMIT = 1e-4  # nats between engine and trainer, float32


@pytest.fixture(scope="module")
def table():
    """Rows of the table of docs/models.md, printed in the end."""
    rows: list[tuple] = []
    yield rows
    if rows:
        print("\n\n| model | tokenizer | chat template | result | probe, nats | rollouts, nats | seconds |")
        print("|---|---|---|---|---|---|---|")
        for row in rows:
            print("| " + " | ".join(map(str, row)) + " |")


def ouro(directory: Path, *words: str) -> subprocess.CompletedProcess:
    """`ouro` as a user types it in the directory of a project."""
    return subprocess.run([sys.executable, "-m", "pipeline.cli", *words], cwd=directory, capture_output=True, text=True,
                          check=False, env=None)


def project(root: Path, family: str) -> Path:
    """A directory with a model, data, a reward and a recipe of its own."""
    zoo.make(family, root / "model")
    rows = zoo.sums()
    for name, part in (("sums", rows[:40]), ("held", rows[40:])):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    (root / "judge.py").write_text(JUDGE)
    (root / "conf" / "recipe").mkdir(parents=True)
    (root / "conf" / "recipe" / "sums.yaml").write_text(RECIPE)
    return root


@pytest.mark.models
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_a_model_of_ones_own(family, tmp_path, table):
    """`ouro config check`, `ouro run`: sft, two steps of rft with vLLM, evaluations."""
    begin, root, made = time.perf_counter(), project(tmp_path, family), zoo.FAMILIES[family]
    checked = ouro(root, "config", "check", "recipe=sums")
    about = family, TOKENIZERS[made.tokenizer], TEMPLATES[family]
    assert checked.returncode == 0, checked.stdout + checked.stderr
    done = ouro(root, "run", "recipe=sums")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    stages = root / "runs" / "ouroboros" / "sums" / "stages"
    probe, sampled = proved(stages / "rft", 2), on_policy(stages / "rft", 2)
    assert max(probe, sampled) < LIMIT
    changed(root / "model", stages / "rft" / "model")
    assert (stages / "evaluate_rft" / "manifest.json").exists()
    table.append((*about, "passes", f"{probe:.1e}", f"{sampled:.1e}", round(time.perf_counter() - begin)))


def proved(rft: Path, count: int) -> float:
    """The largest difference on the probe between engine and trainer, over the weights of `count` steps."""
    steps = range(1, count + 1)
    rows = [tables.read(tables.step_file(rft, "rollouts", step), records.Rollout).to_pylist()[0] for step in steps]
    assert [row["weights_version"] for row in rows] == [*range(count)]
    assert sum(row["failed_rows"] for row in rows) == 0
    return max(row["probe_max_difference"] for row in rows)


def on_policy(rft: Path, count: int) -> float:
    """The largest difference between the log-prob of a sampled token in the engine and in the training pass."""
    largest = 0.0
    for step in range(1, count + 1):
        sampled = tables.read(tables.step_file(rft, "experience", step), records.Experience).to_pylist()
        trained = tables.read(tables.step_file(rft, "trained", step), records.Trained).to_pylist()
        found = {row["experience_id"]: row["train_logprobs"] for row in trained}
        assert found.keys() == {row["experience_id"] for row in sampled}
        assert len({row["reward"] for row in sampled}) > 1
        for row in sampled:
            assert row["prompt_tokens"][0] != row["prompt_tokens"][1]  # no second BOS
            pairs = zip(row["rollout_logprobs"], found[row["experience_id"]], strict=True)
            largest = max(largest, *(abs(engine - trainer) for engine, trainer in pairs))
    return largest


def changed(before: Path, after: Path) -> None:
    """Every tensor of the first is in the second, under its name and in its shape, and every matrix has moved."""
    from safetensors.torch import load_file

    first, last = (load_file(directory / "model.safetensors") for directory in (before, after))
    assert last.keys() - {"lm_head.weight"} == first.keys() - {"lm_head.weight"}
    for name, tensor in first.items():
        assert last[name].shape == tensor.shape
        assert tensor.dim() < 2 or not tensor.equal(last[name]), f"{name} has not moved"


def test_the_page_lists_every_family():
    page = (REPOSITORY / "docs" / "models.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in page for name in zoo.FAMILIES)
