"""The scorer of a stage with mode=score: computes the rewards of stored responses again.

An attempt is rewarded by its last turn, as when it was made: by the tokens that the model sampled, without those of the
environment. What an agent returned as its answer, or as its reward, is not stored: its last reply counts instead.
Attempts that have no response keep their status and reason.
"""

import time
from collections.abc import Iterable
from dataclasses import replace

from ouroboros.pipeline.job.context import TOTAL, Context, commit
from ouroboros.pipeline.job.tasksets import read_train
from ouroboros.pipeline.settings.arguments.answers import tool_arguments
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.store import checkpoints, files, records, tables
from ouroboros.pipeline.store.errors import ConfigError, DataError
from ouroboros.pipeline.store.pictures import link, named
from ouroboros.stages.curation import curation_of
from ouroboros.stages.explorer.children import run_child
from ouroboros.stages.explorer.groups import set_baseline
from ouroboros.stages.explorer.watched_rewards import WatchedRewards
from ouroboros.workflows.protocol.hugging_face import import_light
from ouroboros.workflows.protocol.outcomes import REWARDED, Outcome, check_failures, decode
from ouroboros.workflows.protocol.prompts import load_tokenizer
from ouroboros.workflows.protocol.trajectory import Trajectory
from ouroboros.workflows.rewards import add_own_rewards

SCORED = (*REWARDED, "reward_failed")  # statuses of attempts that have a response to reward

Attempts = dict[int, list[records.Experience]]  # slot -> rows of an attempt, by turn


class Scorer:
    """Tasks and reward functions of all sets, opened once."""

    def __init__(self, context: Context):
        self.context, config = context, context.config
        self.source = context.inputs["experience"]
        self.tokenizer = load_tokenizer(checkpoints.model_directory(context.inputs["model"]), config.model)
        self.opener = WatchedRewards(config, context.activity, context.directory)
        sets = read_train(context.inputs["tasks"], config.buffer.explorer_input)
        self.tasks = {one.name: {task.task_id: task for task in tasks} for one, tasks in sets}
        self.rewards = {one.name: {task.task_id: functions for task, functions in zip(
            tasks, self.opener.by_task(one, tasks), strict=True)} for one, tasks in sets}
        for one, _ in sets:
            workflow = at(one, "default_workflow_type") or at(config, "buffer.explorer_input.default_workflow_type")
            if tool_arguments(workflow, one.workflow_args)["environment_class"]:
                context.log.warning("set %s: the reward of its environment is replaced by the reward functions of this "
                                    "stage, which see the last reply", one.name)
        explored = files.read_json(self.source / "stage.json")["config"]["algorithm"]
        tasks = [task for _, of_set in sets for task in of_set]
        self.curation = curation_of(config, explored["repeat_times"], tasks)
        self.greedy = explored["repeat_times"] if explored["greedy_baseline"] else None  # its run_index

    def step(self, step: int) -> records.Rollout:
        """Rewards the attempts of one explorer step, and writes its files, `rollouts` last."""
        self.context.activity.now("rewards", f"step {step}")
        begin = time.perf_counter()
        rows = self.rewarded(self.read(step))
        made = self.record(step, rows, begin)
        link(self.source, self.context.directory, step)
        tables.write(tables.step_file(self.context.directory, "experience", step), records.Experience, rows)
        check_failures([turns[0] for turns in _by_slot(rows).values()], self.context.config.explorer.max_failed_ratio)
        if self.curation:
            tables.write(tables.step_file(self.context.directory, "curated", step), records.Curated,
                         self.curation.of_step(rows))
        tables.write(tables.step_file(self.context.directory, "rollouts", step), records.Rollout, [made])
        return made

    def read(self, step: int) -> list[records.Experience]:
        """The rows of an explorer step as they are stored."""
        stored = tables.read(tables.step_file(self.source, "experience", step), records.Experience).to_pylist()
        if role := next((row["role"] for row in stored if row["role"]), None):
            raise DataError(f"{self.source.name} has rows of several players (role {role}), whose rewards are their "
                            "workflow's and not of reward functions alone: they cannot be made again. Explore anew.")
        return [records.Experience(**row) for row in stored]

    def rewarded(self, stored: list[records.Experience]) -> list[records.Experience]:
        """The rows of an explorer step with the rewards of this stage."""
        attempts = _by_slot(stored)
        outcomes = {slot: self._outcome(rows) for slot, rows in attempts.items()}
        self._reward(attempts, outcomes)
        self._set_baselines(attempts, outcomes)
        return [self._row(row, outcomes[row.slot], row is turns[-1]) for turns in attempts.values() for row in turns]

    def _outcome(self, rows: list[records.Experience]) -> Outcome:
        """An attempt before it is rewarded, by the row of its last turn, with the images of all."""
        last, seen = rows[-1], {one: None for row in rows for one in row.pictures or ()}
        if last.status not in SCORED or not last.response_tokens:
            return Outcome(last.status, last.reason)
        return Outcome("ok", trajectory=Trajectory(
            last.prompt_tokens, last.response_tokens, last.rollout_logprobs, last.action_mask, last.finish_reason,
            pictures=named(seen, self.context.inputs["tasks"])))

    def record(self, step: int, rows: list[records.Experience], begin: float) -> records.Rollout:
        """The record of an explorer step whose rewards began at `begin` (time.perf_counter)."""
        (stored,) = tables.read(tables.step_file(self.source, "rollouts", step), records.Rollout).to_pylist()
        return replace(
            records.Rollout(**stored), stage=self.context.id, rollout_seconds=0.0, tail_seconds=None, sync_seconds=0.0,
            evaluate_seconds=0.0, wait_seconds=0.0, probe_max_difference=None,
            other_seconds=time.perf_counter() - begin, failed_rows=sum(
                row.status not in ("ok", "no_variance") for row in rows if row.slot < stored["attempts"]))

    def _reward(self, attempts: Attempts, outcomes: dict[int, Outcome]) -> None:
        """Applies to each response the reward functions of its task's set."""
        scored = {slot: outcome for slot, outcome in outcomes.items() if outcome.status == "ok"}
        decode(list(scored.values()), self.tokenizer)
        for name in {rows[0].taskset for rows in attempts.values()}:
            if name not in self.rewards:
                raise ConfigError(f"{self.source.name} explored a task set '{name}', and this stage has "
                                  f"{', '.join(self.rewards)}; needed reward functions for it: a set of that name.")
            slots = [slot for slot in scored if attempts[slot][0].taskset == name]
            tasks = [self.tasks[name][attempts[slot][0].task_id] for slot in slots]
            add_own_rewards([scored[slot] for slot in slots], tasks, [
                self.rewards[name][task.task_id] for task in tasks], [attempts[slot][0].group_id for slot in slots],
                self.context.config)

    def _set_baselines(self, attempts: Attempts, outcomes: dict[int, Outcome]) -> None:
        """Marks greedy responses as the baselines of their groups."""
        groups: dict[str, dict[int, Outcome]] = {}
        for slot, rows in attempts.items():
            groups.setdefault(rows[0].group_id, {})[rows[0].run_index] = outcomes[slot]
        for group in groups.values() if self.greedy is not None else ():
            if greedy := group.pop(self.greedy, None):
                set_baseline(list(group.values()), greedy)

    def _row(self, row: records.Experience, outcome: Outcome, is_last: bool) -> records.Experience:
        return replace(
            row, stage=self.context.id, experience_id=self.context.id + row.experience_id.removeprefix(row.stage),
            reward=outcome.reward, reward_components=list(outcome.components.items()), accuracy=outcome.accuracy,
            status=outcome.status, reason=outcome.reason, config_hash=self.context.identity, commit=commit(),
            notes=outcome.noted, token_rewards=outcome.token_rewards if is_last else None)


def _by_slot(rows: Iterable[records.Experience]) -> Attempts:
    attempts: Attempts = {}
    for row in rows:
        attempts.setdefault(row.slot, []).append(row)
    return attempts


def score(context: Context) -> None:
    import_light()
    total = len(tables.steps_present(context.inputs["experience"], "rollouts"))
    files.write_json(context.directory / TOTAL, {"total_steps": total})
    first = max(tables.steps_present(context.directory, "rollouts"), default=0) + 1  # steps are completed in order
    if first > total:
        return
    scorer = Scorer(context)
    for step in range(first, total + 1):
        rollout = scorer.step(step)
        context.log.info("step %d: %d rows in %.2f s", step, rollout.rows, rollout.other_seconds)
    context.activity.now("ends")


if __name__ == "__main__":
    run_child(score, "scorer", __doc__)
