"""Settings about data: tasksets, their formats, demonstrations, curation. See pipeline/settings/config.py."""

from typing import Any

from pipeline.settings import arguments
from pipeline.settings.setting import Section, section, setting

WORKFLOWS, REWARDS = tuple(arguments.WORKFLOWS), tuple(arguments.REWARDS)
PRIORITIES = tuple(arguments.PRIORITIES)
COLUMNS = ("question", "answer", "solution", "context", "chosen", "rejected")  # texts that curation sees

SHOWN, EXPERTS = "buffer.trainer_input.experience_buffer", "buffer.trainer_input.auxiliary_buffers"
PATH = ("jsonl or parquet file, a list of them, a directory of them, a dataset of save_to_disk, or one of the Hugging "
        "Face hub, hf://datasets/org/name[@revision][/file or pattern]")


class Format(Section):
    """Where a record has what. A key may lead into structs: `reward_model.ground_truth`."""

    prompt_type: str = setting("plaintext", "plaintext: text under prompt_key; messages: a list of {role, content}",
                               choices=("plaintext", "messages"))
    prompt_key: str = setting("question", "the prompt")
    messages_key: str | None = setting(None, "prompt_type messages: the conversation, a list or its JSON text; null: "
                                             "under prompt_key")
    system_prompt_key: str | None = setting(None, "plaintext: the row's system message; null or absent in a row: "
                                                  "system_prompt")
    system_prompt: str | None = setting(None, "plaintext: system message of every row; null: "
                                              "buffer.explorer_input.system_prompt")
    response_key: str = setting("answer", "the truth that the reward function is given; what is no text, as JSON")
    solution_key: str | None = setting("solution", "a demonstrated response beside the truth; may be absent")
    chosen_key: str | None = setting("chosen", "the preferred response of a pair, text or messages; may be absent")
    rejected_key: str | None = setting("rejected", "the other response of the pair; may be absent")


class BufferFormat(Format):
    """The same for demonstrations and pairs."""

    prompt_key: str = setting("prompt", "the prompt")
    response_key: str | None = setting(
        "response", "the demonstrated response; not needed where messages end with one, nor beside chosen and "
                    "rejected; null: the prompt is plain text to train on whole (cpt, which never reads it)")
    truth_key: str | None = setting("answer", "the task's truth beside a demonstration or a pair, which operators of "
                                              "task_pipeline may judge; may be absent: the response stands for it")
    enable_concatenated_multi_turn: bool = setting(
        False, "sft on messages: train on every assistant turn of a conversation, not on the last alone")


class RolloutArgs(Section):
    """How an eval set is sampled; rollouts to train on follow the section model, by which the trainer scores them."""

    temperature: float | None = setting(None, "null: model.temperature", ge=0)
    top_p: float | None = setting(None, "null: model.top_p", gt=0, le=1)
    top_k: int | None = setting(None, "null: model.top_k", ge=-1)


class DataSelector(Section):
    """The order of a taskset that is trained on."""

    selector_type: str = setting("shuffle", "sequential: as in the file, again and again; shuffle: another permutation "
                                            "each epoch; random: drawn anew each step, none twice in a step",
                                 choices=("sequential", "shuffle", "random"))
    seed: int | None = setting(None, "of shuffle and random; null: the run's seed", ge=0)


class Taskset(Section):
    name: str = setting("taskset", "name in tables and metrics")
    path: Any = setting(None, f"{PATH}; null: the curated rows of data_processor.task_pipeline, of its split")
    storage_type: str = setting("file", "how the tasks are stored", choices=("file",))
    subset_name: str | None = setting(None, "sub-directory of path")
    split: str = setting("train", "with a path: the split to read where directories tell splits apart (a file is read "
                                  "whole); without: train or test")
    format: Format = section(Format)
    repeat_times: int | None = setting(None, "sampled responses per task, eval sets only; null: 1", ge=1)
    limit: int | None = setting(None, "use only the first so many tasks", ge=1)
    data_selector: DataSelector = section(DataSelector)
    rollout_args: RolloutArgs = section(RolloutArgs)
    default_workflow_type: str | None = setting(None, "null: that of explorer_input", names=WORKFLOWS)
    workflow_args: dict[str, Any] = setting({}, "arguments of the workflow")
    default_reward_fn_type: str | list[str] | None = setting(
        None, "null: explorer_input.default_reward_fn_type", names=REWARDS)
    reward_fn_args: dict[str, Any] = setting({}, "arguments of the reward functions: each takes those that it has")


class ExplorerInput(Section):
    default_workflow_type: str = setting("simple_workflow", "name in workflows/, or module:function", names=WORKFLOWS)
    default_eval_workflow_type: str | None = setting(None, "for eval sets; null: default_workflow_type",
                                                     names=WORKFLOWS)
    system_prompt: str | None = setting(None, "system message put before every prompt that has none of its own")
    default_reward_fn_type: str | list[str] = setting(
        "countdown_reward", "name in operators/reward.py, overlong_penalty, reward_model, or module:function; the "
                            "components of several in a list are summed", names=REWARDS)
    taskset: Taskset = section(Taskset)
    tasksets: list[Taskset] = setting([], "several sets to train on, in place of taskset, mixed in proportion to size")
    eval_tasksets: list[Taskset] = setting([], "held-out sets; every training stage's model is evaluated on each")


class ReplayBuffer(Section):
    """Rollouts that are trained on again, beside those that are new."""

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


class ExperienceBuffer(Section):
    name: str = setting("experience_buffer", "name in tables")
    path: Any = setting(None, f"{PATH}: demonstrations (sft) or pairs (preference training); null: the curated rows of "
                              "data_processor.task_pipeline")
    storage_type: str = setting("file", "how they are stored", choices=("file",))
    subset_name: str | None = setting(None, "sub-directory of path")
    split: str = setting("train", "the split to read where directories tell splits apart; a file is read whole")
    format: BufferFormat = section(BufferFormat)
    replay_buffer: ReplayBuffer = section(ReplayBuffer)


class AuxiliaryBuffer(Section):
    """Rows of an expert, for sample_strategy mix: demonstrations."""

    path: Any = setting(None, f"{PATH}; null: the curated demonstrations of data_processor.task_pipeline")
    storage_type: str = setting("file", "how they are stored", choices=("file",))
    subset_name: str | None = setting(None, "sub-directory of path")
    split: str = setting("train", "the split to read where directories tell splits apart; a file is read whole")
    format: BufferFormat = section(BufferFormat)


class TrainerInput(Section):
    experience_buffer: ExperienceBuffer = section(ExperienceBuffer)
    auxiliary_buffers: dict[str, AuxiliaryBuffer] = setting(
        {}, "name: buffer; sample_strategy_args.sft_dataset_name says which one the strategy mix takes rows from")


class TaskPipeline(Section):
    generator: str | None = setting(None, "makes raw tasks instead of reading inputs; name in operators/generate.py",
                                     choices=tuple(arguments.GENERATORS))
    generator_args: dict[str, Any] = setting({}, "arguments of the generator")
    inputs: list[str] = setting([], "files and directories for tasksets without a path, split by the recipe")
    split: str = setting("train", "the split of inputs to read where directories tell splits apart")
    format: Format = section(Format)
    config_path: str | None = setting(None, "Data-Juicer recipe, in its own YAML format; null: no such step")
    operators: list[dict[str, Any]] = setting([], "Data-Juicer operators in place of config_path: name and args each")
    target_fields: list[str] = setting(
        [], f"what operators look at by default, as text_keys in a recipe: the first of these; {', '.join(COLUMNS)}")
    num_process: int = setting(1, "processes that an operator's rows are shared among", ge=1, how=True)


class DataProcessor(Section):
    task_pipeline: TaskPipeline = section(TaskPipeline)


def train_places(explorer_input: dict) -> list[tuple[str, dict]]:
    """Returns (place below buffer.explorer_input, settings) of every training set."""
    several = [(f"tasksets.{i}", taskset) for i, taskset in enumerate(explorer_input["tasksets"])]
    return several or [("taskset", explorer_input["taskset"])]


def eval_places(explorer_input: dict) -> list[tuple[str, dict]]:
    """Does the same for every evaluation set."""
    return [(f"eval_tasksets.{i}", taskset) for i, taskset in enumerate(explorer_input["eval_tasksets"])]


def workflow_of(taskset: dict, explorer_input: dict, place: str) -> str:
    """Returns the workflow for the tasks of a set. place: as in train_places and eval_places."""
    of_all = explorer_input["default_workflow_type"]
    if place.startswith("eval_"):
        of_all = explorer_input["default_eval_workflow_type"] or of_all
    return taskset["default_workflow_type"] or of_all
