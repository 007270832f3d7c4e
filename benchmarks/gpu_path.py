"""Runs the GPU path: sft and a few rft steps of a random model with Qwen2.5-0.5B's shape, colocated.

    python -m benchmarks.gpu_path --root /tmp/gpu --steps 5

64 tasks x 8 rollouts, 128 prompt + 512 response tokens, colocated on one GPU with engine sleep. Requires a GPU, vllm
and deepspeed, but neither Snakemake nor Data-Juicer (tasks are written and stages started directly). Random weights
never end a sequence, so every response has 512 tokens, and the reward is a hash: it measures speed only. Prints a table
and writes it as JSON.
"""

import argparse
import hashlib
import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.gpu_memory import DeviceMemory, estimate
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.plan.plan import Plan, make_plan
from ouroboros.pipeline.store import files, records, tables
from ouroboros.pipeline.store.parent import die_with_parent
from ouroboros.stages.model import BYTE_LEVEL, CHARACTERS, CHAT_TEMPLATE, SPECIAL

PROMPT_TOKENS, RESPONSE_TOKENS, TASKS = 128, 512, 512
ENDS_WITH_US = partial(die_with_parent, signal.SIGTERM)  # a benchmark ended by its limit leaves no stage on the GPU


def hash_reward(response: str, answer: str) -> dict[str, float]:
    """0 or 1, by a hash of the response, so that rewards vary within a group."""
    return {"accuracy": float(hashlib.sha256(response.encode()).digest()[0] % 2)}


SHAPES = {  # as in the configurations of these models
    "Qwen2.5-0.5B": {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
                     "intermediate_size": 4864},
    "Qwen2.5-1.5B": {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12,
                     "num_key_value_heads": 2, "intermediate_size": 8960},
    "Qwen2.5-3B": {"hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2,
                   "intermediate_size": 11008},
    "Qwen2.5-7B": {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
                   "intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False},
    "Qwen3-0.6B": {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
                   "intermediate_size": 3072, "head_dim": 128},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 128},  # to try a script on the CPU
}


def make_model(path: Path, shape: str = "Qwen2.5-0.5B", **changes: int) -> None:
    """Random bfloat16 weights in one of SHAPES, with a tokenizer as large as its vocabulary.

    changes: to the model's configuration.
    """
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

    usual = {"vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 32768, "rope_theta": 1e6,
             "eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None}
    config = (Qwen3Config if shape.startswith("Qwen3") else Qwen2Config)(**usual | SHAPES[shape] | changes)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(path)
    torch.cuda.empty_cache()
    tokenizer(config.vocab_size).save_pretrained(path)


def tokenizer(words: int):
    """One token a character, as that of the stage `model`, and further tokens up to `words`, which only responses have.

    Random weights sample from the whole vocabulary: a smaller tokenizer would make text of few of their tokens, and
    detokenization, which peers do for every token, raises for the others.
    """
    from transformers import Qwen2Tokenizer

    tokens = SPECIAL + [BYTE_LEVEL.get(c, c) for c in CHARACTERS]
    tokens += [f"w{number}" for number in range(words - len(tokens))]
    return Qwen2Tokenizer(vocab={token: index for index, token in enumerate(tokens)}, merges=[], pad_token="<pad>",
                          eos_token="<eos>", unk_token="<unk>", chat_template=CHAT_TEMPLATE,
                          model_max_length=PROMPT_TOKENS + RESPONSE_TOKENS, clean_up_tokenization_spaces=False)


def make_tasks(directory: Path, prompt: int = PROMPT_TOKENS, response: int = RESPONSE_TOKENS, count: int = TASKS
               ) -> None:
    """Writes `count` prompts and as many demonstrations to the curate stage. prompt, response: tokens of each."""
    random = np.random.default_rng(0)

    def text(count: int) -> str:
        return "".join(chr(c) for c in random.integers(97, 123, count))

    rows = []
    for row in range(2 * count):
        question, demonstrated = text(prompt - 1), row >= count
        solution = text(response - 1) if demonstrated else None
        split = "sft" if demonstrated else "train"
        rows.append(records.Task(task_id=files.hash_text(question), row=row, split=split, question=question, answer="0",
                                 solution=solution, context=[], chosen=None, rejected=None, taskset=None))
    tables.write(directory / "tasks.parquet", records.Task, rows)
    files.write_json(directory / files.MANIFEST, {"seconds": 0.0})


def plan_run(root: Path, steps: int, overrides: list[str]) -> Plan:
    model = root / "model"
    if not (model / "config.json").exists():
        make_model(model)
    settings = [
        f"checkpoint_root_dir={root}", "project=gpu", "name=path", "mode=colocate", "monitor.monitor_type=none",
        "model.init.enable=false", f"model.model_path={model}",
        f"model.max_prompt_tokens={PROMPT_TOKENS}", f"model.max_response_tokens={RESPONSE_TOKENS}",
        "buffer.explorer_input.default_reward_fn_type=benchmarks.gpu_path:hash_reward",
        "buffer.explorer_input.eval_tasksets=[]", f"buffer.total_steps={steps}", "buffer.batch_size=64",
        "synchronizer.sync_offset=0", "synchronizer.sync_interval=1",
        "explorer.rollout_model.gpu_memory_utilization=0.4", "explorer.rollout_model.max_num_seqs=512",
        "trainer.max_token_len_per_gpu=32768",
        f"stages.sft.buffer.total_steps={steps}", "stages.sft.buffer.batch_size=64",
        "stages.sft.algorithm.optimizer.lr=1e-5", "algorithm.optimizer.lr=1e-6",
    ]
    given = {override.partition("=")[0] for override in overrides}
    return make_plan(compose([*(one for one in settings if one.partition("=")[0] not in given), *overrides]))


def run_stage(plan: Plan, name: str) -> dict:
    """Runs one stage by its command; returns its directory, wall seconds, and memory of the GPU in GiB."""
    stage = next(s for s in plan.stages if s.name == name)
    begin = time.time()
    with DeviceMemory() as memory:
        subprocess.run([sys.executable, "-m", f"ouroboros.stages.{stage.kind}", stage.directory], check=True,
                       preexec_fn=ENDS_WITH_US)
    return {"directory": stage.directory, "wall_seconds": time.time() - begin, "gpu_gib": memory.largest,
            "estimate_gib": estimate(stage.config, plan.config.model.model_path)}


QUESTION = """
SELECT step, seconds, rollout_seconds, train_seconds, sync_seconds, publish_seconds, train_other_seconds,
       explore_other_seconds, rollout_tokens / rollout_seconds AS rollout_tokens_per_second,
       trained_tokens / train_seconds AS train_tokens_per_second, peak_memory_gib, staleness_max,
       mismatch_mean, mismatch_max, kl, loss, compiled_graphs
FROM steps ORDER BY step"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="an empty directory for the model and the store")
    parser.add_argument("--steps", type=int, default=5, help="optimizer steps of each of the two stages")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("overrides", nargs="*", help="more settings, key=value")
    given = parser.parse_args()
    plan = plan_run(given.root, given.steps, given.overrides)
    plan.freeze()
    make_tasks(Path(next(s for s in plan.stages if s.name == "curate").directory))
    figures = {}
    for name in ("sft", "rft"):
        made = run_stage(plan, name)
        with tables.connect([("gpu", Path(made["directory"]))]) as session:
            found = session.sql(QUESTION).to_arrow_table().to_pylist()
        figures[name] = made | {"steps": found}
        print(f"{name}: {made['wall_seconds']:.1f} s with start-up, {made['gpu_gib']:.1f} GiB of the GPU in use, "
              f"{made['estimate_gib']:.1f} estimated")
        for row in found:
            print("  " + "  ".join(f"{k} {v:.4g}" for k, v in row.items() if v is not None))
    if given.out:
        given.out.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
