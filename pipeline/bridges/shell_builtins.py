"""Commands of bash that set variables otherwise than by `name=value`: `let`, `((...))`, `read`, `mapfile`, `unset`."""

from pipeline.bridges.arithmetic import assigned
from pipeline.bridges.shell_holes import Unknown
from pipeline.bridges.shell_values import Values
from pipeline.bridges.shell_words import ARITHMETIC, Word

# commands that set the variables behind their options, and the options that take a word
READING = {"read": "adinNptu", "mapfile": "dnOsuCc", "readarray": "dnOsuCc"}
BY_DEFAULT = {"read": "REPLY", "mapfile": "MAPFILE", "readarray": "MAPFILE"}
SETTING = (*READING, "let", ARITHMETIC, "printf", "getopts", "unset")


def set_variables(values: Values, words: list[Word], conditional: bool) -> list[str]:
    """Takes up what a command sets. Returns the variables whose values are not known behind it: what sets them runs.

    words: of the command, the first of them one of SETTING.
    """
    name, line = _name(words[0]), words[0].line
    if name in ("let", ARITHMETIC):
        expressions = [_text(word) for word in (words[1:] if name == "let" else words)]
        return [one for expression in expressions for one in _calculate(values, expression, line, conditional)]
    texts = [_text(word) for word in words[1:]]
    if name == "unset":
        for one in _plain(texts, ""):
            values.assign(one, Unknown(f"{one}, which line {line} unsets on a condition") if conditional else "")
        return []
    for one in (found := _set_by(name, texts)):
        values.assign(one, Unknown(f"{one}, which `{name}` of line {line} sets"))
    return found


def settles(word: Word) -> bool:
    """Whether a command that begins so is one of those here."""
    return _name(word) in SETTING


def _name(word: Word) -> str:
    return word.bare if word.arithmetic is None else ARITHMETIC


def _text(word: Word) -> str:
    """A word as it is written, without quotes."""
    return word.raw if word.arithmetic is None else word.arithmetic


def _calculate(values: Values, expression: str, line: int, conditional: bool) -> list[str]:
    """An expression that sets variables: they hold its numbers, or are not known where it is not understood."""
    names = assigned(expression)
    if not names:
        return []
    made: list[str] = []

    def take(name: str, value: int) -> None:
        made.append(name)
        values.assign(name, str(value))

    try:
        values.arithmetic(expression, take)
    except Unknown as unknown:
        for name in names:
            values.assign(name, Unknown(str(unknown)))
        return names
    for name in made if conditional else []:
        values.assign(name, Unknown(f"{name}, which line {line} sets on a condition"))
    return []


def _set_by(name: str, texts: list[str]) -> list[str]:
    if name == "printf":
        return texts[1:2] if texts[:1] == ["-v"] else []
    if name == "getopts":
        return [*texts[1:2], "OPTARG", "OPTIND"]
    return _plain(texts, READING[name], array="a" * (name == "read")) or [BY_DEFAULT[name]]


def _plain(texts: list[str], with_word: str, array: str = "") -> list[str]:
    """The names among words, behind options. with_word: letters of options whose next word is their own."""
    names, skip = [], False
    for text in texts:
        is_option = text.startswith("-") and len(text) > 1
        if not skip and not is_option and text.isidentifier():
            names.append(text)
        skip = is_option and len(text) > 1 and text[-1] in with_word and text[-1] != array
    return names
