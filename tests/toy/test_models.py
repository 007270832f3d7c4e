"""Random models through a whole pipeline of own data, by the product's own commands: in the shapes of families with
their kinds of tokenizers, and one of each kind of layer.

`make test-models` prints the tables of docs/models.md; `make test` runs one (test_own_project.py).
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tabulate import tabulate

from ouroboros.pipeline.store import records, tables
from tests import families, zoo
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
LAYERS = {  # family -> its kind of layer, of families.py
    "qwen3": "attention", "granite": "scaled logits", "gemma3_text": "windows", "gemma2": "capped scores",
    "gpt_oss": "sinks, experts", "qwen3_moe": "experts", "deepseek_v3": "latent attention",
    "deepseek_v32": "attention to chosen keys", "granitemoehybrid": "Mamba-2, experts", "jamba": "Mamba-1, experts",
    "lfm2": "convolution", "qwen3_5": "linear attention, a tower"}
MEASURED = "probe, nats", "rollouts, nats", "seconds"
TRANSFORMERS = "explorer.rollout_model.engine_type=transformers"
UNMOVED = {"qwen3_5": "visual"}  # part of the names of matrices that are not trained
LIMIT = 1e-4  # nats between engine and trainer, float32
# token by token and by chunks, linear attention rounds more: 6e-5 within transformers itself, in float64 7e-15
LIMITS = {"qwen3_5": 5e-4}


@pytest.fixture(scope="module")
def table():
    """Rows of the tables of docs/models.md, printed in the end: heads -> rows."""
    rows: dict[tuple, list[tuple]] = {}
    yield rows
    for heads, some in rows.items():
        print("\n\n" + tabulate(some, heads, "github", disable_numparse=True))


def ouro(directory: Path, *words: str) -> subprocess.CompletedProcess:
    """`ouro` as a user types it in the directory of a project."""
    return subprocess.run([sys.executable, "-m", "ouroboros", *words], cwd=directory, capture_output=True, text=True,
                          check=False, env=None)


def project(root: Path) -> Path:
    """A directory with data, a reward and a recipe of its own; the model is made beside them."""
    rows = zoo.sums()
    for name, part in (("sums", rows[:40]), ("held", rows[40:])):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    (root / "judge.py").write_text(JUDGE)
    (root / "conf" / "recipe").mkdir(parents=True)
    (root / "conf" / "recipe" / "sums.yaml").write_text(RECIPE)
    return root


def completed(root: Path, *words: str, limit: float = LIMIT) -> tuple[Path, str, str]:
    """`ouro config check`, `ouro run`: sft, two steps of rft, evaluations. Returns the stage rft and the largest
    differences between engine and trainer, in nats: on the probe, on sampled tokens."""
    for command in (("config", "check"), ("run",)):
        done = ouro(root, *command, "recipe=sums", *words)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    stages = root / "runs" / "ouroboros" / "sums" / "stages"
    assert (stages / "evaluate_rft" / "manifest.json").exists()
    probe, sampled = proved(stages / "rft", 2), on_policy(stages / "rft", 2)
    assert max(probe, sampled) < limit
    return stages / "rft", f"{probe:.1e}", f"{sampled:.1e}"


@pytest.mark.models
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_a_model_of_ones_own(family, tmp_path, table):
    begin, root, made = time.perf_counter(), project(tmp_path), zoo.FAMILIES[family]
    zoo.make(family, root / "model")
    rft, *differences = completed(root)
    changed(root / "model", rft / "model")
    table.setdefault(("model", "tokenizer", "chat template", "engine", *MEASURED), []).append(
        (family, TOKENIZERS[made.tokenizer], TEMPLATES[family], "vllm", *differences,
         round(time.perf_counter() - begin)))


@pytest.mark.models
@pytest.mark.parametrize("family", LAYERS)
def test_a_model_of_each_kind_of_layer(family, tmp_path, table):
    begin, root = time.perf_counter(), project(tmp_path)
    families.make(family, root / "model")
    zoo.make_tokenizer("qwen3", root / "model")
    engine = families.listed()[family][0]
    rft, *differences = completed(root, f"explorer.rollout_model.engine_type={engine}", limit=LIMITS.get(family, LIMIT))
    changed(root / "model", rft / "model", UNMOVED.get(family))
    (way,) = {row["packing"] for step in (1, 2) for row in tables.read(
        tables.step_file(rft, "steps", step), records.Step).to_pylist()}
    table.setdefault(("model", "layers", "engine", "rows go", *MEASURED), []).append(
        (family, LAYERS[family], engine, way, *differences, round(time.perf_counter() - begin)))


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


def changed(before: Path, after: Path, unmoved: str | None = None) -> None:
    """Every tensor of the first is in the second, under its name and in its shape, and every matrix has moved, but not
    those with `unmoved` in their name."""
    from safetensors.torch import load_file

    first, last = (load_file(directory / "model.safetensors") for directory in (before, after))
    assert last.keys() - {"lm_head.weight"} == first.keys() - {"lm_head.weight"}
    for name, tensor in first.items():
        assert last[name].shape == tensor.shape
        kept = unmoved is not None and unmoved in name
        assert tensor.dim() < 2 or tensor.equal(last[name]) == kept, f"{name} has moved: {kept}"


def test_the_page_lists_every_family():
    page = (REPOSITORY / "docs" / "models.md").read_text(encoding="utf-8")
    assert all(f"| {name} " in page for name in (*zoo.FAMILIES, *LAYERS))
