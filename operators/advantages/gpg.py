"""The plain policy gradient over groups, made larger where groups of equal rewards teach nothing."""

from __future__ import annotations

from ouroboros.operators.advantages.group import DrGrpo
from ouroboros.pipeline.store.lazy import pa, pc


class Gpg(DrGrpo):
    """Group policy gradient: the reward less the mean of the group, over the share of groups that teach.

    Chu et al. 2025, arXiv:2504.02546, eq. 6, as the authors' program with adjust_gd. A = (r - mean_group) G / G', G the
    groups of the batch and G' those whose rewards differ: the mean over all tokens is then one over groups that teach.
    Used with the loss -A log pi (`opmd` with tau 0), and with algorithm.max_resample_rounds for the authors'
    min_inverse_alpha. Assumes rollouts of the policy itself. Equal rewards in every group give 0.
    """

    def __call__(self, batch: pa.Table) -> pa.Table:
        made = super().__call__(batch)
        group_of = dict(zip(batch["experience_id"].to_pylist(), batch["group_id"].to_pylist(), strict=True))
        found = zip(made["experience_id"].to_pylist(), made["advantage"].to_pylist(), strict=True)
        teaching = {group_of[id_] for id_, advantage in found if advantage}
        scale = len({*group_of.values()}) / max(len(teaching), 1)
        return made.set_column(1, "advantage", pc.multiply(made["advantage"], scale))
