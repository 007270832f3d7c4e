"""TRL's GRPOTrainer with our model, tasks and reward: one process, transformers generate, no vLLM.

    python -m benchmarks.trl_grpo RFT_STAGE_DIR OUTPUT.json --steps 40

Takes model, tasks and settings from an rft stage's stage.json: tasks x repeats per step, lengths, learning rate, clip
range, temperature; one update per generation, no KL term, float32, no gradient checkpointing, all cores. Writes the
wall seconds from the end of one step to the end of the next. Started by benchmarks/step.py.
"""

import argparse
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from ouroboros.operators.reward import load_reward
from ouroboros.pipeline.job.tasksets import read_train
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store import checkpoints, files
from ouroboros.workflows.protocol.prompts import load_tokenizer, task_texts


def dataset(tasks: Path, tokenizer, config):
    """Prompts (text, through the chat template) and answers of the training set."""
    from datasets import Dataset

    ((_, rows),) = read_train(tasks, config.buffer.explorer_input)
    return Dataset.from_dict({"prompt": task_texts(tokenizer, rows, config), "answer": [row.answer for row in rows]})


def reward_of(settings):
    """Our reward function with TRL's signature. settings: buffer.explorer_input."""
    name = settings.taskset.default_reward_fn_type or settings.default_reward_fn_type
    function, bound = load_reward(name), settings.taskset.reward_fn_args

    def reward(completions: list[str], answer: list[str], **_) -> list[float]:
        return [sum(function(c, a, **bound).values()) for c, a in zip(completions, answer, strict=True)]

    return reward


def grpo_settings(config, steps: int, directory: str):
    """TRL's settings for the same step as ours."""
    from trl import GRPOConfig

    clip = config.algorithm.policy_loss_fn_args
    optimizer = config.algorithm.optimizer
    return GRPOConfig(
        output_dir=directory, max_steps=steps, use_cpu=True, bf16=False, seed=config.seed,
        per_device_train_batch_size=config.buffer.batch_size * config.algorithm.repeat_times,
        gradient_accumulation_steps=1, steps_per_generation=1, num_iterations=1,
        num_generations=config.algorithm.repeat_times, max_completion_length=config.model.max_response_tokens,
        temperature=config.model.temperature, learning_rate=optimizer.lr, lr_scheduler_type="constant",
        weight_decay=optimizer.weight_decay, adam_beta1=optimizer.betas[0], adam_beta2=optimizer.betas[1],
        max_grad_norm=config.trainer.grad_clip, beta=0.0, epsilon=clip.get("clip_range_low", 0.2),
        epsilon_high=clip.get("clip_range_high", 0.2), gradient_checkpointing=False, save_strategy="no",
        report_to="none", logging_steps=1, disable_tqdm=True, log_completions=False,
    )


def train(stage: Path, steps: int) -> dict:
    """Seconds of every step, and TRL's own log."""
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOTrainer

    class Clock(TrainerCallback):
        """Records when each step ends."""

        def __init__(self):
            self.ends: list[float] = []

        def on_step_end(self, *_, **__) -> None:
            self.ends.append(time.perf_counter())

    spec = files.read_json(stage / "stage.json")
    config, clock = Config.partial(spec["config"]), Clock()
    source = config.buffer.explorer_input
    model = checkpoints.model_directory(Path(spec["inputs"]["model"]))
    tokenizer = load_tokenizer(model, config.model)
    with tempfile.TemporaryDirectory() as directory:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model, local_files_only=True),
            args=grpo_settings(config, steps, directory), processing_class=tokenizer,
            train_dataset=dataset(Path(spec["inputs"]["tasks"]), tokenizer, config), reward_funcs=reward_of(source),
            callbacks=[clock],
        )
        trainer.train()
    seconds = [b - a for a, b in pairwise(clock.ends)]
    return {"seconds": seconds, "log": trainer.state.log_history}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", type=Path, help="an rft stage directory, with a stage.json")
    parser.add_argument("output", type=Path, help="JSON file to write")
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()
    given.output.write_text(json.dumps(train(given.stage, given.steps), default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
