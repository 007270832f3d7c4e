"""Tries a chat template on one message: a template is code, which may fail, or not end."""

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from ouroboros.pipeline.store.errors import ConfigError

SECONDS = 10  # of processor time for a template and one message
LONGEST = 1_000_000  # characters of its text
LARGEST = 1000  # product of the exponents in it
BEFORE_ARGUMENTS = (("operator", "("), ("operator", ","))  # where ** hands on arguments: f(**named)


def try_template(tokenizer, named: str, is_own: bool) -> None:
    """Raises ConfigError for a template that does not parse or omits the user's text, and a user's own that fails."""
    from jinja2 import TemplateSyntaxError

    try:
        if _has_large_power(tokenizer.chat_template):
            raise ConfigError(f"{named} raises numbers to powers that may never be done; needed a Jinja template over "
                              "`messages` whose exponents are small numbers.")
        with limited(SECONDS):
            text = tokenizer.apply_chat_template([{"role": "user", "content": "a question"}], tokenize=False,
                                                 add_generation_prompt=True)
    except TimeoutError as error:
        raise ConfigError(f"{named} had not written one message of the user after {SECONDS} s; needed a Jinja template "
                          "over `messages` that ends.") from error
    except MemoryError:
        text = None
    except TemplateSyntaxError as error:
        why = str(error.message).rstrip(".")
        raise ConfigError(f"{named}, line {error.lineno}: {why}. Needed a Jinja template over `messages`: correct it, "
                          "or set model.chat_template_path to another.") from error
    except template_errors() as error:
        if not is_own:  # a model's own may need a system message, or reject some rows: reported when rows are read
            return
        raise ConfigError(f"{named} fails on one message of the user ({error}). Needed a Jinja template over "
                          "`messages` that takes it.") from error
    if text is None or len(text) > LONGEST:
        raise ConfigError(f"{named} writes more than {LONGEST:,} characters for one message of 10; needed a Jinja "
                          "template over `messages` that writes each of them once.")
    if "a question" not in text:
        raise ConfigError(f"{named} leaves out the user's message: it makes {text[:200]!r} of 'a question'. Needed a "
                          "Jinja template over `messages`; model.chat_template_path replaces that of a model.")


def _has_large_power(template: Any) -> bool:
    """Whether a template has an exponent that is not an integer literal, or ones whose product is large.

    Python computes a power in one operation, which no time limit interrupts. template: text, or several by name.
    """
    from jinja2 import Environment

    for text in template.values() if isinstance(template, dict) else [template]:
        tokens = [(kind, value) for _, kind, value in Environment().lex(text) if kind != "whitespace"]
        powers = [after for (before, token), (_, after) in pairwise(pairwise(tokens))
                  if token == ("operator", "**") and before not in BEFORE_ARGUMENTS]
        if any(kind != "integer" for kind, _ in powers) or math.prod(int(value, 0) for _, value in powers) > LARGEST:
            return True
    return False


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in its block after that much processor time of the process; outside the main thread, where
    Python runs no signal handlers, it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number, frame) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def template_errors() -> tuple[type[Exception], ...]:
    """Exceptions that a template, which is code, may raise."""
    from jinja2 import TemplateError

    return TemplateError, ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError
