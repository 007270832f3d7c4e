"""Documented path of what a workflow returns: `from workflows.trajectory import Trajectory`."""

from workflows.protocol.trajectory import Attempt, Trajectory

__all__ = ["Attempt", "Trajectory"]
