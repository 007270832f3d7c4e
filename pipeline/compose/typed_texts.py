"""Keeps the letters of texts that look like numbers: `name=1e5`, `inputs=[0.10]`, `model.model_path=1e5,2e5`.

Hydra reads a word as a number or a boolean wherever it can. Where the setting is a text, such a word is put in quotes
before Hydra reads it; all other words stay as they are typed.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from hydra.core.override_parser.overrides_parser import create_functions
from hydra.core.override_parser.overrides_visitor import HydraErrorListener, HydraOverrideVisitor
from hydra.errors import HydraException
from hydra.grammar.gen.OverrideLexer import CommonTokenStream, InputStream, OverrideLexer
from hydra.grammar.gen.OverrideParser import OverrideParser

from ouroboros.pipeline.settings.key_names import keeps_letters

OF_VALUES = ("choice", "sort", "shuffle", "str")  # functions of overrides whose arguments are values of the setting


@cache
def as_typed(override: str) -> str:
    """Returns an override with quotes around the texts that Hydra would change; an invalid one as it is."""
    lexer, texts = OverrideLexer(InputStream(override)), _Texts()
    parser = OverrideParser(CommonTokenStream(lexer))
    for part in (lexer, parser):
        part.removeErrorListeners()
        part.addErrorListener(HydraErrorListener())
    try:
        texts.visit(parser.override())
    except (HydraException, ValueError):
        return override
    for token in reversed(texts.found):
        override = f"{override[:token.start]}'{token.text}'{override[token.stop + 1:]}"
    return override


class _Texts(HydraOverrideVisitor):
    """Hydra's visitor, which also notes the tokens to be quoted. place: names of the keys above, the outermost first.

    called: the functions around, the outermost first.
    """

    def __init__(self):
        super().__init__(create_functions())
        self.found: list[Any] = []
        self.place: list[str] = []
        self.called: list[str] = []

    def visitKey(self, ctx):
        self.place.append(ctx.getText())
        return super().visitKey(ctx)

    def visitListContainer(self, ctx):
        return _within(self.place, "0", super().visitListContainer, ctx)  # any element stands for all

    def visitDictKeyValuePair(self, ctx):
        return _within(self.place, ctx.dictKey().getText(), super().visitDictKeyValuePair, ctx)

    def visitFunction(self, ctx):
        return _within(self.called, ctx.ID().getText(), super().visitFunction, ctx)

    def visitPrimitive(self, ctx):
        value = super().visitPrimitive(ctx)
        if isinstance(value, int | float) and all(name in OF_VALUES for name in self.called[-1:]):
            token = next(child.symbol for child in ctx.getChildren() if not self.is_ws(child))
            if keeps_letters(".".join(self.place), token.text, value):
                self.found.append(token)
        return value


def _within(above: list[str], name: str, visit: Callable[[Any], Any], ctx: Any) -> Any:
    """Visits with one more name in the list `above`."""
    above.append(name)
    value = visit(ctx)
    above.pop()
    return value
