"""The process from which those of attempts are forked (workflows/attempts/forking.py).

    python -m ouroboros.workflows.attempts.host FD

FD: a SOCK_SEQPACKET socket with orders. When the explorer ends, by whatever cause, the socket is closed, and this
process ends all attempts and itself.
"""

from ouroboros.workflows.attempts import child
from ouroboros.workflows.attempts.forking import obey

if __name__ == "__main__":
    obey(child.run)
