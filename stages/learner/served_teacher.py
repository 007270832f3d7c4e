"""Teachers that rank 0 asks for log-probs of prompts, so that no rank holds one; here one on a server.

`vllm serve`, or a server with its interface, answers /v1/completions of token ids with `prompt_logprobs`: of each token
of the prompt, and of the K likeliest at its place, all at temperature 1. That it is the teacher at all, is asked
at the start, by the name of the model and its highest token id.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.settings.remote import Remote as Settings
from ouroboros.pipeline.store.checkpoints import model_directory
from ouroboros.pipeline.store.errors import DataError, ModelError, OuroError, StageError
from ouroboros.pipeline.store.user_errors import brief
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.policy import NOTHING
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.teacher import TeacherScores
from ouroboros.workflows.engines.remote import Remote

ENTRY_BYTES = 128  # of a log-prob in a reply, as text
HELD_BYTES = 64 << 20  # of replies at once, where one alone does not have more
LEAST = 1e-12  # probability of all tokens but the likeliest: 1 less theirs, of which rounding leaves no more


class AskedTeacher(TeacherScores):
    """As Teacher, by what another process answers of the rows' tokens. setting: the one that names it."""
    added = 1  # the fewest that a completion makes
    setting = ""

    def logprobs(self, rows: list[Row]) -> list[np.ndarray]:
        """As of Teacher. Raises StageError when there is no answer. Collective."""
        self.refuse_unknown_tokens(rows)
        if odd := next((row for row in rows if row.kept or row.temperature not in (None, 1.0)), None):
            raise DataError(f"the row {odd.id} was sampled at temperature {odd.temperature or 1:g}, or among some "
                            f"tokens alone, and {self.setting} gives log-probs of all tokens at temperature 1. "
                            "Sample with temperature=1, top_p=1, top_k=-1 and min_p=0, or leave it out.")
        return self.together(lambda: self.asked(rows))

    @abstractmethod
    def asked(self, rows: list[Row]) -> list[np.ndarray]:
        """What `logprobs` returns, on rank 0."""

    def together(self, ask: Callable[[], Any]) -> Any:
        """What rank 0 is answered, on every rank; or raises its error on all, which must not wait for it."""
        found = None
        if self.process.rank == 0:
            try:
                found = ask()
            except OuroError as error:
                found = error
            except Exception as error:
                found = StageError(f"{self.setting}: {brief(error)}.")
        if isinstance(found := self.process.first(found), OuroError):
            raise found
        return found

    def of_row(self, row: Row, ids: np.ndarray, logprobs: np.ndarray) -> np.ndarray:
        """[N] or with tops [N, 2 tops + 2], of the action tokens. ids, logprobs: of every token after the first, and
        behind it of the likeliest at its place [L - 1, 1 + K]; -1 and NOTHING are none."""
        places = row.prompt_length - 1 + np.flatnonzero(row.mask)
        own, ids, likely = logprobs[places, :1], ids[places, 1:], logprobs[places, 1:]
        if not self.tops:
            return own[:, 0]
        likely = np.where((ids >= 0) & (ids < self.among), likely, NOTHING)
        order = np.lexsort((ids, -likely))
        ids, likely = (np.take_along_axis(one, order, 1) for one in (ids, likely))
        left = 1 - np.exp(likely.astype(np.float64)).sum(1, keepdims=True)
        rest = np.full_like(left, NOTHING) if self.tops == self.among else np.log(np.maximum(left, LEAST))
        return np.concatenate([own, np.where(likely > NOTHING, ids, -1), likely, rest], 1).astype(np.float32)


class ServedTeacher(AskedTeacher):
    """Asked at model.teacher_url."""

    def __init__(self, context: Context, student: Path, process: Process):
        """Raises also ModelError when the server has another model, and StageError when it does not answer."""
        model = context.config.model
        self.server = Settings(base_url=model.teacher_url, api_key_env=model.teacher_key_env,
                               model_name=model.teacher_name or str(model_directory(context.inputs["teacher"])))
        self.setting = f"model.teacher_url={model.teacher_url}"
        super().__init__(context, student, process)
        self.together(lambda: asyncio.run(self._prove()))

    async def _prove(self) -> None:
        remote, name, ids = Remote(self.server), self.server.model_name, [0, self.settings.vocab_size - 1]
        try:
            if name not in (there := await remote.models()):
                raise ModelError(f"{self.setting} has the models {', '.join(there)}, needed {name}. Set "
                                 "model.teacher_name, or --served-model-name of the server.")
            await self._said(remote, ids)
        finally:
            await remote.close()

    def asked(self, rows: list[Row]) -> list[np.ndarray]:
        return asyncio.run(self._replies(rows))

    async def _replies(self, rows: list[Row]) -> list[np.ndarray]:
        each = ENTRY_BYTES * (self.tops + 1) * max(len(row.tokens) for row in rows)
        most = max(1, min(self.server.concurrency, HELD_BYTES // each))
        remote = Remote(self.server.model_copy(update={"concurrency": most}))
        try:
            return await asyncio.gather(*(self._row(remote, row) for row in rows))
        finally:
            await remote.close()

    async def _row(self, remote: Remote, row: Row) -> np.ndarray:
        return self.of_row(row, *await self._said(remote, row.tokens))

    async def _said(self, remote: Remote, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """As `of_row` has them, of ids that the policy has."""
        said = await remote.complete(tokens, max_tokens=1, temperature=1.0, extra_body={"prompt_logprobs": self.tops})
        found = (said.choices[0].model_extra or {}).get("prompt_logprobs")
        if not isinstance(found, list) or len(found) != len(tokens):
            raise StageError(f"{self.setting} gives no log-probs of the prompt; needed a server of vLLM's interface, "
                             "which answers prompt_logprobs in /v1/completions.")
        found = [{int(id_): one["logprob"] for id_, one in place.items()} for place in found[1:]]
        if (highest := max(id_ for place in found for id_ in place)) >= self.settings.vocab_size:
            raise ModelError(f"{self.setting} answers token id {highest}, and the teacher has "
                             f"{self.settings.vocab_size}: the server has another model.")
        known = [sorted((-one, id_) for id_, one in place.items() if id_ < self.among)[: self.tops] for place in found]
        known = [[*some, *[(-NOTHING, -1)] * (self.tops - len(some))] for some in known]
        return (np.array([[token, *(id_ for _, id_ in some)] for token, some in zip(tokens[1:], known, strict=True)]),
                np.array([[place[token], *(-one for one, _ in some)]
                          for token, place, some in zip(tokens[1:], found, known, strict=True)], np.float32))
