"""Benchmarks: each module is a command that prints a table and saves it in benchmarks/results/."""
