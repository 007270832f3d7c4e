"""The loss of a distillation that compares whole distributions with a teacher's, at the student's own tokens."""

from __future__ import annotations

from pydantic import Field

from ouroboros.operators.losses.ratio import Losses
from ouroboros.pipeline.settings.arguments.base import Loss
from ouroboros.pipeline.store.lazy import Tensor


class ForwardKlTopk(Loss):
    """Forward KL to the teacher over its likeliest tokens, all others being one event.

    Generalised knowledge distillation (Agarwal et al. 2024, arXiv:2306.13649).
    loss = sum over i of p_i (log p_i - log q_i) + P (log P - log Q), i the top_k tokens that the
    teacher finds likeliest, p the teacher's and q the student's probability, P and Q those of all other tokens
    together: the KL of two distributions over top_k + 1 events, which never exceeds the KL over the whole vocabulary
    and is equal to it for a top_k of its size. Both by the logits over the sampling temperature, and over what
    truncated sampling kept; [N, top_k + 1] log-probs, the rest last, -1e30 for what cannot occur. Assumes states that
    the student reaches: no weight accounts for a policy that has moved since. It reads neither the sampled token nor an
    advantage. Student = teacher: 0, without gradient.
    """
    needs_teacher = True
    top_k: int = Field(64, ge=1, le=1024, description="number of the teacher's likeliest tokens whose log-probs are "
                                                      "compared, at each token of a response")

    def __call__(self, top_logprobs: Tensor, teacher_top_logprobs: Tensor) -> Losses:
        assert teacher_top_logprobs.shape[1] <= self.top_k + 1, "more tokens than were asked for"
        likely = teacher_top_logprobs.exp()
        loss = (likely * (teacher_top_logprobs - top_logprobs)).sum(-1)
        return loss, {"teacher_top_probability": likely[:, :-1].sum(-1).detach()}
