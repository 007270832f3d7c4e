"""From a configuration to the stages of a run and their identities."""
