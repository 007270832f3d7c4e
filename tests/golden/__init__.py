"""What configurations mean, kept as files: plans, settings of stages, `config show`, problems of broken ones."""
