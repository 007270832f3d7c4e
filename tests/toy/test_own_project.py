"""A project outside the repository with a model, data, a reward and an algorithm of its own, run whole with vLLM.

Two sets to train on, one to test on, a warmup on conversations; the algorithm is that of docs/add-an-algorithm.md. Then
a step is replayed under other algorithms.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ouroboros.pipeline.store import records, tables
from tests import families, zoo
from tests.operators.test_add_an_algorithm import blocks
from tests.toy.conftest import table
from tests.toy.test_models import JUDGE, LIMIT, changed, on_policy, proved

pytestmark = pytest.mark.slow

FAMILY = "granitemoehybrid"  # of experts, Mamba-2 layers, a padded vocabulary: what breaks first
RECIPE = """# @package _global_
name: own
checkpoint_root_dir: .
model: {model_path: model, max_prompt_tokens: 160, max_response_tokens: 48}
data_processor: {task_pipeline: {generator: null, config_path: null}}
buffer:
  batch_size: 12
  max_rejected_ratio: 0.2   # one of nine chats
  total_steps: 3
  explorer_input:
    default_reward_fn_type: judge:variety
    tasksets:
      - {name: sums, path: sums.jsonl, default_reward_fn_type: ["judge:variety", "leveled:level"]}
      - name: verl
        path: verl.parquet
        format: {prompt_type: messages, prompt_key: prompt, response_key: reward_model.ground_truth}
    eval_tasksets: [{name: held, path: [held.jsonl], repeat_times: 2}]
algorithm: {algorithm_type: mine, repeat_times: 2, optimizer: {lr: 1e-3}}
explorer: {eval_on_startup: false, eval_interval: 2}
synchronizer: {sync_interval: 1, sync_offset: 0}
trainer: {save_interval: 2, max_checkpoints_to_keep: 9}
monitor: {monitor_type: none}
stages:
  - stage_name: sft_warmup
    mode: train
    algorithm: {algorithm_type: sft}
    explorer: {rollout_model: {engine_type: transformers}}
    buffer:
      batch_size: 8
      total_steps: 2
      trainer_input:
        experience_buffer:
          name: chats
          path: chats.jsonl
          format: {prompt_type: messages, messages_key: messages, enable_concatenated_multi_turn: true}
  - stage_name: rft
"""
LEVELED = """def level(response, answer, level):
    return level / 100
"""


def make_files(root: Path) -> None:
    """Sums as gsm8k has them, as veRL has them, and talked about; one conversation without a user."""
    plain = [{"question": f"what is {i} plus {i}?", "answer": f"#### {2 * i}", "level": i} for i in range(12)]
    lines = {"sums.jsonl": plain[:8], "held.jsonl": plain[8:], "chats.jsonl": [
        {"messages": [{"role": "user", "content": p["question"]}, {"role": "assistant", "content": p["answer"]},
                      {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes"}]}
        for p in plain[:8]]}
    lines["chats.jsonl"].append({"messages": [{"role": "assistant", "content": "alone"}]})
    for name, rows in lines.items():
        (root / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist([
        {"prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": f"{i} plus 1"}],
         "reward_model": {"style": "rule", "ground_truth": str(i + 1)}} for i in range(4)]), root / "verl.parquet")


def ouro(directory: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run([Path(sys.executable).parent / "ouro", *words], cwd=directory, capture_output=True, text=True,
                          check=False)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The directory, after a run; `ouro run` checks everything that `ouro config check` does."""
    root = tmp_path_factory.mktemp("my-project")
    families.make(FAMILY, root / "model")
    zoo.make_tokenizer("qwen3_moe", root / "model")
    make_files(root)
    for path, text in {**blocks(), "judge.py": JUDGE, "leveled.py": LEVELED, "conf/recipe/own.yaml": RECIPE}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    done = ouro(root, "run", "recipe=own")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return root


@pytest.fixture
def stages(project):
    return project / "runs" / "ouroboros" / "own" / "stages"


def test_every_task_of_both_sets_is_asked_once_a_step_with_its_own_prompt(stages):
    """8 + 4 tasks, 12 a step; `_rft` and `_eval` are the data of rft and of the evaluations."""
    assert {s.name for s in stages.iterdir()} == {
        *(f"{kind}{who}" for kind in ("tasks", "curate") for who in ("", "_rft", "_eval")),
        "sft_warmup", "evaluate_sft_warmup", "rft", "evaluate_rft", "report"}
    for step in (1, 2, 3):
        rows = tables.read(tables.step_file(stages / "rft", "experience", step), records.Experience).to_pylist()
        assert sorted(r["taskset"] for r in rows) == ["sums"] * 16 + ["verl"] * 8
        assert {r["prompt"] for r in rows if r["taskset"] == "verl"} == {
            f"<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n{i} plus 1<|im_end|>\n<|im_start|>assistant\n"
            for i in range(4)}
        assert {r["status"] for r in rows} == {"ok"}


def test_a_reward_gets_the_column_of_its_task(stages):
    rows = tables.read(tables.step_file(stages / "rft", "experience", 1), records.Experience).to_pylist()
    assert sorted((row["taskset"], dict(row["reward_components"]).get("level")) for row in rows) == sorted(
        [("sums", i / 100) for i in range(8)] * 2 + [("verl", None)] * 8)


def test_the_held_set_is_what_evaluations_ask(stages):
    for name, step in (("rft", 2), ("evaluate_rft", 3)):
        samples = tables.read(tables.step_file(stages / name, "samples", step), records.Sample)
        assert set(samples["taskset"].to_pylist()) == {"held"}
        assert samples.num_rows == 4 + 4 * 2  # greedy, and twice sampled


def test_a_conversation_without_a_user_is_rejected_with_its_reason(stages, project):
    (dropped,) = tables.read(stages / "curate" / "rejected.parquet", records.Rejected).to_pylist()
    assert (dropped["operator"], "no turn" in dropped["reason"]) == ("format", True)
    assert "8 sft of" in (project / "runs" / "ouroboros" / "own" / "report.html").read_text()


def test_engine_and_trainer_agree_on_the_model_and_all_of_it_learns(stages, project):
    assert max(proved(stages / "rft", 3), on_policy(stages / "rft", 3)) < LIMIT
    changed(project / "model", stages / "rft" / "model")


def test_the_rows_have_the_advantage_of_the_page_and_its_loss_is_learnt_from(project, stages):
    question = "select group_id, reward, advantage from experience join trained using (experience_id)"
    rows = json.loads(ouro(project, "sql", question, "own", "--format", "json").stdout)
    groups: dict[str, list] = {}
    for row in rows:
        groups.setdefault(row["group_id"], []).append(row["reward"])
    assert len(rows) == 3 * 12 * 2
    assert all(abs(row["advantage"] - (row["reward"] - statistics.median(groups[row["group_id"]]))) < 1e-9
               for row in rows)
    steps = table(stages / "rft", "steps")
    assert max(step["grad_norm"] for step in steps) > 0
    assert all(step["clip_fraction"] is not None for step in steps)


def test_a_step_is_replayed_under_other_algorithms(project):
    words = ("own", "--step", "3", "algorithm=grpo,mine", "algorithm.policy_loss_fn_args.cap=1.5")
    refused = ouro(project, "replay", *words)
    assert refused.returncode == 2  # grpo has no cap
    assert "algorithm=grpo: algorithm.policy_loss_fn_args:" in refused.stderr
    done = ouro(project, "replay", "own", "--step", "3", "algorithm=grpo,gspo", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert "faithful" in done.stderr
    found = {row["algorithm"]: row for row in json.loads(done.stdout)}
    assert list(found) == ["as it was", "algorithm=grpo", "algorithm=gspo"]
    assert found["as it was"]["cosine"] == pytest.approx(1.0)
    assert ouro(project, "replay", "own", "--step", "2").returncode == 2  # only every second step has a checkpoint


def test_a_corrected_reward_is_tried_on_what_is_stored(project):
    """A point for both attempts at task 7, in each of three steps, moves their group and no advantage of the page."""
    try:
        found = []
        for formula in ("level / 100", "level / 100 + (level == 7)", "level / 100 * len(response)"):
            (project / "leveled.py").write_text(LEVELED.replace("level / 100", formula))
            done = ouro(project, "reward", "diff", "own", "--json")
            assert done.returncode == 0, done.stderr
            found.append(json.loads(done.stdout))
    finally:
        (project / "leveled.py").write_text(LEVELED)
    assert [(one["attempts"], one["certain"]) for one in found] == [(3 * 12 * 2, True)] * 3
    assert [(one["changed"], one["higher"], one["first_explorer_step"], one["first_trainer_step"])
            for one in found[:2]] == [(0, 0, None, None), (6, 6, 1, None)]
    (task,) = found[1]["tasks"]
    assert (task["taskset"], task["attempts"], task["changed"]) == ("sums", 6, 6)
    assert task["mean_after"] == pytest.approx(task["mean_before"] + 1)
    assert {row["component"]: row["changed"] for row in found[1]["components"]}["level"] == 6
    assert found[2]["first_trainer_step"] == 1
