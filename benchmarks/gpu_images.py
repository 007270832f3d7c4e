"""Runs rft steps of a model that is shown images, on one GPU.

    python -m benchmarks.gpu_images --root /tmp/images --out images.jsonl

A random bfloat16 model in the shape of Qwen2.5-VL 3B, tower and text: 16 tasks, each with an image of random pixels,
x 8 rollouts a step, mode=colocate. Writes the steps, NVML's largest memory with the estimate of `ouro config check`,
and the largest difference of a log-prob at a hand-over of weights.
"""

import argparse
import io
import json
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.gpu_memory import DeviceMemory, estimate
from benchmarks.gpu_path import QUESTION, SHAPES, tokenizer
from benchmarks.gpu_two import line, run
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.plan.plan import Plan, make_plan
from ouroboros.pipeline.store import records, tables
from ouroboros.stages.model import SEEING_TEMPLATE

TOWERS = {"Qwen2.5-3B": {"depth": 32, "hidden_size": 1280, "num_heads": 16, "intermediate_size": 3420},
          "tiny": {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64}}
MARKS = {"image_token": "<soft>", "video_token": "<video>"}


def make(path: Path, shape: str, words: int) -> None:
    """Writes the model with its processor; `words` entries of the vocabulary."""
    import torch
    import transformers

    text = tokenizer(words - 2)
    text.add_special_tokens({"extra_special_tokens": [*MARKS.values()]})
    text.chat_template = SEEING_TEMPLATE.replace("<image>", MARKS["image_token"])
    text._set_model_specific_special_tokens(MARKS)
    half = SHAPES[shape]["hidden_size"] // SHAPES[shape]["num_attention_heads"] // 2
    turns = [half - half * 3 // 8 * 2, half * 3 // 8, half * 3 // 8]
    config = transformers.Qwen2_5_VLConfig(
        image_token_id=words - 2, video_token_id=words - 1, eos_token_id=1, pad_token_id=0, tie_word_embeddings=True,
        text_config={**SHAPES[shape], "vocab_size": words, "max_position_embeddings": 32768, "eos_token_id": 1,
                     "pad_token_id": 0, "bos_token_id": None, "tie_word_embeddings": True,
                     "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": turns}},
        vision_config={**TOWERS[shape], "out_hidden_size": SHAPES[shape]["hidden_size"]})
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16).save_pretrained(path)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    transformers.Qwen2_5_VLProcessor(transformers.Qwen2VLImageProcessorPil(), text,
                                     transformers.Qwen2VLVideoProcessor(), text.chat_template).save_pretrained(path)


def write_tasks(path: Path, edge: int, count: int) -> None:
    """Writes `count` rows, each with a question of 32 letters and a square of random pixels."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    random, rows = np.random.default_rng(0), []
    for _ in range(count):
        file = io.BytesIO()
        Image.fromarray(random.integers(0, 256, (edge, edge, 3), np.uint8)).save(file, "PNG")
        rows.append({"question": "".join(chr(c) for c in random.integers(97, 123, 32)), "answer": "0",
                     "image": file.getvalue()})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def planned(given) -> Plan:
    usual = [
        f"checkpoint_root_dir={given.root}", "project=gpu", "name=images", "mode=colocate", "monitor.monitor_type=none",
        "stages=[{stage_name: rft}]", "model.init.enable=false", f"model.model_path={given.root / 'model'}",
        "model.max_prompt_tokens=384", "model.max_response_tokens=256", f"buffer.total_steps={given.steps}",
        "buffer.batch_size=16", "buffer.explorer_input.default_reward_fn_type=benchmarks.gpu_path:hash_reward",
        f"buffer.explorer_input.taskset.path={given.root / 'data' / 'tasks.parquet'}",
        "buffer.explorer_input.taskset.format={prompt_key: question, response_key: answer, image_key: image}",
        "buffer.explorer_input.eval_tasksets=[]", "data_processor.task_pipeline.config_path=null",
        "synchronizer.sync_offset=0", "synchronizer.sync_interval=1", "algorithm.optimizer.lr=1e-6",
        "trainer.save_interval=1000", "trainer.max_token_len_per_gpu=16384",
        "explorer.rollout_model.gpu_memory_utilization=0.4"]
    changed = {override.partition("=")[0] for override in given.overrides}
    return make_plan(compose([*(one for one in usual if one.partition("=")[0] not in changed), *given.overrides]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="an empty directory for the model and results")
    parser.add_argument("--out", type=Path, required=True, help="file to which a JSON line is added")
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps, the first of which warms up")
    parser.add_argument("--shape", choices=TOWERS, default="Qwen2.5-3B")
    parser.add_argument("--words", type=int, default=151936, help="entries of the vocabulary")
    parser.add_argument("--edge", type=int, default=448, help="pixels of an image; 28 x 28 are a token")
    parser.add_argument("--limit", type=float, default=400, help="seconds after which a stage is ended")
    parser.add_argument("overrides", nargs="*", help="more settings, key=value")
    given = parser.parse_args()
    make(given.root / "model", given.shape, given.words)
    write_tasks(given.root / "data" / "tasks.parquet", given.edge, 64)
    plan = planned(given)
    plan.freeze()
    begin, ended = time.time(), []
    with DeviceMemory() as memory:
        for stage in plan.stages:
            words = [sys.executable, "-m", f"ouroboros.stages.{stage.kind}", stage.directory]
            ended.append(run(words, given.root / "output", given.limit))
    stage = next(one for one in plan.stages if one.name == "rft")
    directory = Path(stage.directory)
    with tables.connect([("gpu", directory)]) as session:
        steps = session.sql(QUESTION).to_arrow_table().to_pylist()
    probes = [tables.read(tables.step_file(directory, "rollouts", step), records.Rollout).to_pylist()[0]
              ["probe_max_difference"] for step in tables.steps_present(directory, "rollouts")]
    found = {"variant": "images", "ended": ended, "process_seconds": time.time() - begin, "gpu_gib": memory.largest,
             "estimate_gib": estimate(stage.config, given.root / "model", True), "steps": steps,
             "probe": max((one for one in probes if one is not None), default=None)}
    with given.out.open("a") as file:
        file.write(json.dumps(found) + "\n")
    print(json.dumps(line(found)))
    print((given.root / "output").read_text(errors="replace")[-1500:] if len(steps) < given.steps else "")


if __name__ == "__main__":
    main()
