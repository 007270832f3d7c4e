"""Log-probs of a teacher: another model of any size and architecture with the policy's token ids.

It is kept in host memory, one copy per rank, and moved to the device only for scoring, once for the rows of an explorer
step: 2 bytes per parameter (about a second for 10^10 parameters); a resident teacher would occupy device memory at
every optimizer step. It is not sharded: each rank scores its share of the rows. The log-probs are cached in the table
`teacher`, where a loss reads them with those of its likeliest tokens among the policy's.
"""

from abc import abstractmethod
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.settings.config import longest_sequence
from ouroboros.pipeline.store.checkpoints import model_directory, weights_hash
from ouroboros.pipeline.store.errors import DataError, ModelError
from ouroboros.stages.learner.engine import policy
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.packing import MicroBatch
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.fixed_scores import FixedScores
from ouroboros.workflows.protocol.hugging_face import read_config
from ouroboros.workflows.protocol.prompts import read_tokenizer


class TeacherScores(FixedScores):
    """The column `teacher_logprobs` [R], at the policy's sampling temperature, by `logprobs` of a subclass.

    added: tokens for which the teacher needs room after a sequence.
    """
    added = 0

    def __init__(self, context: Context, student: Path, process: Process):
        """student: Hugging Face directory of the policy. The teacher is the input `teacher` of the stage.

        Raises ModelError when teacher and policy disagree on token ids, or its positions are too few.
        """
        config, model = context.config, model_directory(context.inputs["teacher"])
        trust = config.model.trust_remote_code
        own, policys = (read_tokenizer(place, trust).get_vocab() for place in (model, student))
        refuse_other_vocabulary(own, policys, model)
        self.settings, longest = read_config(model, trust).get_text_config(), longest_sequence(config.model)
        room = getattr(self.settings, "max_position_embeddings", longest + self.added)
        if room < longest + self.added:
            raise ModelError(f"model.teacher_model_path={model} has room for {room} tokens (max_position_embeddings), "
                             f"and the policy's sequences have up to {longest}"
                             f"{', to which a request adds one' * self.added}. Shorten model.max_prompt_tokens or "
                             "model.max_response_tokens, or take another teacher.")
        self.among = min(read_config(student, trust).get_text_config().vocab_size, self.settings.vocab_size)
        loss, given = config.algorithm.loss, config.algorithm.policy_loss_fn_args
        asked = loss(**given).top_k if loss.needs_teacher else 0
        super().__init__(context, partial(weights_hash, model), process, self.logprobs, "teacher", "teacher_logprobs",
                         min(asked, self.among))

    @abstractmethod
    def logprobs(self, rows: list[Row]) -> list[np.ndarray]:
        """Log-prob of each action token under the teacher, [N] for each row, or with tops as FixedScores has it.
        Collective."""

    def refuse_unknown_tokens(self, rows: list[Row]) -> None:
        """Raises DataError for ids beyond the teacher's embedding; a policy may sample its own unused ids."""
        highest = max(max(row.tokens) for row in rows)
        highest = max([highest, *(int(row.kept.ids.max(initial=0)) for row in rows if row.kept)])
        if highest >= self.settings.vocab_size:
            raise DataError(f"the policy sampled token id {highest}, and the teacher's embedding has "
                            f"{self.settings.vocab_size} entries: it cannot score that row. Take a teacher whose "
                            "vocab_size (config.json) is at least the policy's.")


class Teacher(TeacherScores):
    """A teacher in host memory."""

    def __init__(self, context: Context, student: Path, process: Process):
        config, model = context.config, model_directory(context.inputs["teacher"])
        self.process, self.budget = process, config.trainer.max_token_len_per_gpu
        dtype = policy.resolve_dtype(config.model.dtype, process.device.type)
        super().__init__(context, student, process)
        self.policy = policy.load(model, process.device.type, dtype, config.trainer, config.model.temperature,
                                  longest_sequence(config.model), config.model.trust_remote_code,
                                  sequence=process.sequence)
        self.policy.requires_grad_(False).eval()
        for buffer in self.policy.buffers():  # small enough to stay
            buffer.data = buffer.data.to(process.device)

    def logprobs(self, rows: list[Row]) -> list[np.ndarray]:
        self.refuse_unknown_tokens(rows)
        with torch.no_grad(), self.on_device():
            return self.process.score_rows(rows, self.budget, self._outputs, self.policy.way.fill)

    def _outputs(self, micro: MicroBatch) -> Tensor:
        """Of the action tokens, [N] or with tops [N, 2 tops + 2]. Ids are exact in float32, as they are below 2^24."""
        given = micro.inputs(self.process.device)
        if not self.tops:
            return self.policy(**given)[0]
        logprobs, _, ids, tops = self.policy(**given, ids=policy.Likeliest(self.tops, self.among))
        return torch.cat([logprobs[:, None], ids.to(tops), tops], dim=1)

    @contextmanager
    def on_device(self):
        """Context with the weights on the device; they do not change, so nothing is copied back."""
        parameters = list(self.policy.parameters())
        hosts = [parameter.data for parameter in parameters]
        for parameter in parameters:
            parameter.data = parameter.data.to(self.process.device)
        yield
        for parameter, host in zip(parameters, hosts, strict=True):
            parameter.data = host


def refuse_other_vocabulary(teacher: dict[str, int], student: dict[str, int], path: Path) -> None:
    """Raises ModelError unless every student token has the same id in the teacher.

    teacher, student: token -> id. The teacher may have more tokens; their probability is lost to the student's tokens.
    """
    wrong = sorted((id_, token) for token, id_ in student.items() if teacher.get(token) != id_)
    if wrong:
        id_, token = wrong[0]
        found = f"id {teacher[token]}" if token in teacher else "no token at all"
        raise ModelError(f"model.teacher_model_path={path}: {len(wrong)} of the policy's {len(student)} tokens are not "
                         f"the teacher's under the same id; the first, {token!r}, is id {id_} of the policy and "
                         f"{found} of the teacher, so its log-probs would be of other words. Take a teacher with the "
                         "policy's tokenizer.")


def divergence(rows: list[Row]) -> float:
    """Mean of log policy - log teacher over action tokens, nats: estimates KL(policy || teacher)."""
    policys, teachers = (np.concatenate([row.of_actions(name) for row in rows]).astype(np.float64)
                         for name in ("old_logprobs", "teacher_logprobs"))
    return float((policys - teachers).mean())
