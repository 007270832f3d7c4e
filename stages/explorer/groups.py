"""The groups of an explorer step: `repeat_times` attempts at each task, with rewards.

Where the algorithm requires it, each task also gets a greedy response whose reward is the baseline of its group, and
groups without a learning signal are replaced (stages/explorer/resample.py).
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.settings.train_batch import groups_of_step
from ouroboros.pipeline.settings.truncation import is_truncated
from ouroboros.stages.explorer.over_rollout import FirstComplete
from ouroboros.stages.explorer.profiles import read_profiles
from ouroboros.stages.explorer.prompts import Prompts
from ouroboros.stages.explorer.resample import Filled, Group, fill
from ouroboros.stages.explorer.selections import Selections
from ouroboros.workflows.attempts.concurrency import concurrency_of
from ouroboros.workflows.attempts.continued import ContinuedEngine, NewerWeights
from ouroboros.workflows.attempts.pace import Pace
from ouroboros.workflows.attempts.recording import Journal
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.protocol.engine import Engine
from ouroboros.workflows.protocol.outcomes import Outcome, Sampling, decode
from ouroboros.workflows.protocol.roles import keep
from ouroboros.workflows.protocol.seeds import base_seed, request_seed
from ouroboros.workflows.rewards import add_own_rewards


class Groups:
    """Generates the groups of a step. rollout_seconds: generation time of the most recent step; tail_seconds: its part
    after 90% of the attempts had ended."""

    def __init__(self, context: Context, prompts: Prompts, engine: Engine, tokenizer, lag: int,
                 written: Callable[[], Any]):
        """lag: explorer steps before this one whose rows may be missing. written: waits for the last step's rows."""
        config, self.activity = context.config, context.activity
        self.config, self.prompts, self.engine, self.tokenizer = config, prompts, engine, tokenizer
        self.selections = Selections(prompts, config, context.directory, lag, written, read_profiles(context.inputs))
        self.answering = engine  # of the attempts; judges ask the engine itself
        self.repeats = config.algorithm.repeat_times
        samplings = {one.name: Sampling.of_set(config.model, one.rollout_args)
                     for _, one in config.buffer.explorer_input.train_places}
        # with what each token was sampled among, for the trainer
        self.samplings = {name: replace(one, keeps=is_truncated(one.top_p, one.top_k, one.min_p))
                          for name, one in samplings.items()}
        self.greedy = config.algorithm.greedy_baseline
        self.concurrency = concurrency_of(config.explorer)  # keeps what it learnt from step to step
        timeout = config.explorer.dynamic_timeout
        self.pace = Pace(timeout.ratio, timeout.warmup_min_steps) if timeout.enable else None
        self.rollout_seconds = self.tail_seconds = 0.0

    def of_step(self, step: int, journal: Journal, newer: NewerWeights | None = None) -> Filled:
        """The groups of an explorer step, a function of step and weights: a repeated step gives the same.

        journal: what its attempts did before a kill, and do now. newer: weights under which answers go on. With these,
        or with over_rollout or dynamic_timeout, it depends on time.
        """
        self.answering = ContinuedEngine(self.engine, newer) if newer else self.engine
        config, self.rollout_seconds, self.tail_seconds = self.config, 0.0, 0.0
        if self.pace:
            self.pace.begin_step()
        chosen = self.selections.of_step(step)
        asked = set(chosen)

        def fresh(round_: int, discarded: list[Group]) -> list[Group]:
            owners = [self.prompts.owner(group.task) for group in discarded]
            tasks = self.selections.fresh(owners, asked, step, round_)
            asked.update(tasks)
            return self._ask(step, round_, [group.place for group in discarded], tasks, journal, len(tasks))[0]

        rounds, metric = config.algorithm.max_resample_rounds or 0, config.algorithm.resample_metric
        taken, late = self._ask(step, 0, list(range(len(chosen))), chosen, journal, groups_of_step(config))
        return fill(taken, rounds, metric, fresh, late)

    def _ask(self, step: int, round_: int, places: list[int], tasks: list[int], journal: Journal,
             needed: int) -> tuple[list[Group], list[Group]]:
        """Attempts tasks, and computes the reward of every response of the groups that the step takes.

        Returns these, the first `needed` to be complete, and the others.
        """
        groups = [self._group(step, round_, place, task) for place, task in zip(places, tasks, strict=True)]
        each = [(group, seed, self.sampling_of(group.task)) for group in groups for seed in group.seeds]
        names = [f"{group.name}/{run}" for group in groups for run in range(self.repeats)]
        if self.greedy:
            each += [(group, group.greedy_seed, self.sampling_of(group.task, True)) for group in groups]
            names += [f"{group.name}/greedy" for group in groups]
        first = FirstComplete([group.place for group, _, _ in each], needed,
                              self.config.explorer.over_rollout.wait_after_min)
        begin, ends = time.perf_counter(), []
        outcomes = roll_out(
            self.answering, [self.prompts.workflow_of(group.task) for group, _, _ in each],
            [self.prompts.tokens[group.task] for group, _, _ in each], [seed for _, seed, _ in each],
            [sampling for _, _, sampling in each], self.concurrency, journal,
            names, lambda progress: self.activity.reached(f"step {step}: {progress}"),
            first.reached if needed < len(groups) else None, ends, self.config.explorer.max_retry_times, self.pace,
            [self.prompts.pictures[group.task] for group, _, _ in each])
        self.rollout_seconds += time.perf_counter() - begin
        self.tail_seconds += tail(ends)
        keep(outcomes, self.config.explorer.trained_roles, step == 1 and not round_)
        taken = first.take(outcomes)
        self._reward([group for group, _, _ in each], outcomes)
        made = []
        for index, group in enumerate(groups):
            sampled = outcomes[index * self.repeats : (index + 1) * self.repeats]
            greedy = outcomes[len(groups) * self.repeats + index] if self.greedy else None
            if greedy and group.place in taken:
                set_baseline(sampled, greedy)
            made.append(replace(group, sampled=sampled, greedy=greedy))
        return [one for one in made if one.place in taken], [one for one in made if one.place not in taken]

    def sampling_of(self, task: int, greedy: bool = False) -> Sampling:
        """How responses to a task are sampled: as its set says."""
        sampled = self.samplings[self.prompts.set_of(task).name]
        whole = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "keeps": False}
        return replace(sampled, temperature=0.0, **whole) if greedy else sampled

    def _group(self, step: int, round_: int, place: int, task: int) -> Group:
        """A group without outcomes, with attempt seeds that are unique to its place, step and round."""
        origin = f"{base_seed(self.config)}/{round_}" if round_ else base_seed(self.config)
        seeds = [request_seed(origin, step, place * self.repeats + run) for run in range(self.repeats)]
        return Group(place, round_, task, seeds, request_seed(f"{origin}/greedy", step, place))

    def _reward(self, asked: list[Group], outcomes: list[Outcome]) -> None:
        """Applies to each response the reward functions of its task."""
        decode(outcomes, self.tokenizer)
        tasks = [self.prompts.tasks[group.task] for group in asked]
        with self.prompts.rewards.judged_by(self.engine, self.tokenizer):
            add_own_rewards(outcomes, tasks, [self.prompts.functions[group.task] for group in asked],
                            [group.name for group in asked], self.config)


def tail(ends: list[float]) -> float:
    """Seconds from the end of 90% of the attempts to that of all. ends: of each, in order."""
    return ends[-1] - ends[math.ceil(0.9 * len(ends)) - 1] if ends else 0.0


def set_baseline(sampled: list[Outcome], greedy: Outcome) -> None:
    """Marks the greedy response of a group as its baseline. When it failed, the group has none and fails too."""
    if greedy.status == "ok":
        greedy.mark("baseline")
        return
    for outcome in sampled:
        if outcome.status == "ok":
            outcome.fail(greedy.status, f"the greedy response to the task, its baseline: {greedy.reason}")
