"""GRPO in one file: fifteen steps, from a task to changed weights, in seconds on a CPU.

    python docs/examples/one_step.py

It uses the functions that the stages use, without the pipeline around them. Each part ends with what is left out here
and where it is. A step of GRPO is

    rows         several responses to each task, a group, sampled from the current weights, with their log-probs
    advantages   A = (r - mean of the group) / (standard deviation of the group + epsilon)
    loss         of a token: -min(ratio A, clip(ratio, 1 - 0.2, 1 + 0.2) A), ratio = pi_now / pi_sampled
    weights      of a token in the batch's loss: 1 / number of tokens in the batch ("token-mean")

A test runs this file: tests/docs/test_one_step.py.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from transformers import Qwen2ForCausalLM

from ouroboros.operators.advantages.group import Grpo
from ouroboros.operators.aggregation import token_weights
from ouroboros.operators.generate import countdown
from ouroboros.operators.losses.clipped import Ppo
from ouroboros.operators.reward import countdown_reward
from ouroboros.pipeline.settings.config import Config, Init
from ouroboros.stages.model import character_tokenizer, model_config
from ouroboros.workflows.engines.transformers_engine import TransformersEngine
from ouroboros.workflows.protocol.engine import Request
from ouroboros.workflows.protocol.seeds import request_seed

TASKS, REPEATS, STEPS = 8, 4, 15

# Model and tasks. A model is a directory in Hugging Face's format; this one has a token for each ASCII character and
# 13,000 random parameters.
# Left out: curation (stages/curate.py) keeps permutations of held-out tasks out of the training data and drops tasks
# without a solution; prompts that are too long are kept as marked rows that nothing is learnt from.

settings, directory = Config(), Path(tempfile.mkdtemp())
tokenizer = character_tokenizer(longest=64)
torch.manual_seed(1)
torch.set_num_threads(1)  # a model as small as this gains nothing by more
init = Init(hidden_size=32, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, intermediate_size=64)
Qwen2ForCausalLM(model_config(init, tokenizer, 64)).save_pretrained(directory)
tokenizer.save_pretrained(directory)

tasks = list(countdown(seed=1, tasks=TASKS, demonstrations=0, dirt=0.0))  # rows with a question and an answer
prompts = [tokenizer.apply_chat_template([{"role": "user", "content": task.question}], add_generation_prompt=True,
                                         return_dict=False) for task in tasks]

# Rows. A request contains everything that determines its answer, the seed included, so the same requests to the same
# weights give the same tokens in whatever batches.
# Left out: vLLM and several engines; attempts of several turns, tools and agents (workflows/attempts/), where tokens
# that the model did not sample are masked; failed responses, which are rows with a reason and never a reward of 0.

engine = TransformersEngine(directory, settings, end_tokens=[tokenizer.eos_token_id], sleeps=False)


def explore(step: int) -> list[dict]:
    """Returns the rows of one explorer step: REPEATS responses to each task, with the log-probs of their tokens."""
    slots = [(task, run) for task in range(TASKS) for run in range(REPEATS)]
    replies = engine.generate([
        Request(prompts[task], max_tokens=8, temperature=1.0, top_p=1.0, top_k=-1, seed=request_seed(1, step, slot))
        for slot, (task, _) in enumerate(slots)])
    return [{"experience_id": f"{step}-{task}-{run}", "group_id": f"{step}-{task}", "prompt": prompts[task],
             "response": reply.tokens, "rollout_logprobs": reply.logprobs, "answer": tasks[task].answer}
            for (task, run), reply in zip(slots, replies, strict=True)]


# Reward. A random model never finds an expression that reaches the target, which is why the default recipe begins with
# supervised learning. Here the share of digits and operators counts too, so that something is learnt in seconds.
# Left out: sums of several functions, reward models, judges, time limits (workflows/rewards.py).

def reward(response: str, answer: str) -> float:
    """Returns the share of characters that may be part of an expression, plus 1 for a correct one."""
    return sum(c in "0123456789+-" for c in response) / 8 + countdown_reward(response, answer)["accuracy"]


# Advantages. The function takes the batch as a table and returns a number for each row. Its code is SQL over that
# table, so the order of rows does not matter.
# Left out: replacing groups whose responses are all equally good (algorithm.max_resample_rounds); estimates of other
# models: a reference, a critic, a teacher (stages/learner/estimates.py).

def advantages(rows: list[dict]) -> list[float]:
    """Returns the advantage of each row: its reward compared with those of the other responses to its task."""
    table = pa.table({name: [row[name] for row in rows] for name in ("experience_id", "group_id", "reward")})
    found = Grpo()(table)
    by_id = dict(zip(found["experience_id"].to_pylist(), found["advantage"].to_pylist(), strict=True))
    return [by_id[row["experience_id"]] for row in rows]


# Loss and weights. The token at position p is predicted from p - 1. The loss has a number for each token; the weights
# that average them are fixed over the whole batch before it is cut into micro-batches, so the cut changes nothing.
# Left out: rows packed without padding; the output head in chunks; DeepSpeed with several ranks; LoRA; KL and entropy
# terms (operators/algorithm.py); warmup of the learning rate; checkpoints; the files by which the trainer hands
# its weights to the engine, and the proof that both compute the same (stages/learner/publishing.py).

model = engine.model.train()  # engine and trainer share their weights
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)


def logprobs(row: dict) -> torch.Tensor:
    """Returns the log-prob of each token of the response under the current weights [R]."""
    tokens, length = torch.tensor([row["prompt"] + row["response"]]), len(row["response"])
    scores = model(tokens).logits[0, -length - 1:-1].float().log_softmax(-1)
    return scores.gather(-1, tokens[0, -length:, None])[:, 0]


def train(rows: list[dict]) -> float:
    """Makes one optimizer step over all rows; returns the loss."""
    weights = token_weights("token-mean", np.array([len(row["response"]) for row in rows]))
    optimizer.zero_grad()
    total = 0.0
    for number, (row, weight) in enumerate(zip(rows, weights, strict=True)):  # a micro-batch of one row
        now = logprobs(row)
        old, advantage = torch.tensor(row["rollout_logprobs"]), torch.full_like(now, row["advantage"])
        loss, _ = Ppo()(now, old, advantage, torch.full_like(now, number, dtype=torch.long))
        (loss.sum() * weight).backward()
        total += float(loss.detach().sum() * weight)
    torch.nn.utils.clip_grad_norm_(model.parameters(), settings.trainer.grad_clip)
    optimizer.step()
    return total


# The loop is strictly on-policy. In a run, explorer and trainer are two processes (stages/explore.py, stages/learn.py)
# that may work at the same time; which weights an explorer step uses, and which rows a trainer step takes, are
# functions of the step numbers (pipeline/job/schedule.py).

def step(number: int) -> float:
    """Makes one GRPO step; returns the mean reward of its responses, which the weights before it gave."""
    rows = explore(number)
    for row in rows:
        row["reward"] = reward(tokenizer.decode(row["response"], skip_special_tokens=True), row["answer"])
    for row, advantage in zip(rows, advantages(rows), strict=True):
        row["advantage"] = advantage
    loss, mean = train(rows), sum(row["reward"] for row in rows) / len(rows)
    shown = tokenizer.decode(rows[0]["response"], skip_special_tokens=True)
    print(f"step {number:2}: {len(rows)} responses, {sum(len(row['response']) for row in rows)} tokens, "
          f"mean reward {mean:.2f}, loss {loss:+.4f}; the first: {tasks[0].question} {shown!r}, "
          f"reward {rows[0]['reward']:.2f}, advantage {rows[0]['advantage']:+.2f}")
    return mean


rewards = [step(number) for number in range(1, STEPS + 1)]
print(f"mean reward {rewards[0]:.2f} at the first step, {rewards[-1]:.2f} at the last")
