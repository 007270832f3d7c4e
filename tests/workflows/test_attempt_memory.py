"""The memory of a command in a sandbox: what its processes hold together, whichever way they take it."""

import time

import pytest

from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.workflows.environments import memory
from ouroboros.workflows.environments.harbor import Unverified
from ouroboros.workflows.environments.sandbox import Sandbox
from tests.golden.messages import refuses
from tests.workflows.test_harbor import confined, world  # noqa: F401

PATH = {"PATH": "/usr/bin:/bin"}
TOUCH = ("import ctypes, mmap, os, subprocess, threading, time\n"
         "def touch(m, n):\n    for i in range(0, n, 4096): m[i] = 1\n")
BEYOND = {
    "shared": "m = mmap.mmap(-1, 256 << 20); touch(m, 256 << 20)",
    "no longer in any process's table of pages": "m = mmap.mmap(-1, 160 << 20)\n"
    "if not os.fork(): touch(m, 160 << 20); os._exit(0)\nos.wait()",
    "a file of memory": "f = os.memfd_create('x')\nfor _ in range(160): os.write(f, bytes(1 << 20))",
    "a file of memory, mapped and closed": "f = os.memfd_create('x'); os.truncate(f, 160 << 20)\n"
    "m = mmap.mmap(f, 160 << 20); os.close(f); touch(m, 160 << 20)",
    "ten processes": "for _ in range(10):\n    if not os.fork(): x = bytearray(20 << 20); time.sleep(20); os._exit(0)",
    "a thread that outlives the first": "def go(): m = mmap.mmap(-1, 160 << 20); touch(m, 160 << 20); time.sleep(20)\n"
    "threading.Thread(target=go).start(); time.sleep(0.3); ctypes.CDLL(None).pthread_exit(None)",
}
WITHIN = {  # of 64 MiB
    "pages in common since a fork": "x = bytearray(40 << 20)\nfor _ in range(8):\n"
    "    if not os.fork(): time.sleep(0.7); os._exit(0)\ntime.sleep(0.7)",
    "vfork": "x = bytearray(40 << 20)\nfor _ in range(200): subprocess.run(['true'])",
    "addresses alone": "m = mmap.mmap(-1, 64 << 30, mmap.MAP_PRIVATE, 0); time.sleep(0.5)",
    "an object that two have": "m = mmap.mmap(-1, 40 << 20); touch(m, 40 << 20)\n"
    "if not os.fork(): touch(m, 40 << 20); time.sleep(0.6); os._exit(0)\nos.wait()",
    "a sparse file of memory": "f = os.memfd_create('x'); os.truncate(f, 2 << 30)\n"
    "m = mmap.mmap(f, 2 << 30); touch(m, 1 << 20); time.sleep(0.5)",
}


@pytest.fixture
def box():
    one = Sandbox(64, memory_mb=64)
    yield one
    one.close()


@confined
@pytest.mark.parametrize("kind", BEYOND)
def test_a_command_ends_once_its_processes_hold_more_than_the_limit(box, kind):
    begin = time.monotonic()
    ended = box.run(["python3", "-c", f"{TOUCH}{BEYOND[kind]}\ntime.sleep(20)"], 20, variables=PATH)
    assert ended.code is None
    assert "64 MiB" in ended.why
    assert time.monotonic() - begin < 15
    assert box.run(["sh", "-c", "echo on"], 20, variables=PATH).output == "on\n"


@confined
@pytest.mark.parametrize("kind", WITHIN)
def test_a_command_below_the_limit_is_left_alone(box, kind):
    ended = box.run(["python3", "-c", f"{TOUCH}{WITHIN[kind]}\nprint('end')"], 20, variables=PATH)
    assert (ended.code, ended.output, ended.why) == (0, "end\n", "")


@confined
def test_memory_of_one_process_alone_is_refused_to_it_at_once(box):
    ended = box.run(["python3", "-c", "bytearray(100 << 20)"], 20, variables=PATH)
    assert (ended.code, ended.why) == (1, "")
    assert "MemoryError" in ended.output


@confined
def test_files_of_an_attempt_are_no_memory_of_its_processes(box):
    """60 MB of files, mapped, beside 30 MB."""
    text = ("f = open('/x', 'wb+'); f.truncate(60 << 20); m = mmap.mmap(f.fileno(), 60 << 20); touch(m, 60 << 20)\n"
            "x = bytearray(30 << 20); time.sleep(0.5); print(1)")
    assert box.run(["python3", "-c", TOUCH + text], 20, variables=PATH).output == "1\n"


@confined
def test_the_agent_and_the_tests_of_a_task_are_told_of_the_limit(world):  # noqa: F811
    taken = f"python3 -c '{TOUCH}m = mmap.mmap(-1, 160 << 20); touch(m, 160 << 20); time.sleep(2)'"
    one = world(task_dot_toml="[environment]\nmemory_mb = 64", tests__test_dot_sh=f"#!/bin/bash\n{taken}\n")
    assert "64 MiB" in one.bash(taken)
    assert one.bash("echo on") == "on\n"
    with refuses(Unverified, "64 MiB", "environment.memory_mb"):
        one.reward()


@confined
def test_a_look_that_fails_is_an_error_of_the_command(box, monkeypatch):
    monkeypatch.setattr(memory.Namespace, "held", lambda self, most: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        box.run(["sleep", "1"], 20, variables=PATH)


@confined
def test_where_memory_cannot_be_read_there_is_no_sandbox(monkeypatch):
    monkeypatch.setattr(memory, "refused", lambda pid: "[Errno 13] Permission denied: '/proc/5/smaps_rollup'")
    with refuses(ConfigError, "CAP_SYS_PTRACE"):
        Sandbox(1)
