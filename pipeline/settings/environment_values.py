"""Values from the environment: texts, parsed like YAML scalars."""

from typing import Any


class FromEnvironment(str):
    """A text that comes, whole or in part, from an environment interpolation."""

    def as_value(self) -> Any:
        """Returns the text's value in a YAML file: a number, true, a list; else the plain text."""
        from ouroboros.pipeline.store.yaml_values import scalar

        return scalar(str(self))


def parsed_environment(value: Any) -> Any:
    """Returns a copy of nested settings with every environment text parsed like YAML.

    Keys remain text, `1: x` too: they are argument names, and JSON, in which a stage receives them, has only text keys.
    """
    if isinstance(value, dict):
        return {name if isinstance(name, str) else str(name).lower(): parsed_environment(part)
                for name, part in value.items()}
    if isinstance(value, list):
        return [parsed_environment(part) for part in value]
    return parsed_environment(value.as_value()) if isinstance(value, FromEnvironment) else value
