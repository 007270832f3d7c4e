"""One whole pipeline on files alone: two sets to train on, one to test on, a warmup on conversations."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.store import records, tables
from tests.toy.conftest import REPOSITORY

pytestmark = pytest.mark.slow

def make_files(root: Path) -> None:
    """Sums as gsm8k has them, as veRL has them, and talked about; one conversation without a user."""
    plain = [{"question": f"{i} + {i} = ?", "answer": f"#### {2 * i}"} for i in range(12)]
    lines = {"sums.jsonl": plain[:8], "held.jsonl": plain[8:], "chats.jsonl": [
        {"messages": [{"role": "user", "content": p["question"]}, {"role": "assistant", "content": p["answer"]},
                      {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes"}]}
        for p in plain[:8]]}
    lines["chats.jsonl"].append({"messages": [{"role": "assistant", "content": "alone"}]})
    for name, rows in lines.items():
        (root / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist([
        {"prompt": [{"role": "system", "content": "Add. "}, {"role": "user", "content": f"{i} + 1 = ?"}],
         "reward_model": {"style": "rule", "ground_truth": str(i + 1)}} for i in range(4)]), root / "verl.parquet")


def overrides(root: Path) -> list[str]:
    source = "buffer.explorer_input"
    verl = "{prompt_type: messages, prompt_key: prompt, response_key: reward_model.ground_truth}"
    sums = f"{{name: sums, path: {root}/sums.jsonl}}"
    held = f"{{name: held, path: [{root}/held.jsonl], repeat_times: 2}}"
    chats = (f"{{name: chats, path: {root}/chats.jsonl, format: "
             "{prompt_type: messages, messages_key: messages, enable_concatenated_multi_turn: true}}")
    warmup = ("{stage_name: sft_warmup, mode: train, algorithm: {algorithm_type: sft}, buffer: {train_batch_size: 8, "
              f"total_steps: 2, trainer_input: {{experience_buffer: {chats}}}}}}}")
    return [
        f"checkpoint_root_dir={root}", "name=files", "model.max_prompt_tokens=60", "model.max_response_tokens=40",
        "explorer.rollout_model.engine_type=transformers", "explorer.eval_on_startup=true", "monitor.monitor_type=none",
        "data_processor.task_pipeline.generator=null", "data_processor.task_pipeline.config_path=null",
        f"{source}.default_reward_fn_type=accuracy_reward", f"{source}.eval_tasksets=[{held}]",
        f"{source}.tasksets=[{sums}, {{name: verl, path: {root}/verl.parquet, format: {verl}}}]",
        "buffer.batch_size=12", "algorithm.repeat_times=2", "buffer.total_steps=2",
        f"stages=[{warmup}, {{stage_name: rft}}]",
    ]


def test_a_pipeline_on_files_of_its_own(tmp_path):
    """8 + 4 tasks, 12 a step, two steps: every task once a step, each with the prompt and the name of its set."""
    make_files(tmp_path)
    done = subprocess.run([sys.executable, "-m", "pipeline.cli", "run", *overrides(tmp_path)], cwd=REPOSITORY,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    stages = tmp_path / "runs" / "ouroboros" / "files" / "stages"
    assert {s.name for s in stages.iterdir()} == {
        *(f"{kind}{who}" for kind in ("tasks", "curate") for who in ("", "_rft", "_eval")), "model",
        "evaluate_base", "sft_warmup", "evaluate_sft_warmup", "rft", "evaluate_rft", "report"}
    for step in (1, 2):
        rows = tables.read(tables.step_file(stages / "rft", "experience", step), records.Experience).to_pylist()
        assert sorted(r["taskset"] for r in rows) == ["sums"] * 16 + ["verl"] * 8
        assert {r["prompt"] for r in rows if r["taskset"] == "verl"} == {f"Add. {i} + 1 = ?:" for i in range(4)}
        assert {r["status"] for r in rows} == {"ok"}
    samples = tables.read(stages / "evaluate_rft" / "samples" / "step=000002.parquet", records.Sample)
    assert set(samples["taskset"].to_pylist()) == {"held"}
    assert samples.num_rows == 4 + 4 * 2
    (dropped,) = tables.read(stages / "curate" / "rejected.parquet", records.Rejected).to_pylist()
    assert (dropped["operator"], dropped["reason"]) == ("format", "the conversation has no turn of user")
    assert "8 sft of chats" in (tmp_path / "runs" / "ouroboros" / "files" / "report.html").read_text()
