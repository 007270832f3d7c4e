"""The token budget of micro-batches, halved once when a GPU's memory does not suffice.

The loss does not depend on the split into micro-batches, apart from rounding, so a step can be repeated with another.
"""

from collections.abc import Callable
from typing import TypeVar

from ouroboros.pipeline.store.errors import StageError

Made = TypeVar("Made")


class Exhausted(Exception):
    """A rank ran out of GPU memory; raised on every rank, with no gradient left over."""


class Budget:
    """tokens: of a micro-batch on this rank; configured: trainer.max_token_len_per_gpu. Equal on all ranks."""

    def __init__(self, configured: int, tokens: int | None = None):
        self.configured, self.tokens = configured, tokens or configured

    def saved(self) -> dict[str, int]:
        """For a checkpoint: a resumed stage continues with it."""
        return {"configured": self.configured, "tokens": self.tokens}

    def restore(self, saved: dict[str, int] | None) -> None:
        """Takes over what `saved` returned, unless the setting has changed since."""
        if saved and saved["configured"] == self.configured:
            self.tokens = saved["tokens"]

    def attempt(self, work: Callable[[int], Made], longest: int) -> Made:
        """work(tokens); after Exhausted, once more with half of them, which are the budget from then on.

        longest: tokens of the longest row, which every budget must hold. Raises StageError when that fails too.
        """
        try:
            return work(self.tokens)
        except Exhausted:
            before, self.tokens = self.tokens, max(self.tokens // 2, longest)
        try:
            if self.tokens < before:
                return work(self.tokens)
        except Exhausted:
            pass
        raise StageError(
            f"the GPU's memory does not suffice for micro-batches of {min(before, self.tokens):,} tokens. Set "
            "trainer.enable_gradient_checkpointing=true, shorten model.max_prompt_tokens or model.max_response_tokens, "
            "raise trainer.zero_stage with several ranks, or lower trainer.logprob_chunk_tokens.")
