"""The runtime of a stage process: context, schedule, devices, progress, metrics."""
