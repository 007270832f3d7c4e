"""A tool whose module needs a variable of the environment when it is imported."""

import os

KEY = os.environ["NEEDED_KEY"]


def key() -> str:
    """What the variable was."""
    return KEY
