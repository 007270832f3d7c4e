"""On-disk data: files, tables, checkpoints, data and model directories, and the related errors."""
