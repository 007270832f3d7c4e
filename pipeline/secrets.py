"""Secrets: api keys, passwords, tokens. They live in the environment and reach no file, log or monitor.

A setting whose name says that it is a secret holds the text `${oc.env:VARIABLE}` and nothing else. That text is what
files keep and identities hash; only a stage's own process, in memory, puts the variable's value in its place.
"""

import os
import re
from typing import Any

from pipeline.errors import ConfigError

SECRETS = re.compile(r"((^|_)(api_?key|password|passwd|secret)|(access|auth|api|bearer|hf)_?token|^token)$", re.I)
REFERENCE = re.compile(r"\$\{oc\.env:(\w+)\}")
IN_ADDRESS = re.compile(r"://[^/@\s:]*:[^/@\s]+@")  # scheme://user:password@host


def is_secret(key: str) -> bool:
    """Whether the last part of a dotted key names a secret."""
    return bool(SECRETS.search(key.rsplit(".", 1)[-1]))


def problems_of(value: Any, key: str = "") -> list[str]:
    """Secrets that are written out, and variables that are not set, one line each."""
    if isinstance(value, dict):
        return [p for k, v in value.items() for p in problems_of(v, f"{key}.{k}" if key else str(k))]
    if isinstance(value, list):
        return [p for i, v in enumerate(value) for p in problems_of(v, f"{key}.{i}")]
    if isinstance(value, str) and IN_ADDRESS.search(value):
        return [f"{key}: the address carries a password, and a configuration is written to files. Leave it out, and "
                "give it by the environment (MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD for MLflow)."]
    if not (isinstance(value, str) and value and is_secret(key)):
        return []
    named = REFERENCE.fullmatch(value)
    if not named:
        return [f"{key}: a secret does not go into a configuration, which is written to files. Put it into the "
                f"environment and write {key.rsplit('.', 1)[-1]}: ${{oc.env:VARIABLE}}."]
    return [] if named[1] in os.environ else [f"key '{key}' wants the environment variable {named[1]}, which is not "
                                              "set."]


def mask(value: Any) -> Any:
    """A copy with every value whose key names a secret shown as ***."""
    if isinstance(value, dict):
        return {k: "***" if is_secret(str(k)) and v else mask(v) for k, v in value.items()}
    return [mask(v) for v in value] if isinstance(value, list) else value


def reveal(value: Any, key: str = "") -> Any:
    """A copy with every `${oc.env:VARIABLE}` of a secret replaced by what the environment says.

    For the memory of a stage's process only. Raises ConfigError for a variable that is not set.
    """
    if isinstance(value, dict):
        return {k: reveal(v, str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [reveal(v) for v in value]
    named = REFERENCE.fullmatch(value) if isinstance(value, str) and is_secret(key) else None
    if named is None:
        return value
    if named[1] not in os.environ:
        raise ConfigError(f"'{key}' wants the environment variable {named[1]}, which is not set here.")
    return os.environ[named[1]]
