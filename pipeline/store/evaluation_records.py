"""The rows of evaluations: responses and scores."""

from dataclasses import dataclass

import pyarrow as pa

from ouroboros.pipeline.store.task_records import PICTURES, TOKENS, column

NOTES = ("JSON of the reasons for components of the reward: what a judge said, or `limit` where accuracy_reward "
         "stopped comparing an answer; null: none")


@dataclass(slots=True)
class Sample:
    """One response in an evaluation."""

    stage: str = column(pa.string(), "directory name of the stage that evaluated, with its hash")
    model: str = column(pa.string(), "directory name of the stage whose weights were evaluated, or of the user's model")
    step: int = column(pa.int32(), "trainer step of that stage that made the weights; 0 = not trained here")
    taskset: str = column(pa.string(), "name of the evaluation set")
    task_id: str = column(pa.string(), "task that was answered")
    decoding: str = column(pa.string(), "greedy or sampled")
    run_index: int = column(pa.int32(), "which repeat, from 0")
    prompt: str = column(pa.string(), "prompt as text")
    response: str = column(pa.string(), "response as text")
    response_tokens: list[int] = column(TOKENS, "response token ids [R]")
    reward: float | None = column(pa.float64(), "sum of components; null when the row failed", null=True)
    accuracy: float | None = column(pa.float64(), "1 = solved; null when the row failed", null=True)
    status: str = column(pa.string(), "ok, prompt_too_long, reward_failed or workflow_failed")
    reason: str | None = column(pa.string(), "why the row is not ok", null=True)
    seed: int = column(pa.int64(), "seed of this request")
    notes: str | None = column(pa.string(), NOTES, later=True, default=None)
    temperature: float | None = column(pa.float32(), "sampling temperature, 0 = greedy; null: written before this "
                                                     "column, as the next three", later=True, default=None)
    top_p: float | None = column(pa.float32(), "nucleus sampling bound, 1 = off", later=True, default=None)
    top_k: int | None = column(pa.int32(), "top-k bound, -1 = off", later=True, default=None)
    min_p: float | None = column(pa.float32(), "min-p bound, 0 = off", later=True, default=None)
    pictures: list[str] | None = column(pa.list_(pa.string()), PICTURES, later=True, default=None)


@dataclass(slots=True)
class Score:
    """One metric of an evaluation, with its interval."""

    stage: str = column(pa.string(), "directory name of the stage that evaluated, with its hash")
    model: str = column(pa.string(), "directory name of the stage whose weights were evaluated, or of the user's model")
    step: int = column(pa.int32(), "trainer step of that stage that made the weights; 0 = not trained here")
    taskset: str = column(pa.string(), "name of the evaluation set")
    metric: str = column(pa.string(), "greedy_accuracy, sampled_accuracy or pass@k; where no response has an accuracy "
                                      "greedy_reward and sampled_reward; of a reward model "
                                      "pair_accuracy, the share of held-out pairs whose chosen response has the "
                                      "higher score (equal ones count half), and tasks are their prompts")
    value: float = column(pa.float64(), "the estimate: 0 to 1, a failed row counts as not solved; or the mean reward "
                                        "of the rows that are ok")
    low: float = column(pa.float64(), "lower end of the 95% interval")
    high: float = column(pa.float64(), "upper end of the 95% interval")
    tasks: int = column(pa.int32(), "tasks behind the number")
    runs: int = column(pa.int32(), "responses per task")
    failed_rows: int = column(pa.int32(), "rows that were not ok")
    rows: int | None = column(pa.int32(), "rows of the set; equal ones are one task; null: written before this "
                                          "column", later=True, default=None)
    trained_tasks: int | None = column(pa.int32(), "tasks that are also in the data that the model was trained on, in "
                                                   "its stage or one before; null: as rows", later=True, default=None)
