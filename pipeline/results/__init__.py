"""Reads results back from runs: state, SQL tables, comparisons, the report's sections, replay."""
