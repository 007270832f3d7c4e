"""A command in its own process group: how it is interrupted, and that nothing of it is left."""

import os
import signal
import subprocess
import sys
import time

import pytest

from ouroboros.pipeline.job import process_group
from ouroboros.pipeline.job.process_group import run_group

SLEEPS = "import time; time.sleep(60)"


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN])
def sigint(request):
    """As on a terminal, and as in the background of a script, where SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


def python(program: str) -> list[str]:
    return [sys.executable, "-S", "-c", program]


def alive(pid: int) -> bool:
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1] not in ("", "Z")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_every_way_to_stop_reaches_the_command(number, sigint, capsys):
    begin, asked = time.monotonic(), []

    def poll():
        if not asked and time.monotonic() - begin > 0.5:
            asked.append(os.kill(os.getpid(), number))

    program = f"import signal\ndef end(*_): raise SystemExit(7)\nsignal.signal({int(number)}, end)\n{SLEEPS}"
    before = signal.signal(number, signal.SIG_DFL)  # under nohup SIGHUP is ignored
    try:
        assert run_group(python(program), dict(os.environ), {}, poll) == (7, number)
        assert time.monotonic() - begin < 10
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_what_outlives_the_command_is_ended(tmp_path):
    """A stage outlives a snakemake that was killed."""
    program = ("import os, pathlib, signal, subprocess, sys\n"
               f"child = subprocess.Popen([sys.executable, '-S', '-c', '{SLEEPS}'])\n"
               f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
               "os.kill(os.getpid(), signal.SIGKILL)")
    assert run_group(python(program), dict(os.environ), {}, lambda: None) == (-9, None)
    assert not alive(int((tmp_path / "pid").read_text()))


def test_the_third_signal_kills_a_command_that_does_not_listen():
    begin, asked = time.monotonic(), []

    def poll():
        if time.monotonic() - begin > 0.5:
            asked.append(os.kill(os.getpid(), signal.SIGTERM))

    program = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"
    assert run_group(python(program), dict(os.environ), {}, poll) == (-9, signal.SIGTERM)
    assert len(asked) == 3


def test_a_command_that_does_not_end_in_its_time_is_killed(monkeypatch, sigint):
    monkeypatch.setattr(process_group, "GRACE_SECONDS", 0.5)
    asked = []

    def poll():
        return asked.append(time.monotonic()) or signal.SIGTERM

    program = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); {SLEEPS}"
    assert run_group(python(program), dict(os.environ), {}, poll, grace=0.5) == (-9, signal.SIGTERM)
    assert 0.9 < time.monotonic() - asked[0] < 10


def test_a_stopped_child_of_the_command_is_named_once(monkeypatch, sigint, capsys):
    monkeypatch.setattr(process_group, "STOPPED_SECONDS", 0.5)
    program = ("import signal, subprocess, sys, time\n"
               f"child = subprocess.Popen([sys.executable, '-S', '-c', '{SLEEPS}'])\n"
               "child.send_signal(signal.SIGSTOP)\ntime.sleep(2.5)\nchild.kill()")
    assert run_group(python(program), dict(os.environ), {}, lambda: None)[0] == 0
    told = capsys.readouterr().err
    assert told.count("kill -CONT ") == 1
