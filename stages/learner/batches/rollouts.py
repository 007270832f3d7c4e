"""Train batches from the experience table: rows by the schedule, advantages by name."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from operators.advantage import ADVANTAGES
from operators.arguments import arguments
from operators.choice import chosen_advantage
from operators.correction import importance_correction, mismatch
from pipeline.job.context import Context
from pipeline.job.schedule import Schedule, rft_schedule
from pipeline.job.tasksets import read_train
from pipeline.job.waiting import wait_for
from pipeline.settings.train_batch import train_batch
from pipeline.store import records, tables
from pipeline.store.errors import StageError
from stages.learner.batches.choose import Batch, Cut, advantage_of, mean
from stages.learner.batches.sampling import Sampling
from stages.learner.engine.packing import Row
from stages.learner.objective import KLTerm, correction_arguments, refuse_parameters
from stages.learner.penalty import penalised
from stages.learner.replay import NOTHING, Replay
from stages.learner.shortfall import shortfall
from stages.learner.teacher import divergence

# columns of experience that advantages and train batches may use
COLUMNS = ("experience_id", "step", "slot", "task_id", "group_id", "run_index", "turn", "state_hash",
           "step_reward", "prompt_tokens", "response_tokens", "rollout_logprobs", "action_mask", "reward",
           "reward_components", "accuracy", "status", "weights_version")
# the reward of the greedy response to the task, added to the rows of its group
BASELINE = "max(reward) FILTER (status = 'baseline') OVER (PARTITION BY step, group_id) AS baseline_reward"
ESTIMATES = ("old_logprobs", "ref_logprobs", "values", "teacher_logprobs")  # stages/learner/estimates.py
FACTS = ("position", "turn", "reward", "accuracy", "group_id", "weights_version", "use_count", "priority")
ROLLOUT_COST = {"rollout_seconds": "rollout_seconds", "tokens": "rollout_tokens", "sync_seconds": "sync_seconds",
                "other_seconds": "explore_other_seconds", "evaluate_seconds": "evaluate_seconds",
                "wait_seconds": "explore_wait_seconds", "resampled_groups": "resampled_groups",
                "resample_rounds": "resample_rounds", "missing_groups": "missing_groups"}


class Rollouts:
    """Cuts experience into batches by the schedule."""

    hands_over = True  # publishes weights to an explorer

    def __init__(self, context: Context, check: Callable[[], None] = lambda: None):
        """check: called while waiting for rollouts; may raise (pipeline/job/waiting.py)."""
        self.context, config = context, context.config
        self.check = check
        self.schedule = self._schedule()
        self.mixes = config.algorithm.sample_strategy == "mix"
        self.total_steps = self.schedule.total_steps
        algorithm = config.algorithm
        function = chosen_advantage(ADVANTAGES, algorithm.advantage_fn, "algorithm.advantage_fn")
        refuse_parameters(algorithm, "advantage_fn", function)
        bound = arguments("advantage_fn", algorithm.advantage_fn, function, algorithm.advantage_fn_args,
                          "algorithm.advantage_fn_args")
        self.advantage = partial(function, **bound)
        self.penalty = KLTerm.of(algorithm, "kl_penalty_fn")
        self.correction = correction_arguments(algorithm) or {"level": "token"}  # measured even if not applied
        self.session = tables.connect()
        self.session.execute("SET threads TO 1")  # batches are small, and the trainer's cores are busy
        self.sampling = Sampling(context, self.session)
        self.replay = self._replay()

    def _schedule(self) -> Schedule:
        sets = read_train(self.context.inputs["tasks"], self.context.config.buffer.explorer_input)
        return rft_schedule(self.context.config, sum(len(tasks) for _, tasks in sets))

    def _replay(self) -> Replay | None:
        config = self.context.config
        settings = config.buffer.trainer_input.experience_buffer.replay_buffer
        if not settings.enable:
            return None
        groups = train_batch(config).replayed // config.algorithm.repeat_times
        return Replay(self.session, settings, groups, self._fresh, self.sampling.oldest_version)

    def publishes(self, step: int) -> bool:
        return self.schedule.publishes(step)

    def cut(self, step: int) -> Cut:
        """Waits for and reads the explorer steps that trainer step `step` is cut from.

        Raises StageError when none of its rows can be trained on.
        """
        last = self.schedule.last_explorer_step(step)
        self._wait(step, last)
        available = time.perf_counter()
        begin, end = self.schedule.slots(step)
        explored = self._explored(step)
        drawn = self.replay.draw(step) if self.replay else NOTHING
        read = sorted({*explored, *drawn["explored"].to_pylist()})
        table = self._usable(tables.source(map(self._file, read)), explored, begin, end, drawn)
        if not any(begin <= position < end for position in table["position"].to_pylist()):
            files = tables.source(map(self._file, explored))
            raise StageError(f"trainer step {step} has no usable row in explorer steps {explored.start} to {last}: "
                             f"{shortfall(self.session, files, self._place(explored, begin, end))}")
        per_step = self.schedule.rows_per_explorer_step
        fed = [s for s in explored if begin <= (s - 1) * per_step < end]  # each explorer step counts once
        facts = {"failed_rows": table["failed_rows"][0].as_py()} | self._cost(fed)
        sample = self.sampling.take(step, table)
        return Cut(step, _rows(sample.table, self.mixes), sample.table["step"].to_pylist(), sample.table,
                   sample.chosen, sample.experts, available, facts | sample.facts)

    def _explored(self, step: int) -> range:
        """The explorer steps whose new rows trainer step `step` is cut from."""
        begin, _ = self.schedule.slots(step)
        return range(begin // self.schedule.rows_per_explorer_step + 1, self.schedule.last_explorer_step(step) + 1)

    def _fresh(self, step: int) -> str:
        """SQL query of the new usable rows of trainer step `step`, with the columns for replay."""
        explored = self._explored(step)
        return f"""SELECT group_id, step, weights_version, {self._position(explored)} AS position
                   FROM {tables.source(map(self._file, explored))}
                   WHERE status = 'ok' AND {self._place(explored, *self.schedule.slots(step))}"""

    def _wait(self, step: int, explorer_step: int) -> None:
        """Waits for the rollouts; colocated, for all that the explorer can make before training frees it."""
        config = self.context.config
        if config.mode == "colocate":
            explorer_step = self.schedule.last_before_training(step)
        wait_for(
            tables.step_file(self.context.directory, "rollouts", explorer_step), config.synchronizer.sync_timeout,
            f"explorer step {explorer_step}", self.context.directory / "explorer.log", self.check,
        )

    def _file(self, explorer_step: int) -> Path:
        return tables.step_file(self.context.directory, "experience", explorer_step)

    def _explorer_step(self, explored: range) -> str:
        """SQL expression of a row's explorer step, counted over the whole stage."""
        return "step"

    def _position(self, explored: range) -> str:
        """SQL expression of a row's position within the stage."""
        return f"({self._explorer_step(explored)} - 1) * {self.schedule.rows_per_explorer_step} + slot"

    def _usable(self, table: str, explored: range, begin: int = 0, end: int = 0,
                drawn: pa.Table = NOTHING) -> pa.Table:
        """The rows of `table` for the advantage function, in order; count of failures in batch begin .. end.

        They are those of the steps `explored` and of the groups drawn for replay.
        """
        position, first = self._position(explored), (explored.start - 1) * self.schedule.rows_per_explorer_step
        place = self._place(explored, begin, end)
        baseline = f", {BASELINE}" if self.context.config.algorithm.greedy_baseline else ""
        only = "QUALIFY" if baseline else "WHERE"  # the baseline's own row is read first and then dropped
        self.session.register("drawn", drawn)
        return self.session.sql(
            f"""SELECT {', '.join(COLUMNS)}, rollout_logprobs AS old_logprobs,
                       {position} AS position{baseline}, coalesce(drawn.use_count, 0) AS use_count,
                       drawn.priority, drawn.group_id IS NOT NULL OR ({place}) AS is_candidate,
                       (SELECT count(*) FROM {table} WHERE status NOT IN ('ok', 'no_variance') AND {place})
                           AS failed_rows
                FROM {table} LEFT JOIN drawn USING (group_id)
                {only} status = 'ok' AND (drawn.group_id IS NOT NULL OR {position} >= {first}) 
                ORDER BY position, turn"""
        ).to_arrow_table()

    def _place(self, explored: range, begin: int, end: int) -> str:
        """SQL condition that a row is in the batch begin .. end."""
        position, per_step = self._position(explored), self.schedule.rows_per_explorer_step
        return f"slot < {per_step} AND {position} >= {begin} AND {position} < {end}"

    def batch(self, cut: Cut) -> Batch:
        """The rows of the batch, with their advantages.

        Raises StageError when the advantage function returns none.
        """
        facts = cut.table.select(list(FACTS)).to_pydict()
        made = []
        place = {row.id: index for index, row in enumerate(cut.rows)}
        made_by_models = [name for name in ESTIMATES if isinstance(cut.rows[0].columns.get(name), np.ndarray)]
        table = _with_estimates(cut, made_by_models)
        measured = {}
        if self.penalty:
            table, kl = penalised(table, self.penalty)
            measured = {"kl_penalty": kl, "kl_penalty_coef": self.penalty.kl_coef}
            if kl is not None:
                self.penalty.steer(kl, len(cut.chosen))
        found = self.advantage(table)
        for id_, *values in zip(found["experience_id"].to_pylist(), *_columns(found), strict=True):
            if id_ in cut.chosen:
                made.append((place[id_], values))
        if not made:
            raise StageError(f"trainer step {cut.step} has no row left: algorithm.advantage_fn="
                             f"{self.context.config.algorithm.advantage_fn} dropped all of them.")
        made.sort(key=lambda item: item[0])
        rows = [self._with_advantage(cut.rows[index], *values) for index, values in made]
        if not any(any(row.mask) for row in rows + cut.experts):
            raise StageError(f"trainer step {cut.step} has no token that the policy said itself: the action_mask of "
                             f"its {len(rows)} rows is 0 throughout. Mend the workflow that wrote them.")
        chosen = {name: [column[index] for index, _ in made] for name, column in facts.items()}
        if "teacher_logprobs" in made_by_models:
            measured["teacher_kl"] = divergence(rows)
        staleness = [cut.step - 1 - version for version in chosen["weights_version"]]
        uses = list(zip(chosen["use_count"], chosen["priority"], strict=True))
        experts = len(cut.experts)
        return Batch(rows + cut.experts, cut.available, staleness + [None] * experts, uses + [(None, None)] * experts,
                     cut.facts | measured | _facts(rows, chosen, staleness) | {"expert_rows": experts})

    @staticmethod
    def _with_advantage(row: Row, advantage, returns=None) -> Row:
        """A copy of the row with an advantage; copied because an advantage function may return a row twice."""
        columns = row.columns | {"advantages": advantage} | ({} if returns is None else {"returns": returns})
        return Row(row.id, row.tokens, row.prompt_length, row.mask, columns)

    def _cost(self, explored: list[int]) -> dict:
        """The cost of explorer steps as step record fields; empty for none."""
        cost: dict = {}
        for step in explored:
            path = tables.step_file(self.context.directory, "rollouts", step)
            (row,) = tables.read(path, records.Rollout).to_pylist()
            for name, field_name in ROLLOUT_COST.items():
                if row[name] is not None:
                    cost[field_name] = cost.get(field_name, 0) + row[name]
        return cost

    def finish(self, step: int, batch: Batch, logprobs: list[np.ndarray]) -> list[records.Trained]:
        """The trained rows of the step; also measures the mismatch between rollout and training log-probs."""
        rolled_out = [index for index, age in enumerate(batch.staleness) if age is not None]
        batch.facts |= self._mismatch(*([of[index] for index in rolled_out] for of in (batch.rows, logprobs)))
        return [
            _trained(row, step, age, used, scored)
            for row, age, used, scored in zip(batch.rows, batch.staleness, batch.uses, logprobs, strict=True)
        ]

    def _mismatch(self, rows: list[Row], logprobs: list[np.ndarray]) -> dict[str, float]:
        """Mismatch between engine and trainer log-probs; for stale rows it includes the policy's updates."""
        import torch

        ours, engines = (torch.from_numpy(np.concatenate(parts))
                         for parts in (logprobs, [row.of_actions("rollout_logprobs") for row in rows]))
        row_of = torch.from_numpy(np.repeat(np.arange(len(rows)), [len(values) for values in logprobs]))
        weights, bounded = importance_correction(ours, engines, row_of, **self.correction)
        return mismatch(ours, engines, weights, **bounded)


def _with_estimates(cut: Cut, names: Iterable[str]) -> pa.Table:
    """The table of a cut with model-computed columns added, as list<double> [R]."""
    table = cut.table
    for name in names:
        made = pa.array([row.columns[name] for row in cut.rows], pa.list_(pa.float64()))
        table = table.drop_columns([name] if name in table.column_names else []).append_column(name, made)
    return table


def _columns(found: pa.Table) -> list[list]:
    """`advantage` and, if present, `returns` of an advantage function's answer."""
    return [found[name].to_pylist() for name in ("advantage", "returns") if name in found.column_names]


def _rows(table: pa.Table, mixes: bool) -> list[Row]:
    """mixes: they will be combined with demonstrations."""
    names = ("experience_id", "prompt_tokens", "response_tokens", "action_mask", "rollout_logprobs")
    columns, kind = table.select(names).to_pydict(), {"is_expert": False} if mixes else {}
    return [
        Row(id_, prompt + response, len(prompt), mask, {"rollout_logprobs": logprobs, "old_logprobs": logprobs} | kind)
        for id_, prompt, response, mask, logprobs in zip(*(columns[name] for name in names), strict=True)
    ]


def _facts(rows: list[Row], chosen: dict[str, list], staleness: list[int]) -> dict:
    """Statistics of new rows; an attempt's reward and accuracy count once, however many turns it had."""
    new = [count == 0 for count in chosen["use_count"]]
    groups: dict[str, set] = {}
    for group, value in zip(chosen["group_id"], chosen["reward"], strict=True):
        groups.setdefault(group, set()).add(value)
    last = dict(zip(chosen["position"], chosen["turn"], strict=True))  # rows are ordered by turn
    ends = [last[position] == turn for position, turn in zip(chosen["position"], chosen["turn"], strict=True)]
    rewards, accuracies = ([v for v, end, is_new in zip(chosen[name], ends, new, strict=True)
                            if end and is_new and v is not None]
                           for name in ("reward", "accuracy"))
    return {
        "reward": mean(rewards), "solve_rate": mean(accuracies),
        "zero_variance_groups": sum(len(values) == 1 for values in groups.values()),
        "response_tokens_mean": mean([len(row.mask) for row in rows]), "staleness_max": max(staleness),
        "replayed_rows": new.count(False),
    }


def _trained(row: Row, step: int, age: int | None, used: tuple, logprobs: np.ndarray) -> records.Trained:
    given, is_expert = row.columns["advantages"], row.columns.get("is_expert", False)
    each = row.of_actions("advantages").tolist() if isinstance(given, list) else None
    return records.Trained(row.id, step, advantage_of(row), each, is_expert, age, *used, logprobs)
