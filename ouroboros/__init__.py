"""Ouroboros from Python, and the place of its packages: a checkout, or the directory of an installed wheel.

Importing it puts that directory first on sys.path, so that `pipeline`, `stages`, `operators` and `workflows` are those
of Ouroboros.
"""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
HOME = _HERE if (_HERE / "Snakefile").is_file() else _HERE.parent  # installed, or in a checkout

if sys.path[:1] != [str(HOME)]:
    sys.path.insert(0, str(HOME))
