"""Attempts at tasks: their schedule, and the processes in which workflows with a parameter `model` run."""
