"""The other side of workflows/attempts/forking.py: starts the process that forks, and gives it orders."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from pipeline.job.context import ending, our_environment
from pipeline.store.errors import StageError


class Forker:
    """A process that forks others, each with a socket to this one. Its orders may be given from any thread."""

    def __init__(self, module: str):
        """module: started with the number of the socket of its orders."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", module, str(theirs.fileno())]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=our_environment(),
                                         pass_fds=[theirs.fileno()])
        theirs.close()
        self._numbers, self._lock = count(), threading.Lock()

    def fork(self, *modules: str) -> tuple[int, socket.socket]:
        """Forks a process; returns its number and the socket to it. modules: which it needs."""
        number = next(self._numbers)
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise StageError(f"an attempt needs two more open files: {error}. Set explorer.runner_concurrency to fewer "
                             "attempts at once, or raise the limit (ulimit -n).") from error
        with theirs:
            self._order(partial(socket.send_fds, self._control, [" ".join(("start", str(number), *modules)).encode()],
                                [theirs.fileno()]))
        return number, ours

    def end(self, number: int) -> None:
        """Kills a process with all that it started."""
        self._order(partial(self._control.send, f"end {number}".encode()))

    def code(self, number: int) -> int | None:
        """Does so too; returns the exit code of the process, or None if it could not be started."""
        with self._lock:
            self._order(partial(self._control.send, f"code {number}".encode()))
            answer = self._order(partial(self._control.recv, 64)).decode()
        return None if answer == "None" else int(answer)

    def how(self, number: int) -> str:
        """Does so too; says how the process ended."""
        code = self.code(number)
        return "did not start, for want of memory or processes" if code is None else ending(code)

    def _order(self, call: Callable[[], Any]) -> Any:
        try:
            found = call()
        except OSError as error:
            raise StageError(f"the process that starts attempts died: {ending(self._process.wait())}") from error
        if not found:
            raise StageError(f"the process that starts attempts died: {ending(self._process.wait())}")
        return found
