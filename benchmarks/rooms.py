"""An import contract for `make lint`: no room, which is a folder of modules, is in a circle of imports with another."""

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output

from benchmarks import house


class NoCircles(Contract):
    """Kept where no chain of imports leaves a folder and comes back to it; a folder inside another is a room too."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        circles = house.structure(house.import_graph(graph), house.layers())["circles of rooms"]
        return ContractCheck(kept=not circles, metadata={"circles": circles})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for circle in check.metadata["circles"]:
            output.print_error(f"in a circle: {', '.join(circle)}")
