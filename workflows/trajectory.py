"""Documented path of what a workflow returns: `from ouroboros.workflows.trajectory import Trajectory`."""

from ouroboros.workflows.protocol.trajectory import Attempt, Trajectory

__all__ = ["Attempt", "Trajectory"]
