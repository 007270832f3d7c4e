"""Work beside work: in order, one at a time, and errors come out."""

import threading

from ouroboros.pipeline.job.background import Background
from tests.golden.messages import refuses


def test_calls_run_one_after_the_other_in_order():
    background, gate, done = Background(), threading.Event(), []
    background.start(lambda: (gate.wait(10), done.append("first")))
    background.check()  # not over: nothing to raise, and no waiting
    assert done == []
    threading.Timer(0.05, gate.set).start()
    background.start(done.append, "second")
    background.finish()
    assert done == ["first", "second"]


def test_an_error_comes_out_of_whatever_is_called_next():
    background = Background()
    background.check()
    background.finish()  # nothing was started

    def fail():
        raise OSError("No space left on device")

    background.start(fail)
    with refuses(OSError, "space"):
        background.finish()
    with refuses(OSError, "space"):  # and stays: a lost file is not forgotten
        background.check()
    with refuses(OSError, "space"):
        background.start(print)
