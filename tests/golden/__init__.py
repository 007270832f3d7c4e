"""What configurations mean, kept as files: stages, settings of their identities, `config show`, problems of broken ones."""
