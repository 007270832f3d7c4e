"""What passes between stages (records, tables, checkpoints, configuration, schedule) and what starts a run."""
