"""An MCP server without a package, which starts at once, and breaks the protocol where its arguments say so.

    python tests/mcp_plain.py [WAY [PATH]]

Its tools: `note` adds a line to a file, `up` and `reset` count, `stray` writes what is no message, `huge` a message of
17 MiB, and `hang` starts a program and waits.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

WAY, PATH = [*sys.argv[1:], "", ""][:2]
TEXTS = {"type": "object", "properties": {"path": {"type": "string"}, "line": {"type": "string"}}}
TOOLS = [{"name": name, "description": f"the tool {name}", "inputSchema": TEXTS}
         for name in ("note", "up", "reset", "stray", "huge", "hang")]
count = 0


def tools() -> list[dict]:
    if WAY == "none":
        return []
    if WAY == "many":
        return [{**TOOLS[0], "name": f"tool{number}"} for number in range(1000)]
    if WAY == "changes" and Path(PATH).exists():
        return [{**TOOLS[0], "description": "another"}, *TOOLS[1:]]
    schemas = {"elsewhere": {"type": "object", "properties": {"line": {"$ref": "http://127.0.0.1:9/schema"}}},
               "nowhere": {"type": "object", "properties": {"line": {"$ref": "#/$defs/absent"}}},
               "malformed": {"type": "object", "properties": {"line": {"type": "words"}}}}
    return [{**TOOLS[0], "inputSchema": schemas[WAY]}] if WAY in schemas else TOOLS


def page(cursor: str | None) -> dict:
    begin, found = int(cursor or 0), tools()
    if WAY == "endless":
        return {"tools": TOOLS * 100, "nextCursor": str(begin + 1)}
    more = {"nextCursor": str(begin + 100)} if begin + 100 < len(found) else {}
    return {"tools": found[begin : begin + 100], **more}


def call(name: str, given: dict) -> str:
    global count
    if name == "note":
        with open(given["path"], "a") as file:
            file.write(f"{given['line']}\n")
        return given["line"]
    if name == "hang":
        program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        Path(given["path"]).write_text(str(program.pid))
        time.sleep(60)
    if name == "stray":
        sys.stdout.buffer.write(b"not JSON\n{}\n[1]\n\xff\xfe\n\n")
    if name == "huge":
        return "z" * (17 << 20)
    count += 1
    return f"now {count}"


def answer(method: str, given: dict) -> dict:
    if method == "initialize":
        return {"protocolVersion": given["protocolVersion"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "plain", "version": "1"}}
    if method == "tools/list":
        return page(given.get("cursor"))
    return {"content": [{"type": "text", "text": call(given["name"], given.get("arguments") or {})}]}


def main() -> None:
    if WAY == "ends":
        sys.exit("no configuration")
    if WAY == "talks":
        print("Welcome!", flush=True)
        time.sleep(60)
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        known = asked["method"] in ("initialize", "tools/list", "tools/call")
        said = {"result": answer(asked["method"], asked.get("params") or {})} if known else {
            "error": {"code": -32601, "message": "Method not found"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)


if __name__ == "__main__":
    main()
