"""The other side of workflows/attempts/forking.py: starts the process that forks, and gives it orders."""

import pickle
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

from ouroboros.pipeline.job.context import ending, our_environment
from ouroboros.pipeline.store import launch
from ouroboros.pipeline.store.errors import StageError

READY = b"ready"
IMPORT_SECONDS = 300.0  # until then


class Forker:
    """A process that forks others, each with a socket to this one. Its orders may be given from any thread."""

    def __init__(self, module: str, environment: Mapping[str, str] | None = None, given: Any = None):
        """module: started with the number of the socket of its orders. given: pickled, its standard input."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = launch.command(module, str(theirs.fileno()))
        with theirs, tempfile.TemporaryFile() as file:
            pickle.dump(given, file)
            file.seek(0)
            # its own session: whatever kills the group of this process, it lives to end what it has forked
            self._process = subprocess.Popen(command, stdin=file, stdout=sys.stderr, pass_fds=[theirs.fileno()],
                                             env=environment or our_environment(), start_new_session=True)
        self._numbers, self._lock = count(), threading.Lock()

    def ready(self, seconds: float) -> str:
        """Waits until it says that it is ready; returns what it says is wrong, if anything."""
        if not select.select([self._control], [], [], seconds)[0]:
            self._process.kill()
            return f"it was not ready after {seconds:g} s"
        said = self._order(partial(self._control.recv, 1 << 12))
        return "" if said == READY else said.decode()

    def fork(self, *modules: str, kind: int = socket.SOCK_STREAM, also: Sequence[socket.socket] = ()
             ) -> tuple[int, socket.socket]:
        """Forks a process; returns its number and the socket to it. modules: which it needs.

        kind: of that socket. also: other sockets that the process gets.
        """
        number = next(self._numbers)
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        except OSError as error:
            raise StageError(f"an attempt needs two more open files: {error}. Set explorer.runner_concurrency to fewer "
                             "attempts at once, or raise the limit (ulimit -n).") from error
        order = " ".join(("start", str(number), *modules)).encode()
        with theirs:
            self._order(partial(socket.send_fds, self._control, [order], [one.fileno() for one in (theirs, *also)]))
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

    def close(self) -> None:
        """Ends it, with all that it has forked."""
        self._control.close()
        self._process.wait()

    def _order(self, call: Callable[[], Any]) -> Any:
        try:
            found = call()
        except OSError as error:
            raise StageError(f"the process that starts attempts died: {ending(self._process.wait())}") from error
        if not found:
            raise StageError(f"the process that starts attempts died: {ending(self._process.wait())}")
        return found
