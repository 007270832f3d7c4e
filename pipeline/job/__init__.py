"""A stage at work: its context, schedule, devices, progress, metrics."""
