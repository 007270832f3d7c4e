"""Checks before a stage starts: rules, files, models, memory, data and user code."""
