"""Operators that ask a model on a server: a row whose call failed after its retries is dropped with the reason.

Data-Juicer's own swallow every error: the row gets the score 0, and may be kept. Here the error of a row's last call is
told, an answer that holds no scores counts as none, and more than a tenth of such rows is an error.
"""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ouroboros.operators.curation import STATS, Row
from ouroboros.pipeline.store.errors import StageError
from ouroboros.pipeline.store.user_errors import brief

MOST_FAILED = 0.1  # share of the rows of one call of `run`
SHOWN = 80  # characters of an answer
RECORD = "_record"  # ends the name of what Data-Juicer keeps of an answer with scores


class Told(threading.local):
    """What became of the last call of this thread. problem: None if it was answered."""

    problem: str | None = None
    answer: str = ""


class Model:
    """A chat model behind an address; raises what a call of it raises."""

    def __init__(self, post: Callable[[dict[str, Any]], Any], name: str):
        """post: sends the body of a request, and returns the text of the answer."""
        self.post, self.name, self.told = post, name, Told()

    def __call__(self, messages: list[dict], **sampling: Any) -> str:
        """The answer to messages, as Data-Juicer's operators ask for it."""
        self.told.answer = ""
        try:
            found = self.post({"messages": messages, "model": self.name, **sampling})
        except Exception as error:
            self.told.problem = brief(error)
            raise
        self.told.answer = found if isinstance(found, str) else ""
        self.told.problem = None if self.told.answer.strip() else "an empty answer"
        return self.told.answer


def run(one: Callable[[Row], tuple[list, list]], model: Model, rows: list[Row], calls: int) -> list[tuple[list, list]]:
    """Answers of `one`, kept and dropped rows, for each row, or the reason why it has none as a text in their place.

    calls: number of rows in progress at once. Raises StageError when more than MOST_FAILED have none.
    """
    def ask(row: Row) -> tuple[list, list] | str:
        model.told.problem = None
        kept, dropped = one(row)
        stats = kept[0][STATS] if kept else dropped[0].scores
        return model.told.problem or _unusable(stats, model.told.answer) or (kept, dropped)

    with ThreadPoolExecutor(calls) as pool:
        found = list(pool.map(ask, rows))
    failed = [one for one in found if isinstance(one, str)]
    if len(failed) > MOST_FAILED * len(rows):
        raise StageError(f"{len(failed)} of {len(rows)} rows have no answer of the model {model.name}, more than a "
                         f"tenth. The first: {failed[0]}")
    return found


def _unusable(stats: dict[str, Any], answer: str) -> str | None:
    """Why an answer gives no score; None where it does, or none was needed."""
    for name, record in stats.items():
        if not name.endswith(RECORD):
            continue
        prefix = name.removesuffix(RECORD)
        score = stats.get(f"{prefix}_score", stats.get(prefix))
        if not (record and json.loads(record).get("dimension_scores")) or not 0 <= score <= 1:
            return f"an answer without scores from 1 to 5: {answer[:SHOWN]!r}"
    return None
