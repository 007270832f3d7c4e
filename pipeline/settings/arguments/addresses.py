"""Addresses of servers, and names of environment variables, as settings give them."""

import re

from pydantic import AnyHttpUrl, TypeAdapter, ValidationError

LABEL = r"\w([\w-]{0,61}\w)?"  # of a host's name; with underscores, as containers are named
PORT = r"0*([1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"  # 1 to 65535
ADDRESS = re.compile(rf"https?://(\[[\da-fA-F:.]+\]|{LABEL}(\.{LABEL})*\.?)(:{PORT})?(/[^\s@?#]*)?", re.IGNORECASE)
NEEDED_ADDRESS = "needed http:// or https://, a host and a path, without user, password or query"
VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
NEEDED_VARIABLE = "needed the name of an environment variable, not the key itself"


def is_address(text: str) -> bool:
    """Whether a text is the address of a server: http or https, a host that can exist, a port from 1 to 65535, a path.

    Numbers of the Internet Protocol are judged by pydantic: 256.0.0.1 and [::g] are none.
    """
    try:
        return bool(ADDRESS.fullmatch(text) and TypeAdapter(AnyHttpUrl).validate_python(text))
    except ValidationError:
        return False


def is_variable(text: str) -> bool:
    """Whether a text can be the name of an environment variable."""
    return bool(VARIABLE.fullmatch(text))
