"""Sources of the bridges, translated, and the recipes read back as plain keys."""

from pathlib import Path

from omegaconf import OmegaConf

from ouroboros.commands.bridges import trinity, verl
from ouroboros.commands.bridges.report import write
from ouroboros.commands.bridges.source import read_yaml
from ouroboros.commands.bridges.translation import Translation

SOURCES = Path(__file__).parent / "commands" / "bridges" / "sources"


def from_verl(text: str, name: str = "run.sh") -> Translation:
    """A source of veRL, translated."""
    return verl.translate(*verl.read(text, name))


def from_trinity(text: str, name: str = "c.yaml") -> Translation:
    """A configuration of Trinity-RFT, translated."""
    return trinity.translate(read_yaml(text, name), name)


def written(made: Translation) -> dict:
    """The recipe as OmegaConf reads it back: dotted key -> value, interpolations as they are."""
    return flat(OmegaConf.to_container(OmegaConf.create(write(made, "test")), resolve=False))


def values_of_verl(text: str, name: str = "run.sh") -> dict:
    """The recipe of a source of veRL, as `written` reads it."""
    return written(from_verl(text, name))


def values_of_trinity(text: str) -> dict:
    """The recipe of a configuration of Trinity-RFT, as `written` reads it."""
    return written(from_trinity(text))


def left_out_of_trinity(text: str) -> dict[str, str]:
    """Key -> reason, of what a recipe lacks, whether or not it is missed."""
    made = from_trinity(text)
    return {given.key: why for given, why in [*made.left_out, *made.idle]}


def flat(value, prefix: str = "") -> dict:
    """A nest of dicts and lists of dicts as dotted key -> value."""
    if isinstance(value, dict) and value:
        return {k: v for name, below in value.items() for k, v in flat(below, f"{prefix}{name}.").items()}
    if isinstance(value, list) and any(isinstance(v, dict) for v in value):
        return {k: v for i, below in enumerate(value) for k, v in flat(below, f"{prefix}{i}.").items()}
    return {prefix[:-1]: value}


def launch(*overrides: str) -> str:
    """A script that starts veRL with some overrides, each on a line of its own from line 2 on."""
    return " \\\n".join(["python3 -m verl.trainer.main_ppo", *overrides])
