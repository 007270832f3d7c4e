"""A function of the user's: imported by its dotted path, and its errors shown with the frames of the user's own files.

A frame is the user's when its file is neither ours, nor Python's, nor that of an installed package.
"""

import importlib
import sysconfig
import traceback
from pathlib import Path

from pipeline.store.errors import ConfigError
from pipeline.store.files import HOME, near
from pipeline.store.project_imports import INSTALLED, OURS

LONGEST = 2000  # characters of a message; a user's may hold a whole prompt, or megabytes
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))


def users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of the user's files in the traceback of an error, the call first, the line that raised last."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]


def brief(error: BaseException) -> str:
    """One line: `ValueError: no number (my_reward.py:12 in score)`; no place where it is not the user's."""
    frames, message = users_frames(error), " ".join(str(error)[:LONGEST].split())
    told = f"{type(error).__name__}: {message}" if message else type(error).__name__
    place = frames[-1:] or ([] if message else traceback.extract_tb(error.__traceback__)[-1:])
    return told + "".join(f" ({near(Path(at.filename))}:{at.lineno} in {at.name})" for at in place)


def users_traceback(error: BaseException) -> str:
    """The traceback with the user's frames alone, causes included; the whole one where no frame is the user's."""
    found = shown = traceback.TracebackException.from_exception(error)
    while users_frames(error) and shown is not None:
        shown.stack = traceback.StackSummary.from_list(f for f in shown.stack if _is_users(f.filename))
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
    return "".join(f"{line[:LONGEST].rstrip()}\n" for line in found.format()).rstrip()


def _is_users(name: str) -> bool:
    path = Path(name)
    if name.startswith("<") or set(path.parts) & {*INSTALLED} or path.is_relative_to(STANDARD_LIBRARY):
        return False
    return not (path.is_relative_to(HOME) and path.relative_to(HOME).parts[0] in OURS)


def load_dotted(path: str):
    """Imports `package.module:function`. A path that does not lead to a function is a ConfigError."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the user's module raises while it is imported
        raise ConfigError(f"'{path}' cannot be imported: {brief(error)}. Needed "
                          "package.module:function, with the package in the current directory, installed, or with its "
                          "parent directory on PYTHONPATH.") from error
