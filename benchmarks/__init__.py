"""Measured comparisons: each module here is a command that prints a table and saves it in benchmarks/results/."""
