"""Stages of a pipeline, one process each: files in, files out, `python -m stages.NAME STAGE_DIR`."""
