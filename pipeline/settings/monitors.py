"""Available monitors, their `monitor.monitor_args`, and problems with those."""

import importlib.util
from typing import Any
from urllib.parse import urlsplit

from ouroboros.pipeline.settings.arguments.addresses import is_address
from ouroboros.pipeline.store.errors import ConfigError, Problem, nearest, pick


def check_monitor(kind: str, arguments: dict[str, Any]) -> None:
    """Rejects wrong arguments of a monitor, and one that is not installed."""
    pick(MONITORS, kind, "monitor.monitor_type")
    if problems := monitor_problems(kind, arguments) or [one for one in (absent_package(kind),) if one]:
        raise ConfigError("\n  ".join(problems), problems)


def absent_package(kind: str) -> Problem | None:
    """Returns the problem of a monitor that is not installed on this machine; an unknown one: see monitor_problems."""
    module, install, *_ = MONITORS.get(kind, (None, ""))
    if module is None or importlib.util.find_spec(module):
        return None
    return Problem("monitor.monitor_type", f"the package '{module}' is not installed.", f"{install}, or choose another "
                   "monitor (monitor.monitor_type=none).", found=kind)


def monitor_problems(kind: str, arguments: dict[str, Any]) -> list[Problem]:
    """Lists arguments a monitor does not have, and addresses that are invalid or contain a secret.

    An unknown monitor has none: the schema reports it.
    """
    _, _, known, secrets = MONITORS.get(kind, (None, "", tuple(arguments), {}))
    every, problems = [*known, *secrets], []
    for name, value in arguments.items():
        if name not in every:
            problems.append(Problem(f"monitor.monitor_args.{name}", f"unknown for monitor_type={kind}."
                                    f"{nearest(name, every)} Known: {', '.join(every) or 'none'}."))
        elif name in known:
            problems += _address_problems(name, value, secrets)
    return problems


def _address_problems(name: str, value: Any, secrets: dict[str, str]) -> list[Problem]:
    key = f"monitor.monitor_args.{name}"
    if not isinstance(value, str) or not value.strip():
        return [Problem(key, "needed an address, such as https://host:5000.", found=value)]
    try:
        address = urlsplit(value)
    except ValueError:  # the value and the error are not shown: they may contain a secret
        return [Problem(key, "needed an address, such as https://host:5000.")]
    if (scheme := address.scheme.partition("+")[0]) not in SCHEMES[name]:
        return [Problem(key, f"no address that it can write to; needed one that begins with "
                        f"{', '.join(f'{one}:' for one in SCHEMES[name] if one)}"
                        f"{', or a path' * ('' in SCHEMES[name])}.", f"'{scheme}:' is unknown." if scheme else "")]
    if address.username or address.password:  # a token is often the user name
        return [Problem(key, "the address holds a user name or a password.", f"Take it out and set "
                        f"{', '.join(secrets.values())} in the environment.")]
    if scheme in ("http", "https") and not is_address(value.partition("?")[0]):
        return [Problem(key, "needed an address, such as https://host:5000.", found=value)]
    return []


SCHEMES = {"server_url": ("http", "https"), "space_id": ("",),
           "uri": ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks", ""),
           "base_url": ("http", "https")}
# monitor_type -> package, how to install it, arguments, arguments that are secrets -> environment variable
MONITORS: dict[str, tuple[str | None, str, tuple[str, ...], dict[str, str]]] = {
    "mlflow": ("mlflow", "Install this project again: it belongs to it", ("uri",),
               {"username": "MLFLOW_TRACKING_USERNAME", "password": "MLFLOW_TRACKING_PASSWORD"}),
    "tensorboard": ("tensorboard", "Install it: pip install tensorboard", (), {}),
    "wandb": ("wandb", "Install it: pip install wandb", ("base_url",),
              {"api_key": "WANDB_API_KEY"}),
    "trackio": ("trackio", "Install it: pip install trackio", ("server_url", "space_id"),
                {"write_token": "TRACKIO_WRITE_TOKEN"}),
    "none": (None, "", (), {}),
}
