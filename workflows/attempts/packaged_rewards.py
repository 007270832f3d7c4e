"""Rewards of tasks that a package made (operators/task_packages.py): by the package's own scorers, in a sandbox."""

import importlib.util
import json
import re
import sysconfig
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ouroboros.operators.answers import spoken
from ouroboros.operators.formula_worker import LIMIT
from ouroboros.operators.reward import Judgement, final_answers
from ouroboros.pipeline.settings.arguments.answers import ReasoningGymReward
from ouroboros.pipeline.store import packages
from ouroboros.pipeline.store.errors import StageError
from ouroboros.workflows.environments.programs import PYTHON, Cell

DEFAULT = ReasoningGymReward()
SCORER = "ouroboros.operators.reasoning_gym_scores"
TOGETHER = 500  # answers of one process: a sandbox shows 16 KiB of what it prints
START_SECONDS, ANSWER_SECONDS = 120.0, 10.0  # wall time of a process; each answer has a limit of CPU time
MEGABYTES = 4096


def reasoning_gym_reward(responses: Sequence[str], answers: Sequence[str], metadata: Sequence[dict],
                         partial_credit=DEFAULT.partial_credit) -> list[Judgement]:
    """accuracy: 1 where the scorer of the task's generator gives its answer 1, else 0.

    partial_credit: weight of a score below 1, which the package gives for parts and for a form; 0: none. The answer is
    what stands in the response's last <answer>, else its final answer as accuracy_reward finds it. One that is beyond a
    limit of operators/reasoning_gym_scores.py has 0 and the note `limit`. Raises StageError where the scorer fails.
    """
    rows = [[extracted(response, answer), answer, about]
            for response, answer, about in zip(responses, answers, metadata, strict=True)]
    scores = [score for at in range(0, len(rows), TOGETHER) for score in _scores(rows[at:at + TOGETHER])]
    return [Judgement({"accuracy": float(score == 1), "partial_credit": partial_credit * (score or 0) * (score != 1)},
                      {"accuracy": LIMIT} if score is None else None) for score in scores]


def extracted(response: str, truth: str) -> str:
    """The answer that a response gives to a task with this truth, which is empty where a task has several."""
    if not truth or re.search("<answer>", response, re.I):
        return spoken(response).strip()
    return final_answers(response, truth, False)[0]


def _scores(rows: list[list]) -> list[float | None]:
    """The package's score of each [answer, truth, metadata]; None at a limit."""
    place, installed = packages.folder("reasoning-gym"), sysconfig.get_path("purelib")
    scorer = Path(importlib.util.find_spec(SCORER).origin).read_text()
    with closing(Cell(MEGABYTES, [Path(installed), place])) as sandbox, tempfile.TemporaryFile("w+") as request:
        json.dump(rows, request)
        request.seek(0)
        ended = sandbox.run(
            [str(PYTHON), "-W", "ignore", "-c", scorer], START_SECONDS + ANSWER_SECONDS * len(rows), stdin=request,
            variables={"PYTHONPATH": f"{place}:{installed}", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"})
    if ended.code != 0:
        raise StageError(f"the scorer of reasoning-gym failed: {(ended.why or ended.output).strip()[-500:]}")
    return json.loads(ended.output.splitlines()[-1])
