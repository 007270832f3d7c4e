"""The processes of a pipeline, one module each: files in, files out, `python -m stages.NAME STAGE_DIR`."""
