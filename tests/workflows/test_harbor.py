"""Harbor tasks at work: rewards, and commands that hang, fork, fill the disk or look where they may not."""

import hashlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ouroboros.operators.generate import GENERATORS
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.check.user_code import WORLD
from ouroboros.pipeline.settings.arguments.answers import ToolArguments, tool_arguments
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.harbor import read_task
from ouroboros.stages.debug import Asked, debug
from ouroboros.stages.own_code import takes
from ouroboros.workflows.environments import harbor, sandbox
from ouroboros.workflows.environments.harbor import Harbor, Unverified, components, tried
from ouroboros.workflows.environments.sandbox import Sandbox
from ouroboros.workflows.environments.terminal import LARGEST, PART, Terminal
from ouroboros.workflows.protocol.tools import Situation, load_environment, methods_of
from tests.golden.messages import refuses, wording
from tests.harbor_kit import write_task
from tests.workflows.test_environments import acted

NAMED = "ouroboros.workflows.environments.harbor:Harbor"


def refusal() -> str | None:
    try:
        sandbox.require()
    except ConfigError as error:
        return str(error)


WHY_NOT = refusal()
confined = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


@pytest.fixture
def world(tmp_path):
    """A task in progress, with limits of 3 s for a command."""
    begun = []

    def begin(kind=Harbor, **changed):
        one = kind()
        one.settings = ToolArguments(tool_seconds=3, environment=["HARBOR_NAMED"])
        begun.append(one)
        one.reset(Situation([], read_task(write_task(tmp_path / f"task{len(begun)}", **changed)).record()["answer"]))
        return one

    yield begin
    for one in begun:
        one._close()


def writes(text: str, name: str = "reward.txt") -> str:
    return f"#!/bin/bash\nprintf '%s' '{text}' > /logs/verifier/{name}\n"


# ----------------------------------------------------------------------------------------------------- generated tasks


@confined
def test_generated_tasks_are_done_by_their_solution_and_as_demonstrated():
    rows = list(GENERATORS["terminal"](1, 3, 12, guesses=0.0))
    assert {tuple(tried(row.answer, ToolArguments())) for row in rows if row.solution is None} == {
        ("nothing {'accuracy': 0.0}", "solution {'accuracy': 1.0}")}
    calls = set()
    for end in (row for row in rows if row.solution == "done"):
        turns = [*(turn["content"] for turn in end.context), end.question]
        one = Terminal()
        assert turns[0].partition("\n")[2] == one.reset(Situation([], end.answer))
        for said, seen in zip(turns[1::2], turns[2::2], strict=True):
            assert acted(one, said) == seen
            calls.add(said.partition("(")[0])
        assert one.reward() == {"accuracy": 1.0}
        one._close()
        assert not Path(one._written.name).exists()
    assert calls == {"[bash", "[edit"}


def test_a_generated_task_has_no_file_elsewhere(tmp_path):
    with refuses(ValueError, "out"):
        Harbor().reset(Situation([], json.dumps({"files": {"../out": "1"}})))


# -------------------------------------------------------------------------------------------------------------- reward


@confined
def test_the_solution_has_reward_1_and_nothing_has_reward_0(tmp_path):
    task = read_task(write_task(tmp_path))
    truth = task.record()["answer"]
    assert tried(truth, ToolArguments()) == ["nothing {'accuracy': 0.0}", "solution {'accuracy': 1.0}"]
    (task.directory / "solution" / "solve.sh").write_text("exit 7\n")
    [_, solved] = tried(read_task(task.directory).record()["answer"], ToolArguments())
    assert solved == "solution {'accuracy': 0.0} (exit code 7 of solve.sh)"


@confined
def test_files_are_kept_between_commands_and_processes_are_not(world):
    one = world()
    assert one.bash("(sleep 60; echo 9 > sum.txt) & echo 7 > sum.txt; echo $LEVEL $NAME; pwd") == "3 a b\n/app\n"
    assert one.bash("cat sum.txt; pgrep sleep") == "7\n\n(exit code 1)"
    assert one.reward() == {"accuracy": 1.0}


@confined
def test_the_same_commands_make_the_same_state_again_as_after_a_kill(world):
    commands = ["cat numbers.txt", "echo 6 > sum.txt; ls -l missing", "sed -i s/6/7/ sum.txt; cat sum.txt"]
    first, again = ([*map(one.bash, commands), one.reward()] for one in (world(), world()))
    assert first == again
    assert first[-1] == {"accuracy": 1.0}


@pytest.mark.parametrize(("test", "reward"), [
    ("echo 0.25 > /logs/verifier/reward.txt", {"accuracy": 0.25}),  # neither executable nor with a first line
    (writes("1") + "echo '{\"tests\": 0.5}' > /logs/verifier/reward.json\n", {"tests": 0.5})])
def test_a_script_writes_the_reward_and_json_counts_before_text(world, test, reward):
    assert world(tests__test_dot_sh=test).reward() == reward


@pytest.mark.parametrize(("name", "text", "found"), [
    ("reward.txt", "1\n", {"accuracy": 1.0}), ("reward.txt", " 0.5", {"accuracy": 0.5}),
    ("reward.txt", "-2", {"reward": -2.0}), ("reward.json", "0.5", {"accuracy": 0.5}),
    ("reward.json", '{"reward": 0.75, "style": 0.1}', {"accuracy": 0.75}),
    ("reward.json", '{"tests": 0.5, "style": 0.25}', {"tests": 0.5, "style": 0.25})])
def test_the_reward_is_a_number_or_the_entries_of_an_object(name, text, found):
    assert components(name, text) == found


@pytest.mark.parametrize(("name", "text"), [
    ("reward.txt", ""), ("reward.txt", "good"), ("reward.txt", "nan"), ("reward.json", "{"), ("reward.json", "[1]"),
    ("reward.json", "{}"), ("reward.json", '{"reward": "1"}'), ("reward.json", '{"a": Infinity}'),
    ("reward.json", "1" * 400), ("reward.json", '{"a": ' + "1" * 5000 + "}"), ("reward.json", "[" * 60_000),
    ("reward.json", '{"a":' * 10_000), ("reward.json", '{"a": 1e308, "b": 1e308}'), ("reward.json", '{"\\ud800": 1}'),
    ("reward.txt", "1" * 400)])
def test_what_is_no_number_is_no_reward(name, text):
    with refuses(Unverified, name):
        components(name, text)


@confined
@pytest.mark.parametrize(("test", "reason"), [
    ("#!/bin/bash\necho no pytest; exit 3\n", "exit code 3"), ("#!/bin/nothing\n", "wrote neither"),
    ("#!/bin/bash\nsleep 60\n", "1 s"), (writes("good"), "reward.txt"), ("#!/bin/bash\nkill -9 $$\n", "exit code 137")])
def test_tests_without_a_reward_are_a_reason_and_not_0(world, test, reason):
    with refuses(Unverified, reason):
        world(tests__test_dot_sh=test, task_dot_toml="[verifier]\ntimeout_sec = 1").reward()


@confined
def test_the_variables_of_the_verifier_are_its_own(world):
    one = world(task_dot_toml='[verifier.env]\nKEY = "0.5"\n[environment.env]\nBOTH = "x"',
                tests__test_dot_sh="echo ${BOTH:+$KEY} > /logs/verifier/reward.txt")
    assert one.bash("echo $KEY$BOTH") == "x\n"
    assert one.reward() == {"accuracy": 0.5}


@confined
@pytest.mark.parametrize("left", [
    "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt", "rm -rf /app; ln -s /tests /app",
    "rm -rf /tests /logs; ln -s /app /logs", "mkdir /tmp/t; cp /bin/true /tmp/t/cat", "rm -rf /app; touch /app",
    "ln -s /tests/expected sum.txt", "ln -s ../proc/self/root/tests/expected sum.txt",
    "ln -s /dev/fd/../root/tests/expected sum.txt",
    "ln -s / r; ln -s r/tests t; ln -s t/expected sum.txt", "ln -s ../tests t; ln -s t/expected sum.txt",
    "ln -s /tests/expected sum.txt; chmod 111 .", "ln -s /tests/expected \"$(printf 'a\\nb')\"; ln -s a* sum.txt",
    "head -c 1G /dev/zero > /tmp/full", "chmod -R 000 /app /tmp", "chmod 000 /", "mkfifo sum.txt",
    "mkfifo p; ln -s p sum.txt", "mkfifo /dev/shm/p; ln -s /dev/shm/p sum.txt",
    "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sum.txt')\"", "mknod sum.txt c 0 0",
    "ln -s /tests/expected /dev/shm/null; ln -s /dev/shm/null sum.txt",
    "ln -s /tests /dev/shm/shm; ln -s /dev/shm/shm/expected sum.txt",
    "(while :; do echo 1 > /logs/verifier/reward.txt; done) & sleep 0.2"])
def test_what_an_agent_leaves_does_not_earn_a_reward(world, left):
    one = world()
    one.bash(left)
    assert one.reward() == {"accuracy": 0.0}


@confined
@pytest.mark.parametrize("left", ["conftest.py", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg",
                                  "setup.py", "package.json", "node_modules/x", ".cargo/config.toml"])
def test_settings_and_code_above_the_tests_are_not_left_by_an_agent(world, left):
    one = world(Terminal, tests__test_dot_sh=f"[ ! -e /{left} ]; echo $? > /logs/verifier/reward.txt")
    assert one.edit(f"/{left}", "x").startswith("wrote")
    assert one.reward() == {"accuracy": 0.0}


@confined
@pytest.mark.parametrize(("left", "text", "kept"), [
    ("package.json", "x", True), ("setup.py", "x", True), ("node_modules/x", "x", True),
    (".cargo/config.toml", "x", True), ("pyproject.toml", "[project]\nname = 'x'", True),
    ("pyproject.toml", "[tool.pytest.ini_options]", False),
    ("pyproject.toml", '[tool."\\u0070ytest".ini_options]', False),
    *((name, "x", False) for name in ("conftest.py", "pytest.ini", ".pytest.toml", "tox.ini", "setup.cfg"))])
def test_a_project_in_the_root_stays_where_that_is_the_working_directory(world, left, text, kept):
    one = world(Terminal, task_dot_toml="[environment]\nworkdir = '/'",
                tests__test_dot_sh=f"if grep -qs '[^y]' /{left}; then echo 1; else echo 0; fi > "
                                   "/logs/verifier/reward.txt")
    assert one.edit(f"/{left}", text).startswith("wrote")
    assert one.reward() == {"accuracy": float(kept)}


@confined
@pytest.mark.parametrize("left", ["ln -s /dev/zero pyproject.toml", "mkfifo pyproject.toml", "mkdir pyproject.toml"])
def test_no_odd_project_file_is_read_or_kept(world, left):
    one = world(task_dot_toml="[environment]\nworkdir = '/'",
                tests__test_dot_sh="[ -e /pyproject.toml ]\necho $? > /logs/verifier/reward.txt")
    one.bash(left)
    assert one.reward() == {"accuracy": 1.0}


@confined
@pytest.mark.parametrize("left", [
    {"begin": "echo 1 > /logs/verifier/reward.txt; exit 0"}, {"sitecustomize.py": "print(1, flush=True)\nquit()"},
    {"usercustomize.py": "print(1, flush=True)\nquit()"},
    {"sitecustomize/__init__.py": "print(1, flush=True)\nquit()"}])
def test_what_programs_run_at_their_start_is_not_that_of_an_agent(world, left):
    """Variables of the task name its files and its directory."""
    one = world(Terminal, task_dot_toml="[environment.env]\nPYTHONPATH='/app'\nBASH_ENV='/app/begin'\n"
                "ENV='/app/begin'\nLD_PRELOAD='/app/begin'\nLD_AUDIT='/app/begin'\nNODE_OPTIONS='-r/app/begin'\n"
                "PYTEST_ADDOPTS='-p begin'",
                tests__test_dot_sh="#!/bin/bash\npython3 -c 'import os\nprint(len({\"ENV\", \"BASH_ENV\", "
                '"LD_PRELOAD", "LD_AUDIT", "NODE_OPTIONS", "PYTEST_ADDOPTS"} & {*os.environ}))\' '
                "> /logs/verifier/reward.txt")
    for path, text in left.items():
        assert one.edit(path, text).startswith("wrote")
    assert one.reward() == {"accuracy": 0.0}


@confined
def test_a_tasks_own_settings_variables_and_path_of_python_are_there_for_its_tests(world):
    one = world(task_dot_toml="[environment.env]\nPYTHONPATH='/app'\nLEVEL='3'\n[verifier.env]\nENV = 'own'",
                tests__test_dot_sh="#!/bin/bash\ncd / && python3 -c 'import made' && [ $LEVEL$ENV = 3own ] && "
                                   "echo 0.5 > /logs/verifier/reward.txt")
    one.bash("touch made.py")
    assert one.reward() == {"accuracy": 0.5}


@confined
def test_scripts_with_the_line_ends_of_windows_run(world):
    one = world(tests__test_dot_sh="#!/bin/bash\r\nif [ \"$(cat sum.txt)\" = 7 ]\r\nthen /tests/lib/say.sh\r\nfi\r\n",
                tests__lib__say_dot_sh="#!/bin/bash\r\necho 0.5 > /logs/verifier/reward.txt\r\n",
                solution__solve_dot_sh="if true\r\nthen echo 7 > sum.txt\r\nfi\r\n")
    assert one._solve().code == 0
    assert one.reward() == {"accuracy": 0.5}


@confined
@pytest.mark.parametrize("begun", [
    "setsid sh /app/go > /dev/null 2>&1 &", "(trap '' TERM HUP; sh /app/go) & disown",
    "python3 -c \"import os\nfor _ in range(2):\n    os.fork() and os._exit(0)\n    os.setsid()\nos.system('sh go')\""])
def test_no_program_of_the_agent_writes_a_reward_while_the_tests_run(world, begun):
    """reward.json would count before reward.txt. The program ran, and would run for an hour."""
    one = world(tests__test_dot_sh="cp alive old && sleep 1 && cmp alive old && echo 0 > /logs/verifier/reward.txt")
    one.bash("echo 'for i in $(seq 36000); do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.json; "
             f"echo $i > /app/alive; sleep 0.1; done' > /app/go; {begun}\nsleep 0.5")
    assert one.reward() == {"accuracy": 0.0}


@confined
def test_a_task_that_changed_since_it_was_read_is_refused(tmp_path):
    truth = read_task(write_task(tmp_path)).record()["answer"]
    (tmp_path / "tests" / "expected").write_text("0\n")
    with refuses(ValueError, "changed"):
        Harbor().reset(Situation([], truth))


# --------------------------------------------------------------------------------------------------------- confinement


@confined
def test_a_command_that_hangs_ends_at_its_limit_with_what_it_started(world):
    one, begin = world(), time.monotonic()
    marks = [f"sleep 10{os.getpid()}{number}" for number in range(3)]
    assert "after 3 s" in one.bash(f"echo begun; setsid {marks[0]} & {marks[1]}")
    assert "after 3 s" in one.bash(f"exec >&- 2>&-; {marks[2]}")
    assert time.monotonic() - begin < 60
    running = [Path(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit()]
    lines = [file.read_bytes().replace(b"\0", b" ").decode(errors="replace") for file in running if file.exists()]
    assert not [line for line in lines if any(line.startswith(mark) for mark in marks)]


@confined
def test_the_time_of_a_task_is_the_sum_of_its_commands(world):
    one = world(task_dot_toml="[agent]\ntimeout_sec = 1")
    assert "after 1 s" in one.bash("sleep 60")
    with refuses(TimeoutError, "used up"):
        one.bash("true")
    assert one.reward() == {"accuracy": 0.0}


@confined
@pytest.mark.parametrize(("command", "shown"), [
    (":() { : | : & }; : 2> /dev/null; sleep 1; echo after", "after"),
    ("for i in 1 2 3; do head -c 40M /dev/zero > f$i; done; du -sm . | cut -f1", "64"),
    ("head -c 3G /dev/zero > /dev/shm/f; stat -c %s /dev/shm/f | cut -c1-2", "6"),
    ("kill -9 $PPID; kill -9 1; kill -9 -1; echo alive", "alive"),
    ("python3 -c 'bytearray(3 << 30)' 2>&1 | tail -1", "MemoryError"),
    ("python3 -c 'import mmap; print(len(mmap.mmap(-1, 64 << 30, mmap.MAP_PRIVATE, 0)))'", f"{64 << 30}"),
    ("yes | head -c 200M", "bytes) …"), ("head -c 100 /dev/urandom", ""), ("printf 'a\\0b'", "a\0b"),
    ("ls -A /tests /logs | tr -d '\\n'", "/logs:/tests:"), ("echo x > /logs/x", "Read-only"),
    ("touch /usr/x /etc/x /bin/x /opt/x", "Read-only"), ("mount -t tmpfs none /mnt", "exit code"),
    ("unshare --user --map-root-user true", "exit code"), ("cat /etc/shadow", "Permission denied"),
    ("ls /home /root/.ssh /work /sys 2>&1 | grep -vc 'No such'", "0"), ("id -u", "0\n"),
    ("grep CapEff /proc/self/status", "0000000000000000"), ("ls -d /proc/[0-9]* | wc -l | grep -c '^[2-6]$'", "1\n"),
    ("cat /sys/class/net/*/address; getent hosts example.org; echo $?", "2"), ("ulimit -u", "512"),
    ("cat /proc/net/dev | grep -c :; (echo > /dev/tcp/127.0.0.1/22) 2>&1 | grep -o refused | head -1", "1\nrefused\n"),
    ("exit 5", "(exit code 5)")])
def test_a_command_is_bounded_and_sees_only_what_it_may(world, command, shown):
    begin = time.monotonic()
    found = world().bash(command)
    assert shown in found
    assert len(found) < 40_000
    assert time.monotonic() - begin < 60


@confined
def test_the_number_of_files_is_bounded(world, monkeypatch):
    monkeypatch.setattr(sandbox, "FILES", 500)
    assert "No space" in world().bash("seq 1000 | xargs touch 2>&1 | tail -1")


@confined
def test_nothing_is_written_outside(world, tmp_path):
    one, file = world(), tmp_path / "outside"
    assert one.bash(f"mkdir -p {tmp_path} && echo x > {file} && cat {file}") == "x\n"  # in its own file system
    assert not file.exists()
    one.bash("rm -rf /app; ln -s / /app; ln -s /proc/1/root/../../../.. /tmp/up")
    one.reward()
    assert not file.exists()


@confined
def test_secrets_of_the_environment_are_not_passed_on(world, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("HARBOR_NAMED", "named")
    found = world().bash("env; cat /proc/*/environ")
    assert "secret" not in found
    assert "HARBOR_NAMED=named" in found


@confined
def test_the_files_of_an_attempt_are_freed_with_it():
    one = Sandbox(16)
    holder = Path(f"/proc/{one._holder.pid}")
    assert one.run(["sh", "-c", "echo x > /y && cat /y"], 30).output == "x\n"
    one.close()
    assert not holder.exists()


@confined
def test_variables_of_a_command_are_no_arguments_of_a_process():
    one, secret = Sandbox(16), "".join(["hush", "-", "word"])
    with one.started(["sh", "-c", 'echo "$KEY"; sleep 30'], 30, "/", {"KEY": secret, "PATH": "/usr/bin:/bin"}, False,
                     subprocess.DEVNULL) as (process, _):
        assert process.stdout.readline() == f"{secret}\n".encode()
        assert secret.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    one.close()


def test_without_bubblewrap_the_reason_says_what_is_needed(tmp_path, monkeypatch):
    for name in ("unshare", "nsenter", "prlimit", "setpriv"):
        if shutil.which(name):
            (tmp_path / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(tmp_path))
    with refuses(ConfigError, "PATH", "apt-get install bubblewrap"):
        Sandbox(1)


def test_a_check_before_a_run_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox.require.cache_clear()
    assert "on PATH" in takes(NAMED, WORLD)


@confined
def test_where_namespaces_are_forbidden_the_reason_is_that_of_the_kernel(tmp_path, monkeypatch):
    forbids = tmp_path / "unshare"
    forbids.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2; exit 1\n")
    forbids.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sandbox, "rights", list)
    with refuses(ConfigError, "Operation not permitted"):
        Sandbox(1)


@confined
def test_what_cannot_be_mounted_is_named_and_is_not_called_forbidden(tmp_path):
    with refuses(ConfigError, "no_layer") as error:
        Sandbox(1, layers=[tmp_path / "no_layer"])
    assert "allowed" not in str(error.value)


# ------------------------------------------------------------------------------------------------ in an agent's hands


def test_the_tools_are_those_of_a_shell():
    assert [one.name for one in methods_of(Harbor)] == ["bash"]
    assert all(one.declaration.idempotent for one in methods_of(Harbor))
    assert methods_of(Harbor)[0].declaration.seconds == harbor.OWN_LIMIT


def played(tmp_path, replies, **asked):
    """Whether a script has a reward for a task of tmp_path/tasks, and the lines that are shown."""
    (tmp_path / "script.json").write_text(json.dumps(replies))
    lines, place = [], "buffer.explorer_input.taskset"
    config = compose(["recipe=file_agent", f"{place}.path={tmp_path / 'tasks'}",
                      f"{place}.workflow_args.environment_class={NAMED}", "model.max_prompt_tokens=600",
                      "model.max_response_tokens=200"])
    return debug(config, Asked(script=str(tmp_path / "script.json"), **asked), lines.append), lines


@confined
@pytest.mark.parametrize(("replies", "result"), [
    (['[bash(command="cat numbers.txt")]', '[bash(command="echo 7 > sum.txt")]', "done"], "reward 1 (accuracy=1)"),
    (["done"], "reward 0 (accuracy=0)")])
def test_a_script_plays_a_task_as_a_model_would(tmp_path, replies, result):
    write_task(tmp_path / "tasks" / "one")
    write_task(tmp_path / "tasks" / "two", instruction_dot_md="Write 7 to sum.txt.")
    is_rewarded, lines = played(tmp_path, replies, task=1)
    text = "\n".join(lines)
    assert is_rewarded
    assert result in text
    wording(text, "7 to", "sum.txt")
    if len(replies) > 1:
        assert "1\n2\n4" in text


@confined
def test_an_attempt_whose_tests_give_no_reward_is_a_row_with_the_reason(tmp_path):
    write_task(tmp_path / "tasks" / "one", tests__test_dot_sh="exit 1")
    is_rewarded, lines = played(tmp_path, ["done"])
    assert not is_rewarded
    wording(lines[-1], "workflow_failed", "tests/test.sh", "code 1")


# ------------------------------------------------------------------------------------------------------------ terminal


@confined
def test_edit_writes_and_replaces_what_a_shell_would_have_to_quote(world):
    one, text = world(Terminal), "a 'b' \"$HOME\" `c` \\\n\tü\r\nEOF\n"
    assert one.edit("new/dir/x.txt", text) == "wrote /app/new/dir/x.txt"
    assert one.edit("new/dir/x.txt", "$(d)", "'b'") == "wrote /app/new/dir/x.txt"
    assert one.bash("sha256sum < new/dir/x.txt").split()[0] == hashlib.sha256(
        text.replace("'b'", "$(d)").encode()).hexdigest()
    assert one.edit("/app/sum.txt", "7\n") == "wrote /app/sum.txt"
    assert one.reward() == {"accuracy": 1.0}


@confined
def test_edit_of_a_long_file_keeps_every_byte(world):
    """Longer than the output of a command that a model sees; parts end within characters."""
    one, text = world(Terminal), "é" * (2 * PART) + "x"
    one.edit("long", text)
    assert one.edit("long", "y", "x").startswith("wrote")
    assert one.bash("wc -c < long; tail -c 3 long").split() == [str(4 * PART + 1), "éy"]


@confined
@pytest.mark.parametrize(("path", "old_text"), [
    ("numbers.txt", "nowhere"), ("twice", "ab"), ("missing", "a"), (".", "a"), ("bytes", "a"), ("huge", "a")])
def test_edit_refuses_what_it_cannot_do_and_leaves_the_file(world, path, old_text):
    one = world(Terminal)
    one.bash(f"printf abab > twice; printf 'a\\377' > bytes; head -c {LARGEST + PART} /dev/zero > huge; echo a >> huge")
    before = one.bash("find . -type f | sort | xargs sha256sum")
    assert one.edit(path, "b", old_text).startswith("not edited: ")
    assert one.bash("find . -type f | sort | xargs sha256sum") == before


@confined
def test_edit_replaces_a_file_whole_or_not_at_all(world):
    """The disk of 64 MB is full; a pipe that nobody reads; a link and a mode stay."""
    one = world(Terminal)
    one.bash("echo old > full; echo old > tool; chmod 751 tool; ln -s tool link; mkfifo pipe; "
             "head -c 100M /dev/zero > filler")
    assert one.edit("full", "x" * 100_000).startswith("not edited: ")
    assert one.bash("cat full; ls full*; rm filler") == "old\nfull\n"
    assert one.edit("pipe", "x").startswith("not edited: ")
    assert one.edit("link", "new\n") == "wrote /app/link"
    assert one.bash("cat tool; stat -c %a tool; readlink link").split() == ["new", "751", "tool"]


@confined
def test_edit_is_within_the_time_of_the_task(world):
    one = world(Terminal)
    before, _ = one._left, one.edit("a", "b")
    assert one._left < before
    one._left = 0
    with pytest.raises(TimeoutError):
        one.edit("a", "b")


def test_the_terminal_agent_has_its_tools_unless_others_are_named():
    assert sorted(one["function"]["name"] for one in tools_of({})) == ["bash", "edit"]
    assert [one["function"]["name"] for one in tools_of({"environment_class": NAMED})] == ["bash"]
    assert tool_arguments("terminal_agent", {})["tool_seconds"] == 60


def tools_of(given: dict) -> list[dict]:
    return [one.definition for one in methods_of(load_environment(
        tool_arguments("terminal_agent", given)["environment_class"]))]
