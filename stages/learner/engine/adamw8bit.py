"""AdamW whose moments have 8 bits, on the flat tensors that ZeRO gives an optimizer: 2 bytes a weight instead of 8."""

import torch
from torch import Tensor

BLOCK = 256  # numbers that share a scale
CHUNK = 1 << 23  # numbers of a step that are held in 32 bits at once, whole blocks


class AdamW8bit(torch.optim.Optimizer):
    """Dettmers et al. 2022, arXiv:2110.02861: each moment is a code of the dynamic map and the largest absolute value
    of its block of 256 numbers. A step is AdamW's with the moments of the step in 32 bits; the codes are what it
    leaves. A second moment that is not 0 is not kept as 0, so that no step divides by `eps` alone.

    Codes are kept in the bytes of float32 tensors: loading casts a state to its parameter's type, which would make four
    bytes of each code.
    """

    def __init__(self, parameters, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, **_):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for weights in group["params"]:
                if weights.grad is not None:
                    _step(weights.view(-1), weights.grad.view(-1), self._state(weights), group)

    def _state(self, weights: Tensor) -> dict[str, Tensor]:
        state = self.state[weights]
        if not state:
            blocks = -(-weights.numel() // BLOCK)
            state["step"] = torch.zeros(())
            for name, signed in ("exp_avg", True), ("exp_avg_sq", False):
                codes = torch.full((blocks, BLOCK), int((_map(signed) == 0).nonzero()), dtype=torch.uint8)
                state[name] = codes.view(torch.float32).to(weights.device)
                state[f"{name}_scale"] = torch.zeros((blocks, 1), device=weights.device)
        state["step"] += 1
        return state


def _map(signed: bool) -> Tensor:
    """The 256 values of the dynamic map, ascending from -1 or 0 to 1: a number has as many bits for its fraction as
    its power of ten leaves."""
    values = [torch.zeros(1), torch.ones(1)]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (exponent + (not signed)) + 1)
        means = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (exponent - 6)
        values += [means, -means] if signed else [means]
    return torch.cat(values).sort().values


def _step(weights: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict) -> None:
    """A step of flat weights [N], in place."""
    (first, second), number = group["betas"], int(state["step"])
    for begin in range(0, len(weights), CHUNK):
        part, given = weights[begin : begin + CHUNK], gradient[begin : begin + CHUNK].float()
        blocks = slice(begin // BLOCK, -(-(begin + len(part)) // BLOCK))
        mean, square = (_Moment(state[name][blocks], state[f"{name}_scale"][blocks], signed)
                        for name, signed in (("exp_avg", True), ("exp_avg_sq", False)))
        average = mean.values()[: len(part)].lerp_(given, 1 - first)
        squares = square.values()[: len(part)].mul_(second).addcmul_(given, given, value=1 - second)
        divisor = (squares / (1 - second**number)).sqrt_().add_(group["eps"])
        part.mul_(1 - group["lr"] * group["weight_decay"])
        part.addcdiv_(average, divisor, value=-group["lr"] / (1 - first**number))
        mean.keep(average)
        square.keep(squares)


class _Moment:
    """A moment of some blocks: codes [B, 64] float32 with the bytes of [B, 256] codes; scales [B, 1]."""

    def __init__(self, codes: Tensor, scales: Tensor, signed: bool):
        self.codes, self.scales, self.signed = codes.view(torch.uint8), scales, signed
        self.map = _map(signed).to(codes.device)

    def values(self) -> Tensor:
        return (self.map[self.codes.int()] * self.scales).view(-1)

    def keep(self, values: Tensor) -> None:
        """values: [N], of all blocks but what the last one has too many."""
        whole = torch.nn.functional.pad(values, (0, self.codes.numel() - len(values))).view(self.codes.shape)
        torch.amax(whole.abs(), 1, keepdim=True, out=self.scales)
        shares = whole / self.scales.clamp(min=torch.finfo(torch.float32).tiny)
        codes = torch.bucketize(shares, (self.map[1:] + self.map[:-1]) / 2, out_int32=True)
        self.codes.copy_(codes if self.signed else codes.clamp_(min=1))
