"""The programs of veRL that a script may start: which are read, and as what."""

import re
from dataclasses import dataclass

from pipeline.store.errors import ConfigError

RL, SFT, OTHER = "rl", "sft", "other"
MODULE = re.compile(r"(?:verl|recipe)\.[\w.]+|main_\w+"
                    r"|(?:[\w.$~{}:-]*/)*(?:main_\w+|\w*sft_trainer\w*|\w*main_ppo)\.py")
READ = ("verl.trainer.main_ppo and what is built on it (recipe.dapo.main_dapo ...), verl.trainer.fsdp_sft_trainer and "
        "verl.trainer.sft_trainer")

# the last part of an entry point's name -> why it is no training that can be meant here
REFUSED = {
    "main_eval": "scores responses that were made before",
    "main_generation": "only generates responses",
    "main_generation_server": "only generates responses",
    "model_merger": "only converts a checkpoint",
    "legacy_model_merger": "only converts a checkpoint",
    "main_spin": "trains on pairs that it samples itself (SPIN)",
    "main_prime": "trains its reward model beside the policy (PRIME)",
    "main_sppo": "trains by self-play preference (SPPO)",
}


@dataclass(frozen=True)
class Entry:
    """module: as the script names it. kind: RL, SFT or OTHER. known: whether its settings are known to be veRL's."""

    module: str
    kind: str
    known: bool = True

    @property
    def name(self) -> str:
        return _name(self.module)


def entry_of(word: str) -> Entry | None:
    """The entry point that a word of a command names; None for any other word."""
    if not MODULE.fullmatch(word):
        return None
    name = _name(word)
    if name in REFUSED or name == "__main__":
        return Entry(word, OTHER)
    if "sft_trainer" in name:
        return Entry(word, SFT)
    if name.endswith("main_ppo") or name in ("main_dapo", "fully_async_main"):
        return Entry(word, RL)
    return Entry(word, RL, known=False) if name.startswith("main_") else None


def refused(source: str, entry: Entry) -> ConfigError:
    """The error for a script that only starts what cannot be meant here."""
    why = REFUSED.get(entry.name, "does not train")
    return ConfigError(f"{source} starts {entry.module}, which {why}: there is no recipe for it. Read are {READ}.")


def _name(module: str) -> str:
    return re.split(r"[./]", module.removesuffix(".py"))[-1]
