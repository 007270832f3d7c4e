"""The tasks of all sets of an rft stage, ready to sample: texts, token ids and their hashes."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ouroboros.pipeline.job.activity import Activity
from ouroboros.pipeline.store import records
from ouroboros.pipeline.store.pictures import Kept, named
from ouroboros.workflows.protocol.outcomes import RewardFunction
from ouroboros.workflows.protocol.prompts import prompt_hash, prompt_tokens
from ouroboros.workflows.protocol.sight import with_images
from ouroboros.workflows.rewards import Rewards
from ouroboros.workflows.single_turn import load_workflows
from ouroboros.workflows.task_at_hand import TaskAtHand, bound, unwritable
from ouroboros.workflows.template_rows import task_prompts

TaskSets = list[tuple[Any, list[records.Task]]]  # settings of each training set, and its tasks


@dataclass(frozen=True, eq=False)
class TrainSet:
    """A set by name. begin: number of its first task."""

    name: str
    begin: int


class Prompts:
    """The tasks of all sets, numbered consecutively; texts, token ids and hashes by that number."""

    def __init__(self, config, sets: TaskSets, tokenizer, rewards: Rewards, directory: Path, activity: Activity,
                 curated: Path):
        """config: the settings of the stage, directory: of it, and activity: of its process. curated: of the stage
        whose tasks these are, which has their images."""
        self.config, self.tokenizer, self.rewards = config, tokenizer, rewards
        self.given, source = sets, config.buffer.explorer_input
        self.tasks = [task for _, tasks in sets for task in tasks]
        self.texts, self.unwritable = task_prompts(tokenizer, self.tasks, config)
        self.pictures = [named(task.pictures, curated) for task in self.tasks]
        self.tokens, unseen = with_images(tokenizer, prompt_tokens(tokenizer, self.texts), self.pictures,
                                          activity.alive)
        self.unwritable |= unseen
        self.kept: Kept | None = None  # of a TaskAtHand, in the step that is made
        self.hashes = [prompt_hash(tokens) for tokens in self.tokens]
        self.workflows: list[Callable] = []  # by task, as the reward functions
        self.functions: list[list[RewardFunction]] = []
        self.sets: list[TrainSet] = []
        begin = 0
        for taskset, tasks in sets:
            self.sets.append(TrainSet(taskset.name, begin))
            self.workflows += load_workflows(
                taskset.default_workflow_type or source.default_workflow_type, tasks, taskset.workflow_args,
                config.explorer.max_timeout, directory, activity.calling)
            self.functions += rewards.by_task(taskset, tasks)
            begin += len(tasks)

    def owner(self, task: int) -> int:
        """Index in `sets` of the set that holds this task."""
        return bisect_right(self.sets, task, key=lambda one: one.begin) - 1

    def set_of(self, task: int) -> TrainSet:
        """The set that holds this task."""
        return self.sets[self.owner(task)]

    def workflow_of(self, task: int) -> Callable:
        """The workflow for one attempt at this task."""
        if task in self.unwritable:
            return unwritable(self.unwritable[task])
        return bound(self.workflows[task], lambda: TaskAtHand(
            self.tasks[task], self.functions[task], self.tokenizer, self.config, True, self.pictures[task], self.kept))
