"""Messages between the explorer, the process of an attempt and those of its tools: length-prefixed pickles on a socket.

Both ends are ours, and the workflow that could send others is the user's own code, as it is in the explorer.
"""

import pickle
import struct
from collections.abc import Iterator
from typing import Any

LENGTH = struct.Struct("!Q")


class Lost(Exception):
    """A call of a tool ended without a result: its process or its server is gone."""


def packed(message: Any) -> bytes:
    content = pickle.dumps(message)
    return LENGTH.pack(len(content)) + content


class Unpacker:
    """Splits a stream of bytes into messages."""

    def __init__(self):
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yields the messages that `data` completes."""
        self._bytes += data
        while len(self._bytes) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._bytes)[0]
            if len(self._bytes) < end:
                return
            content = bytes(self._bytes[LENGTH.size : end])
            del self._bytes[:end]
            yield pickle.loads(content)
