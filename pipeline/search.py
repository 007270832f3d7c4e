"""Documented path of the objective for a search by a library: `from pipeline.search import objective`."""

from pipeline.run.search import objective

__all__ = ["objective"]
