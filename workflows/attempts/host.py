"""The process from which those of attempts are forked (workflows/attempts/forking.py).

    python -m workflows.attempts.host FD

FD: a SOCK_SEQPACKET socket with orders. When the explorer ends, by whatever cause, the socket is closed, and this
process ends all attempts and itself.
"""

from workflows.attempts import child
from workflows.attempts.forking import obey

if __name__ == "__main__":
    obey(child.run)
