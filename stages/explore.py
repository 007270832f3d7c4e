"""The explorer of a stage: generates rollouts with the scheduled weights and writes experience.

Started by stages/rft.py and, on its own, by stages/rollout.py; runs for the whole stage. Each explorer step waits for
its weights, loads and verifies them, generates, computes rewards, and writes `experience/step=…` and then
`rollouts/step=…`. Steps whose files exist are skipped.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from statistics import fmean

import numpy as np

from ouroboros.pipeline.job.background import Background
from ouroboros.pipeline.job.context import TOTAL, Context, commit
from ouroboros.pipeline.job.opening import opening
from ouroboros.pipeline.job.progress import row_words
from ouroboros.pipeline.job.schedule import Schedule, rft_schedule, rollout_schedule
from ouroboros.pipeline.job.syncs import syncs_of
from ouroboros.pipeline.job.tasksets import HELD, read_train
from ouroboros.pipeline.job.waiting import wait_for
from ouroboros.pipeline.settings.combinations import refusal
from ouroboros.pipeline.store import checkpoints, files, records, routings, tables
from ouroboros.pipeline.store.pictures import Kept, Picture, has_pictures
from ouroboros.stages.curation import curation_of
from ouroboros.stages.explorer.children import run_child
from ouroboros.stages.explorer.groups import Groups
from ouroboros.stages.explorer.interim import InterimEvaluation
from ouroboros.stages.explorer.prompts import Prompts, TaskSets
from ouroboros.stages.explorer.resample import Filled, Group
from ouroboros.stages.explorer.watch import Watch
from ouroboros.stages.explorer.watched_rewards import WatchedRewards
from ouroboros.stages.explorer.weights import NextWeights, Weights
from ouroboros.workflows.attempts.recording import STEP, Journal, forget_before, journal_file
from ouroboros.workflows.engines.open import begin_engines, limited, open_engine, seeing, unshown
from ouroboros.workflows.protocol.engine import STOP_TEXT
from ouroboros.workflows.protocol.hugging_face import import_light
from ouroboros.workflows.protocol.outcomes import Call, Outcome, check_failures
from ouroboros.workflows.protocol.prompts import end_tokens, load_tokenizer, prompt_hash
from ouroboros.workflows.protocol.roles import NOT_PLAYED, reward_of
from ouroboros.workflows.protocol.sight import sight_of
from ouroboros.workflows.protocol.trajectory import Trajectory


class Explorer:
    """The explorer's long-lived objects, opened once and used in every step."""

    def __init__(self, context: Context, sets: TaskSets, schedule: Schedule, begun: Sequence = ()):
        """sets: its training sets with their tasks. begun: processes of its engines, as of begin_engines."""
        context.config = limited(context.config)
        self.context, config = context, context.config
        model = checkpoints.model_directory(context.inputs["model"])
        self.tokenizer = load_tokenizer(model, config.model)
        rewards = WatchedRewards(config, context.activity, context.directory)
        self.prompts = Prompts(config, sets, self.tokenizer, rewards, context.directory, context.activity,
                               context.inputs["tasks"])
        self.schedule, self.version = schedule, 0  # version: of the weights that a step begins with
        self.syncs = syncs_of(context.directory, schedule, config)
        self.colocated = config.mode == "colocate"
        adapter = None if config.mode == "explore" else next(iter(config.model.lora_configs), None)
        of_tasks = has_pictures(context.inputs["tasks"])
        context.config = config = seeing(config, model, of_tasks or has_pictures(context.inputs.get(HELD)))
        self.unshown = unshown(config, model) or (None if config.mode == "explore" else refusal(
            config, config.algorithm.has_critic, context.inputs, of_tasks))
        self.shown = set[str]()  # images of agents in rows of a step
        self.engine = open_engine(model, config, end_tokens(self.tokenizer, model), self.colocated, context.directory,
                                  adapter, self._await_trainer, begun)
        self.in_turns = self.colocated and not files.read_json(context.directory / TOTAL)["overlap"]
        self.continues = config.mode != "explore" and config.explorer.partial_rollout and not self.in_turns
        self.writer = Background()  # compresses and flushes a step's files while the next is generated
        self.groups = Groups(context, self.prompts, self.engine, self.tokenizer,
                             0 if config.mode == "explore" else schedule.sync_offset, self.writer.finish)
        self.weights, self.started = Weights(context, self.engine), self.engine.started  # until the first step is made
        if config.mode == "explore":
            self.weights.set_initial(model)
        self.interim = InterimEvaluation(context, self.engine, self.tokenizer, rewards)
        self.curation = curation_of(config, config.algorithm.repeat_times, self.prompts.tasks)
        self.routings: dict[str, np.ndarray] = {}  # of the rows of a step
        self.watch, self.watched = Watch(config, self.prompts), dict[str, float]()  # watched: attempts of a step

    def step(self, step: int) -> records.Rollout:
        """Runs one explorer step; its files are written in the background."""
        activity = self.context.activity
        activity.now("loads weights", f"step {step}")
        begin, before = time.perf_counter(), self.syncs.before(step)
        self.version = self.syncs.begin(step, self._check)
        waited = time.perf_counter() - begin
        self.weights.update_to(self.version, self._check)
        self.weights.wait_seconds += waited
        activity.now("evaluates", f"step {step}")
        evaluate_seconds = self.interim.of_version(self.version, before)
        begin = time.perf_counter()
        activity.now("answers and rewards", f"step {step}")
        journal = Journal(journal_file(self.context.directory, STEP, step), {
            "stage": self.context.id, "step": step, "weights": self.weights.hash}, self.context.log.warning)
        newer = NextWeights(self.weights, self.syncs, step, journal) if self.continues else None
        self.prompts.kept = Kept(self.context.directory / f".shown-{step}", self.unshown)
        filled = self.groups.of_step(step, journal, newer)
        self.groups.rollout_seconds -= self.weights.ahead_seconds
        with self.prompts.rewards.judged_by(self.engine, self.tokenizer):
            self.watched = self.watch.scores(filled, partial(self._attempt, step))
        if self.in_turns and self.schedule.last_with_same_weights(step) == step:
            self.weights.sleep()  # before the files appear: they signal to the trainer that the device is free
        self.routings, self.shown = {}, set()
        rows, calls, tool_calls = self._rows(step, filled)
        other_seconds = time.perf_counter() - begin - self.groups.rollout_seconds - self.weights.ahead_seconds
        rollout = self._record(step, filled, rows, other_seconds, evaluate_seconds)
        self.started = {}
        chosen = self.groups.selections.rows(step, filled.every, self.context.id)
        shown = partial(self.prompts.kept.write, self.context.directory, step, self.shown)
        self.writer.start(self._write, step, rows, calls, tool_calls, chosen, rollout, journal, self.routings, shown)
        return rollout

    def _await_trainer(self) -> None:
        """Waits for a trainer on this device, until it has its memory or admits engines (stages/device_sharing.py)."""
        if self.colocated:
            wait_for(self.context.directory / TOTAL, self.context.config.synchronizer.sync_timeout,
                     "the trainer to start", self.context.directory / "trainer.log", self.context.activity.alive)

    def _check(self) -> None:
        """Called while it waits for weights."""
        self.writer.check()
        self.context.activity.alive()

    def _record(self, step: int, filled: Filled, rows: list[records.Experience], other_seconds: float,
                evaluate_seconds: float) -> records.Rollout:
        weights, resampled = self.weights, filled.rounds is not None
        cut = [row for row in rows if row.slot < self.schedule.rows_per_explorer_step]
        return records.Rollout(
            stage=self.context.id, step=step, weights_version=self.version, rows=len(cut),
            attempts=self.schedule.rows_per_explorer_step,
            failed_rows=sum(row.status not in ("ok", "no_variance", NOT_PLAYED) for row in cut),
            tokens=sum(len(row.response_tokens) for row in rows),
            rollout_seconds=self.groups.rollout_seconds, tail_seconds=self.groups.tail_seconds,
            sync_seconds=weights.sync_seconds, probe_max_difference=weights.difference, other_seconds=other_seconds,
            evaluate_seconds=evaluate_seconds, wait_seconds=weights.wait_seconds, resample_rounds=filled.rounds,
            resampled_groups=len(filled.replaced) if resampled else None, missing_groups=filled.missing,
            late_groups=len(filled.late) if self.context.config.explorer.over_rollout.ratio else None,
            newest_version=weights.version if self.continues else None,
            watch_reward=fmean(self.watched.values()) if self.watched else None,
            start=[*self.started.items()] or None,
        )

    def _rows(self, step: int, filled: Filled
              ) -> tuple[list[records.Experience], list[records.Call], list[records.ToolCall]]:
        """Every turn of every attempt: first the rows that train batches use, by place, then the rest. And what those
        attempts asked the model and their tools."""
        runs = range(self.context.config.algorithm.repeat_times)
        made = [(group, run, group.sampled[run]) for group in filled.final for run in runs]
        made += [(group, run, group.sampled[run]) for group in filled.aside for run in runs]
        made += [(group, len(runs), group.greedy) for group in filled.every if group.greedy]
        return ([self._row(step, slot, *attempt, *turn)
                 for slot, attempt in enumerate(made) for turn in attempt[2].turns],
                [self._call(step, slot, group, run, call)
                 for slot, (group, run, outcome) in enumerate(made) for call in outcome.calls],
                [records.ToolCall(self._attempt(step, group, run), self.context.id, step, slot, place, **asdict(one))
                 for slot, (group, run, outcome) in enumerate(made) for place, one in enumerate(outcome.tool_calls)])

    def _write(self, step: int, rows: list[records.Experience], calls: list[records.Call],
               tool_calls: list[records.ToolCall], chosen: list[records.Selection], rollout: records.Rollout,
               journal: Journal, routed: dict[str, np.ndarray], shown: partial) -> None:
        """Writes a step's files, `rollouts` last: readers take it as the sign that the others are complete."""
        directory = self.context.directory
        self.weights.flusher.finish()
        if calls:
            tables.write(tables.step_file(directory, "calls", step), records.Call, calls)
        if tool_calls:
            tables.write(tables.step_file(directory, "tool_calls", step), records.ToolCall, tool_calls)
        shown()
        routings.write(directory, step, routed)
        tables.write(tables.step_file(directory, "experience", step), records.Experience, rows)
        attempts = list({row.slot: row for row in rows}.values())  # an attempt counts once, however many turns it had
        check_failures(attempts, self.context.config.explorer.max_failed_ratio)
        if self.curation:
            tables.write(tables.step_file(directory, "curated", step), records.Curated, self.curation.of_step(rows))
        if self.groups.selections.explains:
            tables.write(tables.step_file(directory, "selection", step), records.Selection, chosen)
        tables.write(tables.step_file(directory, "rollouts", step), records.Rollout, [rollout])
        journal.remove()
        if step < self.schedule.explorer_steps:  # only now: an interrupted step needs its weights again
            self.weights.forget_before(self.syncs.kept(step, rollout.weights_version))

    def _row(self, step: int, slot: int, group: Group, run: int, outcome: Outcome, turn: int | None,
             done: Trajectory | None, response: str) -> records.Experience:
        """Returns the row of one turn of an attempt: its number (None for a single turn), trajectory and text."""
        task, greedy = group.task, outcome is group.greedy
        sampling = self.groups.sampling_of(task, greedy)
        attempt = self._attempt(step, group, run)
        prompt = done.prompt_tokens if done else self.prompts.tokens[task]  # a workflow may have built its own prompt
        own, (pictures, collapsed) = prompt != self.prompts.tokens[task], self._seen(task, done, prompt)
        version = self._oldest(done and done.versions)
        name = attempt if turn is None else f"{attempt}/{turn}"
        role = done.role if done else None
        reward, components = reward_of(outcome, role)
        if done and done.experts is not None:
            self.routings[name] = done.experts
        return records.Experience(
            experience_id=name, stage=self.context.id, step=step,
            taskset=self.prompts.set_of(task).name, slot=slot, task_id=self.prompts.tasks[task].task_id,
            group_id=f"{step}/{group.name}", run_index=run, resample_round=group.round, turn=turn or 0,
            state_hash=files.hash_text(done.state) if done and done.state is not None else None,
            step_reward=done.reward if done else None,
            prompt=self.tokenizer.decode(collapsed) if own else self.prompts.texts[task], response=response,
            prompt_tokens=prompt, response_tokens=done.response_tokens if done else [],
            rollout_logprobs=done.logprobs if done else [],
            action_mask=done.action_mask if done else [], reward=reward,
            reward_components=list(components.items()), accuracy=outcome.accuracy, status=outcome.status,
            reason=outcome.reason, finish_reason=done.finish_reason if done else None,
            weights_version=version, weights_hash=self.weights.hashes[version], config_hash=self.context.identity,
            prompt_hash=prompt_hash(prompt) if own else self.prompts.hashes[task], commit=commit(),
            engine=self.engine.version, temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k,
            seed=group.greedy_seed if greedy else group.seeds[run], unix_seconds=time.time(), notes=outcome.noted,
            weights_versions=done.versions if done else None, min_p=sampling.min_p,
            kept_tokens=done.kept.lists() if done and done.kept else None,
            token_rewards=outcome.token_rewards if done is outcome.trajectory else None,
            watch_reward=self.watched.get(attempt), role=role,
            pictures=[one.hash for one in pictures] if pictures or self.prompts.pictures[task] else None,
        )

    def _seen(self, task: int, done: Trajectory | None, prompt: list[int]) -> tuple[tuple[Picture, ...], list[int]]:
        """The images of a row, and its prompt with a mark for each; those of agents join the step's."""
        own = self.prompts.pictures[task]
        shown = own if not done or done.pictures is None else done.pictures
        self.shown |= {one.hash for one in {*shown} - {*own}}
        sight = sight_of(self.tokenizer.name_or_path) if done and done.pictures else None
        return shown, sight.collapsed(prompt, shown) if sight else prompt

    def _oldest(self, sampled: list[int | None] | None) -> int:
        """The oldest of the versions that sampled tokens; without any, that which the step began with."""
        known = [version for version in sampled or () if version is not None]
        return min(known, default=self.version)

    def _attempt(self, step: int, group: Group, run: int) -> str:
        return f"{self.context.id}/{step}/{group.name}/{run}"

    def _call(self, step: int, slot: int, group: Group, run: int, call: Call) -> records.Call:
        request, reply = call.request, call.reply
        return records.Call(
            attempt=self._attempt(step, group, run), stage=self.context.id, step=step, slot=slot,
            position=call.position, prompt_hash=prompt_hash(request.prompt_tokens),
            prompt_length=len(request.prompt_tokens), tokens=reply.tokens, logprobs=reply.logprobs,
            finish_reason="stop" if reply.finish_reason == STOP_TEXT else reply.finish_reason,
            weights_version=self._oldest(reply.versions),
            temperature=request.temperature, top_p=request.top_p, top_k=request.top_k, seed=request.seed,
            seconds=call.seconds, weights_versions=reply.versions,
            **({} if call.origin is None else asdict(call.origin)),
        )


def read_tasks(context: Context) -> tuple[TaskSets, Schedule]:
    """The training sets with their tasks, and the schedule of an explorer with a trainer, or without one."""
    config = context.config
    sets = read_train(context.inputs["tasks"], config.buffer.explorer_input)
    schedule = rollout_schedule if config.mode == "explore" else rft_schedule
    return sets, schedule(config, sum(len(tasks) for _, tasks in sets)).until(context.until)


def explore(context: Context) -> None:
    first = max(tables.steps_present(context.directory, "rollouts"), default=0) + 1  # steps are completed in order
    forget_before(context.directory, first)
    sets, schedule = read_tasks(context)
    if context.config.mode == "explore":
        files.write_json(context.directory / TOTAL, {"total_steps": schedule.explorer_steps})
    if first > schedule.explorer_steps:
        context.log.info("all explorer steps are complete")
        return
    model = checkpoints.model_directory(context.inputs["model"])
    with begin_engines(model, context.config, context.directory) as begun:
        import_light()
        with opening():
            explorer = Explorer(context, sets, schedule, begun)
        engine = explorer.engine
        said = "is asked" if context.config.explorer.rollout_model.engine_type == "openai" else "ready"
        context.log.info("%d x %s %s; starts at explorer step %d", engine.number, engine.version, said, first)
        for step in range(first, schedule.explorer_steps + 1):
            rollout = explorer.step(step)
            context.log.info(
                "step %d: weights %d, %s, %d tokens in %.2f s, sync %.3f s, waited %.2f s",
                step, rollout.weights_version, row_words(rollout), rollout.tokens, rollout.rollout_seconds,
                rollout.sync_seconds, rollout.wait_seconds,
            )
        context.activity.now("ends")
        explorer.writer.finish()
        engine.close()


if __name__ == "__main__":
    run_child(explore, "explorer", __doc__)
