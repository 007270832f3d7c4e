"""Settings about data: tasksets, their formats, demonstrations, curation. See pipeline/settings/config.py."""

import re
from functools import cached_property
from typing import Any

from ouroboros.pipeline.settings import declared
from ouroboros.pipeline.settings.arguments.base import problems
from ouroboros.pipeline.settings.setting import Section, rule, section, setting
from ouroboros.pipeline.store.errors import Problem

WORKFLOWS, REWARDS = tuple(declared.WORKFLOWS), tuple(declared.REWARDS)
RETRY = "retry_workflow"  # of workflows/retry.py
SELECTORS = declared.SELECTORS
PRIORITIES = tuple(declared.PRIORITIES)
COLUMNS = ("question", "answer", "solution", "context", "chosen", "rejected")  # texts that curation sees

INPUT, PIPELINE = "buffer.explorer_input", "data_processor.task_pipeline"
SHOWN, EXPERTS = "buffer.trainer_input.experience_buffer", "buffer.trainer_input.auxiliary_buffers"
# a feature key that names what an earlier stage measured, in place of a column of records
PROFILED = re.compile(r"stages\.(.+)\.(avg_at_k|pass_at_k)")
PATH = ("jsonl or parquet file, a list of them, a directory of them, a dataset of save_to_disk, or one of the Hugging "
        "Face hub, hf://datasets/org/name[@revision][/file or pattern], or tasks of a package, PACKAGE://tasks")


class Format(Section):
    """Where a record has what. A key may lead into structs: `reward_model.ground_truth`."""

    prompt_type: str = setting("plaintext", "form of the prompt; plaintext: text under prompt_key; messages: a list of "
                                            "{role, content}",
                               choices=("plaintext", "messages"))
    prompt_key: str = setting("question", "key of the prompt")
    messages_key: str | None = setting(None, "key of the conversation with prompt_type=messages, a list or its JSON "
                                             "text; null: prompt_key")
    image_key: str | None = setting(None, "key of the prompt's images, one or a list: bytes, a data URI, {bytes, "
                                          "path}, or a file below the data's directory; they stand for <image> in "
                                          "its texts, or come before the last one; null: those in messages alone")
    tools_key: str | None = setting("tools", "key of the tools that the chat template is given, a list in OpenAI's "
                                             "form or its JSON text; may be absent; null: none")
    system_prompt_key: str | None = setting(None, "key of the row's system message with prompt_type=plaintext; null or "
                                                  "absent in a row: system_prompt")
    system_prompt: str | None = setting(None, "system message of every row with prompt_type=plaintext; null: "
                                              "buffer.explorer_input.system_prompt")
    response_key: str = setting("answer", "key of the truth that the reward function is given; what is no text, as "
                                          "JSON")
    solution_key: str | None = setting("solution", "key of a demonstrated response next to the truth; may be absent")
    chosen_key: str | None = setting("chosen", "key of the preferred response of a pair, text or messages; may be "
                                               "absent")
    rejected_key: str | None = setting("rejected", "key of the other response of a pair; may be absent")
    margin_key: str | None = setting(None, "key of a number, by how much the chosen response of a pair is better, at "
                                           "least 0; of pairs that train a reward model; null: 0")
    unsupported: str = setting("error", "what happens to Harbor tasks that cannot run here: error, or skip, by which "
                                        "they are rejected rows with a reason", choices=("error", "skip"))

    @rule
    def _of_prompt_type(self):
        for name in ("system_prompt", "system_prompt_key"):
            if self.prompt_type == "messages" and getattr(self, name) is not None:
                yield Problem(name, "messages have their system turn themselves; it goes with prompt_type=plaintext.",
                              f"For every prompt that has none: {INPUT}.system_prompt.")
        if self.prompt_type != "messages" and self.messages_key is not None:
            yield Problem("messages_key", "read only with prompt_type=messages.", found=self.messages_key)


class TaskFormat(Format):
    """The same for tasks; a record may say how it is attempted."""

    workflow_key: str | None = setting(None, "key of the workflow that answers the row, one of ours; null or empty in "
                                             "a row: that of its set")
    reward_fn_key: str | None = setting(None, "key of the row's reward function, one of ours, or a list of them; null "
                                              "or empty in a row: that of its set")
    reply_prefix: str | None = setting(None, "text that every reply begins with: the end of the prompt, and no part of "
                                             "the response; of workflows with one reply")

    @rule
    def _one_reply(self):
        if self.reply_prefix and self.workflow_key:
            yield Problem("reply_prefix", "begins the only reply of an attempt, and by workflow_key a row may have "
                          "several.", "Leave out one of the two.", found=self.reply_prefix)


class BufferFormat(Format):
    """The same for demonstrations and pairs."""

    prompt_key: str = setting("prompt", "key of the prompt")
    response_key: str | None = setting(
        "response", "key of the demonstrated response, text or messages; not needed where messages end with one, nor "
                    "beside chosen and rejected; null: the prompt is plain text to train on whole (cpt, which never "
                    "reads it)")
    truth_key: str | None = setting("answer", "key of the task's truth, next to a demonstration or a pair, which "
                                              "operators of task_pipeline may judge; may be absent: the response "
                                              "stands for it")
    enable_concatenated_multi_turn: bool = setting(
        False, "train on every assistant turn of a conversation, not on the last alone; of sft on messages, and "
               "on the demonstrations of a generator of conversations")


def format_of(purpose: str) -> type[Format]:
    """Returns the format of rows that are read as tasks, demonstrations or texts."""
    return TaskFormat if purpose == "task" else BufferFormat


class RolloutArgs(Section):
    """How responses to a set are sampled."""

    acts = "explorer"
    temperature: float | None = setting(
        None, "sampling temperature of this set, at which the trainer scores its rows; null: model.temperature. 0, the "
              "likeliest tokens: evaluation sets alone", ge=0)
    top_p: float | None = setting(None, "nucleus sampling bound of this set; null: model.top_p", gt=0, le=1)
    top_k: int | None = setting(None, "number of likeliest tokens to sample from for this set; null: model.top_k",
                                ge=-1)
    min_p: float | None = setting(None, "least probability of a token to sample for this set, as a share of the "
                                        "likeliest one's; null: model.min_p", ge=0, le=1)
    max_tokens: int | None = setting(None, "longest reply to a task of this set, tokens, at most "
                                           "model.max_response_tokens; null: that", ge=1)


class DataSelector(Section):
    """The order of a taskset that is trained on."""

    selector_type: str = setting("shuffle", "order of the tasks: " + "; ".join(
        f"{name}: {selector.summary()[0].lower()}{selector.summary()[1:].rstrip('.')}"
        for name, selector in SELECTORS.items()), choices=tuple(SELECTORS))
    seed: int | None = setting(None, "seed of what is drawn; null: the run's seed", ge=0)
    feature_keys: list[str] = setting([], "keys of numbers in a record, or stages.NAME.avg_at_k or pass_at_k of an "
                                          "earlier stage with mode=explore (offline_easy2hard, difficulty_based)")
    kwargs: dict[str, Any] = setting({}, "arguments of the selector")

    @rule
    def _of_selector(self):
        name, keys = self.selector_type, self.feature_keys
        if name not in SELECTORS:
            return
        least, most = SELECTORS[name].feature_keys
        yield from problems("kwargs", name, [SELECTORS[name]], self.kwargs)
        if len(keys) != len(set(keys)) or not all(keys):
            yield Problem("feature_keys", "needed each key once.", found=keys)
        elif most == 0 and keys:
            readers = " and ".join(other for other, one in SELECTORS.items() if one.feature_keys != (0, 0))
            yield Problem("feature_keys", f"selector_type={name} reads none.", f"{readers} do.", found=keys)
        elif not least <= len(keys) <= (len(keys) if most is None else most):
            yield Problem("feature_keys", f"selector_type={name} needs {least}{' or more' * (most is None)}.",
                          found=keys)

    @property
    def reads_features(self) -> bool:
        """Whether the selector needs numbers under feature_keys."""
        return SELECTORS[self.selector_type].feature_keys != (0, 0)

    @property
    def reads_rates(self) -> bool:
        """Whether the selector reads the experience of earlier steps."""
        return SELECTORS[self.selector_type].reads_rates


class Rows(Section):
    """A source of rows."""

    path: Any = setting(None, PATH)
    source_args: dict[str, Any] = setting({}, "arguments of a path PACKAGE://tasks: size (number of different tasks; "
                                              "null: all), seed, and those of the generator (docs/tasks.md)")
    storage_type: str = setting("file", "how the rows are stored", choices=("file",))
    subset_name: str | None = setting(None, "sub-directory of path")
    split: str = setting("train", "the split to read where directories tell splits apart; a file is read whole; of "
                                  "tasks of a package: train, test (one in ten, by its question) or all")
    format: Format = section(Format)

    @rule
    def _files(self):
        names = [self.path] if isinstance(self.path, str) else self.path
        if self.path is None:
            standard = type(self).model_fields["format"].annotation()
            own = [f"format.{name}" for name, value in self.format
                   if value != getattr(standard, name) and not name.startswith("enable_")]
            for name in own + [one for one in ("subset_name", "source_args") if getattr(self, one)]:
                yield Problem(name, f"read only with a path; without one the rows are those of {PIPELINE}, whose "
                              f"format is {PIPELINE}.format.")
        elif not isinstance(names, list) or not names or not all(isinstance(n, str) and n for n in names):
            yield Problem("path", "needed a path, or a list of paths.", found=self.path)
        elif not re.fullmatch(r"\w[\w.-]*", self.split):
            yield Problem("split", "needed the name of a split, such as train; for the first rows of one set limit.",
                          found=self.split)


class Taskset(Rows):
    name: str = setting("taskset", "name of the set in tables and metrics")
    path: Any = setting(None, f"{PATH}; null: the curated rows of data_processor.task_pipeline, of its split")
    split: str = setting("train", "split to read; with a path: where directories tell splits apart (a file is read "
                                  "whole), of tasks of a package train, test (one in ten, by its question) or all; "
                                  "without: train or test")
    format: TaskFormat = section(TaskFormat)
    repeat_times: int | None = setting(None, "sampled responses per task, eval sets only; null: 1", ge=1)
    limit: int | None = setting(None, "number of tasks to use, the first ones; null: all", ge=1)
    data_selector: DataSelector = section(DataSelector)
    rollout_args: RolloutArgs = section(RolloutArgs)
    default_workflow_type: str | None = setting(None, "workflow of this set; null: that of explorer_input",
                                              names=WORKFLOWS, acts="explorer")
    workflow_args: dict[str, Any] = setting({}, "arguments of the workflow", acts="explorer")
    default_reward_fn_type: str | list[str] | None = setting(
        None, "reward function of this set; null: explorer_input.default_reward_fn_type", names=REWARDS,
        acts="explorer")
    reward_fn_args: dict[str, Any] = setting({}, "arguments of the reward functions: each takes those that it has; "
                                                 "${column:NAME} is a column of the record", acts="explorer")
    columns: list[str] = setting([], "columns of the record that are kept with its tasks, besides those that its "
                                     "functions take by the names of their parameters; *: all")

    @rule
    def _of_the_pool(self):
        if self.path is None and self.split not in ("train", "test"):
            yield Problem("split", f"without a path a set has the curated rows of {PIPELINE}; needed train or test.",
                          found=self.split)


class ExplorerInput(Section):
    default_workflow_type: str = setting("simple_workflow", "name in workflows/, or module:function", names=WORKFLOWS,
                                         acts="explorer")
    default_eval_workflow_type: str | None = setting(None, "workflow of the evaluation sets; null: "
                                                           "default_workflow_type",
                                                     names=WORKFLOWS)
    system_prompt: str | None = setting(None, "system message put before every prompt that has none", acts="explorer")
    default_reward_fn_type: str | list[str] = setting(
        "countdown_reward", "name in operators/reward.py, overlong_penalty, reward_model, judge_reward, or "
                            "module:function; the components of several in a list are summed", names=REWARDS,
                            acts="explorer")
    taskset: Taskset = section(Taskset)
    tasksets: list[Taskset] = setting([], "several sets to train on, in place of taskset, mixed in proportion to size")
    eval_tasksets: list[Taskset] = setting([], "held-out sets; every training stage's model is evaluated on each")

    @cached_property
    def train_places(self) -> list[tuple[str, Taskset]]:
        """Returns (place below buffer.explorer_input, settings) of every training set."""
        several = [(f"tasksets.{i}", taskset) for i, taskset in enumerate(self.tasksets)]
        return several or [("taskset", self.taskset)]

    @cached_property
    def eval_places(self) -> list[tuple[str, Taskset]]:
        """Does the same for every evaluation set."""
        return [(f"eval_tasksets.{i}", taskset) for i, taskset in enumerate(self.eval_tasksets)]

    @cached_property
    def places(self) -> list[tuple[str, Taskset]]:
        """Does the same for every set of tasks."""
        return [*self.train_places, *self.eval_places]

    @rule
    def _one_or_several(self):
        """A `taskset` together with `tasksets` may only have a name (recipes set one): the rest would be ignored."""
        given = [name for name in ("path", "limit", "subset_name", "repeat_times", "default_workflow_type",
                                   "default_reward_fn_type", "workflow_args", "reward_fn_args")
                 if getattr(self.taskset, name)]
        given += [name for name in ("format", "data_selector")
                  if getattr(self.taskset, name) != getattr(Taskset(), name)]
        if self.tasksets and given:
            yield Problem("taskset", f"(sets {', '.join(given)}) excludes {INPUT}.tasksets.", "Move it into the list.")

    @rule
    def _names(self):
        for what in ("taskset", "tasksets", "eval_tasksets"):
            sets = getattr(self, what)
            names = [one.name for one in (sets if isinstance(sets, list) else [sets])]
            if len(set(names)) < len(names):
                yield Problem(what, f"are named {', '.join(names)}: rows and scores are identified by name, so needed "
                              "names that differ.")
            if not all(name.strip() for name in names):
                yield Problem(what, "needed a name of each, found an empty one.")
        for place, one in {"": self, "taskset.": self.taskset}.items():
            given = one.default_reward_fn_type
            if isinstance(given, list) and len(set(given)) < len(given):
                yield Problem(f"{place}default_reward_fn_type", "needed each function once: their components are added "
                              "up.", found=given)

    @rule
    def _whole(self):
        for i, one in enumerate(self.eval_tasksets):
            if one.data_selector != DataSelector():
                yield Problem(f"eval_tasksets.{i}.data_selector", "an eval set is answered whole, in the order of its "
                              "file.", "Leave it out.")


class ReplayBuffer(Section):
    """Rollouts that are trained on again, in addition to new ones."""

    enable: bool = setting(False, "train on rollouts again")
    replay_ratio: float = setting(0.5, "share of a train batch that was trained on before, rounded down to whole "
                                       "groups; no key of the guide, whose explorer and trainer go by no schedule",
                                  gt=0)
    priority_fn: str = setting("linear_decay", "name in operators/priority.py: which groups come first",
                               choices=PRIORITIES)
    priority_fn_args: dict[str, Any] = setting({}, "arguments of priority_fn, merged over its own defaults")
    reuse_cooldown_time: int = setting(
        1, "trainer steps from one use of a group to its next (1: the very next step may; the guide counts seconds, "
           "by which no run could be repeated)", ge=1)


class Demonstrated(Rows):
    """Demonstrations or pairs."""

    format: BufferFormat = section(BufferFormat)

    @rule
    def _has_turns(self):
        if self.path is not None and self.format.enable_concatenated_multi_turn and (
                self.format.prompt_type == "plaintext"):
            yield Problem("format.enable_concatenated_multi_turn", "a plain prompt is one turn.",
                          "Set prompt_type=messages, or leave it out.", found=True)


class ExperienceBuffer(Demonstrated):
    name: str = setting("experience_buffer", "name of the buffer in tables")
    path: Any = setting(None, f"{PATH}: demonstrations (sft) or pairs (preference training); null: the curated rows of "
                              "data_processor.task_pipeline. mode=train of an algorithm that learns from rollouts, "
                              "without a stage before it that explored: a directory of ouro serve --record")
    held_out_ratio: float = setting(
        0.1, "share of the prompts, by hash, whose pairs reward_model does not train on: how often it scores their "
             "chosen response higher is measured after the training (metric pair_accuracy)", ge=0, le=0.5)
    replay_buffer: ReplayBuffer = section(ReplayBuffer)


class AuxiliaryBuffer(Demonstrated):
    """Demonstrations for sample_strategy mix."""

    path: Any = setting(None, f"{PATH}; null: the curated demonstrations of data_processor.task_pipeline")


class TrainerInput(Section):
    experience_buffer: ExperienceBuffer = section(ExperienceBuffer)
    auxiliary_buffers: dict[str, AuxiliaryBuffer] = setting(
        {}, "buffers by name; sample_strategy_args.sft_dataset_name says which one the strategy mix takes rows from")


def workflow_of(taskset: Taskset, explorer_input: ExplorerInput, place: str) -> str:
    """Returns the workflow for the tasks of a set. place: as in train_places and eval_places."""
    of_all = explorer_input.default_workflow_type
    if place.startswith("eval_"):
        of_all = explorer_input.default_eval_workflow_type or of_all
    return taskset.default_workflow_type or of_all


def turns_of(taskset: Taskset, explorer_input: ExplorerInput, place: str) -> int:
    """Returns the most rows of an attempt at a task of a set that settings imply: a user's workflow counts as one."""
    steps = taskset.workflow_args.get("max_env_steps", declared.WORKFLOWS[RETRY].model_fields["max_env_steps"].default)
    return steps if workflow_of(taskset, explorer_input, place) == RETRY and type(steps) is int else 1


def reward_functions(taskset: Taskset, explorer_input: ExplorerInput) -> list[str]:
    """Returns the reward functions of a task set: its own, else those of the section explorer_input."""
    chosen = taskset.default_reward_fn_type or explorer_input.default_reward_fn_type
    return [chosen] if isinstance(chosen, str) else chosen


def profiled(key: str) -> tuple[str, str] | None:
    """Returns stage and column of the table profile that a feature key names; None: it names a column of records."""
    found = PROFILED.fullmatch(key)
    return (found[1], found[2]) if found else None
