"""Documented path of what tools and their worlds are made of: `from workflows.tools import Environment, tool`."""

from workflows.protocol.tools import Environment, tool

__all__ = ["Environment", "tool"]
