"""Log-probs of sampled tokens that stay with the sampler until their request ends.

vLLM moves the log-prob of each token through its scheduler and its output processor, one Python object a token: 23% of
an engine's host time in a decoding step of 256 requests of a 0.5B model on an H100 (benchmarks/gpu_peers.md). The
values computed by its sampler are kept here instead, and a request's are copied once, when it ends. Nothing is computed
otherwise.
"""

from collections.abc import Callable, Sequence


class KeptLogprobs:
    """values [requests, positions]: the log-prob of the token at each position of each request in progress.

    A request keeps its line from its first token until `take` or `drop`, whatever place the runner gives it after a
    preemption. width: positions of the longest sequence. The number of lines doubles when more are needed.
    """

    def __init__(self, lines: int, width: int, device):
        import torch

        self._torch, self._stream = torch, None
        self.values = torch.zeros((lines, width), dtype=torch.float32, device=device)
        if self.values.is_cuda:
            self._stream = torch.cuda.Stream(device)
        self._line_of: dict[int, int] = {}
        self._free = list(range(lines))[::-1]
        self._batch: list[str] = []
        self._lines = None  # [B] of the requests of the last batch

    def write(self, names: list[str], positions, logprobs) -> None:
        """names [B]: requests, "number-…"; positions [B]: of the sampled tokens; logprobs [B]. All on the device."""
        if names != self._batch:
            self._batch = list(names)
            lines = [self._line(int(name.partition("-")[0])) for name in names]
            self._lines = self._torch.tensor(lines, device=self.values.device)
        self.values[self._lines, positions] = logprobs

    def take(self, wanted: Sequence[tuple[int, int, int]]) -> list[list[float]]:
        """The log-probs of requests that ended: (number, position of the first token, tokens) each; frees their lines.

        The values were written before the runner handed over the tokens, so only this copy is waited for, not the step
        that the GPU computes meanwhile.
        """
        if self._stream:
            with self._torch.cuda.stream(self._stream):
                return self._taken(wanted)
        return self._taken(wanted)

    def drop(self, numbers: Sequence[int]) -> None:
        """Frees the lines of requests that were cancelled, or failed."""
        for number in numbers:
            if (line := self._line_of.pop(number, None)) is not None:
                self._free.append(line)
        self._batch = []

    def _taken(self, wanted: Sequence[tuple[int, int, int]]) -> list[list[float]]:
        lines = [self._line_of[number] for number, _, tokens in wanted if tokens]
        end = max((first + tokens for _, first, tokens in wanted), default=0)
        found = iter(self.values[:, :end][lines].cpu().numpy())
        taken = [next(found)[first:first + tokens].tolist() if tokens else [] for _, first, tokens in wanted]
        self.drop([number for number, _, _ in wanted])
        return taken

    def _line(self, number: int) -> int:
        if number not in self._line_of:
            if not self._free:
                self._grow()
            self._line_of[number] = self._free.pop()
            self.values[self._line_of[number]] = float("nan")  # of a request before
        return self._line_of[number]

    def _grow(self) -> None:
        lines = len(self.values)
        self.values = self._torch.cat([self.values, self._torch.zeros_like(self.values)])
        self._free = list(range(lines, 2 * lines))[::-1]
        if self._stream:
            self._stream.wait_stream(self._torch.cuda.current_stream(self.values.device))


def keep(sampler, lines: int, width: int, device, batch_of: Callable) -> KeptLogprobs:
    """Lets a sampler of vLLM hand no log-probs over, and keeps them in what is returned.

    Overrides one method, `__call__`. batch_of: from its arguments to the requests' names [B] and the positions of the
    tokens that it samples [B]. Steps in which a request asks for log-probs of further tokens pass unchanged; ours ask
    for the sampled token's alone.
    """
    kept = KeptLogprobs(lines, width, device)

    class KeepingSampler(type(sampler)):
        def __call__(self, *given, **named):
            output = super().__call__(*given, **named)
            made = output.logprobs_tensors
            if made is not None and made.logprobs.shape[1] == 1:
                kept.write(*batch_of(*given, **named), made.logprobs[:, 0])
                output.logprobs_tensors = None
            return output

    sampler.__class__ = KeepingSampler
    return kept


def of_second(logits, batch) -> tuple:
    """`batch_of` vLLM's second model runner."""
    return batch.req_ids, batch.positions[batch.logits_indices] + 1


def of_first(runner) -> Callable:
    """`batch_of` the first one without asynchronous scheduling, whose batch has the tokens before the sampled one."""
    import torch

    def batch(*_, **__) -> tuple:
        held = runner.input_batch
        return held.req_ids, torch.from_numpy(held.num_tokens_no_spec[: held.num_reqs]).long()

    return batch
