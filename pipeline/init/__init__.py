"""`ouro init`: new project directories, from a template or for a data file and a model of the user's."""
