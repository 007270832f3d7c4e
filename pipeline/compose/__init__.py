"""Composes YAML files and command-line overrides into one configuration."""
