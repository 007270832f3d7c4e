"""The tokens that stay of a distribution which sampling truncates, and how they travel from the engine to the trainer.

With top_k, top_p or min_p a token is sampled from a part of the vocabulary, and its probability is that of this part.
The trainer compares policies by the same part (DeepSeek-V3.2, arXiv:2512.02556, "keep sampling mask"), so it is kept.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(slots=True, frozen=True, eq=False)
class Kept:
    """Of each of N tokens those that it was sampled among. ids [sum of counts] int32; counts [N] int32; 0: not known,
    or of a whole distribution."""

    ids: np.ndarray
    counts: np.ndarray

    def __eq__(self, other) -> bool:
        return isinstance(other, Kept) and all(
            np.array_equal(*pair) for pair in ((self.ids, other.ids), (self.counts, other.counts)))

    @classmethod
    def of(cls, sets: Sequence[np.ndarray]) -> "Kept":
        """sets: ids of each token."""
        ids = np.concatenate(sets) if sets else np.empty(0)
        return cls(ids.astype(np.int32), np.array([len(one) for one in sets], np.int32))

    @classmethod
    def joined(cls, parts: Iterable["Kept"]) -> "Kept":
        parts = [cls.of([]), *parts]
        return cls(np.concatenate([one.ids for one in parts]), np.concatenate([one.counts for one in parts]))

    @classmethod
    def of_column(cls, lists) -> "Kept":
        """From a row of a table. lists: of each token, an array of Arrow."""
        return cls(lists.flatten().to_numpy(zero_copy_only=False), lists.value_lengths().to_numpy(zero_copy_only=False))

    def sets(self) -> list[np.ndarray]:
        return np.split(self.ids, np.cumsum(self.counts)[:-1]) if len(self.counts) else []

    def lists(self):
        """As an array of Arrow: a list of ids for each token."""
        import pyarrow as pa

        return pa.ListArray.from_arrays(np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int32), self.ids)

    def at(self, chosen: np.ndarray) -> "Kept":
        """Those of some tokens. chosen: [N] bool."""
        return Kept(self.ids[np.repeat(chosen, self.counts)], self.counts[chosen])

    def hold(self, tokens: Sequence[int]) -> bool:
        """Whether each token is among its own. tokens: [N]."""
        if len(tokens) != len(self.counts):
            return False
        places = np.repeat(np.arange(len(self.counts)), self.counts)
        found = self.ids == np.asarray(tokens, np.int32)[places]
        return len(np.unique(places[found])) == len(tokens)

    def table(self) -> np.ndarray:
        """ids as [N, most of a token] int32, -1 behind those of a token."""
        widest = max(int(self.counts.max(initial=0)), 1)
        made = np.full((len(self.counts), widest), -1, np.int32)
        made[np.arange(widest) < self.counts[:, None]] = self.ids
        return made


def kept_of(logits, most: int, top_k, top_p, min_p):
    """What of distributions stays, by vLLM's rules in its order: min_p (arXiv:2407.01082), top_k, top_p (nucleus
    sampling, arXiv:1904.09751) of the rest.

    logits: [B, V], over the temperature. top_k: [B], V or more: off; most: the largest; top_p, min_p: [B]. Returns ids
    [B, K], the likeliest first, and how many of them stay [B]; at least 1. Of tokens with equal logits at the end of
    the top_k, some stay.
    """
    import torch

    values, ids = logits.topk(min(most, logits.shape[-1]), dim=-1)
    values = values.float()  # shares of a nucleus in 16 bits are off by half a percent
    stays = torch.arange(ids.shape[1], device=logits.device) < top_k[:, None]
    stays &= (values > -torch.inf) & (values >= values[:, :1] + min_p[:, None].log())
    stays[:, 0] = True
    shares = values.masked_fill(~stays, -torch.inf).softmax(-1)
    stays &= (shares.cumsum(-1) - shares < top_p[:, None]) | (top_p[:, None] >= 1)  # the one that crosses it stays
    return ids, stays.sum(-1)


def truncate(logits, ids, counts):
    """Logits [B, V] with -inf in place of what does not stay. ids, counts: of `kept_of`."""
    import torch

    stays = torch.arange(ids.shape[1], device=ids.device) < counts[:, None]
    values = logits.gather(-1, ids).masked_fill(~stays, -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter_(-1, ids, values)
