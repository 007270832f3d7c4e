"""One engine for the requests of many clients: its methods run in one thread, the requests wait on an event loop."""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ouroboros.pipeline.store.errors import StageError
from ouroboros.workflows.protocol.engine import Engine, Reply, Request

Waiting = tuple[Request, asyncio.Future]


class EngineLoop:
    """Submits requests as they come, and gives each its reply; a request whose task was cancelled leaves the engine."""

    def __init__(self, opened: Callable[[], Engine]):
        """opened: opens the engine, in the thread that uses it."""
        self._thread = ThreadPoolExecutor(1, "engine")
        self._new: list[Waiting] = []
        self._flying: dict[int, asyncio.Future] = {}
        self._work = asyncio.Event()
        self.engine = self._thread.submit(opened).result()

    async def reply(self, request: Request) -> Reply:
        """The engine's reply."""
        future = asyncio.get_running_loop().create_future()
        self._new.append((request, future))
        self._work.set()
        return await future

    async def run(self) -> None:
        """Runs the engine for ever. Raises what it raises; the requests in progress then raise StageError."""
        self._work = asyncio.Event()  # it belongs to the event loop that waits for it
        try:
            while True:
                if not (self._new or self._flying):
                    self._work.clear()
                    await self._work.wait()
                await self._step()
        finally:
            for future in [*self._flying.values(), *(future for _, future in self._new)]:
                if not future.done():
                    future.set_exception(StageError("the engine has ended"))

    async def _step(self) -> None:
        new, self._new = [one for one in self._new if not one[1].done()], []
        given_up = [number for number, future in self._flying.items() if future.done()]
        for number in given_up:
            del self._flying[number]
        work = self._thread.submit(self._advance, [request for request, _ in new], given_up)
        try:
            numbers, replies = await asyncio.wrap_future(work)
        except BaseException:
            self._new += new  # so that `run` ends them
            raise
        self._flying |= dict(zip(numbers, (future for _, future in new), strict=True))
        for number, reply in replies.items():
            if not (future := self._flying.pop(number)).done():
                future.set_result(reply)

    def _advance(self, requests: Sequence[Request], given_up: Sequence[int]) -> tuple[list[int], dict[int, Reply]]:
        """Does one step of the engine, in its thread."""
        if given_up:
            self.engine.cancel(given_up)
        numbers = self.engine.submit(requests) if requests else []
        return numbers, self.engine.advance()

    def close(self, seconds: float) -> None:
        """Closes the engine; ends this process where that takes longer, since a step of an engine cannot be ended."""
        code = int(sys.exception() is not None)
        closing = self._thread.submit(self.engine.close)
        try:
            closing.result(seconds)
        except TimeoutError:
            os._exit(code)
        self._thread.shutdown()
