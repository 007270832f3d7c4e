"""Muon for the matrices of a model and AdamW for all else, on the flat tensors that ZeRO-1 and 2 give an optimizer."""

import torch
from torch import Tensor, nn

from ouroboros.stages.learner.engine.process import Process

HEADS = ("lm_head.weight", "head.weight", "score.weight")


class Muon(torch.optim.AdamW):
    """Jordan et al. 2024; with the factor 0.2 sqrt(max(m, n)) of Liu et al. 2025, arXiv:2502.16982, a step of an m x n
    matrix is as large as AdamW's, so that lr and weight_decay are of both. Embedding, output head, vectors and the
    stacked weights of experts have AdamW.

    ZeRO concatenates the parameters of a group and gives each rank an equal part of them, float32. Matrices that lie in
    a part whole are those of `torch.optim.Muon`, as views. One that is cut is put together on all ranks by a sum
    with zeros, and each of its ranks keeps its own part of the same step. The momentum is one flat tensor, which
    checkpoints have as they have AdamW's moments.
    """

    def __init__(self, module: nn.Module, process: Process, **given):
        """given: arguments of AdamW."""
        embeddings = {one.weight for one in module.modules() if isinstance(one, nn.Embedding)}
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        matrices = [p for name, p in trained if p.ndim == 2 and p not in embeddings and not name.endswith(HEADS)]
        others = [p for _, p in trained if p not in {*matrices}]
        groups = [{"params": matrices, "shapes": [tuple(p.shape) for p in matrices]}, {"params": others}]
        super().__init__([group for group in groups if group["params"]], **given)
        self.process = process

    @torch.no_grad()
    def step(self, closure=None) -> None:
        """Of the one group that DeepSpeed has set, whose parameter is this rank's part."""
        (group,) = self.param_groups
        if "shapes" not in group:
            super().step(closure)
            return
        (flat,) = group["params"]
        if not self.state[flat]:  # `step`: AdamW looks for it in each state that it loads
            self.state[flat] |= {"step": torch.zeros(()), "momentum_buffer": torch.zeros_like(flat)}
        momentum = self.state[flat]["momentum_buffer"]
        whole, end = [], -self.process.rank * len(flat)  # places within this rank's part
        for rows, width in group["shapes"]:
            begin, end = end, end + rows * width
            own = slice(*(min(max(place, 0), len(flat)) for place in (begin, end)))
            parts = [tensor.detach() for tensor in (flat, flat.grad, momentum)]
            if begin >= 0 and end <= len(flat):
                whole.append([part[own].view(rows, width) for part in parts])
            elif (begin // len(flat)) != (end - 1) // len(flat):  # the same on every rank: parts are equally long
                inside = slice(own.start - begin, own.stop - begin)
                matrix = flat.new_zeros(3, rows * width)
                for copy, part in zip(matrix, parts, strict=True):
                    copy[inside] = part[own]
                self.process.all_reduce(matrix)
                _step([list(matrix.view(3, rows, width))], group)
                parts[0][own], momentum[own] = matrix[0, inside], matrix[2, inside]
        _step(whole, group)


def _step(matrices: list[list[Tensor]], group: dict) -> None:
    """A step of torch's Muon, in place. matrices: weights, gradient and momentum of each, [m, n]."""
    if not matrices:
        return
    made = torch.optim.Muon([weights for weights, _, _ in matrices], lr=group["lr"],
                            weight_decay=group["weight_decay"], adjust_lr_fn="match_rms_adamw")
    for weights, gradient, momentum in matrices:
        weights.grad = gradient
        made.state[weights]["momentum_buffer"] = momentum
    made.step()
