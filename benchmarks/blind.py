"""The built-in environments with their answers withheld: the controls of benchmarks.agents.

A call acts as always and returns an empty text, also where it is refused; what `reset` shows at first stays.
"""

from contextlib import suppress
from functools import wraps

from ouroboros.workflows.environments import folder, frozen_lake, shop, sudoku, terminal
from ouroboros.workflows.protocol.tools import Environment, Tool, methods_of


def _withheld(tool: Tool):
    @wraps(tool.function)
    def act(self, *given, **named):
        with suppress(ValueError):
            tool.function(self, *given, **named)
        return ""

    return act


def _blind(world: type[Environment]) -> type[Environment]:
    return type(world.__name__, (world,), {
        "__module__": __name__, "__doc__": world.__doc__, **{one.name: _withheld(one) for one in methods_of(world)}})


Folder, FrozenLake, Shop, Sudoku, Terminal = map(_blind, (
    folder.Folder, frozen_lake.FrozenLake, shop.Shop, sudoku.Sudoku, terminal.Terminal))
