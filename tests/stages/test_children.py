"""Processes that live and die together."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ouroboros.pipeline.job import activity, own_process, watchdog
from ouroboros.pipeline.job.activity import Activity, Doing
from ouroboros.pipeline.job.ending import Stopped
from ouroboros.pipeline.job.error_file import last_line
from ouroboros.pipeline.job.own_process import ProcessEnded, calls_file
from ouroboros.pipeline.job.shares import cores
from ouroboros.pipeline.job.watchdog import Watchdog, activity_file
from ouroboros.pipeline.store import files, launch, user_calls
from ouroboros.pipeline.store.errors import StageError
from ouroboros.stages.explorer import children
from ouroboros.stages.explorer.children import Child, supervise
from tests.golden.messages import refuses, wording

CALM = "import time\ntime.sleep(60)\n"
DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen('deaf', 'w').close()\ntime.sleep(60)\n"
STAGE_CHILD = """
import sys
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.explorer.children import run_child
def work(context):
    {body}
if __name__ == "__main__":
    run_child(work, "trainer", "doc of the trainer")
"""


@pytest.fixture
def start(tmp_path, monkeypatch, context_of):
    """start(explorer=program, trainer=program, follow=function): supervises them as a stage would."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    context = context_of(tmp_path / "store" / "rft-1")
    spec = {"run": "toy/one", "name": "rft", "kind": "rft", "identity": "1", "root": str(tmp_path), "inputs": {},
            "config": {"log": {"level": "INFO"}}}
    files.write_json(context.directory / "stage.json", spec)

    def supervise_programs(follow=lambda: None, **programs: str) -> None:
        for name, program in programs.items():
            (tmp_path / f"child_{name}.py").write_text(program)
        supervise(context, [Child(name, f"child_{name}", cores()) for name in programs], follow)

    supervise_programs.directory, supervise_programs.context = context.directory, context
    return supervise_programs


def dies(start, **programs) -> tuple[str, float]:
    begin = time.monotonic()
    with pytest.raises(StageError) as caught:
        start(**programs)
    return str(caught.value), time.monotonic() - begin


def test_children_that_end_well_end_the_stage_and_are_followed_to_the_last(start):
    calls = []
    start(lambda: calls.append(None), explorer="", trainer="")
    assert len(calls) >= 2  # at least once while they ran and once behind


def test_children_have_as_many_threads_as_cores_whatever_the_shell_says_and_the_stage_notes_it(start, monkeypatch):
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    start(trainer="import os\nprint(os.environ['OMP_NUM_THREADS'], os.environ['MKL_NUM_THREADS'])\n")
    number = len(cores())
    assert (start.directory / "trainer.log").read_text() == f"{number} {number}\n"
    assert files.read_json(start.directory / "threads.json") == {"trainer": number}


def test_ranks_share_the_cores():
    assert [Child("trainer", "m", [0, 1, 2, 3, 4], ranks).threads for ranks in (1, 2, 5, 8)] == [5, 2, 1, 1]


def test_a_dead_child_ends_the_other_and_the_error_names_stage_log_and_reason(start):
    message, seconds = dies(start, explorer=CALM, trainer="import sys\nprint('my last words')\nsys.exit(3)\n")
    wording(message, "rft-1", "code 3")
    assert str(start.directory / "trainer.log") in message
    assert (start.directory / "trainer.log").read_text() == "my last words\n"
    assert seconds < 30


def test_a_child_that_does_not_listen_is_made_to_end(start, monkeypatch, tmp_path):
    monkeypatch.setattr(children, "GRACE_SECONDS", 0.3)
    wait = "import os, sys, time\nwhile not os.path.exists('deaf'): time.sleep(0.01)\nsys.exit(1)\n"
    _, seconds = dies(start, explorer=DEAF, trainer=wait)
    assert 0.3 < seconds < 30


def test_a_mistake_of_the_user_is_told_in_its_own_words(start):
    message, _ = dies(start, explorer=CALM, trainer=STAGE_CHILD.format(body="raise DataError('no such row.')"))
    wording(message, "rft-1")
    assert "Traceback" not in (start.directory / "trainer.log").read_text()


def test_an_error_in_the_users_code_is_one_line_and_the_users_frames(start):
    body = "exec(compile('def two():\\n    raise ValueError(1)', 'mine.py', 'exec'), globals()); two()"
    message, _ = dies(start, explorer=CALM, trainer=STAGE_CHILD.format(body=body))
    first, *frames = message.splitlines()
    wording(first, "ValueError: 1", "(mine.py:2 in two)")
    assert [line for line in frames if "mine.py" in line]
    for text in ("\n".join(frames), (start.directory / "trainer.log").read_text()):
        assert "Traceback" in text
        assert "stages/explorer/children.py" not in text


def test_a_limit_of_addresses_is_named(start):
    """The C library's own words, and exit code 127, are those of a thread that gets no memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**40, hard))
    try:
        said, _ = dies(start, explorer=CALM, trainer="import sys; print('cannot allocate', flush=True); sys.exit(127)")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    wording(said, "127", "`ulimit -v`", "1024.0 GiB", "addresses")


def test_what_a_child_raises_keeps_its_secrets_out_of_its_files(start, monkeypatch):
    monkeypatch.setenv("OURO_TEST_TOKEN", "hush-hush")
    body = "import os; raise RuntimeError('401 of ' + os.environ['OURO_TEST_TOKEN'])"
    message, _ = dies(start, explorer=CALM, trainer=STAGE_CHILD.format(body=body))
    wording(message, "RuntimeError: 401")
    assert "401 of ***" in (start.directory / "trainer.log").read_text()
    assert not any("hush" in file.read_text() for file in start.directory.iterdir() if file.is_file())


@pytest.mark.parametrize(("then", "words"), [("pass", None), ("raise ValueError('none')", "died: ValueError: none")])
def test_a_thread_of_user_code_that_never_ends_holds_up_no_stage(start, then, words):
    body = f"import threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); {then}"
    program = STAGE_CHILD.format(body=body).replace('"trainer"', '"explorer"').replace(
        "import sys\n", "import sys\nfrom ouroboros.pipeline.job import ending\nending.LEAVE_SECONDS = 0.5\n")
    begin = time.monotonic()
    if words:
        assert words in dies(start, explorer=program)[0]
    else:
        start(explorer=program)
    assert time.monotonic() - begin < 60


def test_an_error_of_an_earlier_life_is_not_shown_again(start):
    (start.directory / "trainer.error").write_text("of yesterday")
    message, _ = dies(start, trainer="import sys\nsys.exit(3)\n")
    assert "yesterday" not in message


def test_of_several_ranks_the_first_error_is_kept(start, context_of):
    """The others fail because their connection breaks, which explains nothing."""
    context = context_of(start.directory)
    children._write_error(context, "trainer", "out of memory", "")
    children._write_error(context, "trainer", "connection reset by peer", "")
    assert (start.directory / "trainer.error").read_text().startswith("out of memory")


def test_when_the_parent_cannot_go_on_no_child_survives(start, tmp_path):
    def follow():
        if (tmp_path / "pid").exists():
            raise Stopped(signal.SIGINT)

    program = "import os\nopen('pid.tmp', 'w').write(str(os.getpid()))\nos.rename('pid.tmp', 'pid')\n" + CALM
    with pytest.raises(Stopped):
        start(follow, explorer=program)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


SAVES = """
import sys, time
from ouroboros.stages.explorer.children import run_child
from ouroboros.pipeline.job import activity
from ouroboros.pipeline.job.activity import Activity, Doing
from ouroboros.pipeline.job.ending import Stopped
def work(context):
    with context.ending.deferred():
        open("ready", "w").close()
        while not context.ending.stopped:
            time.sleep(0.01)
        time.sleep({seconds})
        open("saved", "w").close()
    raise Stopped(context.ending.stopped.number, "step 7 is saved")
run_child(work, "trainer", "doc")
"""


LEAVES = """
import atexit, threading, time, weakref
from ouroboros.pipeline.job.opening import opening
from ouroboros.stages.explorer.children import run_child
class Graph:
    pass
gone = weakref.proxy(Graph())  # as torch's tracer leaves them, which raise whatever they are asked
def work(context):
    global log
    with opening():  # as where a trainer imports plug-ins
        log = open("own.log", "w")
    atexit.register(open, "registered", "w")
    threading.Thread(target=time.sleep, args=[60]).start()
    print("buffered", end="")
    log.write("a row")
run_child(work, "trainer", "doc")
"""


def test_a_trainer_that_is_done_calls_what_is_registered_and_waits_for_no_thread(start, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    begin = time.monotonic()
    start(trainer=LEAVES)
    assert os.path.exists("registered")
    assert Path("own.log").read_text() == "a row"
    assert (start.directory / "trainer.log").read_text().endswith("buffered")
    assert time.monotonic() - begin < 30


def asks(number, then=lambda: None):
    """A follow() that asks this process to end once the trainer is ready."""
    def follow():
        if os.path.exists("ready") and not asked:
            asked.append(number)
            raise Stopped(number)

    asked = []
    return follow


def test_asked_to_end_it_waits_for_the_checkpoint_of_the_trainer_alone(start):
    begin = time.monotonic()
    with refuses(Stopped, "SIGINT", "7 is"):
        start(asks(signal.SIGINT), trainer=SAVES.format(seconds=0.5), explorer=CALM)
    assert os.path.exists("saved")
    assert time.monotonic() - begin < 20


def test_a_checkpoint_that_is_not_complete_in_the_time_of_grace_ends_with_its_trainer(start):
    start.context.config.log.grace_seconds = 0.5
    with refuses(Stopped, "0.5", "(log.grace_seconds)"):
        start(asks(signal.SIGTERM), trainer=SAVES.format(seconds=60))
    assert not os.path.exists("saved")


def test_a_child_that_was_asked_to_end_ends_the_stage_after_the_trainers_checkpoint(start):
    explorer = ("import os, signal, time\nwhile not os.path.exists('ready'): time.sleep(0.01)\n"
                "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)")
    with refuses(Stopped, "SIGTERM", "7 is"):
        start(trainer=SAVES.format(seconds=0), explorer=explorer)


BUSY = STAGE_CHILD.format(body="""
    import time
    from pathlib import Path
    for step in range(1, 4):
        context.activity.now("computes", f"step {step}")
        time.sleep(0.3 if step < 3 else 60)""")


def test_a_child_without_a_sign_of_life_ends_the_stage_with_its_stack_and_the_trainers_last_step(start, tmp_path):
    start.context.config.explorer.step_timeout_seconds = 0.8
    explorer = BUSY.replace('"trainer"', '"explorer"').replace("time.sleep(60)", "sleeps()")
    explorer = explorer.replace("def work", "def sleeps():\n    import time; time.sleep(60)\ndef work").replace(
        "time.sleep(0.3 if step < 3 else 60)", "time.sleep(0.3) if step < 3 else sleeps()")
    message, seconds = dies(start, trainer=SAVES.format(seconds=0), explorer=explorer)
    wording(message, "rft-1", "1 s", "(explorer.step_timeout_seconds=0.8)", "step 3", "7 is")
    assert 'child_explorer.py", line' in message
    assert "in sleeps" in message
    assert os.path.exists("saved")
    assert seconds < 30
    assert not list(start.directory.glob("*.activity"))


def test_a_stopped_child_is_named_as_stopped_and_ends(start):
    start.context.config.trainer.step_timeout_seconds = 0.8
    program = BUSY.replace("time.sleep(0.3 if step < 3 else 60)",
                           "time.sleep(0.3) if step < 3 else __import__('os').kill(__import__('os').getpid(), 19)")
    message, seconds = dies(start, trainer=program)
    wording(message, "rft-1", "(state T)", "SIGSTOP", "-CONT")
    assert seconds < 30


def test_a_child_that_waits_for_another_is_alive(start):
    start.context.config.trainer.step_timeout_seconds = 0.5
    body = """
    import time
    context.activity.now("computes", "step 1")
    context.activity.now("computes", "step 2")
    for _ in range(40):
        context.activity.alive()
        time.sleep(0.05)"""
    start(trainer=STAGE_CHILD.format(body=body).replace(
        "import sys", "import sys\nfrom ouroboros.pipeline.job import activity\nactivity.RENEW_SECONDS = 0.0"))
    assert not (start.directory / "trainer.error").exists()


@pytest.mark.parametrize(("limit", "doing", "allowed"), [
    (None, Doing("starts"), 3600), (None, Doing("trains", "step 3", 2, 1.0, 2), 3600),
    (None, Doing("trains", "step 4", 3, 2.0, 3), 120), (None, Doing("trains", "step 9", 8, 20.0, 8), 400),
    (30.0, Doing("trains", "step 2", 1, 1.0, 1), 3600), (30.0, Doing("trains", "step 3", 2, 1.0, 2), 30),
    (30.0, Doing("saves a checkpoint", "step 2", 0, 0.0, 2), 120), (9000.0, Doing("starts"), 9000)])
def test_the_limit_follows_the_median_and_is_generous_at_first(tmp_path, limit, doing, allowed):
    dog = Watchdog("trainer", tmp_path, [1], limit, "trainer.step_timeout_seconds", activity=doing)
    assert dog.allowed() == allowed


@pytest.mark.parametrize(("limit", "call_limit", "completed", "typical", "allowed"), [
    (None, None, 0, 0.0, 600), (None, None, 9, 1.0, 600), (None, None, 9, 100.0, 2000),
    (None, 30.0, 0, 0.0, 150), (None, 1800.0, 0, 0.0, 1920),  # the call ends before, if it can
    (5.0, None, 0, 0.0, 120), (5.0, None, 3, 1.0, 5), (5.0, 30.0, 3, 1.0, 150), (900.0, 30.0, 0, 0.0, 900)])
def test_a_call_of_the_users_code_is_limited_from_the_first_one_on(tmp_path, limit, call_limit, completed, typical,
                                                                   allowed):
    doing = Doing("calls the reward function mine", "", completed, typical, 0)
    dog = Watchdog("evaluator", tmp_path, [1], limit, "explorer.step_timeout_seconds", call_limit, activity=doing)
    assert dog.allowed() == allowed


def test_a_call_is_an_activity_within_another_whose_time_goes_on(tmp_path, monkeypatch):
    """A pass of 7 seconds, 5 of them in a call."""
    clock = [0.0]
    monkeypatch.setattr(activity.time, "monotonic", lambda: clock[0])
    doing, file = Activity(tmp_path / "a"), tmp_path / "a"
    doing.now("evaluates", "1 of 2")
    clock[0] += 2.0
    for seconds in (4.0, 1.0):
        with doing.calling("reward function ü|" + 100 * "x"):
            wording(str(Doing.read(file)), "function")
            clock[0] += seconds
        assert Doing.read(file) == Doing("evaluates", "1 of 2", 0, 0.0, 1)
    with doing.calling("reward function ü|" + 100 * "x"):
        assert Doing.read(file)[2:4] == (2, 2.5)
    doing.now("evaluates", "2 of 2")
    assert Doing.read(file) == Doing("evaluates", "2 of 2", 1, 7.0, 1)


def test_a_reward_function_that_hangs_is_named(start, monkeypatch):
    monkeypatch.setattr(watchdog, "CALL_SECONDS", 0.8)
    body = """
    import time
    context.activity.now("evaluates", "1 of 8")
    with context.activity.calling("reward function judge"):
        time.sleep(60)"""
    message, seconds = dies(start, explorer=STAGE_CHILD.format(body=body).replace('"trainer"', '"explorer"'))
    wording(message, "1 s", "(explorer.step_timeout_seconds)")
    assert "explorer.max_timeout=SECONDS" in message
    assert seconds < 30


CALLING = STAGE_CHILD.replace('"trainer"', '"explorer"').replace("import sys", "import os, signal, sys, time").replace(
    "    {body}", "    with context.activity.calling('workflow mine:run'):\n        {body}")


ENDINGS = [
    ("os._exit(3)", "ended with exit code 3"), ("os._exit(0)", "ended with exit code 0"),
    ("signal.raise_signal(signal.SIGSEGV)", "ended by signal SIGSEGV"),
    ("os.kill(os.getpid(), signal.SIGTERM)", "ended by signal SIGTERM")]


@pytest.mark.parametrize(("body", "how"), ENDINGS)
def test_a_child_that_ends_in_a_call_of_the_users_code_names_the_function(start, monkeypatch, body, how):
    monkeypatch.setattr(children, "TOGETHER_SECONDS", 0.0)
    with refuses(ProcessEnded, how, "user's") as ended:
        start(explorer=CALLING.format(body=body), trainer=CALM)
    assert (ended.value.function, ended.value.how) == ("mine:run", how)


def test_the_trainers_last_step_is_saved_then_too(start):
    waits = "\n        while not os.path.exists('ready'): time.sleep(0.01)\n        os._exit(3)"
    with refuses(ProcessEnded, "7 is"):
        start(explorer=CALLING.format(body=waits), trainer=SAVES.format(seconds=0))


@pytest.mark.parametrize("name", ["reward function accuracy_reward", "policy mine:run"])
def test_a_child_that_ends_elsewhere_has_died(start, name):
    message, _ = dies(start, explorer=CALLING.replace("workflow mine:run", name).format(body="os._exit(3)"))
    wording(message, "rft-1", "code 3")


def test_a_signal_that_the_stage_gets_too_ends_it(start, monkeypatch):
    """As where a scheduler asks all processes to end while the explorer calls a workflow."""
    sleep = time.sleep

    def asked(seconds):
        if seconds == children.TOGETHER_SECONDS:
            raise Stopped(signal.SIGTERM)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", asked)
    with pytest.raises(Stopped):
        start(explorer=CALLING.format(body="os.kill(os.getpid(), signal.SIGTERM)"))


CALL = "import os, signal, sys, time\nfrom ouroboros.pipeline.store.user_calls import calling"
OF_A_LOSS = STAGE_CHILD.replace("import sys", CALL).replace(
    "    {body}", "    with calling('mine:loss'):\n        {body}")


@pytest.mark.parametrize(("body", "how"), ENDINGS)
def test_a_trainer_that_ends_in_a_function_of_the_user_names_it(start, monkeypatch, body, how):
    monkeypatch.setattr(children, "TOGETHER_SECONDS", 0.0)
    message, _ = dies(start, trainer=OF_A_LOSS.format(body=body), explorer=CALM)
    wording(message, f"rft-1 {how}", "user's")
    assert not calls_file(start.directory, "trainer").exists()


def test_a_trainer_that_ends_while_it_is_asked_about_is_asked_again(start, monkeypatch):
    ask = children.ended_early

    def slowly(stage, child, processes):
        answer = ask(stage, child, processes)
        if child == "trainer":
            processes[0].wait()
        return answer

    monkeypatch.setattr(children, "ended_early", slowly)
    message, _ = dies(start, trainer=OF_A_LOSS.format(body="os._exit(0)"), explorer=CALM)
    assert "mine:loss" in message


def test_a_function_in_another_thread_that_ends_the_trainer_is_named(start, monkeypatch):
    monkeypatch.setattr(children, "TOGETHER_SECONDS", 0.0)
    lost = f"{CALL}\nimport hashlib, threading\ndef lost():\n    with calling('mine:advantage'):\n        " \
           "os.kill(os.getpid(), signal.SIGTERM)\n"
    body = "threading.Thread(target=lost).start(); hashlib.sha256(bytes(3 * 10**8)); time.sleep(60)"
    message, _ = dies(start, trainer=STAGE_CHILD.replace("import sys", lost).format(body=body), explorer=CALM)
    assert "mine:advantage" in message


def test_a_rank_that_ends_well_too_early_ends_those_that_wait_for_it(start, tmp_path):
    body = "os._exit(0) if os.environ['RANK'] == '1' else time.sleep(60)"
    (tmp_path / "child_trainer.py").write_text(OF_A_LOSS.format(body=body))
    with refuses(StageError, "0 while", "user's"):
        supervise(start.context, [Child("trainer", "child_trainer", cores(), ranks=2)], lambda: None)


@pytest.mark.parametrize(("program", "words"), [
    ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", ("rft-1", "SIGKILL ")),
    ("import sys; print('starting', flush=True); sys.exit('std::bad_alloc\\n')", ("rft-1", "1: std::bad_alloc")),
    (STAGE_CHILD.format(body="raise MemoryError"), ("ulimit -v",)),
    (STAGE_CHILD.format(body="sys.exit(0)"), ("rft-1", "child_trainer.py:6", "work")),
    (STAGE_CHILD.format(body="import os; os._exit(0)"), ("rft-1", "0 before"))])
def test_the_end_of_a_child_is_in_the_error_of_the_stage(start, program, words):
    message, seconds = dies(start, explorer=CALM, trainer=program)
    wording(message, *words)
    assert seconds < 30


@pytest.mark.parametrize(("name", "code"), [("trainer", OF_A_LOSS), ("explorer", CALLING)])
def test_an_error_in_a_function_of_the_user_or_after_it_is_told_as_an_error(start, name, code):
    message, _ = dies(start, **{name: code.format(body="raise ValueError('none')")})
    wording(message, "rft-1", "ValueError")


def test_calls_are_read_by_rank(tmp_path, monkeypatch):
    monkeypatch.setattr(user_calls, "_place", None)
    file = tmp_path / "trainer.calls"
    assert user_calls.unfinished(file) is None
    user_calls.open_slot(file, 1)
    assert [user_calls.unfinished(file, rank) for rank in (None, 0, 1)] == [[], None, []]
    with user_calls.calling("mine:übung"):
        with user_calls.calling("mine:loss"):
            assert user_calls.unfinished(file, 1) == ["mine:übung", "mine:loss"]
        assert user_calls.unfinished(file) == ["mine:übung"]
        if (copy := os.fork()) == 0:  # what it says is not of this process
            user_calls.done()
            os._exit(0)
        os.waitpid(copy, 0)
        assert user_calls.unfinished(file, 1) == ["mine:übung"]
        user_calls.keep()
    assert user_calls.unfinished(file) == ["mine:übung"]
    user_calls.done()
    assert user_calls.unfinished(file) is None


STAGE = """
import atexit, threading, time
from ouroboros.stages.explorer.children import Child, supervise
from ouroboros.stages.follow import run_followed
def work(context):
    supervise(context, [Child("explorer", "child_explorer", [0])], lambda: None)
    atexit.register(open, "registered", "w")
    threading.Thread(target=lambda: (time.sleep(0.5), open("late", "w"))).start()
class Slow:
    def __del__(self):
        time.sleep(60)  # so that a stage which takes itself apart ends too late
slow = Slow()
run_followed(work, "doc")
"""


@pytest.fixture
def command(start):
    """command(text): of a stage that has no inputs and this module."""
    def written(text: str) -> list[str]:
        spec = files.read_json(start.directory / "stage.json")
        spec["config"] |= {"explorer": {"step_timeout_seconds": None, "max_timeout": None}, "verify": "hash"}
        files.write_json(start.directory / "stage.json", spec | {"kind": "model"})
        Path("stage.py").write_text(text)
        return [sys.executable, "stage.py", str(start.directory)]

    return written


def test_the_stage_starts_again_by_itself_and_knows_the_function(start, command):
    listed = ("from ouroboros.pipeline.job import own_process\n        "
              "if 'mine:run' not in own_process.functions(context.directory):")
    Path("child_explorer.py").write_text(CALLING.format(body=f"{listed} os._exit(3)"))
    begin = time.monotonic()
    done = subprocess.run(command(STAGE), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begin < 50
    assert {"late", "registered"} <= {*os.listdir()}
    assert done.stderr.count("rft: started") == 2
    wording(done.stderr, "3 in", "user's")
    wording([files.read_json(start.directory / files.MANIFEST)["own_process"]], "code 3")
    assert not (start.directory / "stage.error").exists()


LEAVING = """
import atexit, logging, os, sys, threading, time
from signal import *
from ouroboros.pipeline.job import ending
from ouroboros.stages.follow import run_followed
ending.LEAVE_SECONDS = {limit}
def work(context):
    threading.Thread(target=lambda: (time.sleep({seconds}), open("late", "w"))).start()
    context.log.addHandler(Asks())
class Asks(logging.Handler):
    def emit(self, record):
        if record.msg.startswith("complete"):  # the first line after the manifest
            {then}
file = open("mapped", "w+b")
file.write(b"whole")
full = open(os.pipe()[1], "wb", buffering=70000)
atexit.register(sys.exit, 3)
atexit.register(lambda: 1 / 0)
run_followed(work, "doc")
"""


@pytest.mark.parametrize(("then", "seconds", "limit", "late"), [
    ("raise_signal(SIGINT); raise_signal(SIGTERM)", 1, 60, True),
    ("raise_signal(SIGINT); threading.Timer(1.5, os.kill, [os.getpid(), SIGINT]).start()", 30, 60, False),
    ("raise_signal(SIGTERM)", 600, 1, False), ("full.write(bytes(69000))", 0, 1, True)])
def test_a_complete_stage_stays_so_whatever_comes_while_it_leaves(start, command, then, seconds, limit, late):
    """A signal as soon as there is the manifest, a thread, functions at exit that fail or exit with 3, an open file. A
    second Ctrl-C, after the second in which all are one, ends the wait for the thread; after one signal the wait has a
    limit, as has always that for the reader of a full pipe."""
    text = LEAVING.format(then=then, seconds=seconds, limit=limit)
    done = subprocess.run(command(text), stderr=subprocess.PIPE, text=True, timeout=25, check=False)
    assert done.returncode == 0, done.stderr
    assert Path("late").exists() == late
    assert ("ZeroDivisionError" in done.stderr) == late
    if limit == 60 and late:
        assert Path("mapped").read_bytes() == b"whole"
    assert files.is_complete(start.directory)
    assert not (start.directory / "stage.error").exists()


def test_it_does_so_once_for_each_function(start, tmp_path):
    assert own_process.add(tmp_path, ProcessEnded("explorer", "mine:run", "ended by signal SIGSEGV"))
    assert not own_process.add(tmp_path, ProcessEnded("explorer", "mine:run", "ended by signal SIGKILL"))
    assert own_process.add(tmp_path, ProcessEnded("scorer", "mine:score", "ended with exit code 0"))
    wording([own_process.functions(tmp_path)], "SIGSEGV", "code 0")


@pytest.mark.parametrize("name", ["mine:run", "übung.möglich:prüfe", f"{'deep.' * 20}m:f"])
def test_any_name_of_a_function_is_found_again(tmp_path, name):
    with Activity(activity_file(tmp_path, "explorer")).calling(f"{own_process.REWARD} {name}"):
        assert own_process.called(tmp_path, "explorer") == name
    assert own_process.called(tmp_path, "explorer") is None


def test_an_activity_is_written_with_the_median_of_its_kind(tmp_path, monkeypatch):
    """Steps of 1, 2 and 6 seconds, and a checkpoint of 10."""
    clock = [0.0]
    monkeypatch.setattr(activity.time, "monotonic", lambda: clock[0])
    doing = Activity(tmp_path / "a")
    for seconds in (1.0, 2.0, 6.0):
        doing.now("trains", "step 1")
        clock[0] += seconds
    doing.now("saves")
    clock[0] += 10.0
    doing.now("trains", "step 4")
    assert Doing.read(tmp_path / "a") == Doing("trains", "step 4", 3, 2.0, 3)
    assert (tmp_path / "a").stat().st_size == activity.LINE
    doing.reached("step 4: 1 of 2")  # at most once a second
    assert Doing.read(tmp_path / "a").detail == "step 4"
    clock[0] += 2.0
    doing.reached("step 4: 1 of 2")
    assert Doing.read(tmp_path / "a") == Doing("trains", "step 4: 1 of 2", 3, 2.0, 3)
    written = (tmp_path / "a").stat().st_mtime_ns
    clock[0] += 2.0
    doing.reached("step 4: 1 of 2")  # no sign of life
    assert (tmp_path / "a").stat().st_mtime_ns == written


def test_every_rank_is_a_process_that_knows_its_place(tmp_path):
    commands = Child("trainer", "ouroboros.stages.learn", [0], ranks=2).commands(tmp_path)
    assert [command for command, _ in commands] == [launch.command("ouroboros.stages.learn", str(tmp_path))] * 2
    assert [(place["RANK"], place["LOCAL_RANK"], place["WORLD_SIZE"]) for _, place in commands] == [
        ("0", "0", "2"), ("1", "1", "2")]


def test_what_libraries_print_at_the_end_is_no_reason():
    left = ["nanobind: leaked 2 instances!", ' - leaked instance 0x7f of type "x.Y"', " - ... skipped remainder",
            "nanobind: this is likely caused by a reference counting issue in the binding code.",
            "See https://nanobind.readthedocs.io/en/latest/refleaks.html",
            "/lib/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked "
            "semaphore objects to clean up at shutdown", "  warnings.warn('resource_tracker: %d'", ""]
    cause = "OSError: [Errno 28] No space left on device: 'x'"
    assert last_line("\n".join(["step 3", cause, *left])) == [cause]
    assert last_line("\n".join(left)) == []
    assert last_line("nothing leaked, says the user\n") == ["nothing leaked, says the user"]
