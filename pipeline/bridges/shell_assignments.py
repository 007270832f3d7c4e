"""What a command or a loop of a shell script assigns: variables, arrays, by `set --` and `shift` the arguments."""

import re

from pipeline.bridges.shell_holes import Unknown, hole
from pipeline.bridges.shell_values import Values
from pipeline.bridges.shell_variables import FURTHER, Argument
from pipeline.bridges.shell_words import Array, Word


def assign(values: Values, part: Word | Array, conditional: bool) -> bool:
    """Takes up `name=value`; False for a word that is none."""
    if isinstance(part, Array):
        elements = [argument for word in part.words for argument in values.arguments(word)]
        before = values.known.get(part.name, [])
        if conditional:
            why = f"what line {part.line} adds to {part.name} on a condition"
            elements = [Argument(a.text, a.line, a.problem or why) for a in elements]
        if part.more and isinstance(before, Unknown):
            elements = [Argument("", part.line, str(before)), *elements]
        values.assign(part.name, [*(before if isinstance(before, list) and part.more else []), *elements])
        return True
    first = part.pieces[0] if part.pieces else None
    name, sign, rest = first.text.partition("=") if first and first.kind == "text" else ("", "", "")
    more = name.endswith("+")
    name = name.removesuffix("+")
    if not sign or first.quoted or not (name.isidentifier() and name.isascii()):
        return False
    value = Word(part.line, (type(first)("text", rest, False), *part.pieces[1:]))
    values.assign(name, _assigned(values, name, value, more, conditional))
    return True


def _assigned(values: Values, name: str, value: Word, more: bool, conditional: bool) -> str | Unknown:
    before = values.known.get(name)
    if conditional:  # `[ -z "$X" ] && X=1`
        return Unknown(f"{name}, which line {value.line} sets on a condition")
    try:
        text = values.text(value)
    except Unknown as unknown:
        if not (more and before):
            return unknown
        text = hole(value.raw, str(unknown))
    if name in values.integers:
        return _integer(values, text, before, more)
    if not more:
        return text
    if isinstance(before, Unknown):
        return hole(f"${{{name}}}", str(before)) + text
    return (before if isinstance(before, str) else "") + text


def note_integers(values: Values, parts: list[Word | Array]) -> None:
    """`declare -i N`: what is assigned to N from here on is arithmetic."""
    words = [part for part in parts if isinstance(part, Word)]
    if any(re.fullmatch(r"-\w*i\w*", word.bare) for word in words):
        values.integers |= {re.split(r"\+?=", word.raw)[0] for word in words}


def _integer(values: Values, text: str, before: object, more: bool) -> str | Unknown:
    if more and isinstance(before, Unknown):
        return before
    try:
        return values.arithmetic(f"{before or 0} + ({text})" if more else text)
    except Unknown as unknown:
        return unknown


def set_arguments(values: Values, parts: list[Word | Array], conditional: bool) -> bool:
    """`set -- a b` and `shift 2`, where arguments are known; False for what is neither."""
    words = [part for part in parts if isinstance(part, Word)]
    known, option = values.known.get("@"), words[1].bare if words[1:] else ""
    if words[0].bare == "set" and option == "--":
        why = f"what line {words[0].line} sets on a condition" if conditional else None
        values.set_arguments([Argument(a.text, a.line, a.problem or why) for word in words[2:]
                              for a in values.arguments(word)], hands_on(values, words[2:]))
    elif words[0].bare == "shift" and isinstance(known, list) and (option.isdigit() or not words[1:]):
        values.assign("@", Unknown(f"the arguments, which line {words[0].line} shifts on a condition") if conditional
                      else known[int(option or 1):])
    else:
        return words[0].bare == "shift" and isinstance(known, Unknown)
    return True


def hands_on(values: Values, words: list[Word]) -> bool:
    """Whether words hold the script's own arguments, which nobody knows: `$@`, and nothing has set them."""
    is_own = "@" not in values.known or bool(values.known.get(FURTHER))
    return is_own and any(piece.kind == "variable" and piece.text[:1] in ("@", "*")
                          for word in words for piece in word.pieces)


def looped(values: Values, name: str, words: list[Word], loop: str) -> str | Unknown:
    """What `for name in words` gives its variable: Unknown, unless there is one value. loop: how to call it."""
    arguments = [argument for word in words for argument in values.arguments(word)]
    if len(arguments) == 1 and not arguments[0].problem and not re.search(r"[*?{]", arguments[0].text):
        return arguments[0].text
    told = f" ({', '.join(a.text for a in arguments[:4])}{', ...' if arguments[4:] else ''})" if arguments else ""
    return Unknown(f"{name}, to which {loop} gives one value after another{told}")
