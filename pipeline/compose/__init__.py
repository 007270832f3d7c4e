"""From YAML files and words of the command line to one configuration."""
