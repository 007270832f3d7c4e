"""torch.compile of decoder layers: few graphs, counted, and eager execution of what does not compile.

All layers of a model share one graph, in which the number of tokens and of rows is symbolic: packed micro-batches of
any length take it without padding (1% slower than a graph for one length). Scoring without gradients has its own graph.
"""

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import nn

LIMIT = 64  # graphs of a process; a layer that breaks into parts has several, and as many again for scoring
RECOMPILES = 16  # graphs of one function


class Graphs:
    """The graphs compiled in this process: their number, the seconds they took, and news for the log."""

    def __init__(self):
        self.count, self.seconds, self.reported = 0, 0.0, 0
        self.refused: list[str] = []  # each reason once
        self.reported_refusals = 0

    def backend(self, graph: torch.fx.GraphModule, inputs: list) -> Callable:
        """Compiles a graph with inductor; where that is not possible, returns the graph itself, which runs eagerly."""
        if self.count == LIMIT:
            return self._refuse(graph, f"{LIMIT} graphs are compiled; further shapes run eagerly")
        from torch._dynamo.exc import RestartAnalysis, SkipFrame

        begin = time.perf_counter()
        try:
            made = torch._dynamo.lookup_backend("inductor")(graph, inputs)
        except (RestartAnalysis, SkipFrame, torch.OutOfMemoryError):  # the first two are signals to torch's tracer
            raise
        except RuntimeError as error:  # inductor turns each of its failures into one
            what = str(error).strip().partition("\n")[0]
            return self._refuse(graph, "a part of the model does not compile and runs eagerly: "
                                       f"{type(error).__name__}: {what}")
        self.count, self.seconds = self.count + 1, self.seconds + time.perf_counter() - begin
        return made

    def _refuse(self, graph: torch.fx.GraphModule, why: str) -> Callable:
        if why not in self.refused:
            self.refused.append(why)
        return graph.forward

    def compile(self, function: Callable) -> Callable:
        """Returns the function, compiled at its first call."""
        _configure()
        return torch.compile(function, backend=self.backend, dynamic=True)

    def compile_layers(self, model: nn.Module) -> None:
        """Compiles the decoder layers of a transformers model in place, each at its first call."""
        from transformers.modeling_layers import GradientCheckpointingLayer

        _configure()
        for module in model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.compile(backend=self.backend, dynamic=True)  # within the recomputation, where there is one

    def close(self) -> None:
        """Ends the processes in which torch compiles kernels: at the end of this one that would take a second."""
        if self.count:
            from torch._inductor.async_compile import shutdown_compile_workers

            with suppress(subprocess.TimeoutExpired):  # of one that does not end
                shutdown_compile_workers()

    def news(self) -> list[str]:
        """Returns what happened since the last call, as lines for a log."""
        lines = self.refused[self.reported_refusals :]
        if self.count > self.reported:
            lines.append(f"{self.count} graphs compiled in {self.seconds:.1f} s")
        self.reported, self.reported_refusals = self.count, len(self.refused)
        return [f"trainer.compile: {line}" for line in lines]


def _configure() -> None:
    import torch._dynamo
    import torch.fx.experimental._config

    # else two sizes that are equal in the first micro-batch, such as 896 shared tokens and the width, are one for ever
    torch.fx.experimental._config.use_duck_shape = False
    torch._dynamo.config.recompile_limit = RECOMPILES
    torch._dynamo.config.suppress_errors = True  # torch logs what it cannot trace, and runs it eagerly


GRAPHS = Graphs()  # torch keeps compiled code for the process
