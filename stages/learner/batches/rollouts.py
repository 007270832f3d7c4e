"""Train batches from the experience table: rows by the schedule, advantages by name."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa

from ouroboros.operators.algorithm import Algorithm
from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.load import process_start
from ouroboros.pipeline.job.schedule import Schedule, rft_schedule
from ouroboros.pipeline.job.syncs import Unasked, syncs_of
from ouroboros.pipeline.job.tasksets import read_train
from ouroboros.pipeline.job.waiting import wait_for
from ouroboros.pipeline.settings.train_batch import train_batch
from ouroboros.pipeline.settings.trainer import compares_routings
from ouroboros.pipeline.settings.truncation import is_truncated
from ouroboros.pipeline.store import records, routings, tables
from ouroboros.pipeline.store.errors import DataError, StageError, nearest
from ouroboros.pipeline.store.locations import same_step
from ouroboros.pipeline.store.pictures import named
from ouroboros.stages.learner.batches.judged import DROPPED, judged
from ouroboros.stages.learner.batches.sampling import Sampling
from ouroboros.stages.learner.engine.batch import Batch, BatchMetrics, Origin, Row, mean
from ouroboros.stages.learner.penalty import penalised, refuse_dense
from ouroboros.stages.learner.replay import NOTHING, Replay
from ouroboros.stages.learner.teacher import divergence
from ouroboros.workflows.protocol.kept import Kept
from ouroboros.workflows.protocol.roles import NOT_PLAYED

# in files of older releases
LACKING = ("SELECT NULL::FLOAT AS min_p, NULL::INTEGER[][] AS kept_tokens, NULL::DOUBLE[] AS token_rewards, "
           "NULL::VARCHAR[] AS pictures, NULL::VARCHAR AS role WHERE false")
ASK = "See ouro sql \"select status, reason, count(*) from experience group by all\"."

TRUNCATION = ("top_p", "top_k", "min_p", "kept_tokens")
# columns of experience that advantages and train batches may use
COLUMNS = ("experience_id", "step", "slot", "taskset", "task_id", "run_index", "turn", "state_hash", "step_reward",
           "prompt_tokens", "response_tokens", "rollout_logprobs", "action_mask", "reward", "reward_components",
           "token_rewards", "accuracy", "status", "weights_version", "temperature", "finish_reason", "pictures",
           *TRUNCATION)
# an attempt of several players is compared by role, as if each had its own group
OF_ROLE = "group_id || coalesce('/' || role, '') AS group_id, coalesce(role, '') AS role"
# the reward of the greedy response to the task, of the same role, added to the rows of its group
BASELINE = "max(reward) FILTER (status = 'baseline') OVER (PARTITION BY step, group_id, role) AS baseline_reward"
# stages/learner/estimates.py
ESTIMATES = ("old_logprobs", "entropies", "mean_scores", "ref_logprobs", "values", "teacher_logprobs")
ORIGIN_COLUMNS = ("step", "position", "turn", "group_id", "weights_version", "reward", "accuracy", "is_candidate",
                  "use_count", "priority")


class Rollouts:
    """Cuts experience into batches by the schedule."""

    def __init__(self, context: Context, algorithm: Algorithm | None = None, check: Callable[[], None] = lambda: None):
        """algorithm: None: that of the settings. check: called while waiting for rollouts; may raise
        (pipeline/job/waiting.py)."""
        self.context, self.check = context, check
        self.algorithm = algorithm or Algorithm.of(context.config)
        whole = self._schedule()
        self.total_steps, self.schedule = whole.total_steps, whole.until(context.until)
        self.syncs = self._syncs()
        self.mixes = context.config.algorithm.sample_strategy == "mix" or self.algorithm.by_kind
        self.penalty = self.algorithm.penalty
        self.session = tables.connect(threads=1)  # batches are small, and the trainer's cores are busy
        self.sampling = Sampling(context, self.algorithm)
        self.curates = self._curates()
        self.lacking: set[str] = set()  # components with a weight, of which the log said that a batch lacks them
        self.replay = self._replay()

    def _curates(self) -> bool:
        """Whether operators judge the rows before they are trained on."""
        return bool(self.context.config.data_processor.experience_pipeline.operators)

    def _schedule(self) -> Schedule:
        sets = read_train(self.context.inputs["tasks"], self.context.config.buffer.explorer_input)
        return rft_schedule(self.context.config, sum(len(tasks) for _, tasks in sets))

    def _syncs(self) -> Unasked:
        """When an explorer is handed weights."""
        return syncs_of(self.context.directory, self.schedule, self.context.config)

    def _replay(self) -> Replay | None:
        config = self.context.config
        settings = config.buffer.trainer_input.experience_buffer.replay_buffer
        if not settings.enable:
            return None
        groups = train_batch(config).replayed // config.algorithm.repeat_times
        return Replay(self.session, settings, self.algorithm.priority(), groups, self._fresh,
                      self.sampling.oldest_version)

    def cut(self, step: int) -> Batch:
        """Waits for and reads the explorer steps that trainer step `step` is cut from; its rows lack advantages.

        Raises StageError when none of its rows can be trained on.
        """
        explored = self._explored(step)
        self._wait(step, explored[-1])
        available = time.perf_counter()
        begin, end = self.schedule.slots(step)
        drawn = self.replay.draw(step) if self.replay else NOTHING
        read = sorted({*explored, *drawn["explored"].to_pylist()})
        usable = self._usable(self._source(read), explored, begin, end, drawn)
        if not any(begin <= position < end for position in usable["position"].to_pylist()):
            table = self._source(explored)
            raise StageError(f"trainer step {step} has no usable row in explorer steps {explored[0]} to {explored[-1]}:"
                             f" {_shortfall(self.session, table, self._condition(explored, begin, end))}")
        table, demonstrations = self.sampling.select(step, usable)
        limits_staleness = self.sampling.name == "staleness_control"
        failed, dropped = (usable[name][0].as_py() for name in ("failed_rows", "dropped_rows"))
        metrics = BatchMetrics(failed_rows=failed, dropped_rows=dropped if self.curates else None,
                               expert_rows=len(demonstrations),
                               stale_rows=len(usable) - len(table) if limits_staleness else None)
        per_step = self.schedule.rows_per_explorer_step
        charged = [s for s in explored if begin <= (s - 1) * per_step < end]  # each explorer step counts once
        rows = _rows(table, self.mixes, self.context.config.model.temperature)
        for row, hashes in zip(rows, table["pictures"].to_pylist(), strict=True):
            if hashes:
                row.pictures = named(hashes, self._tasks(), same_step(self._file(row.origin.step), "shown"))
        self._add_experts(rows, read)
        return Batch(step, demonstrations, rows, table, available, metrics, self._records(charged))

    def _add_experts(self, rows: list[Row], explored: list[int]) -> None:
        """Adds the routings of the engine. Raises StageError where one is missing that is to be replayed."""
        config = self.context.config
        if not compares_routings(config):
            return
        found = {}
        for step in explored:
            found |= routings.read(self.context.directory, step)
        for row in rows:
            row.experts = found.get(row.id)
            if row.experts is not None and len(row.experts) != sum(row.mask):
                raise StageError(f"{len(row.experts)} tokens of the row {row.id} have a routing, and {sum(row.mask)} "
                                 "are trained on; the files of the stage are not of one run: delete its directory.")
            if config.algorithm.enable_router_replay and row.experts is None and row.origin.selected and any(row.mask):
                raise StageError(f"the engine's routing of the row {row.id} is missing, which algorithm."
                                 "enable_router_replay needs: it was deleted after a later checkpoint, or the "
                                 "workflow trains on tokens that no reply has. Set it to false, or "
                                 "delete the directory of the stage and run it again.")

    def _explored(self, step: int) -> range:
        """The explorer steps whose new rows trainer step `step` is cut from."""
        begin, _ = self.schedule.slots(step)
        return range(begin // self.schedule.rows_per_explorer_step + 1, self.schedule.last_explorer_step(step) + 1)

    def _fresh(self, step: int) -> str:
        """SQL query of the new usable rows of trainer step `step`, with the columns for replay."""
        explored = self._explored(step)
        return f"""SELECT group_id, step, weights_version, {self._position(explored)} AS position
                   FROM {self._source(explored)}
                   WHERE status = 'ok' AND {self._condition(explored, *self.schedule.slots(step))}"""

    def _wait(self, step: int, explorer_step: int) -> None:
        """Waits for the rollouts; in turns, for all that the explorer can make before training frees it."""
        config = self.context.config
        if config.mode == "colocate" and not config.trainer.overlap:
            explorer_step = self.schedule.last_before_training(step)
        wait_for(
            tables.step_file(self.context.directory, "rollouts", explorer_step), config.synchronizer.sync_timeout,
            f"explorer step {explorer_step}", self.context.directory / "explorer.log", self.check,
        )

    def _tasks(self) -> Path:
        """The stage with the tasks, and their images."""
        return self.context.inputs["tasks"]

    def _file(self, explorer_step: int) -> Path:
        return tables.step_file(self.context.directory, "experience", explorer_step)

    def _source(self, explored: Iterable[int]) -> str:
        """The rows of explorer steps as a table in SQL, as operators left them."""
        files = map(self._file, explored)
        return f"(FROM {judged(files) if self.curates else tables.source(files)} UNION ALL BY NAME {LACKING})"

    def _explorer_step(self, explored: range) -> str:
        """SQL expression of a row's explorer step, counted over the whole stage."""
        return "step"

    def _position(self, explored: range) -> str:
        """SQL expression of a row's position within the stage."""
        return f"({self._explorer_step(explored)} - 1) * {self.schedule.rows_per_explorer_step} + slot"

    def _condition(self, explored: range, begin: int, end: int) -> str:
        """SQL condition that a row is in the batch begin .. end."""
        position, per_step = self._position(explored), self.schedule.rows_per_explorer_step
        return f"slot < {per_step} AND {position} >= {begin} AND {position} < {end}"

    def _usable(self, table: str, explored: range, begin: int, end: int, drawn: pa.Table) -> pa.Table:
        """The rows of `table` for the advantage function, in order; count of failures in batch begin .. end.

        They are those of the steps `explored` and of the groups drawn for replay.
        """
        position, first = self._position(explored), (explored.start - 1) * self.schedule.rows_per_explorer_step
        in_batch = self._condition(explored, begin, end)
        count = f"(SELECT count(*) FROM {table} WHERE {in_batch} AND"
        baseline = f", {BASELINE}" if self.context.config.algorithm.greedy_baseline else ""
        # the baseline's own row is read first and then dropped, with rows of a role that it did not play
        only = "QUALIFY (coalesce(role, '') = '' OR baseline_reward IS NOT NULL) AND" if baseline else "WHERE"
        self.session.register("drawn", drawn)
        return self.session.sql(
            f"""SELECT {', '.join(COLUMNS)}, {OF_ROLE}, rollout_logprobs AS old_logprobs,
                       {position} AS position{baseline}, coalesce(drawn.use_count, 0) AS use_count,
                       drawn.priority, drawn.group_id IS NOT NULL OR ({in_batch}) AS is_candidate,
                       {count} status NOT IN ('ok', 'no_variance', '{NOT_PLAYED}', '{DROPPED}')) AS failed_rows,
                       {count} status = '{DROPPED}') AS dropped_rows
                FROM {table} LEFT JOIN drawn USING (group_id)
                {only} status = 'ok' AND (drawn.group_id IS NOT NULL OR {position} >= {first})
                ORDER BY position, turn"""
        ).to_arrow_table()

    def _records(self, explored: list[int]) -> list[records.Rollout]:
        """The records of explorer steps; of those that are older than this process without `start`: its engines started
        anew."""
        began, paths = process_start(), [tables.step_file(self.context.directory, "rollouts", one) for one in explored]
        return [records.Rollout(**tables.read(path, records.Rollout).to_pylist()[0] | (
            {"start": None} if path.stat().st_mtime < began else {})) for path in paths]

    def with_advantages(self, batch: Batch) -> Batch:
        """The batch with advantages in its rows, which are now those to train on.

        Raises StageError when no row, or no token to train on, is left.
        """
        table, kl, kl_coef = _with_estimates(batch), None, self.penalty.kl_coef
        refuse_dense(table, self.context.config.algorithm)
        table = self._weighed(table, batch.step)
        if self.penalty:
            table, kl = penalised(table, self.penalty)
            if kl is not None:
                self.penalty.steer(kl, sum(row.origin.selected for row in batch.rollouts))
        rows = _joined(batch.rollouts, self.algorithm.advantages(table))
        masks = self.context.config.algorithm.mask_truncated_completions
        rows = _without_truncated(rows, table) if masks else rows
        if not rows:
            raise StageError(f"trainer step {batch.step} has no row left: algorithm.advantage_fn="
                             f"{self.context.config.algorithm.advantage_fn} dropped all of them.")
        if not any(any(row.mask) for row in rows + batch.demonstrations):
            cause = ("all of them were cut, or their action_mask is 0 throughout. Raise model.max_response_tokens, or "
                     "set algorithm.mask_truncated_completions=false." if masks else
                     "their action_mask is 0 throughout. Correct the workflow that wrote them.")
            raise StageError(f"trainer step {batch.step} has no token to train on in its {len(rows)} rows: {cause}")
        trained = replace(batch, rollouts=rows, table=None)
        metrics = replace(_with_rewards(batch.metrics, rows), kl_penalty=kl,
                          kl_penalty_coef=kl_coef if self.penalty else None,
                          staleness_max=max(map(trained.staleness, rows)),
                          teacher_kl=divergence(rows) if "teacher_logprobs" in rows[0].columns else None)
        return replace(trained, metrics=metrics)

    def _weighed(self, table: pa.Table, step: int) -> pa.Table:
        """The table with each component of the reward counted by its weight; the log says once which have no row."""
        weights = self.context.config.algorithm.reward_weights
        if not weights:
            return table
        components = [dict(pairs) for pairs in table["reward_components"].to_pylist()]
        known = sorted(set().union(*components))
        for name in sorted(set(weights) - {*known, *self.lacking}):
            self.context.log.warning("warning: algorithm.reward_weights.%s changes nothing in train step %d: no row "
                                     "has that component of the reward.%s They have: %s.", name, step,
                                     nearest(name, known), ", ".join(known) or "none")
            self.lacking.add(name)
        rewards = [reward + sum((weights[name] - 1) * value for name, value in one.items() if name in weights)
                   for reward, one in zip(table["reward"].to_pylist(), components, strict=True)]
        return table.set_column(table.column_names.index("reward"), "reward", pa.array(rewards, pa.float64()))


def _rows(table: pa.Table, mixes: bool, usual: float) -> list[Row]:
    """mixes: they will be combined with demonstrations. usual: temperature of the model."""
    kind, made, usual = {"is_expert": False} if mixes else {}, [], np.float32(usual)  # as the column holds it
    names = ("experience_id", "prompt_tokens", "response_tokens", "action_mask", "rollout_logprobs", "temperature")
    for origin, line in zip(table.select(ORIGIN_COLUMNS).to_pylist(), table.select(names).to_pylist(), strict=True):
        origin = Origin(selected=origin.pop("is_candidate"), **origin)
        id_, prompt, response, mask, logprobs, temperature = line.values()
        columns = {"rollout_logprobs": logprobs, "old_logprobs": logprobs} | kind
        made.append(Row(id_, prompt + response, len(prompt), mask, columns, origin,
                        temperature=None if temperature == usual else temperature))
    _add_kept(made, table)
    return made


def _add_kept(rows: list[Row], table: pa.Table) -> None:
    """Adds what the tokens were sampled among. Raises DataError where it is not known."""
    kept = table["kept_tokens"].combine_chunks() if len(table) else ()
    for row, bounds, sets in zip(rows, table.select(TRUNCATION[:-1]).to_pylist(), kept, strict=True):
        acts = np.asarray(row.mask, bool)
        if sets.is_valid and len(sets.values) == len(acts):
            row.kept = Kept.of_column(sets.values).at(acts)
        sampled = np.asarray(row.tokens[row.prompt_length :])[acts]
        if is_truncated(**bounds) and not (row.kept and row.kept.hold(sampled)):
            said = ", ".join(f"{name}={value:g}" for name, value in bounds.items() if value is not None)
            raise DataError(f"the row {row.id} was sampled with {said}, and what its tokens were sampled among is not "
                            "in its column kept_tokens: its ratios would be biased. Rows that ouro serve records lack "
                            "it; sample them with top_p=1, top_k=-1 and min_p=0.")


def _with_estimates(batch: Batch) -> pa.Table:
    """The table of a batch with model-computed columns added, as list<double> [R]."""
    table = batch.table
    for name in ESTIMATES:
        if isinstance(batch.rollouts[0].columns.get(name), np.ndarray):
            made = pa.array([row.columns[name] for row in batch.rollouts], pa.list_(pa.float64()))
            table = table.drop_columns([name] if name in table.column_names else []).append_column(name, made)
    return table


def _joined(rows: list[Row], found: pa.Table) -> list[Row]:
    """Copies of the selected rows with advantages, and returns if there are any, in the order of `rows`.

    found: answer of an advantage function; it may leave out a row, or contain it several times.
    """
    names = [name for name in ("advantage", "returns") if name in found.column_names]
    places, made = {row.id: place for place, row in enumerate(rows)}, []
    for id_, *values in zip(*(found[name].to_pylist() for name in ("experience_id", *names)), strict=True):
        row = rows[places[id_]]
        if row.origin.selected:
            columns = row.columns | dict(zip(("advantages", "returns"), values, strict=False))
            made.append((places[id_], replace(row, columns=columns)))
    return [row for _, row in sorted(made, key=itemgetter(0))]


def _without_truncated(rows: list[Row], table: pa.Table) -> list[Row]:
    """The rows, without a token to train on where the last reply of their attempt was cut (DAPO's overlong filtering,
    arXiv:2503.14476). table: in the order of position and turn."""
    names = ("position", "group_id", "finish_reason")  # a group is of one role
    last = {(position, group): reason for position, group, reason in zip(
        *table.select(names).to_pydict().values(), strict=True)}
    return [replace(row, mask=[0] * len(row.mask), experts=None, kept=None)
            if last[row.origin.position, row.origin.group_id] == "length" else row for row in rows]


def _with_rewards(metrics: BatchMetrics, rows: list[Row]) -> BatchMetrics:
    """Adds the statistics of the rows; rewards are of new ones, and count once per attempt, not once per turn."""
    origins = [row.origin for row in rows]
    rewards_of: dict[str, set] = {}
    for one in origins:
        rewards_of.setdefault(one.group_id, set()).add(one.reward)
    last_turn = {(one.position, one.group_id): one.turn for one in origins}  # of a role; rows are ordered by turn
    new = [one for one in origins if one.use_count == 0 and last_turn[one.position, one.group_id] == one.turn]
    return replace(
        metrics, reward=mean([one.reward for one in new if one.reward is not None]),
        solve_rate=mean([one.accuracy for one in new if one.accuracy is not None]),
        zero_variance_groups=sum(len(values) == 1 for values in rewards_of.values()),
        response_tokens_mean=mean([len(row.mask) for row in rows]),
        replayed_rows=sum(one.use_count > 0 for one in origins))


def _shortfall(session, table: str, place: str) -> str:
    """The error text of a step whose batch has no row: counts what happened to the candidates.

    table, place: SQL for the rows and for those of the batch.
    """
    found = session.sql(f"SELECT status, count(*), count(DISTINCT group_id), max(resample_round) FROM {table} "
                        f"WHERE {place} GROUP BY status ORDER BY status").fetchall()
    total = sum(rows for _, rows, _, _ in found)
    counts = ", ".join(f"{rows} are {status}" for status, rows, _, _ in found)
    for status, _, groups, rounds in found:
        if status == "no_variance":
            return (f"of {total} needed {counts}: {groups} groups are missing, even after {rounds} round(s) of fresh "
                    "tasks, because all responses to a task were equally good. Give tasks that the model solves now "
                    "and then, more algorithm.repeat_times, or algorithm.resample_metric=reward where the reward tells "
                    f"wrong answers apart; algorithm.max_resample_rounds=0 leaves such groups in the batch. {ASK}")
    if any(status == DROPPED for status, *_ in found):
        return f"of {total} {counts}. See ouro sql \"select operator, reason, count(*) from curated group by all\"."
    return f"all {total} failed: {counts}. {ASK}"
