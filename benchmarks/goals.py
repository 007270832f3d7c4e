"""Figures of how many places a fact has, counted in the declared settings."""

import re

from pipeline.settings.arguments import TABLES
from pipeline.settings.config import walk

# how a meaning begins that has no subject of its own, or that begins with one of the values
FRAGMENT = re.compile(r"(of|that|for|as|by|null|true|false|passed|handed|added|the same|its?) |1 = off|[a-z][\w=.-]*: ")


def fragments() -> list[str]:
    """Settings, and arguments of functions, whose meaning does not stand alone."""
    arguments = {f"{name}.{key}": field for table in TABLES.values() for name, model in table.items()
                 for key, field in model.model_fields.items()}
    return [key for key, field in (dict(walk()) | arguments).items() if FRAGMENT.match(field.description or "null ")]
