"""Which names of settings and environment variables mark a secret, and which values are hidden in messages and /proc.

Two rules: a key that ends in token, secret, password or api_key (any case, with or without separator), and everything
below it; a variable that ends in KEY, TOKEN, SECRET or PASSWORD. Other `*_key` settings name columns (prompt_key).
"""

import ctypes
import os
import re
from functools import cache
from pathlib import Path

from ouroboros.pipeline.store.foreign_text import escaped

KEY = re.compile(r"(token|secret|password|(api|access|secret|private)[_-]?key)$", re.I)
VARIABLE = re.compile(r"(key|token|secret|password)$", re.I)
SHORTEST = 6  # characters: a shorter value may occur in a message by chance
# variables whose values secret settings took, whatever the variables are called (settings/secrets.py)
TAKEN_AS_SECRETS: set[str] = set()


def names_secret(name: str, is_variable: bool = False) -> bool:
    """Returns whether a name marks a secret. is_variable: of an environment variable, as upper-case names are."""
    return (VARIABLE if is_variable or name.isupper() else KEY).search(name) is not None


@cache
def secret_variables() -> dict[str, str]:
    """Returns the secret variables of the environment, as they are when this process first asks."""
    return {name: value for name, value in os.environ.items() if names_secret(name, is_variable=True)}


def conceal_secrets() -> None:
    """Overwrites the secrets that this process was started with, where /proc/PID/environ shows them (proc(5)).

    All processes of the user can read that, tools and servers of agents among them. os.environ and getenv(3) keep them.
    """
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[47:49])
    place, entries = start, [one.partition(b"=") for one in ctypes.string_at(start, end - start).split(b"\0")]
    named = {name: value for name, _, value in entries if names_secret(os.fsdecode(name), is_variable=True)}
    for name, sign, value in entries:
        if name in named or any(len(secret) >= SHORTEST and secret in value for secret in named.values()):
            if name in os.environb:
                os.putenv(name, os.environb[name])  # a copy: libraries may still ask for it
            ctypes.memset(place + len(name + sign), ord("*"), len(value))
        place += len(name + sign + value) + 1


def masked(text: str) -> str:
    """Replaces the values of secret variables by ***, and escapes what is no Unicode: messages quote foreign text."""
    taken = (os.environ.get(name, "") for name in TAKEN_AS_SECRETS)
    values = {value for value in (*secret_variables().values(), *taken) if len(value) >= SHORTEST}
    for value in sorted(values, key=len, reverse=True):  # one may contain another
        text = text.replace(value, "***")
    return escaped(text)
