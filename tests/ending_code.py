"""Code that ends its process, importable in other processes: reward functions, and a workflow."""

import asyncio
import ctypes
import os
import signal
import sys
import time

from ouroboros.workflows.protocol.trajectory import Trajectory

WAYS = {"exit code 3": lambda: os._exit(3), "exit code 0": lambda: os._exit(0),
        "SIGSEGV": lambda: ctypes.string_at(0), "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
        "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGABRT": os.abort}
calls = 0


def ends(response, answer):
    """A number that counts the calls of its process."""
    global calls
    calls += 1
    WAYS.get(response, lambda: None)()
    return float(calls)


async def ends_late(response, answer):
    await asyncio.sleep(0.5)
    return ends(response, answer) * 0.0 + os.getpid()


def ends_with_all(responses, answers, weight):
    return [ends(one, answer) * weight for one, answer in zip(responses, answers, strict=True)]


def misbehaves(response, answer):
    if response == "leaves":
        sys.exit("no licence")
    if response == "raises":
        raise ValueError("no number")
    if response == "returns":
        return lambda: None
    if response == "sleeps":
        time.sleep(60)
    if response == "copies" and os.fork() == 0:
        time.sleep(60)  # it must not keep the explorer waiting
    if response == "copies":
        os._exit(4)
    return 1.0


misbehaves.counts_opened = True


class Judge:
    def __call__(self, response, answer):
        return ends(response, answer)


judge = Judge()


def walks(prompt, task, way="exit code 3"):
    """A workflow that ends its process at tasks without a truth."""
    reply = yield prompt
    if not task.answer.startswith("{"):
        WAYS[way]()
    return Trajectory(prompt, reply.tokens, reply.logprobs, [1] * len(reply.tokens), reply.finish_reason)


def scores(response, answer):
    if not answer.startswith("{"):
        os._exit(5)
    return 1.0
