"""Attention of segments that continue others, from two calls of a packed kernel, however deep their tree.

A segment attends to itself (causally) and to all before it, from the root of its tree (wholly): keys of the latter are
gathered once for all segments that continue the same one. With outputs o1, o2 and log-sum-exps l1, l2 of the two
softmaxes, the softmax over both has l = log(exp l1 + exp l2) and o = exp(l1 - l) o1 + exp(l2 - l) o2. Kernels
compute their backward pass from o and l, so with the joint ones each returns its part of the gradients, which add up:
no score is computed twice. The same identities carry ring attention (Liu et al. 2023, arXiv:2310.01889).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import CustomOpDef


class Piece(NamedTuple):
    """Queries in packed sequences against keys in as many. Bounds [N + 1] int32; longest ones in tokens."""

    cu_queries: Tensor
    cu_keys: Tensor
    longest_query: int
    longest_key: int
    causal: bool


class Varlen:
    """The kernel of torch.nn.attention.varlen."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, piece: Piece, scale: float) -> tuple[Tensor, Tensor]:
        """q [T, H, D], k and v [K, H, D] -> [T, H, D], log-sum-exp [H, T] float32."""
        return torch.ops.aten._flash_attention_forward(
            q, k, v, piece.cu_queries, piece.cu_keys, piece.longest_query, piece.longest_key, 0.0, piece.causal, False,
            scale=scale)[:2]

    @staticmethod
    def backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, piece: Piece, scale: float
                 ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k, v; out and lse may be of a softmax over more keys than these."""
        no_dropout = torch.zeros(2, dtype=torch.uint64, device=q.device), torch.empty(0, device=q.device)
        return torch.ops.aten._flash_attention_backward(
            grad, q, k, v, out, lse, piece.cu_queries, piece.cu_keys, piece.longest_query, piece.longest_key, 0.0,
            piece.causal, *no_dropout, scale=scale)


class FlashAttn:
    """The kernel of the package flash-attn; key/value heads may be fewer. As `Varlen`."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, piece: Piece, scale: float) -> tuple[Tensor, Tensor]:
        from flash_attn.flash_attn_interface import _flash_attn_varlen_forward

        return _flash_attn_varlen_forward(
            q, k, v, piece.cu_queries, piece.cu_keys, piece.longest_query, piece.longest_key, 0.0, scale,
            causal=piece.causal)[:2]

    @staticmethod
    def backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, piece: Piece, scale: float
                 ) -> tuple[Tensor, Tensor, Tensor]:
        from flash_attn.flash_attn_interface import _flash_attn_varlen_backward

        made = tuple(map(torch.empty_like, (q, k, v)))
        _flash_attn_varlen_backward(
            grad, q, k, v, out, lse, *made, piece.cu_queries, piece.cu_keys, piece.longest_query, piece.longest_key,
            0.0, scale, piece.causal, -1, -1, 0.0, None, False)
        return made


KERNELS = {"varlen": Varlen, "flash_attn": FlashAttn}


def continued(kernel: str, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, longest: int, queries: Tensor,
              scaling: float | None, places: dict[str, Any]) -> Tensor:
    """q [T, H, D], k and v [T, KV, D] -> [T, H, D]. The rest as attention.layout returns it."""
    scale = scaling or q.shape[-1] ** -0.5
    return FORWARD(q, k, v, cu_seqlens, longest, queries, places["shared"], places["keys"], places["cu_queries"],
                   places["cu_keys"], places["longest_queries"], places["longest_keys"], scale, kernel)[0]


def _forward(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, longest: int, queries: Tensor, shared: Tensor,
             keys: Tensor, cu_queries: Tensor, cu_keys: Tensor, longest_queries: int, longest_keys: int, scale: float,
             kernel: str) -> tuple[Tensor, Tensor]:
    """[T, H, D] and the log-sum-exp [H, T] over all keys of each query."""
    own, before = _pieces(cu_seqlens, longest, cu_queries, cu_keys, longest_queries, longest_keys)
    out, lse = KERNELS[kernel].forward(q, k, v, own, scale)
    gathered = shared[keys]
    more, more_lse = KERNELS[kernel].forward(q[queries], k[gathered], v[gathered], before, scale)
    own_lse = lse[:, queries]
    joint = torch.logaddexp(own_lse, more_lse)
    old, new = ((one - joint).exp().T[..., None] for one in (own_lse, more_lse))  # [Q, H, 1]
    merged = (old * out[queries] + new * more).to(out.dtype)
    return out.index_copy(0, queries, merged), lse.index_copy(1, queries, joint)


def _forward_shapes(q, k, v, *_):
    return torch.empty_like(q), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


def _backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu_seqlens: Tensor, longest: int,
              queries: Tensor, shared: Tensor, keys: Tensor, cu_queries: Tensor, cu_keys: Tensor, longest_queries: int,
              longest_keys: int, scale: float, kernel: str) -> tuple[Tensor, Tensor, Tensor]:
    own, before = _pieces(cu_seqlens, longest, cu_queries, cu_keys, longest_queries, longest_keys)
    grad, gathered = grad.contiguous(), shared[keys]
    dq, dk, dv = KERNELS[kernel].backward(grad, q, k, v, out, lse, own, scale)
    more, *of_keys = KERNELS[kernel].backward(grad[queries], q[queries], k[gathered], v[gathered], out[queries],
                                              lse[:, queries], before, scale)
    sums = (_summed(part, keys, len(shared)) for part in of_keys)
    return dq.index_add(0, queries, more), *(whole.index_add(0, shared, part)
                                             for whole, part in zip((dk, dv), sums, strict=True))


def _summed(part: Tensor, keys: Tensor, count: int) -> Tensor:
    """Gradients [K, KV, D] of gathered keys, summed in float32 by the token that each is of [count, KV, D]."""
    exact = torch.promote_types(part.dtype, torch.float32)
    return part.new_zeros(count, *part.shape[1:], dtype=exact).index_add_(0, keys, part.to(exact)).to(part.dtype)


def _backward_shapes(grad, q, k, v, *_):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx, inputs, output) -> None:
    q, k, v, cu_seqlens, longest, queries, shared, keys, cu_queries, cu_keys, *rest = inputs
    ctx.save_for_backward(q, k, v, *output, cu_seqlens, queries, shared, keys, cu_queries, cu_keys)
    ctx.longest, ctx.rest = longest, rest


def _gradients(ctx, grad: Tensor, _):
    *states, cu_seqlens, queries, shared, keys, cu_queries, cu_keys = ctx.saved_tensors
    found = BACKWARD(grad, *states, cu_seqlens, ctx.longest, queries, shared, keys, cu_queries, cu_keys, *ctx.rest)
    return (*found, *[None] * 11)


def _pieces(cu_seqlens: Tensor, longest: int, cu_queries: Tensor, cu_keys: Tensor, longest_queries: int,
            longest_keys: int) -> tuple[Piece, Piece]:
    """Each segment against itself, and those that continue the same one against all before them."""
    return (Piece(cu_seqlens, cu_seqlens, longest, longest, True),
            Piece(cu_queries, cu_keys, longest_queries, longest_keys, False))


def _operator(name: str, function: Callable, shapes: Callable, gradients: Callable | None = None) -> CustomOpDef:
    """Registers an operator with torch, whose compiler then calls it and does not look inside."""
    made = torch.library.custom_op(f"ouro::{name}", function, mutates_args=())
    made.register_fake(shapes)
    if gradients:
        made.register_autograd(gradients, setup_context=_keep)
    return made


BACKWARD = _operator("continued_attention_backward", _backward, _backward_shapes)
FORWARD = _operator("continued_attention", _forward, _forward_shapes, _gradients)
