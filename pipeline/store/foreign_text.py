"""Text and JSON from outside: what files cannot hold is refused where it enters, or escaped where it is written.

Python and its JSON know halves of surrogate pairs ("\\ud800"), NaN, infinity and any depth; UTF-8, Parquet and strict
JSON do not.
"""

import math
from collections.abc import Mapping
from typing import Any

DEEPEST = 100  # levels of lists and objects in JSON that is read


def escaped(text: str) -> str:
    """Returns a text with halves of surrogate pairs as `\\ud800`, six characters: in JSON text, an escape of the same
    meaning."""
    return text if is_encodable(text) else text.encode("utf-8", "backslashreplace").decode()


def is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escaped_all(value: Any) -> Any:
    """Returns a value of a table's column with every text in it escaped."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, Mapping):
        return {escaped_all(name): escaped_all(one) for name, one in value.items()}
    return type(value)(map(escaped_all, value)) if isinstance(value, (list, tuple)) else value


def flaw(value: Any) -> str | None:
    """Why a value that was read from JSON cannot be kept in files, or None. Does not recurse."""
    waiting = [(value, 0)]
    while waiting:
        one, depth = waiting.pop()
        if isinstance(one, str):
            if not is_encodable(one):
                return f"it has a text with half of a surrogate pair, {escaped(one)[:80]!r}; needed Unicode"
        elif isinstance(one, float):
            if not math.isfinite(one):
                return f"it has the number {one}; needed finite ones"
        elif isinstance(one, (list, dict)):
            if depth >= DEEPEST:
                return f"it has more than {DEEPEST} levels"
            inner = one if isinstance(one, list) else (*one, *one.values())
            waiting += [(each, depth + 1) for each in inner]
    return None
