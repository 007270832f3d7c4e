"""The table `curated`: what the operators of experience_pipeline make of the attempts of an explorer step.

It is written during the next step, after `experience`, which stays as it is, and before `rollouts`, the sign that a
step is complete. As a function of the step's rows, it is the same when an interrupted step is made again.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ouroboros.operators.experience import Verdict, curate, prepare
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store import records
from ouroboros.pipeline.store.digests import resolve


class Curation:
    """The operators of a stage, opened once."""

    def __init__(self, config: Config, compared: bool, answer_of: Callable[[records.Experience], str]):
        """compared: whether groups have several attempts. answer_of: the truth of a row's task.

        Raises ConfigError for an unknown operator or argument.
        """
        self.operators = prepare(config.data_processor.experience_pipeline.operators, resolve)
        self.compared, self.answer_of = compared, answer_of

    def of_step(self, rows: Sequence[records.Experience]) -> list[records.Curated]:
        """A verdict for each row of a step that is ok."""
        good = [row for row in rows if row.status == "ok"]
        last = {(row.slot, row.role): row for row in good}  # rows of an attempt are ordered by turn
        verdicts = curate([self.given(row) | {"row": number} for number, row in enumerate(last.values())],
                          self.operators, self.compared)
        numbers = {player: number for number, player in enumerate(last)}
        return [_curated(row, verdicts[numbers[row.slot, row.role]]) for row in good]

    def given(self, row: records.Experience) -> dict[str, Any]:
        """A row as operators see it; one of a player is compared with those of the same role."""
        return {
            "row": row.slot, "prompt": row.prompt, "response": row.response, "prompt_text": row.prompt,
            "response_text": row.response, "answer": self.answer_of(row), "taskset": row.taskset,
            "task_id": row.task_id, "group_id": f"{row.group_id}/{row.role}" if row.role else row.group_id,
            "run_index": row.run_index, "reward": row.reward, "accuracy": row.accuracy,
            "components": dict(row.reward_components), "finish_reason": row.finish_reason,
            "tokens": len(row.response_tokens)}


def _curated(row: records.Experience, verdict: Verdict) -> records.Curated:
    return records.Curated(row.experience_id, row.step, verdict.reward, list(verdict.scores.items()), verdict.operator,
                           verdict.reason)


def curation_of(config: Config, repeats: int, tasks: Iterable[records.Task]) -> Curation | None:
    """The curation of a stage that has operators. repeats: attempts of a group. tasks: those that rows may answer."""
    if not config.data_processor.experience_pipeline.operators:
        return None
    answers = {task.task_id: task.answer for task in tasks}
    return Curation(config, repeats > 1, lambda row: answers[row.task_id])
