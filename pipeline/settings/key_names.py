"""Suggests the right name for a misspelt key, first among its siblings; names the program of a file of other keys."""

import contextlib
import re
import tomllib
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from typing import Any

from ouroboros.pipeline.settings.arguments.base import types
from ouroboros.pipeline.settings.config import walk
from ouroboros.pipeline.settings.setting import leaves
from ouroboros.pipeline.store.errors import ConfigError, close, shown

# program -> top keys, one of which its files have; LLaMA-Factory's have TRL's too
PROGRAMS = {"axolotl": ("base_model", "sequence_len", "micro_batch_size"), "LLaMA-Factory": ("finetuning_type",),
            "TRL": ("model_name_or_path", "dataset_name", "per_device_train_batch_size", "num_generations"),
            "prime-rl": ("orchestrator", "inference", "seq_len", "rollouts_per_example")}
ADVICE = "Begin with `ouro init`."
VARIABLES = "explorer.env_vars"  # free arguments, each of them a text


def general(key: str) -> str:
    """Generalizes a key as in the schema: `*` for an element of a list and for the name of an auxiliary buffer."""
    return re.sub(r"(?<=\.auxiliary_buffers\.)[^.]+|(?<=\.)\d+(?=\.|$)", "*", key)


def refuse_other_program(keys: Iterable[str], name: str) -> None:
    """Raises ConfigError for a file whose keys, dotted, are another program's for the most part."""
    found = dict.fromkeys(key.partition(".")[0] for key in keys)
    program = next((program for program, theirs in PROGRAMS.items() if any(key in found for key in theirs)), None)
    if program and 2 * sum(key in _names()[""] for key in found) <= len(found):
        raise ConfigError(f"{name} is a file of {program}, which is not translated. {ADVICE}")


def refuse_toml(text: str, name: str) -> None:
    """Raises ConfigError for a file named *.toml, with the program that it is of."""
    with contextlib.suppress(tomllib.TOMLDecodeError):
        refuse_other_program(tomllib.loads(text), name)
    raise ConfigError(f"{name} is TOML, as files of prime-rl are, which are not translated; needed YAML. {ADVICE}")


def exists(key: str) -> bool:
    """Returns whether a dotted key is a setting, a section, an element of a list or an entry of free arguments."""
    meant = general(key)
    return any(known == meant or known.startswith(meant + ".")
               or (meant.startswith(known + ".") and str(item.annotation).startswith("dict"))
               or (meant == known + ".*" and str(item.annotation).startswith("list")) for known, item in walk())


def keeps_letters(key: str, letters: str, value: Any) -> bool:
    """Returns whether a setting is the text `letters` where these read as a number or a boolean: 1e5, 0x1f, true.

    key: dotted, also below `stages`. A boolean where null is possible too is left to be refused: `false` there may mean
    none. A variable of the environment stays a number if that is written alike.
    """
    if not isinstance(value, int | float):
        return False
    meant = general(re.sub(r"^\+*(stages\.[^.]+\.)?", "", key))
    if re.fullmatch(rf"{VARIABLES}\.\w+", meant):
        return isinstance(value, bool) or str(value) != letters
    return meant in _texts() and not (isinstance(value, bool) and _texts()[meant])


def letters_lost(key: str, value: Any, word: str) -> list[str]:
    """Lists, for texts among an override's values that read as numbers or booleans, those of which `word`, the
    override, does not hold the letters: 1e5 is 100000.0 by now. One line each: what to write."""
    return [f"{place} is a text, and one here reads as {shown(one)}: needed quotes around it, as '1e5'."
            for place, one in leaves(value, key) if keeps_letters(place, "", one) and (
                isinstance(one, bool) or not re.search(rf"(?<![\w.+-]){re.escape(str(one))}(?![\w.])", word))]


@cache
def _texts() -> dict[str, bool]:
    """Maps settings, and lists with `.*`, whose values are texts or null to whether they may be null."""
    found = {}
    for name, item in walk():
        kinds = types(item.annotation)
        if not {int, float, bool} & set(kinds):
            found |= {name: item.annotation is not str} if str in kinds else {}
            found |= {f"{name}.*": False} if list[str] in kinds else {}
    return found


def nearest_key(key: str, more: Iterable[str] = ()) -> str:
    """Returns ` Did you mean 'x'?` for an unknown key, or an empty string. more: names in addition to the top sections.

    Each part is replaced by the nearest name in the same place; where none is near, the setting with the nearest name
    in any place is suggested.
    """
    found = _mended(key, tuple(more)) or _elsewhere(key, 1.0) or _by_word(key) or _elsewhere(key, 0.75)
    return f" Did you mean '{found}'?" if found and found != key else ""


def _mended(key: str, more: tuple[str, ...]) -> str | None:
    """Returns the key with every wrong part replaced by its nearest sibling; None where none is near."""
    names, made = _names(), []
    for part, meant in zip(key.split("."), general(key).split("."), strict=True):
        place = ".".join(["", *(p for _, p in made)]).lstrip(".")
        known = [*names.get(place, ()), *(more if not made else ())]
        if meant in known or not known:  # below a free setting, every name is valid
            made.append((part, meant))
            continue
        near = close(part, known)
        if not near:
            return None
        made.append((near, near))
    return ".".join(part for part, _ in made)


def _by_word(key: str) -> str | None:
    """Returns the shortest sibling with a word near to this one: model_path for pth."""
    place, _, last = key.rpartition(".")
    near = [name for name in _names().get(general(place), ()) if place and close(last, name.split("_"), 0.75)]
    return f"{place}.{min(near, key=len)}" if near else None


def _elsewhere(key: str, cutoff: float) -> str | None:
    """Returns the setting with the same or a near name, or with its initials (lr); of several the most similar."""
    last, meant = [name for name, _ in walk() if "*" not in name], key.rpartition(".")[2]
    near = get_close_matches(meant, {name.rpartition(".")[2] for name in last}, n=1, cutoff=cutoff)
    near.append("".join(word[:1] for word in meant.split("_")))
    return max((name for name in last if name.rpartition(".")[2] in near),
               key=lambda name: SequenceMatcher(None, name, key).ratio(), default=None)


@cache
def _names() -> dict[str, tuple[str, ...]]:
    """Maps dotted places (empty: the top) to the names of their sections and settings, in order."""
    found: dict[str, dict[str, None]] = {}
    for key, _ in walk():
        parts = key.split(".")
        for depth, part in enumerate(parts):
            found.setdefault(".".join(parts[:depth]), {})[part] = None
    return {place: tuple(names) for place, names in found.items()}
