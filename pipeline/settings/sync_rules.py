"""Rules for an explorer and a trainer that work at once: whose weights rollouts are of, and which are left out."""

from collections.abc import Iterator

from ouroboros.pipeline.settings.train_batch import taken_groups
from ouroboros.pipeline.settings.trainer import EXPLORER_DRIVEN, is_driven, may_overlap, runs_ahead
from ouroboros.pipeline.store.errors import Problem

Found = Iterator[Problem]


def over_rollout(c) -> Found:
    """A ratio leaves out whole groups."""
    ratio, asked = c.explorer.over_rollout.ratio, c.buffer.batch_size
    if c.kind.explores and 0 < ratio < 1 and taken_groups(asked, ratio) == asked:
        yield Problem("explorer.over_rollout.ratio", f"is less than one of the buffer.batch_size={asked} tasks of a "
                      f"step: all of them are waited for. Needed 0, or at least {1 / asked:.3g}.", found=ratio)


def partial_rollout(c) -> Found:
    """Newer weights can come during a step where a trainer works meanwhile, one explorer step or more behind."""
    engine, offset = c.explorer.rollout_model.engine_type, c.synchronizer.sync_offset
    if not c.kind.explores or not c.explorer.partial_rollout:
        return
    if c.mode != "both" and not (c.mode == "colocate" and c.trainer.overlap is True):
        yield Problem("explorer.partial_rollout", f"with mode={c.mode}, where no weights are published during a step.",
                      "Set mode=both, or mode=colocate with trainer.overlap=true, or leave it out.", found=True)
    elif not runs_ahead(c):
        yield Problem("explorer.partial_rollout", f"with synchronizer.sync_offset={offset}: the trainer waits for the "
                      "whole step, so no newer weights come meanwhile.", "Set synchronizer.sync_offset to 1 or more.",
                      found=True)
    elif c.synchronizer.sync_style == EXPLORER_DRIVEN:
        yield Problem("explorer.partial_rollout", f"with synchronizer.sync_style={EXPLORER_DRIVEN}: the explorer "
                      "asks for weights between its steps, so none come during one.", "Set trainer_driven, or leave it "
                      "out.", found=True)
    elif engine == "transformers":
        yield Problem("explorer.partial_rollout", f"with explorer.rollout_model.engine_type={engine}, which computes "
                      "whole batches and cannot interrupt an answer.", "Set vllm.", found=True)


def overlap(c) -> Found:
    """Engines and a trainer on the same devices work at once where the explorer may run ahead."""
    if c.kind.is_online and c.trainer.overlap is True and not may_overlap(c):
        yield Problem("trainer.overlap", f"with mode={c.mode} and synchronizer.sync_offset="
                      f"{c.synchronizer.sync_offset}: it is for engines on the trainer's devices that may run ahead.",
                      "Set mode=colocate and synchronizer.sync_offset to 1 or more, or leave it out.", found=True)


def syncs(c) -> Found:
    """Where the step numbers decide, they bound staleness; where one side decides, both work at once."""
    style, bound = c.synchronizer.sync_style, c.synchronizer.max_staleness
    if not c.kind.is_online:
        return
    if not is_driven(c):
        if bound is not None:
            yield Problem("synchronizer.max_staleness", f"with synchronizer.sync_style={style}, by which the step "
                          "numbers say how old rollouts are.", "Leave it out, or set trainer_driven or "
                          "explorer_driven.", found=bound)
        return
    if c.mode != "both" and not (c.mode == "colocate" and c.trainer.overlap is True):
        yield Problem("synchronizer.sync_style", f"with mode={c.mode}, where the two sides may take turns, so neither "
                      "says when.", "Set mode=both, or mode=colocate with trainer.overlap=true, or fixed.", found=style)
