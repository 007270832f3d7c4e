"""Import contracts for `make lint` on rooms: folders of modules at any depth, so that one inside another is one too.

import-linter's own contract on layers takes a package with all that is inside it, and two floors may be one inside the
other: `operators.losses` lies below the settings, which declare its arguments, and `operators` above them.
"""

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

from benchmarks import house


class Downwards(Contract):
    """Kept where every import goes to a lower floor, or stays on its own: of `a | b` neither imports the other."""

    layers = fields.ListField(subfield=fields.StringField())  # read by benchmarks/house.py

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        found = house.structure(house.import_graph(graph), house.layers(), house.apart())["upward arrows"]
        return ContractCheck(kept=not found, metadata={"arrows": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for arrow in check.metadata["arrows"]:
            output.print_error(f"upward: {' -> '.join(arrow)}")


class NoCircles(Contract):
    """Kept where no chain of imports leaves a folder and comes back to it."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        circles = house.structure(house.import_graph(graph), house.layers())["circles of rooms"]
        return ContractCheck(kept=not circles, metadata={"circles": circles})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for circle in check.metadata["circles"]:
            output.print_error(f"in a circle: {', '.join(circle)}")
