"""`ouro import`: translates a configuration of Trinity-RFT or a launch script of veRL, and accounts for every key.

What reads YAML is imported where it is used: `ouro --help` needs none of it.
"""

import sys
from pathlib import Path

from pipeline.store.errors import ConfigError

LARGEST_FILE = 4 << 20  # bytes of a source


def import_trinity(file: str, arguments) -> int:
    """A configuration of Trinity-RFT, translated to a recipe, with an account of every key."""
    from pipeline.bridges import report, source, trinity

    text, name = _read(file)
    place = None if file == "-" else Path(file)
    return report.finish(trinity.translate(source.read_yaml(text, name), name, place), arguments)


def import_verl(file: str, arguments) -> int:
    """A launch script or configuration of veRL, translated to a recipe, with an account of every key."""
    from pipeline.bridges import report, verl

    return report.finish(verl.translate(*verl.read(*_read(file))), arguments)


def import_keys() -> int:
    """Every key of the Trinity-RFT guide and of veRL, and what it is here, as a Markdown page."""
    from pipeline.bridges import page

    print(page.page(), end="")
    return 0


def of_verl(key: str) -> str | None:
    """What a key of veRL is here; None for a key that is not known."""
    from pipeline.bridges import page

    return page.of_verl(key)


def _read(file: str) -> tuple[str, str]:
    """Text and name of a source; `-` is the standard input. Raises ConfigError for what is no text."""
    content = sys.stdin.buffer.read(LARGEST_FILE + 1) if file == "-" else Path(file).read_bytes()
    name = "the standard input" if file == "-" else Path(file).name
    if len(content) > LARGEST_FILE:
        raise ConfigError(f"{name} has more than {LARGEST_FILE >> 20} MiB: that is no configuration.")
    try:
        return content.decode("utf-8-sig"), name
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is no text in UTF-8 ({error.reason} at byte {error.start}).") from error
