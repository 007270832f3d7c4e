"""User code that prints the whole traceback of what it raises, for `ouro debug`; rows hold one line of it."""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from ouroboros.pipeline.store.errors import masked
from ouroboros.pipeline.store.user_errors import users_traceback


class Traced:
    """A workflow of any kind, or a reward function; it can be sent to the process of an attempt."""

    def __init__(self, function: Callable):
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        try:
            found = self.__wrapped__(*arguments, **named)
        except (Exception, SystemExit) as error:
            _show(error)
            raise
        if inspect.isgenerator(found):
            return _generated(found)
        return _awaited(found) if inspect.isawaitable(found) else found


async def _awaited(found) -> Any:
    try:
        return await found
    except (Exception, SystemExit) as error:
        _show(error)
        raise


def _generated(found):
    try:
        return (yield from found)
    except (Exception, SystemExit) as error:
        _show(error)
        raise


def _show(error: BaseException) -> None:
    print(masked(users_traceback(error)), file=sys.stderr, flush=True)
