"""What lies on disk: files, tables, checkpoints, data and model directories, and the errors about them."""
