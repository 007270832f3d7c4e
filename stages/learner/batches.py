"""Where train batches come from: demonstrations (sft) or the experience table (rft)."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from operators import loss
from operators.advantage import ADVANTAGES
from operators.arguments import arguments
from pipeline import records, tables
from pipeline.errors import DataError, StageError, pick
from pipeline.process import Context
from pipeline.schedule import rft_schedule, tasks_of_step
from pipeline.tasksets import read_buffer, read_train
from pipeline.waiting import wait_for
from stages.learner.packing import Row
from stages.learner.zero import Result

# what an advantage may ask of experience, and what a train batch takes from it
COLUMNS = ("experience_id", "step", "slot", "task_id", "group_id", "run_index", "prompt_tokens", "response_tokens",
           "rollout_logprobs", "action_mask", "reward", "reward_components", "accuracy", "status", "weights_version")


@dataclass
class Batch:
    """The rows of one optimizer step, the same on every rank. facts: fields of the step record that SQL gave.

    available: time.perf_counter() at which all that it is cut from was there.
    """

    rows: list[Row]
    available: float = 0.0
    staleness: list[int] = field(default_factory=list)
    facts: dict = field(default_factory=dict)

    def longest_row(self, limit: int) -> list[int]:
        """Token ids of the longest row, at most `limit` and one less than the row: a probe of the weights."""
        tokens = max((row.tokens for row in self.rows), key=len)
        return tokens[: min(limit, len(tokens) - 1)]


class Demonstrations:
    """Demonstrated responses (`split` sft), every one once an epoch.

    train_batch_size to a step, else batch_size.
    """

    def __init__(self, context: Context, model):
        from workflows.demonstrations import last_responses, whole_conversations
        from workflows.prompts import load_tokenizer

        self.context, config = context, context.config
        source = config.buffer.trainer_input.experience_buffer
        rows = read_buffer(context.inputs["tasks"], source, "sft")
        if not rows:
            raise DataError(f"{context.inputs['tasks']}/tasks.parquet has no demonstrations (split sft). Set "
                            "buffer.trainer_input.experience_buffer.path, or give the task files a column "
                            "data_processor.task_pipeline.format.solution_key, or leave the sft stage out of the "
                            "recipe.")
        tokenizer = load_tokenizer(model, config.model)
        every_turn = source.path is not None and source.format.enable_concatenated_multi_turn
        made = (whole_conversations if every_turn else last_responses)(tokenizer, rows, config)
        limits = config.model
        self.rows = [
            Row(row.task_id, prompt + response, len(prompt), mask)
            for row, (prompt, response, mask) in zip(rows, made, strict=True)
            if len(prompt) <= limits.max_prompt_tokens and len(response) <= limits.max_response_tokens
        ]
        context.log.info("%d demonstrations, %d over the token limits left out", len(self.rows),
                         len(rows) - len(self.rows))
        if not self.rows:
            prompt, response, _ = min(made, key=lambda layout: len(layout[0]) + len(layout[1]))
            raise DataError("every demonstration is longer than "
                            f"model.max_prompt_tokens={limits.max_prompt_tokens} or "
                            f"model.max_response_tokens={limits.max_response_tokens}; the shortest has {len(prompt)} "
                            f"and {len(response)} (of a whole conversation: all after the first prompt). Raise them.")
        self.batch_size = config.buffer.train_batch_size or config.buffer.batch_size
        self.total_steps = config.buffer.total_steps or max(
            config.buffer.total_epochs * len(self.rows) // self.batch_size, 1)

    @staticmethod
    def loss(logprobs, old_logprobs, advantages):
        return loss.sft(logprobs)

    def batch(self, step: int) -> Batch:
        chosen = tasks_of_step(len(self.rows), self.batch_size, step, self.context.config.seed)
        return Batch([self.rows[i] for i in chosen])

    def publishes(self, step: int) -> bool:
        return False

    def finish(self, step: int, batch: Batch, logprobs: list[np.ndarray]) -> list[records.Trained]:
        """Demonstrations leave no table behind."""
        return []

    def step_row(self, step: int, batch: Batch, result: Result) -> dict:
        return _common(self.context, step, batch, result)


def _common(context: Context, step: int, batch: Batch, result: Result) -> dict:
    """The fields of a step record that every training stage has; the rest null."""
    empty = dict.fromkeys(records.schema(records.Step).names)
    return empty | {
        "stage": context.id, "step": step, "loss": result.loss, "grad_norm": result.grad_norm,
        "trained_rows": len(batch.rows), "trained_tokens": result.tokens, "entropy": result.statistics["entropy"],
    }


class Rollouts:
    """Experience, cut into batches by the schedule, with advantages by SQL."""

    def __init__(self, context: Context, check: Callable[[], None] = lambda: None):
        """check: called while waiting for rollouts; may raise (pipeline/waiting.py)."""
        self.context, config = context, context.config
        self.check = check
        sets = read_train(context.inputs["tasks"], config.buffer.explorer_input)
        self.schedule = rft_schedule(config, sum(len(tasks) for _, tasks in sets))
        self.total_steps = self.schedule.total_steps
        algorithm = config.algorithm
        function = pick(ADVANTAGES, algorithm.advantage_fn, "algorithm.advantage_fn")
        bound = arguments(function, algorithm.advantage_fn_args, "algorithm.advantage_fn_args")
        self.advantage_query = function(**bound)
        self.session = tables.connect()
        self.session.execute("SET threads TO 1")  # batches are small, and the trainer's cores are busy

    def publishes(self, step: int) -> bool:
        return self.schedule.publishes(step)

    def batch(self, step: int) -> Batch:
        """Waits for the explorer steps that trainer step `step` is cut from, and cuts it.

        Raises StageError when none of its rows can be trained on.
        """
        last = self.schedule.last_explorer_step(step)
        self._wait(step, last)
        available = time.perf_counter()
        begin, end = self.schedule.slots(step)
        per_step = self.schedule.rows_per_explorer_step
        explored = range(begin // per_step + 1, last + 1)
        found = self._select(explored, begin, end)
        if not found["experience_id"]:
            raise StageError(f"trainer step {step} has no usable row: all {end - begin} of explorer steps "
                             f"{explored.start} to {last} failed. See ouro sql \"select status, reason, count(*) "
                             "from experience group by all\".")
        fed = [s for s in explored if begin <= (s - 1) * per_step < end]  # each explorer step counts once
        return self._to_batch(step, fed, found, available)

    def _wait(self, step: int, explorer_step: int) -> None:
        """Colocated, the device is free only when the explorer can do nothing more with the weights it was given."""
        config = self.context.config
        if config.mode == "colocate":
            explorer_step = self.schedule.last_before_training(step)
        wait_for(
            tables.step_file(self.context.directory, "rollouts", explorer_step), config.synchronizer.sync_timeout,
            f"explorer step {explorer_step}", self.context.directory / "explorer.log", self.check,
        )

    def _select(self, explored: range, begin: int, end: int) -> dict:
        """Rows begin .. end of the stage (half-open), usable ones only, with advantages; a dict of columns."""
        source = tables.source(tables.step_file(self.context.directory, "experience", s) for s in explored)
        return self.session.sql(
            f"""
            WITH rows_read AS MATERIALIZED (
                SELECT {", ".join(COLUMNS)}, (step - 1) * {self.schedule.rows_per_explorer_step} + slot AS position
                FROM {source}),
            batch AS (SELECT * FROM rows_read WHERE status = 'ok')
            SELECT experience_id, prompt_tokens, response_tokens, rollout_logprobs, action_mask, weights_version,
                   reward, accuracy, group_id, advantage,
                   (SELECT count(*) FROM rows_read WHERE status <> 'ok' AND position >= {begin} AND position < {end})
                       AS failed_rows
            FROM batch JOIN ({self.advantage_query}) USING (experience_id)
            WHERE position >= {begin} AND position < {end}
            ORDER BY position"""
        ).to_arrow_table().to_pydict()

    def _to_batch(self, step: int, fed: list[int], found: dict, available: float) -> Batch:
        """fed: the explorer steps whose cost is accounted to this step."""
        rows = [
            Row(id_, prompt + response, len(prompt), mask, advantage, old)
            for id_, prompt, response, mask, advantage, old in zip(
                found["experience_id"], found["prompt_tokens"], found["response_tokens"], found["action_mask"],
                found["advantage"], found["rollout_logprobs"], strict=True)
        ]
        groups: dict[str, set] = {}
        for group, value in zip(found["group_id"], found["reward"], strict=True):
            groups.setdefault(group, set()).add(value)
        solved = [value for value in found["accuracy"] if value is not None]
        staleness = [step - 1 - version for version in found["weights_version"]]
        facts = {
            "reward": float(np.mean(found["reward"])), "solve_rate": float(np.mean(solved)) if solved else None,
            "zero_variance_groups": sum(len(values) == 1 for values in groups.values()),
            "failed_rows": found["failed_rows"][0],
            "response_tokens_mean": float(np.mean([len(r) for r in found["response_tokens"]])),
            "staleness_max": max(staleness),
        }
        return Batch(rows, available, staleness, facts | self._cost(fed))

    def _cost(self, explored: list[int]) -> dict:
        """What explorer steps cost, as fields of the step record; nothing when there is none."""
        names = {"rollout_seconds": "rollout_seconds", "tokens": "rollout_tokens", "sync_seconds": "sync_seconds",
                 "other_seconds": "explore_other_seconds", "wait_seconds": "explore_wait_seconds"}
        cost: dict = {}
        for step in explored:
            path = tables.step_file(self.context.directory, "rollouts", step)
            (row,) = tables.read(path, records.Rollout).to_pylist()
            for name, field_name in names.items():
                cost[field_name] = cost.get(field_name, 0) + row[name]
        return cost

    def finish(self, step: int, batch: Batch, logprobs: list[np.ndarray]) -> list[records.Trained]:
        """What the step made of each row; measures on the way how far rollout and training log-probs are apart."""
        fresh = [
            np.abs(np.asarray(row.old_logprobs, np.float32)[np.asarray(row.mask, bool)] - scored)
            for row, age, scored in zip(batch.rows, batch.staleness, logprobs, strict=True) if age == 0
        ]
        gaps = np.concatenate(fresh) if fresh else np.zeros(0)
        batch.facts |= {"mismatch_mean": float(gaps.mean()) if gaps.size else None,
                        "mismatch_max": float(gaps.max()) if gaps.size else None}
        return [
            records.Trained(row.id, step, row.advantage, age, scored)
            for row, age, scored in zip(batch.rows, batch.staleness, logprobs, strict=True)
        ]

    def step_row(self, step: int, batch: Batch, result: Result) -> dict:
        statistics = {"kl": result.statistics["kl"], "clip_fraction": result.statistics["clip_fraction"]}
        return _common(self.context, step, batch, result) | batch.facts | statistics
