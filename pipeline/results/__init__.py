"""What is read back from runs: state, tables by SQL, comparisons, the report's parts, replay."""
