"""A workflow whose module takes its time to be imported by the process that forks attempts."""

import sys
import time

from tests.agents import one

if getattr(sys.modules["__main__"].__spec__, "name", "") == "ouroboros.workflows.attempts.host":
    time.sleep(0.6)


def asks(prompt, model):
    return one(prompt, model(prompt))
