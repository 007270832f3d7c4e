"""An MCP server of the package, for tests; tests/mcp_plain.py is one that starts at once and can break the protocol."""

import json
import os
import sys

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

count = 0


class Pair(BaseModel):
    """Two numbers."""

    left: int
    right: int = 1


def add(pair: Pair) -> int:
    """The sum of two numbers."""
    return pair.left + pair.right


def up(by: int = 1) -> str:
    """Adds to the count of this server."""
    global count
    count += by
    return f"now {count}"


def words() -> list[str]:
    """Two words."""
    return ["one", "two"]


def picture() -> list:
    """A text and an image."""
    return ["look", Image(data=b"\x00", format="png")]


def misbehaves(way: str) -> str:
    """A tool in every way that is wrong."""
    if way == "raises":
        raise ToolError("nothing there")
    if way == "dies":
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)
    if way == "noise":
        for _ in range(256):
            os.write(2, b"x" * (1 << 20))
    if way == "long":
        return "y" * (1 << 20)
    return way


def variables(names: list[str]) -> str:
    """Environment variables, as the server sees them."""
    return json.dumps({name: os.environ.get(name) for name in names})


def server() -> MCPServer:
    found = MCPServer("kit")
    for one in (add, up, words, misbehaves, variables):
        found.tool()(one)
    found.tool(structured_output=False)(picture)
    return found


if __name__ == "__main__":
    server().run()
