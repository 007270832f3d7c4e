"""`ouro import`: translates a Trinity-RFT configuration or a veRL launch script, and reports on every key.

YAML readers are imported where they are used: `ouro --help` needs none of them.
"""

import sys
from pathlib import Path

from ouroboros.pipeline.settings.key_names import refuse_other_program, refuse_toml
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.files import require_file

LARGEST_FILE = 4 << 20  # bytes per source
MOST_KEYS = 2000  # per source: veRL's largest configuration has 700


def import_trinity(file: str, arguments) -> int:
    """Translates a Trinity-RFT configuration to a recipe and reports on every key."""
    from ouroboros.commands.bridges import report, source, trinity

    text, name = _read(file)
    place = None if file == "-" else Path(file)
    given = source.read_yaml(text, name)
    _check([one.key for one in given], name)
    return report.finish(trinity.translate(given, name, place), arguments)


def import_verl(file: str, arguments) -> int:
    """Translates a veRL launch script or configuration to a recipe and reports on every key."""
    from ouroboros.commands.bridges import report, verl

    launch, made = verl.read(*_read(file))
    _check([*launch.given, *launch.unknown], made.source)
    return report.finish(verl.translate(launch, made), arguments)


def import_keys() -> int:
    """Prints every key of the Trinity-RFT guide and of veRL with its equivalent here, as a Markdown page."""
    from ouroboros.commands.bridges import page

    print(page.page(), end="")
    return 0


def _check(keys: list[str], name: str) -> None:
    refuse_other_program(keys, name)
    if len(keys) > MOST_KEYS:
        raise ConfigError(f"{name} has {len(keys):,} keys, more than {MOST_KEYS:,}: that is no configuration.")


def _read(file: str) -> tuple[str, str]:
    """Returns text and name of a source; `-` is standard input. Raises ConfigError if it is not text."""
    content = (sys.stdin.buffer.read(LARGEST_FILE + 1) if file == "-" else
               require_file(Path(file), f"{file} (- is the standard input)").read_bytes())
    name = "the standard input" if file == "-" else Path(file).name
    if len(content) > LARGEST_FILE:
        raise ConfigError(f"{name} has more than {LARGEST_FILE >> 20} MiB: that is no configuration.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is no text in UTF-8 ({error.reason} at byte {error.start}).") from error
    if name.lower().endswith(".toml"):
        refuse_toml(text, name)
    return text, name
