"""Documented path of the objective for a search by a library: `from ouroboros.search import objective`."""

from ouroboros.commands.run.search import objective

__all__ = ["objective"]
