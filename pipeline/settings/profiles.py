"""Feature keys that name what an earlier stage measured, in place of a column of records."""

import re

PROFILED = re.compile(r"stages\.(.+)\.(avg_at_k|pass_at_k)")


def profiled(key: str) -> tuple[str, str] | None:
    """Returns stage and column of the table profile that a feature key names; None: it names a column of records."""
    found = PROFILED.fullmatch(key)
    return (found[1], found[2]) if found else None
