"""Attention within the rows of a packed micro-batch, registered with transformers under our names.

Three implementations of the same function (causal, rows independent, segments shared where rows share them); bounds and
indices are passed through the model's forward as keyword arguments (see `layout`). Windows, capped scores and attention
sinks are arguments of the family's layers; architecture.DOES has what each implementation takes of them:

flash_attn  the flash-attn package's varlen kernel; GPU, when installed
varlen      torch.nn.attention.varlen; GPU, bf16/fp16
padded      rows gathered to [S, longest] only for scaled_dot_product_attention, so that all else stays
            padding-free; a block-diagonal mask over the flat batch would cost T^2 instead of S * longest^2
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ouroboros.pipeline.settings.trainer import attention_of
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.stages.learner.engine.continued import continued
from ouroboros.stages.learner.engine.kernels import broken
from ouroboros.stages.learner.engine.sharing import Segments
from ouroboros.stages.learner.engine.ulysses import Sequence

# attention -> its name in transformers; one that contains "flash" is taken for a kernel of transformers itself
REGISTERED = {"flash_attn": "ouro_package", "varlen": "ouro_varlen", "padded": "ouro_padded"}


def choose(name: str, device: str) -> str:
    """Resolves `trainer.attention`. Raises ConfigError when the requested one cannot run here."""
    lacking = broken("flash_attn") if name in ("auto", "flash_attn") else None
    if name == "auto":
        return attention_of(name, device != "cpu", not lacking)
    if lacking:
        raise ConfigError(f"trainer.attention=flash_attn: the package cannot be used: {lacking}. pip install "
                          "'ouroboros-rft[flash-attn]', or set trainer.attention=auto.")
    if name != "padded" and device == "cpu":
        raise ConfigError(f"trainer.attention={name} needs a GPU; use auto or padded.")
    return name


def register() -> None:
    """Registers the three with transformers; none of them needs a mask tensor."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    for name, function in ATTENTIONS.items():
        AttentionInterface.register(REGISTERED[name], partial(_attend, function))
        AttentionMaskInterface.register(REGISTERED[name], lambda *_, **__: None)  # none is made


def layout(segments: Segments, device: torch.device, name: str, blocks: Tensor | None = None) -> dict:
    """The keyword arguments that the model's forward passes to the attention function, on its device. blocks: of tokens
    that attend to one another in both directions [T], -1: none; they make it `padded`."""
    if name == "padded" or blocks is not None:
        gather, scatter = (torch.from_numpy(places).to(device) for places in padded_places(segments))
        if blocks is not None:
            behind = (gather == 0) & (torch.arange(gather.shape[1], device=device) > 0)  # the end of a row
            blocks = blocks[gather].masked_fill(behind, -1)
        return {"gather": gather, "scatter": scatter, "masks": {}, "blocks": blocks}
    lengths, contexts = segments.lengths, segments.contexts
    places = {"cu_seq_lens_q": torch.from_numpy(segments.bounds).to(device, non_blocking=True),
              "longest": int(lengths.max())}
    if not segments.continue_others:
        return places
    children = np.flatnonzero(contexts >= 0)
    children = children[np.argsort(contexts[children], kind="stable")]  # those that continue the same one together
    parents, first = np.unique(contexts[children], return_index=True)
    queries = np.add.reduceat(lengths[children], first)  # tokens that continue each
    chains = [segments.tokens(segments.chain(parent)) for parent in parents]
    shared = segments.tokens(parents)  # what a parent continues is a parent too
    cu_queries, cu_keys = _bounds(queries), _bounds(np.array([len(chain) for chain in chains]))
    arrays = {"queries": segments.tokens(children), "shared": shared,
              "keys": np.searchsorted(shared, np.concatenate(chains)), "cu_queries": cu_queries, "cu_keys": cu_keys}
    on_device = {key: torch.from_numpy(array).to(device, non_blocking=True) for key, array in arrays.items()}
    return places | on_device | {"longest_queries": int(queries.max()), "longest_keys": int(max(map(len, chains)))}


def _bounds(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def padded_places(segments: Segments) -> tuple[np.ndarray, np.ndarray]:
    """[S, longest] flat positions of the tokens of each row, 0 behind its end; [T] where the tokens are in it, those of
    a shared segment in any of its rows."""
    rows = segments.rows()
    gather = np.zeros((len(rows), max(map(len, rows))), np.int64)
    scatter = np.zeros(segments.bounds[-1], np.int64)
    for place, row in enumerate(rows):
        gather[place, : len(row)] = row
        scatter[row] = place * gather.shape[1] + np.arange(len(row))
    return gather, scatter


def _attend(attention, module, *arguments, sequence: Sequence | None = None, **named):
    """attention(module, ...), over the tokens of all ranks that share the micro-batch."""
    if named.get("blocks") is not None:  # the kernels of GPUs have no such masks
        attention = padded
    if sequence is None:
        return attention(module, *arguments, **named)
    return sequence.attend(attention, module, *arguments, **named)


def _repeat(states: Tensor, heads: int) -> Tensor:
    """[1, KV, T, D] -> [T, H, D], each key/value head repeated for its group of query heads."""
    states = states[0].transpose(0, 1)
    return states.repeat_interleave(heads // states.shape[1], dim=1) if states.shape[1] != heads else states


def _bounded(sliding_window: int | None) -> tuple[int, int]:
    """The keys before and behind a query that it attends to, as flash attention counts them."""
    return (sliding_window - 1 if sliding_window else -1, 0)


def flash_attn(module, query, key, value, attention_mask, scaling=None, dropout=0.0, *, cu_seq_lens_q, longest,
               queries=None, sliding_window=None, softcap=None, **more):
    """query [1, H, T, D], key and value [1, KV, T, D] -> ([1, T, H, D], None)."""
    from flash_attn import flash_attn_varlen_func

    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    if queries is not None:
        out = continued("flash_attn", q, k, v, cu_seq_lens_q, longest, queries, scaling, more)
        return out[None], None
    out = flash_attn_varlen_func(q, k, v, cu_seq_lens_q, cu_seq_lens_q, longest, longest, softmax_scale=scaling,
                                 causal=True, window_size=_bounded(sliding_window), softcap=softcap or 0.0)
    return out[None], None


def varlen(module, query, key, value, attention_mask, scaling=None, dropout=0.0, *, cu_seq_lens_q, longest,
           queries=None, sliding_window=None, **more):
    """As `flash_attn`; torch's kernel has no grouped-query option, so key/value heads are repeated."""
    from torch.nn.attention.varlen import varlen_attn

    q = query[0].transpose(0, 1).contiguous()
    k, v = (_repeat(x, q.shape[1]).contiguous() for x in (key, value))
    if queries is not None:
        return continued("varlen", q, k, v, cu_seq_lens_q, longest, queries, scaling, more)[None], None
    out = varlen_attn(q, k, v, cu_seq_lens_q, cu_seq_lens_q, longest, longest, scale=scaling,
                      window_size=_bounded(sliding_window))
    return out[None], None


def padded(module, query, key, value, attention_mask, scaling=None, dropout=0.0, *, gather, scatter, masks,
           blocks=None, sliding_window=None, softcap=None, s_aux=None, **_):
    """As `flash_attn`, on any device. Padding follows each row: the causal mask hides it. s_aux: sinks [H], scores of a
    key without a value that every query attends to (gpt-oss). With them, or capped, scores exist [S, H, longest^2].
    masks: those of windows, made by the first layer of a forward that has them. blocks: [S, longest], as `layout`."""
    heads = query.shape[1]
    flat_gather = gather.flatten()
    # index_select: its backward is an index_add, on CPU several times faster than that of x[gather]
    q, k, v = (
        _repeat(x, heads).index_select(0, flat_gather).view(*gather.shape, heads, x.shape[-1]).transpose(1, 2)
        for x in (query, key, value)
    )  # [S, H, longest, D], D of the values smaller in DeepSeek's latent attention
    if sliding_window not in masks:
        masks[sliding_window] = _window(q.shape[2], sliding_window, q.device, blocks)
    mask = masks[sliding_window]
    if softcap is None and s_aux is None:
        out = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scaling)
    else:
        out = _by_scores(q, k, v, mask, q.shape[-1] ** -0.5 if scaling is None else scaling, softcap, s_aux)
    flat = out.transpose(1, 2).flatten(0, 1)  # [S * longest, H, D]
    return flat.index_select(0, scatter)[None], None


def _window(length: int, window: int | None, device: torch.device, blocks: Tensor | None = None) -> Tensor | None:
    """Which keys a query attends to [length, length] bool: the last `window` up to its own; None: all up to it. blocks:
    [S, length]: also the later ones of its own block [S, 1, length, length]."""
    if blocks is None and (not window or window >= length):
        return None
    places = torch.arange(length, device=device)
    behind = places[:, None] - places[None]
    seen = behind >= 0
    if blocks is not None:
        seen = (seen | ((blocks[:, :, None] == blocks[:, None]) & (blocks[:, :, None] >= 0)))[:, None]
    return seen & (behind < (window or length))


def _by_scores(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, softcap: float | None,
               sinks: Tensor | None) -> Tensor:
    """q, k, v: [S, H, L, D]; mask: of `_window`; sinks: [H]. Rounds as the families' own code does: the softmax is in
    float32, with sinks in the type of the scores."""
    scores = q @ k.transpose(-1, -2) * scale
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is None:
        return scores.softmax(-1, torch.float32).to(v.dtype) @ v
    scores = torch.cat([scores, sinks.to(scores)[None, :, None, None].expand(*scores.shape[:-1], 1)], -1)
    scores = scores - scores.amax(-1, keepdim=True)
    return scores.softmax(-1)[..., :-1] @ v


ATTENTIONS = {"flash_attn": flash_attn, "varlen": varlen, "padded": padded}
