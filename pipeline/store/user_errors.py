"""Imports the user's functions by dotted path and formats their errors with the user's own frames.

A frame is the user's when its file is not ours, the standard library's or an installed package's.
"""

import importlib
import re
import sysconfig
import traceback
from pathlib import Path

from ouroboros.pipeline.store.digests import NEEDED
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.files import PACKAGE, near
from ouroboros.pipeline.store.project_imports import INSTALLED, OURS, new_name

LONGEST = 2000  # characters of a message; a user's may contain a whole prompt, or megabytes
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")  # colours: libraries print them, and put them into their errors
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))


def users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Returns the user's frames in an error's traceback: the call first, the raising line last."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]


def brief(error: BaseException) -> str:
    """Formats one line: `ValueError: no number (my_reward.py:12 in score)`; without a place outside user code."""
    frames, message = users_frames(error), " ".join(ESCAPE.sub("", _text(error))[:LONGEST].split())
    told = f"{type(error).__name__}: {message}" if message else type(error).__name__
    place = frames[-1:] or ([] if message else traceback.extract_tb(error.__traceback__)[-1:])
    return told + "".join(f" ({near(Path(at.filename))}:{at.lineno} in {at.name})" for at in place)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failed:  # a user's exception may have a method __str__ of its own
        return f"no text: its __str__ raised {type(failed).__name__}"


def users_traceback(error: BaseException) -> str:
    """Returns the traceback with only the user's frames, causes included; the whole one if there are no such frames."""
    found = shown = traceback.TracebackException.from_exception(error)
    while users_frames(error) and shown is not None:
        shown.stack = traceback.StackSummary.from_list(f for f in shown.stack if _is_users(f.filename))
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
    return "".join(f"{line[:LONGEST].rstrip()}\n" for line in found.format()).rstrip()


def _is_users(name: str) -> bool:
    path = Path(name)
    if name.startswith("<") or set(path.parts) & {*INSTALLED} or path.is_relative_to(STANDARD_LIBRARY):
        return False
    return not path.is_relative_to(PACKAGE)


def load_dotted(path: str):
    """Imports `package.module:function`. Raises ConfigError if the path does not lead to a function."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(new_name(module, Path.cwd()) or module), name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's module may raise anything on import, sys.exit too
        ours = isinstance(error, ModuleNotFoundError) and error.name in OURS
        needed = (f"Ours is now called ouroboros.{error.name}: write that name there." if ours else
                  NEEDED if isinstance(error, ImportError | AttributeError) else
                  "Needed a module that can be imported: correct it there.")
        raise ConfigError(f"'{path}' cannot be imported: {brief(error)}. {needed}") from error
