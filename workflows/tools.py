"""Documented path of what tools and worlds are made of: `from ouroboros.workflows.tools import Environment, tool`."""

from ouroboros.workflows.protocol.tools import Environment, tool

__all__ = ["Environment", "tool"]
