"""Log-prob and entropy of chosen tokens from hidden states, without logits in memory: a Triton kernel for GPUs.

The forward pass computes tiles of logits [ROWS, WORDS] in registers and keeps of each tile, for every row, the maximum
m, the sum of exp(z - m) and that of exp(z - m) (z - m). The backward pass computes the tiles again and writes the
gradient of the logits, in the weights' type, for a block of the vocabulary at a time; two matrix products per block
then give the gradients of hidden states and head. (The idea of not storing logits: cut cross-entropy, Wijmans et al.
2024, arXiv:2411.09009; unlike there, no small gradient is skipped.) Sums are float32 throughout. The logits are not
rounded to bfloat16, which the chunked head of policy.py, the reference in the tests, does.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ouroboros.pipeline.settings.trainer import KERNEL_ENTRIES

# a tile: positions, vocabulary entries, hidden entries per step of its product; with three stages 144 KiB of shared
# memory. Of twelve choices on an H200 the fastest (647 TFLOP/s)
ROWS, WORDS, DEPTH, STAGES, WARPS = 128, 256, 64, 3, 8
GROUP = 64  # tiles of rows that use a tile of the head one after the other, so that it stays in the cache


@triton.jit
def _tile(hidden, weight, row, word, inverse_temperature, size, WIDTH: tl.constexpr, ROWS: tl.constexpr,
          WORDS: tl.constexpr, DEPTH: tl.constexpr):
    """Logits / temperature of a tile, [ROWS, WORDS] float32, and its words. Those from `size` on have probability 0; a
    finite number, as infinity times 0 is not 0."""
    total = tl.zeros((ROWS, WORDS), tl.float32)
    for k in range(0, WIDTH, DEPTH):
        total = tl.dot(hidden.load([row, k]), weight.load([word, k]).T, total)
    words = word + tl.arange(0, WORDS)
    return tl.where(words[None, :] < size, total * inverse_temperature, -1e30), words


@triton.jit
def _place(tiles_of_rows, tiles_of_words, GROUP: tl.constexpr):
    """The tile of this program: GROUP tiles of rows by all words, before the next group of rows."""
    program = tl.program_id(0)
    group = program // (GROUP * tiles_of_words)
    height = min(tiles_of_rows - group * GROUP, GROUP)
    return group * GROUP + program % (GROUP * tiles_of_words) % height, program % (GROUP * tiles_of_words) // height


@triton.jit(do_not_specialize=["rows"])
def _sums(hidden, weight, maxima, sums, products, rows, size, inverse_temperature, WIDTH: tl.constexpr,
          ROWS: tl.constexpr, WORDS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr):
    """maxima, sums, products [tiles of words, rows]: of each tile m, sum of exp(z - m), sum of exp(z - m) (z - m)."""
    tile_of_rows, tile_of_words = _place(tl.cdiv(rows, ROWS), tl.cdiv(size, WORDS), GROUP)
    z, _ = _tile(hidden, weight, tile_of_rows * ROWS, tile_of_words * WORDS, inverse_temperature, size, WIDTH, ROWS,
                 WORDS, DEPTH)
    m = tl.max(z, 1)
    below = z - m[:, None]
    p = tl.exp(below)
    row = tile_of_rows * ROWS + tl.arange(0, ROWS)
    place, inside = tile_of_words.to(tl.int64) * rows + row, row < rows
    tl.store(maxima + place, m, inside)
    tl.store(sums + place, tl.sum(p, 1), inside)
    tl.store(products + place, tl.sum(p * below, 1), inside)


@triton.jit(do_not_specialize=["rows", "first", "width_of_block"])
def _gradient(hidden, weight, out, targets, normalizer, entropy, of_logprobs, of_entropy, rows, size, first,
              width_of_block, inverse_temperature, WIDTH: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
              DEPTH: tl.constexpr, GROUP: tl.constexpr):
    """out [rows, width_of_block]: gradient of the logits of the words from `first` on, before the temperature.

    With p = exp(z - normalizer): of a log-prob 1[target] - p, of the entropy -p (z - normalizer + entropy).
    """
    tile_of_rows, tile_of_words = _place(tl.cdiv(rows, ROWS), tl.cdiv(width_of_block, WORDS), GROUP)
    z, words = _tile(hidden, weight, tile_of_rows * ROWS, first + tile_of_words * WORDS, inverse_temperature, size,
                     WIDTH, ROWS, WORDS, DEPTH)
    row = tile_of_rows * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    below = z - tl.load(normalizer + row, inside, 0.0)[:, None]
    p = tl.exp(below)
    a = tl.load(of_logprobs + row, inside, 0.0)[:, None] * inverse_temperature
    b = tl.load(of_entropy + row, inside, 0.0)[:, None] * inverse_temperature
    own = words[None, :] == tl.load(targets + row, inside, -1)[:, None]
    gradient = tl.where(own, a, 0.0) - p * (a + b * (below + tl.load(entropy + row, inside, 0.0)[:, None]))
    place = row.to(tl.int64)[:, None] * width_of_block + (words - first)[None, :]
    inside = inside[:, None] & (words < first + width_of_block)[None, :]
    tl.store(out + place, gradient.to(out.dtype.element_ty), inside)


class Score(torch.autograd.Function):
    """hidden [N, width], weight [V, width], both bfloat16, targets [N] -> log-probs [N], entropy [N], float32."""

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, entropy_gradient: bool):
        hidden = hidden.contiguous()
        maxima, sums, products = _tile_sums(hidden, weight, temperature)
        m = maxima.max(0).values
        share = (maxima - m).exp_()
        total = (sums * share).sum(0)
        entropy = total.log() - (share * (products + sums * (maxima - m))).sum(0) / total
        normalizer = m + total.log()
        chosen = (hidden.float() * weight[targets].float()).sum(-1) / temperature
        ctx.save_for_backward(hidden, weight, targets, normalizer, entropy)
        ctx.temperature = temperature
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return chosen - normalizer, entropy

    @staticmethod
    def backward(ctx, of_logprobs: Tensor, of_entropy: Tensor):
        hidden, weight, targets, normalizer, entropy = ctx.saved_tensors
        (rows, width), size = hidden.shape, len(weight)
        of_hidden = torch.zeros(rows, width, device=hidden.device)
        of_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        columns = min(max(KERNEL_ENTRIES // rows // WORDS, 1) * WORDS, size)
        for first in range(0, size, columns):
            count = min(columns, size - first)
            gradient = torch.empty(rows, count, dtype=weight.dtype, device=weight.device)
            _gradient[(triton.cdiv(rows, ROWS) * triton.cdiv(count, WORDS),)](
                *_descriptors(hidden, weight), gradient, targets, normalizer, entropy, of_logprobs.contiguous(),
                of_entropy.contiguous(), rows, size, first, count, 1 / ctx.temperature, **_options(hidden))
            block = weight[first : first + count]
            of_hidden = torch.addmm(of_hidden, gradient, block, out_dtype=torch.float32)
            if of_weight is not None:
                torch.mm(gradient.T, hidden, out=of_weight[first : first + count])
        return of_hidden.to(hidden.dtype), of_weight, None, None, None


def _tile_sums(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """maxima, sums and products of `_sums`, [3, tiles of words, N]."""
    tiles = triton.cdiv(len(weight), WORDS)
    made = torch.empty(3, tiles, len(hidden), device=hidden.device)
    _sums[(triton.cdiv(len(hidden), ROWS) * tiles,)](
        *_descriptors(hidden, weight), *made, len(hidden), len(weight), 1 / temperature, **_options(hidden))
    return made


def _descriptors(hidden: Tensor, weight: Tensor) -> tuple[TensorDescriptor, TensorDescriptor]:
    return TensorDescriptor.from_tensor(hidden, [ROWS, DEPTH]), TensorDescriptor.from_tensor(weight, [WORDS, DEPTH])


def _options(hidden: Tensor) -> dict:
    return {"WIDTH": hidden.shape[1], "ROWS": ROWS, "WORDS": WORDS, "DEPTH": DEPTH, "GROUP": GROUP, "num_warps": WARPS,
            "num_stages": STAGES}
