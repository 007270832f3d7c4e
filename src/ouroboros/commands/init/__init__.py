"""`ouro init`: creates project directories, from a template or for a user's data file and model."""
