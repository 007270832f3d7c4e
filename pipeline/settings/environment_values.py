"""Values that come from the environment: texts, read as what they would be in a YAML file."""

from typing import Any


class FromEnvironment(str):
    """A text that an interpolation of the environment gave, whole or in part."""

    def as_value(self) -> Any:
        """What the text would be in a YAML file: a number, true, a list; the plain text when it is nothing else."""
        from pipeline.store.yaml_values import scalar

        return scalar(str(self))


def settled(value: Any) -> Any:
    """A copy of a nest in which every text of the environment is what it would be in a YAML file.

    Names are texts there, `1: x` too: they are those of arguments, and JSON, by which a stage is handed them, has no
    others.
    """
    if isinstance(value, dict):
        return {name if isinstance(name, str) else str(name).lower(): settled(part) for name, part in value.items()}
    if isinstance(value, list):
        return [settled(part) for part in value]
    return settled(value.as_value()) if isinstance(value, FromEnvironment) else value
