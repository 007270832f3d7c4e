"""The veRL programs that a script may start: which are supported, and their kind."""

import re
from dataclasses import dataclass
from itertools import pairwise

from ouroboros.pipeline.store.errors import ConfigError

RL, SFT, OTHER = "rl", "sft", "other"
TRAINER = re.compile(r"(async_)?main_ppo(_sync)?|main_dapo|main_entropy|fully_async_main")
MODULE = re.compile(r"[\w.$~{}:/-]+")
OURS = ("verl", "recipe")  # packages whose settings are veRL's
READ = ("verl.trainer.main_ppo and what is built on it (recipe.dapo.main_dapo ...), verl.trainer.fsdp_sft_trainer and "
        "verl.trainer.sft_trainer")

# an entry point, or the last part of its name -> why it is not a supported training
REFUSED = {
    "verl.trainer.main": "is EasyR1's, whose keys and defaults are its own",
    "main_eval": "scores responses that were made before",
    **dict.fromkeys(("main_generation", "main_generation_server"), "only generates responses"),
    **dict.fromkeys(("model_merger", "legacy_model_merger"), "only converts a checkpoint"),
    "main_spin": "trains on pairs that it samples itself (SPIN)",
    "main_prime": "trains its reward model along with the policy (PRIME)",
    "main_sppo": "trains by self-play preference (SPPO)",
}


@dataclass(frozen=True)
class Entry:
    """module: as named in the script. kind: RL, SFT, or OTHER for unsupported programs."""

    module: str
    kind: str

    @property
    def name(self) -> str:
        return re.split(r"[./]", self.module.removesuffix(".py"))[-1]


def entry_of(word: str) -> Entry | None:
    """Returns the veRL program named by a word of a command; None for any other word."""
    *package, name = re.split(r"[./]", word.removesuffix(".py"))
    is_verls = any(part in OURS for part in package) if package else word.startswith("main_") or word.endswith(".py")
    if not MODULE.fullmatch(word) or not is_verls:
        return None
    if name in REFUSED or name == "__main__":
        return Entry(word, OTHER)
    return Entry(word, SFT) if "sft_trainer" in name else Entry(word, RL) if TRAINER.fullmatch(name) else None


def launcher(words: list[str]) -> str | None:
    """Returns the Python program that a command starts: the module after `-m`, or the first Python file."""
    module = next((after for before, after in pairwise(words) if before == "-m"), None)
    return module or next((word for word in words if word.endswith(".py") and "=" not in word), None)


class Refused(ConfigError):
    """A source of something other than a veRL training."""

    exit_code = 1  # as for any source whose recipe does not compose


def refused(source: str, entry: Entry) -> Refused:
    """Returns the error for a script that starts only unsupported programs."""
    unknown = "is not known: its settings need not mean what veRL's do"
    why = REFUSED.get(entry.module, REFUSED.get(entry.name, unknown))
    return Refused(f"{source} starts {entry.module}, which {why}. There is no recipe for it. Read are {READ}.")
