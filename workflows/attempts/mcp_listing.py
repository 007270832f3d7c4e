"""Asks MCP servers for their tools (workflows/mcp_tools.py), with the processes, limits and variables of an attempt.

    python -m workflows.attempts.mcp_listing

Standard input: ToolArguments. Output: server -> what it lists, as JSON, or what is wrong; and whether that is so.
"""

import json
import sys

from pipeline.job.ending import die_with_parent
from pipeline.settings.arguments.answers import ToolArguments
from workflows.attempts import mcp_client  # noqa: F401 (imported before the fork: it is not part of the server's start)
from workflows.attempts.tool_process import Processes
from workflows.attempts.wire import Lost
from workflows.tools import Toolset

if __name__ == "__main__":
    die_with_parent()
    settings, found = ToolArguments(**json.load(sys.stdin)), {}
    processes = Processes(None, Toolset(settings), {})
    for name in settings.servers:
        try:
            session, text = processes.begin(name)
            session.close()
            found[name] = text, False
        except Lost as lost:
            found[name] = str(lost), True
    print(json.dumps(found))
