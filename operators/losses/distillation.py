"""The loss of a distillation that compares whole distributions with a teacher's, at the student's own tokens."""

from torch import Tensor

from ouroboros.pipeline.settings.arguments.losses import ForwardKlTopk

DEFAULTS = ForwardKlTopk()

Loss = tuple[Tensor, dict[str, Tensor]]


def forward_kl_topk(top_logprobs: Tensor, teacher_top_logprobs: Tensor, top_k=DEFAULTS.top_k) -> Loss:
    """Forward KL to a teacher over its likeliest tokens (generalised knowledge distillation, Agarwal et al. 2024).

    loss = sum over i of p_i (log p_i - log q_i) + P (log P - log Q), arXiv:2306.13649, i the top_k tokens that the
    teacher finds likeliest, p the teacher's and q the student's probability, P and Q those of all other tokens
    together: the KL of two distributions over top_k + 1 events, which never exceeds the KL over the whole vocabulary
    and is equal to it for a top_k of its size. Both by the logits over the sampling temperature, and over what
    truncated sampling kept; [N, top_k + 1] log-probs, the rest last, -1e30 for what cannot occur. Assumes states that
    the student reaches: no weight accounts for a policy that has moved since. It reads neither the sampled token nor an
    advantage. Student = teacher: 0, without gradient.
    """
    assert teacher_top_logprobs.shape[1] <= top_k + 1, "more tokens than were asked for"
    likely = teacher_top_logprobs.exp()
    loss = (likely * (teacher_top_logprobs - top_logprobs)).sum(-1)
    return loss, {"teacher_top_probability": likely[:, :-1].sum(-1).detach()}
