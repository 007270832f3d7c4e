"""One engine of a pool, run in a process started by workflows/engines/engine_pool.py.

    python -m ouroboros.workflows.engines.engine_process [CORES]

CORES: the CPU cores to use, joined by commas; without them those that it may use. Each message on standard input is
(method, arguments), the first two `import_libraries` and `open` with the arguments of import_libraries and open_one of
engines.open. Answers on standard output are (kind, value): VALUE and ERROR answer a method, in order, PRESSURE the
method of that name; `import_libraries`, `submit` and `cancel` have no VALUE, and REPLIES follow as requests are
completed. What the engine prints goes to standard error. The process ends after `close`, after an error, and when its
standard input is closed.
"""

import contextlib
import os
import sys
import traceback
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread

from ouroboros.pipeline.job.activity import show_stack_on_signal
from ouroboros.pipeline.job.ending import die_with_parent
from ouroboros.pipeline.job.opening import opening
from ouroboros.pipeline.store.errors import OuroError, StageError, masked
from ouroboros.pipeline.store.secret_names import conceal_secrets
from ouroboros.workflows.engines.open import import_libraries, open_one, with_cache
from ouroboros.workflows.protocol.engine import ERROR, PRESSURE, REPLIES, VALUE, Engine, Reply


def serve(questions: Connection, answers: Connection) -> None:
    """Answers messages in order, and computes the requests in progress while there are none."""
    messages: SimpleQueue[tuple | None] = SimpleQueue()
    Thread(target=_read, args=(questions, messages), daemon=True).start()
    member = Member()
    while member.method != "close":
        try:
            if member.busy and messages.empty():
                found = REPLIES, member.advance()
            elif (message := messages.get()) is None:
                return
            else:
                found = member.obey(*message)
        except Exception as error:  # forward any error to the pool with its original message
            print(masked(traceback.format_exc()), file=sys.stderr)
            ours = error if isinstance(error, OuroError) else StageError(f"{type(error).__name__}: {error}")
            answers.send((ERROR, ours))
            return
        if found and found != (REPLIES, {}):
            answers.send(found)


def _read(questions: Connection, messages: SimpleQueue) -> None:
    """Takes messages at once, so that the pool can always write: it does not read answers meanwhile."""
    with contextlib.suppress(EOFError):
        while True:
            messages.put(questions.recv())
    messages.put(None)


class Member:
    """The engine, and the pool's numbers of its requests in progress."""

    def __init__(self):
        self.engine: Engine | None = None
        self.method = "open"
        self._numbers: dict[int, int] = {}  # the engine's -> the pool's

    @property
    def busy(self) -> bool:
        return bool(self._numbers)

    def advance(self) -> dict[int, Reply]:
        return {self._numbers.pop(own): reply for own, reply in self.engine.advance().items()}

    def obey(self, method: str, arguments: tuple) -> tuple | None:
        """Does what a message asks for; returns its answer, if it has one."""
        self.method = method
        if method == "import_libraries":
            with opening():
                import_libraries(*arguments)
            return None
        if method == "open":
            model, config, *others = arguments
            with opening():
                self.engine = open_one(model, with_cache(config, model), *others)
            return VALUE, (self.engine.version, dict(self.engine.started))
        if method == "submit":
            numbers, requests = arguments
            self._numbers.update(zip(self.engine.submit(requests), numbers, strict=True))
            return None
        if method == "cancel":
            (dropped,) = arguments
            own = [engines for engines, pools in self._numbers.items() if pools in dropped]
            self.engine.cancel(own)
            self._numbers = {one: self._numbers[one] for one in self._numbers.keys() - own}
            return None
        if method == "interrupt":
            return VALUE, {self._numbers.pop(own): reply for own, reply in self.engine.interrupt().items()}
        return PRESSURE if method == "pressure" else VALUE, getattr(self.engine, method)(*arguments)


if __name__ == "__main__":
    die_with_parent()
    conceal_secrets()
    show_stack_on_signal()
    if sys.argv[1:]:
        os.sched_setaffinity(0, [int(core) for core in sys.argv[1].split(",")])
    with Connection(os.dup(0), writable=False) as read, Connection(os.dup(1), readable=False) as write:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        serve(read, write)
