"""The process of a stage from which those of tools are forked, with the environment that tools may see.

    python -m ouroboros.workflows.attempts.tool_host FD

FD: a SOCK_SEQPACKET socket with orders. Standard input: the Toolset. It is a separate program, because what a process
was started with stays readable, in its memory and in /proc/self/environ, also for those that are forked from it.
"""

import importlib
import pickle
import signal
import socket
import sys
from functools import partial

from ouroboros.pipeline.job.ending import SIGNALS
from ouroboros.pipeline.store.user_errors import brief
from ouroboros.workflows.attempts.forker import READY
from ouroboros.workflows.attempts.forking import serve
from ouroboros.workflows.attempts.tool_process import run
from ouroboros.workflows.protocol.tools import Toolset, load_tools

PATIENCE = 10.0  # seconds for the end of what an attempt's tools have left, and of their directory


def main(control: socket.socket, toolset: Toolset) -> None:
    """Imports the tools, says that they are ready or what is wrong, and obeys orders."""
    try:
        if toolset.settings.servers:
            importlib.import_module("ouroboros.workflows.attempts.mcp_client")
        tools = load_tools(toolset)
    except BaseException as error:  # of a module that needs more of the environment, or exits
        control.send(brief(error)[:1 << 11].encode())
        return
    control.send(READY)
    serve(control, partial(run, toolset, tools), PATIENCE)


if __name__ == "__main__":
    for ignored in SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)  # the explorer decides when this process ends
    main(socket.socket(fileno=int(sys.argv[1])), pickle.load(sys.stdin.buffer))
