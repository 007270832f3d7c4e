"""Loads the plan of a run inside the Snakefile, so that a user's mistake is a message there and not a traceback."""

import sys

from pipeline.compose import compose
from pipeline.errors import OuroError
from pipeline.plan import Plan, make_plan


def load_plan(overrides: list[str]) -> Plan:
    """Composes, checks and plans; on a user's mistake prints it and ends the process with exit code 2."""
    try:
        return make_plan(compose(overrides))
    except OuroError as error:
        print(f"ouro: {error}", file=sys.stderr)
        sys.exit(2)
