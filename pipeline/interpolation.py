"""Fills in `${other.key}` and `${oc.env:VARIABLE}` of a composition, and names what leads nowhere or in a circle."""

import re
from typing import Any

from pipeline import secrets


def resolved(composed, problems: list[str]) -> dict[str, Any]:
    """Plain dicts and lists with every interpolation filled in; those of secrets stay (pipeline/secrets.py)."""
    from omegaconf import OmegaConf

    made = _fill(composed, OmegaConf.to_container(composed, resolve=False), "", problems)
    problems += secrets.leaks(made)
    return made


def _fill(node, raw: Any, key: str, problems: list[str]) -> Any:
    """node: an OmegaConf container, raw: the same as plain dicts and lists."""
    from omegaconf.errors import OmegaConfBaseException

    pairs = raw.items() if isinstance(raw, dict) else enumerate(raw)
    made = {}
    for name, value in pairs:
        full = f"{key}.{name}" if key else str(name)
        if isinstance(value, (dict, list)):
            made[name] = _fill(node[name], value, full, problems)
        elif isinstance(value, str) and "${" in value and not (
                secrets.is_secret(full) or secrets.named_in(value)):
            try:
                made[name] = _plain(node[name])
            except (OmegaConfBaseException, RecursionError) as error:
                problems.append(_unresolved(full, value, error))  # and left out: its default stands in
        else:
            made[name] = value
    return made if isinstance(raw, dict) else list(made.values())


def _plain(value: Any) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _unresolved(key: str, value: str, error: Exception) -> str:
    """The line for an interpolation that leads nowhere, or in a circle."""
    missing = re.search(r"Environment variable '(\w+)' not found", str(error))
    if missing:
        return (f"key '{key}' wants the environment variable {missing[1]}, which is not set. Set it, or give a "
                f"default: ${{oc.env:{missing[1]},default}}.")
    if isinstance(error, RecursionError) or "ecursive" in str(error):
        return f"key '{key}': {value} leads in a circle."
    return f"key '{key}': {value} cannot be filled in: {str(error).splitlines()[0]}"
