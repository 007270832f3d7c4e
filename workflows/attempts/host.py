"""The process from which those of attempts are forked (workflows/attempts/forking.py).

    python -m workflows.attempts.host FD

FD: a SOCK_SEQPACKET socket with orders. When the explorer ends, by whatever cause, the socket is closed, and this
process ends all attempts and itself.
"""

import signal
import socket
import sys

from pipeline.job.ending import SIGNALS
from workflows.attempts import child
from workflows.attempts.forking import serve

if __name__ == "__main__":
    for ignored in SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)  # the explorer decides when this process ends
    serve(socket.socket(fileno=int(sys.argv[1])), child.run)
