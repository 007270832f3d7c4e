"""Overrides on snakemake's command line: `--config overrides=...`."""

import json
import shlex
from typing import Any
from urllib.parse import quote, unquote

from ouroboros.pipeline.store.errors import ConfigError

ENCODED = "json:"  # before a percent-encoded JSON list
MARKS = "'\"\\`$"  # characters that would end or change the quoted command in a script of SLURM's executor


def encoded(overrides: list[str]) -> str:
    """Returns a JSON list, which snakemake reads as YAML, percent-encoded where an override has one of MARKS.

    (Of plain text snakemake would strip the quotes at its ends, and read the rest as YAML.)
    """
    text = json.dumps(overrides, ensure_ascii=False)
    return ENCODED + quote(text, safe="") if any(mark in word for word in overrides for mark in MARKS) else text


def split_overrides(given: Any) -> list[str]:
    """Parses overrides from snakemake: a list (`ouro run`), percent-encoded if needed, or text in shell syntax."""
    if isinstance(given, list):
        return [str(word) for word in given]
    problem = f"it was read as {type(given).__name__}"
    if given is None or isinstance(given, str):
        try:
            if (given or "").startswith(ENCODED):
                return split_overrides(json.loads(unquote(given.removeprefix(ENCODED))))
            return shlex.split(given or "")
        except ValueError as error:
            problem = str(error)
    raise ConfigError(f"--config overrides={given!r} cannot be split into key=value words ({problem}). Needed: words "
                      "in shell quotes, or a list like '[\"seed=2\",\"name=x\"]'; or use `ouro run`.")
