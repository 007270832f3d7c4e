"""The rows of tasks: as read, as curated, as rejected; and the column declaration of a record."""

import dataclasses
from dataclasses import dataclass

import pyarrow as pa

TOKENS = pa.list_(pa.int32())
FLOATS = pa.list_(pa.float32())
KEPT = pa.list_(TOKENS)
COMPONENTS = pa.map_(pa.string(), pa.float64())
TURNS = pa.list_(pa.struct([pa.field("role", pa.string(), False), pa.field("content", pa.string(), False)]))

FEATURES = "numbers under data_selector.feature_keys in the record, by key; null: none"
MESSAGES = ("where texts do not say all, JSON: messages (of a demonstration with its response) and tools in OpenAI's "
            "form, and of a pair the turns of chosen and rejected; null: the texts are all")

MARGIN = "of a pair, by how much the chosen response is better, under format.margin_key; null: not said"
CHOICES = ("what the record says of its attempts, JSON: workflow, reward_fn (names), reply_prefix; null: nothing, its "
           "set does")
PICTURES = "hashes of its images, in order: rows of the view pictures; null: none"
COLUMNS = "other columns of the record that functions of its set are given, JSON by name; null: they are given none"


def column(arrow: pa.DataType, doc: str, null: bool = False, later: bool = False, **default):
    """Declares a record's field: Arrow type, description, nullability; default or default_factory, if any.

    later: files written before the column was added are read with null in it.
    """
    return dataclasses.field(metadata={"arrow": arrow, "doc": doc, "null": null or later, "later": later}, **default)


@dataclass(slots=True)
class RawTask:
    """A record of a task file before cleaning. Text columns may hold anything."""

    row: int = column(pa.int64(), "number in the input, from 1 over all sets (in older files from 0); the key that "
                                  "joins every later table to the input")
    question: str | None = column(pa.string(), "the last turn of the prompt, by the user or a tool; null when there "
                                               "is none", null=True)
    answer: str | None = column(pa.string(), "the truth; where a demonstration or a pair has none its response, of a "
                                             "pair the chosen one; null when there is none", null=True)
    solution: str | None = column(pa.string(), "a demonstrated response; null when there is none", null=True)
    context: list[dict] = column(TURNS, "turns before the question: system, user, assistant, ...", default_factory=list)
    chosen: str | None = column(pa.string(), "preferred response of a pair; null without", null=True, default=None)
    rejected: str | None = column(pa.string(), "other response of the pair; null without", null=True, default=None)
    taskset: str | None = column(pa.string(), "set with its own path that it was read for; null: the inputs or "
                                              "the generator of task_pipeline", null=True, default=None)
    split: str | None = column(pa.string(), "train, test, sft, preference or text, by where the set stands in the "
                                            "configuration; null: curation decides", null=True, default=None)
    problem: str | None = column(pa.string(), "why the record cannot be used; null when it can", null=True,
                                 default=None)
    messages: str | None = column(pa.string(), MESSAGES, later=True, default=None)
    choices: str | None = column(pa.string(), CHOICES, later=True, default=None)
    features: list[tuple[str, float]] | None = column(COMPONENTS, FEATURES, later=True, default_factory=list)
    margin: float | None = column(pa.float64(), MARGIN, later=True, default=None)
    columns: str | None = column(pa.string(), COLUMNS, later=True, default=None)
    pictures: list[str] | None = column(pa.list_(pa.string()), PICTURES, later=True, default=None)


@dataclass(slots=True)
class Task:
    """A task that passed curation."""

    task_id: str = column(pa.string(), "first 16 hex digits of sha256(question, answer), and the context, messages, "
                                       "choices and columns if there are any: the same task, the same id")
    row: int = column(pa.int64(), "row of the input that it came from")
    split: str = column(pa.string(), "train, test, sft (a demonstration), preference (a pair) or text (for cpt)")
    question: str = column(pa.string(), "user prompt, text")
    answer: str = column(pa.string(), "truth handed to the reward function, text; of demonstrations as in RawTask, of "
                                      "plain text empty")
    solution: str | None = column(pa.string(), "demonstrated response, text; null outside split sft", null=True)
    context: list[dict] = column(TURNS, "turns before the question: system, user, assistant, ...", default_factory=list)
    chosen: str | None = column(pa.string(), "preferred response; null outside split preference", null=True,
                                default=None)
    rejected: str | None = column(pa.string(), "other response of the pair; null outside split preference", null=True,
                                  default=None)
    taskset: str | None = column(pa.string(), "set with its own path; null: the inputs or the generator of "
                                              "task_pipeline", null=True, default=None)
    messages: str | None = column(pa.string(), MESSAGES, later=True, default=None)
    choices: str | None = column(pa.string(), CHOICES, later=True, default=None)
    features: list[tuple[str, float]] | None = column(COMPONENTS, FEATURES, later=True, default_factory=list)
    priority: float | None = column(pa.float64(), "by task_pipeline.priority_weights; null: not asked for, or not for "
                                                  "training", later=True, default=None)
    margin: float | None = column(pa.float64(), MARGIN, later=True, default=None)
    columns: str | None = column(pa.string(), COLUMNS, later=True, default=None)
    pictures: list[str] | None = column(pa.list_(pa.string()), PICTURES, later=True, default=None)


@dataclass(slots=True)
class Selection:
    """Why an explorer step attempted a task; where a set has a selector that reads features or experience."""

    stage: str = column(pa.string(), "stage that explored")
    step: int = column(pa.int32(), "explorer step, from 1")
    group_id: str = column(pa.string(), "group of attempts: joins to experience")
    taskset: str = column(pa.string(), "set of the task")
    task_id: str = column(pa.string(), "task that was chosen")
    selector: str = column(pa.string(), "selector_type of the set")
    rate: float | None = column(pa.float64(), "solve rate that was known or estimated then; null without", null=True)
    score: float | None = column(pa.float64(), "what the draw went by: of difficulty_based the negative distance to "
                                               "target_reward, of solve_rate_pools the weight; null without", null=True)
    reason: str = column(pa.string(), "pool of solve_rate_pools, or the rule in words")
    measured_until: int | None = column(pa.int32(), "last explorer step whose experience was read; null: none",
                                        null=True)


@dataclass(slots=True)
class Profile:
    """How often a model solved a task: of a stage with mode=explore, all attempts of its steps together."""

    stage: str = column(pa.string(), "stage that explored")
    taskset: str = column(pa.string(), "set of the task")
    task_id: str = column(pa.string(), "task that was attempted")
    attempts: int = column(pa.int32(), "attempts, k")
    rewarded: int = column(pa.int32(), "those that were rewarded: the others failed, and do not count")
    avg_at_k: float | None = column(pa.float64(), "mean accuracy of the rewarded attempts, or their mean reward where "
                                                  "the reward function gives no accuracy; null: none was rewarded",
                                    null=True)
    pass_at_k: float | None = column(pa.float64(), "greatest accuracy, or reward, of them; null: none was rewarded",
                                     null=True)


@dataclass(slots=True)
class Image:
    """An environment of Harbor tasks, whose image was built or could not be."""

    key: str = column(pa.string(), "hash of the Dockerfile, the files next to it and the base images")
    source: str = column(pa.string(), "hash of the Dockerfile and the files next to it")
    task: str = column(pa.string(), "directory of a task whose environment it is")
    digest: str | None = column(pa.string(), "digest of the image's manifest; null when it was not built", null=True)
    reason: str | None = column(pa.string(), "why it was not built; null when it was", null=True)
    log: str = column(pa.string(), "file with what the build printed")
    seconds: float = column(pa.float64(), "of the build, also where an earlier stage made it")
    bytes: int | None = column(pa.int64(), "of the files of all its layers, of which images share some", null=True)
    layers: int | None = column(pa.int32(), "number of its layers", null=True)


@dataclass(slots=True)
class Picture:
    """An image that tasks (table `pictures`) or agents (`shown`) show to the model."""

    hash: str = column(pa.string(), "first 32 hex digits of the sha256 of its file")
    format: str = column(pa.string(), "png, jpeg, webp, gif, bmp or tiff")
    width: int = column(pa.int32(), "pixels, before it is rotated as its EXIF says")
    height: int = column(pa.int32(), "pixels, the same")
    data: bytes = column(pa.binary(), "the file, as it was given")


@dataclass(slots=True)
class Rejected:
    """An input row that curation dropped, or a stage that trains on given responses."""

    row: int = column(pa.int64(), "row of the table raw")
    question: str | None = column(pa.string(), "as read", null=True)
    answer: str | None = column(pa.string(), "as read", null=True)
    solution: str | None = column(pa.string(), "as read", null=True)
    operator: str = column(pa.string(), "name of the operator that dropped it; format: the record could not be used; "
                                       "chat_template: the model's template does not read all of it")
    reason: str = column(pa.string(), "what the operator saw")
    taskset: str | None = column(pa.string(), "as read", null=True, default=None)
