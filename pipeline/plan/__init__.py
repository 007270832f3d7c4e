"""Turns a configuration into the stages of a run and their identities."""
