"""Images of Harbor tasks, and attempts in them: `make test-harbor`."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from ouroboros.pipeline.check.data import of_tasks
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.settings.arguments.answers import ToolArguments
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.files import HOME as REPOSITORY
from ouroboros.pipeline.store.images import OWNER, read_image
from ouroboros.pipeline.store.records import Image, Rejected, Task
from ouroboros.workflows.environments.harbor import Harbor
from ouroboros.workflows.protocol.tools import Situation
from tests.golden.messages import refuses
from tests.harbor_kit import DOCKERFILE, PYTEST, shapes_of_tasks, write_shape, write_task

pytestmark = pytest.mark.harbor
SET = "buffer.explorer_input.taskset"
WHOLE = """ARG FROM=ubuntu:24.04
FROM $FROM AS made
ARG WORD=made
RUN mkdir /made && echo $WORD > /made/word && chmod 700 /made && rm /etc/debian_version
FROM ubuntu:24.04
COPY --from=made /made/word /usr/share/word
RUN rm -r /usr/share/doc && mkdir -p /opt/venv/bin && printf '#!/bin/sh\\necho 41\\n' > /opt/venv/bin/answer \\
  && chmod 4755 /opt/venv/bin/answer && echo 'me:x:1000:1000::/home/me:/bin/bash' >> /etc/passwd \\
  && mkdir -p /usr/src/app
ENV PATH=/opt/venv/bin:/home/me/bin:$PATH LEVEL=3
WORKDIR /usr/src/app
COPY numbers.txt .
RUN chown -R me /usr/src/app
USER me
"""
HOSTILE = {  # what an agent sees (a pattern) of the commands that it runs, of which none earns anything
    "fork bomb": (r"processes (4[5-9]\d|50\d|51[0-2])\n", "f() { f | f & }; f; sleep 3; set -- /proc/[0-9]*; "
                  "echo processes $#"),
    "fills the disk": (r"No space left.*\n25[0-6]\n", "head -c 3G /dev/zero > /tmp/full; du -m /tmp/full | cut -f 1"),
    "many files": (r"No space left.*\n9\d{4}\n", "mkdir /tmp/d && cd /tmp/d && seq 200000 | xargs touch; ls | wc -l"),
    "much memory": ("MemoryError", "python3 -c 'bytearray(9 << 30)'"),
    "shared memory": (r"the limit of 2048 MiB", "python3 -c 'import mmap\nm, n = mmap.mmap(-1, 8 << 30), 1 << 24\n"
                      "for i in range(512):\n    m.write(bytes(n))'"),
    "link to the tests": ("/tests/test_sum.py", "ln -sf /tests/test_sum.py /app/sum.txt; readlink /app/sum.txt"),
    "link into /proc": ("^/proc/1/root/tests/test_sum.py\n$", "ln -sf /proc/1/root/tests/test_sum.py /app/sum.txt; "
                        "readlink /app/sum.txt; ls /proc/1/root/tests"),
    "directory as a link": ("/tests", "rm -rf /app; ln -s /tests /app; readlink /app"),
    "network": (r"refused.*\(exit code 2\)", "(exec 3<>/dev/tcp/127.0.0.1/22 && cat <&3 || getent hosts example.org) "
                "> /app/sum.txt"),
    "the verifier's files": ("(Read-only file system.*){2}", "mkdir -p /logs/verifier; "
                             "echo 1 > /logs/verifier/reward.txt; echo exit 0 > /tests/test.sh"),
    "the verifier's programs": ("exit 0", "for one in pytest python3 bash; do rm -f /usr/bin/$one; "
                                "printf '#!/bin/sh\nexit 0' > /usr/bin/$one; chmod +x /usr/bin/$one; done; "
                                "cat /usr/bin/pytest"),
    "packages of Python": ("^$", "for one in ~/.local/lib/python3.11/site-packages /usr/lib/python3/dist-packages; do "
                           "mkdir -p $one; echo 'import os; os._exit(0)' > $one/usercustomize.py; "
                           "cp $one/usercustomize.py $one/sitecustomize.py; done; python3 -c 'print(1)'"),
    "a process that stays": (r"processes [1-6]\n", "(while :; do echo 0 > /app/sum.txt; "
                             "echo 1 > /logs/verifier/reward.txt; done) & setsid sleep 99 &",
                             "set -- /proc/[0-9]*; echo processes $#"),
    "kills everything": ("alive", "kill -9 -1; kill -9 1; echo alive"),
    "no rights": ("Permission denied", "chmod 000 /app /tmp /usr /; echo 0 > /app/sum.txt"),
}
TASKS = {  # of one image each; what the tests below ask
    "whole": {"environment__Dockerfile": WHOLE},
    "fails": {"environment__Dockerfile": "FROM ubuntu:24.04\nRUN echo why; exit 3\n"},
    "slow": {"environment__Dockerfile": "FROM ubuntu:24.04\nRUN sleep 7654\n",
             "task_dot_toml": "[environment]\nbuild_timeout_sec = 5\n"},
    "large": {"environment__Dockerfile": "FROM ubuntu:24.04\nRUN head -c 2G /dev/zero > /large; sleep 7655\n"},
    "bounded": {"environment__Dockerfile": "FROM ubuntu:24.04\nRUN ! chroot / true\n"
                                           "RUN ! head -c 65M /dev/zero > /dev/shm/ouro\n"},
    "memory": {"environment__Dockerfile": "FROM ubuntu:24.04\nRUN python3 -c 'import time; a = bytearray(1 << 30); "
                                          "time.sleep(7656)'\n"},
    "processes": {"environment__Dockerfile": "FROM ubuntu:24.04\nRUN for one in $(seq 1100); do sleep 7657 & done; "
                                             "wait\n"},
    "variables": {"environment__Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\nRUN true\nENV PYTHONPATH=/app "
                  "BASH_ENV=/app/begin ENV=/app/begin PYTEST_ADDOPTS='-p plugin' LD_PRELOAD=/app/begin\n",
                  "tests__test_dot_sh": "#!/bin/bash\n" + PYTEST, "tests__test_sum_dot_py":
                  "def test_sum():\n    import made\n    assert made.SUM == 7\n",
                  "solution__solve_dot_sh": "echo SUM = 7 > made.py"},
    "plain": {"environment__Dockerfile": DOCKERFILE},
}

UNBUILT = ("fails", "slow", "large", "memory", "processes")


@pytest.fixture(scope="session")
def shapes(tmp_path_factory) -> Path:
    """20 shapes: the 12 most frequent ones, and every 56th of the others."""
    place, known = tmp_path_factory.mktemp("shapes"), shapes_of_tasks()
    chosen = known[:12] + known[12::56]
    for number, (_, *shape) in enumerate(chosen):
        write_shape(place / "tasks" / f"{number:02}", shape, number)
    return place


class Run:
    """The stages that read a directory of tasks."""

    def __init__(self, root: Path, base: Path, *words: str):
        config = compose(["recipe=file_agent", f"{SET}.path={root / 'tasks'}", f"checkpoint_root_dir={root}",
                          "buffer.explorer_input.eval_tasksets=[]", *words])
        plan = make_plan(config.merged({"environment": {"images": {"ubuntu:24.04": str(base)}}}))
        plan.freeze()
        self.stages = {stage.kind: Path(stage.directory) for stage in plan.stages if stage.name in (
            "images", "tasks_rft", "curate_rft")}

    def make(self, *kinds: str) -> None:
        for kind in kinds:
            command = [sys.executable, "-m", f"ouroboros.stages.{kind}", str(self.stages[kind])]
            done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr

    def rows(self, kind: str, table: str, record: type) -> list:
        found = tables.read(self.stages[kind] / tables.LOCATIONS[table], record).to_pylist()
        return [record(**row) for row in found]


@pytest.fixture(scope="session")
def run(tmp_path_factory, base) -> Run:
    root = tmp_path_factory.mktemp("run")
    for name, changed in TASKS.items():
        write_task(root / "tasks" / name, **{"instruction_dot_md": name} | changed)
    made = Run(root, base, "images.max_gib=0.8", "images.parallel=3")
    made.make("images", "tasks", "curate")
    return made


@pytest.fixture
def world(run):
    """An attempt at a task by its name."""
    begun = []

    def begin(name: str) -> Harbor:
        one = Harbor()
        one.settings = ToolArguments(tool_seconds=10)
        begun.append(one)
        row = next(row for row in run.rows("curate", "tasks", Task) if row.question == name)
        one.reset(Situation([], row.answer))
        return one

    yield begin
    for one in begun:
        one._close()


def test_images_are_built_once_and_failures_are_rejected_rows(run, base):
    images = {Path(row.task).name: row for row in run.rows("images", "images", Image)}
    assert {name for name, row in images.items() if row.digest} == {"whole", "plain", "variables", "bounded"}
    assert "images.max_gib" in images["memory"].reason
    assert "1024 processes" in images["processes"].reason
    assert "exit status 3" in images["fails"].reason
    assert "why" in Path(images["fails"].log).read_text()
    assert "build_timeout_sec" in images["slow"].reason
    assert "images.max_gib" in images["large"].reason
    assert images["slow"].seconds >= 5  # build_timeout_sec
    assert min(images["large"].seconds, images["fails"].seconds) > 0
    rejected = {row.question: row.reason for row in run.rows("curate", "rejected", Rejected)}
    assert {name for name in rejected if name} == {*UNBUILT}
    assert images["fails"].reason in rejected["fails"]
    manifest = files.read_json(run.stages["images"] / files.MANIFEST)
    assert manifest["images"][images["whole"].key] == images["whole"].digest
    left = [Path(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit()]
    assert not [file for file in left if file.exists() and b"sleep\x00765" in file.read_bytes()]
    again = Run(run.stages["images"].parents[1], base, "images.max_gib=0.9")  # another stage, and the same images
    times = {row.key: row.seconds for row in images.values() if row.digest}
    for failing in UNBUILT:
        shutil.rmtree(run.stages["images"].parents[1] / "tasks" / failing)
    again = Run(run.stages["images"].parents[1], base, "images.max_gib=0.9")
    begin = time.monotonic()
    again.make("images")
    assert {row.key: row.seconds for row in again.rows("images", "images", Image)} == times
    assert time.monotonic() - begin < 20


def test_an_attempt_has_the_files_the_variables_and_the_user_of_its_image(world):
    one = world("whole")
    assert one.bash("id -u; pwd; ls; cat /usr/share/word; answer; echo $LEVEL $HOME; stat -c '%U %a' numbers.txt "
                    "/opt/venv/bin/answer; ls /usr/share/doc /made /sys/layers 2>&1 | grep -c 'No such'") == (
        "1000\n/usr/src/app\nnumbers.txt\nmade\n41\n3 /home/me\nme 644\nme 755\n3\n")
    assert one.bash("echo 7 > sum.txt; rm numbers.txt; touch /usr/bin/new; ls /usr/bin/new") == "/usr/bin/new\n"
    assert one.reward() == {"accuracy": 1.0}
    assert world("whole").bash("cat numbers.txt; ls /usr/bin/new 2>&1 | grep -c 'No such'") == "1\n2\n4\n1\n"
    assert world("plain").bash("id -u; cat numbers.txt; echo $LEVEL $NAME; pwd") == "0\n1\n2\n4\n3 a b\n/app\n"


@pytest.mark.parametrize("left", [
    "printf '#!/bin/sh\\necho 7' > /usr/bin/cat", "rm /bin; mkdir /bin; printf '#!/bin/sh\\necho 7' > /bin/bash",
    "rm -rf /usr/bin; mkdir /usr/bin", "rm -rf /etc /lib; ln -s /usr/src/app /etc", "rm -rf /opt; ln -s /tmp /opt",
    "printf '#!/bin/sh\\necho 7' > /opt/venv/bin/cat; chmod +x /opt/venv/bin/cat",
    "mkdir -p /home/me/bin; printf '#!/bin/sh\\necho 7' > /home/me/bin/cat; chmod +x /home/me/bin/cat",
    "rm -rf /usr/src; ln -s /etc /usr/src", "echo /tmp/evil.so > /etc/ld.so.preload",
    "mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt", "ln -s /proc/1/root/tests/expected sum.txt",
    "(while :; do echo 7 > sum.txt; done) & sleep 0.2; rm -f sum.txt", "head -c 1G /dev/zero > /tmp/full",
    "seq 200000 | xargs touch", "f() { f | f & }; f", "mkfifo sum.txt",
    "rm numbers.txt /etc/passwd; mkfifo numbers.txt", "ln -s / sum.txt; chmod 000 . /tmp /usr",
    "export PATH=/tmp; echo 'exit 7' > ~/.bashrc", "rm -rf /root; ln -s /usr/src/app /root"])
def test_what_an_agent_leaves_in_the_image_earns_nothing(world, left):
    one = world("whole")
    one.bash(left)
    assert one.reward() == {"accuracy": 0.0}


@pytest.mark.parametrize("left", [
    "echo '[pytest]\naddopts = --co' > /pytest.ini", "echo '[pytest]\naddopts = --co' > /.pytest.ini",
    "echo '[tool.pytest.ini_options]\naddopts = \"--co\"' > /pyproject.toml",
    "echo '[pytest]\naddopts = --co' > /tox.ini", "echo '[tool:pytest]\naddopts = --co' > /setup.cfg",
    "cp hides.py /conftest.py", "touch /setup.py; cp hides.py /conftest.py", "mkdir /conftest.py /pytest.ini",
    "cp hides.py /app/sitecustomize.py", "cp hides.py /app/usercustomize.py", "cp hides.py /app/plugin.py",
    "echo 'echo 1 > /logs/verifier/reward.txt; exit 0' > /app/begin"])
def test_a_solution_has_reward_1_in_an_image_whose_variables_name_what_hides_failures(world, left):
    """The hidden failures of no work are seen. pytest imports from /app by PYTHONPATH."""
    one = world("variables")
    one.bash(f"cd /app; printf 'import os\nos._exit(0)\n' > hides.py; {left}")
    assert one.reward() == {"accuracy": 0.0}
    one = world("variables")
    one._solve()
    assert one.reward() == {"accuracy": 1.0}


@pytest.mark.parametrize(("command", "shown"), [
    ("ls / | tr '\\n' ' '", "bin boot dev etc home lib"), ("ls -d /proc/[0-9]* | wc -l | grep -c '^[2-6]$'", "1\n"),
    ("(echo > /dev/tcp/127.0.0.1/22) 2>&1 | grep -o refused | head -1", "refused"),
    ("cat /etc/shadow | head -1 | cut -c1-4", "root"), ("cat /proc/1/root/../../work 2>&1", "No such file"),
    ("umount / /usr 2>&1; echo $?", "127"),
    ("head -c 3G /dev/zero > /usr/f 2>/dev/null; du -sm /usr/f | cut -f1", "64"),
    ("python3 -c 'import os; os.setuid(0)' 2>&1 | tail -1", "Error"),
    ("grep CapEff /proc/self/status", "0000000000000000"), (f"chown {OWNER} /usr 2>&1; stat -c %u /usr", "1000")])
def test_an_attempt_sees_its_image_and_nothing_of_the_machine(world, command, shown):
    assert shown in world("whole").bash(command)


def test_an_image_that_was_built_again_with_other_content_is_not_used(world, run):
    row = next(row for row in run.rows("curate", "tasks", Task) if row.question == "plain")
    truth = json.loads(row.answer)
    assert read_image(Path(truth["image"])).digest == truth["digest"]
    with refuses(ValueError, "sha256:0"):
        Harbor().reset(Situation([], json.dumps(truth | {"digest": "sha256:0"})))


def test_a_killed_stage_goes_on(tmp_path, base):
    for number in range(3):
        write_task(tmp_path / "tasks" / str(number), instruction_dot_md=f"{number}", environment__Dockerfile=(
            f"FROM ubuntu:24.04\nRUN sleep {number * 4}; echo {number} > /made\n"))
    made = Run(tmp_path, base, "images.parallel=1")
    process = subprocess.Popen([sys.executable, "-m", "ouroboros.stages.images", str(made.stages["images"])],
                               cwd=REPOSITORY)
    end = time.monotonic() + 300
    while not (first := list(tmp_path.glob("images/*.json"))):
        assert time.monotonic() < end
        time.sleep(0.2)
    before = first[0].stat().st_mtime_ns
    process.kill()
    process.wait()
    made.make("images")
    assert first[0].stat().st_mtime_ns == before
    assert [row.reason for row in made.rows("images", "images", Image)] == [None] * 3


def test_shapes_of_public_tasks_are_built_run_and_verified(shapes, base):
    """Three attempts at each of 20 tasks: no work, the solution, and what a hostile agent leaves."""
    made = Run(shapes, base)
    begin = time.monotonic()
    made.make("images", "tasks", "curate")
    seconds = time.monotonic() - begin
    images = {row.source: row for row in made.rows("images", "images", Image)}
    assert [row.reason for row in images.values() if row.reason] == []
    answers = {Path(json.loads(row.answer)["directory"]).name: row.answer for row in made.rows("curate", "tasks", Task)}
    print("\n| shape | attempt | reward | seconds |\n|---|---|---|---|")
    rewards, otherwise = [], {}
    for (name, answer), (kind, (seen, *commands)) in zip(sorted(answers.items()), cycle(HOSTILE.items()), strict=False):
        for attempt, work in {"nothing": lambda one: None, "solution": Harbor._solve,
                              kind: lambda one: "".join(map(one.bash, commands))}.items():  # noqa: B023 - at once
            begin = time.monotonic()
            said, reward = attempted(answer, work)
            rewards.append((attempt, reward))
            if attempt == kind and not re.search(seen, said, re.DOTALL):
                otherwise[kind] = said[-1000:]
            print(f"| {name} | {attempt} | {rewards[-1][1]} | {time.monotonic() - begin:.1f} |")
    stored = sum(file.lstat().st_size for file in (shapes / "images").rglob("*") if not file.is_dir())
    print(f"{len(images)} images in {seconds:.0f} s, {stored / 2**20:.0f} MiB in all; the sum of theirs is "
          f"{sum(row.bytes for row in images.values()) / 2**20:.0f} MiB; {len(rewards)} attempts")
    assert len(rewards) == 60
    assert {kind for kind, _ in rewards} == {"nothing", "solution", *HOSTILE}
    assert otherwise == {}
    assert [kind for kind, found in rewards if found != {"accuracy": float(kind == "solution")}] == []


def attempted(answer: str, work) -> tuple[Any, dict[str, float]]:
    """What the work of an attempt returned, and its reward."""
    one = Harbor()
    one.settings = ToolArguments(tool_seconds=10)
    try:
        one.reset(Situation([], answer))
        return work(one), one.reward()
    finally:
        one._close()


def test_thousands_of_directories_are_accepted_in_seconds(tmp_path):
    """As many directories of each shape as there are public tasks of it."""
    shapes = [shape for count, *shape in shapes_of_tasks() for _ in range(count)]
    for number, shape in enumerate(shapes):
        write_shape(tmp_path / "tasks" / f"{number:04}", shape, number)
    begin = time.monotonic()
    ((_, sentence),), _ = of_tasks(compose(["recipe=file_agent", f"{SET}.path={tmp_path / 'tasks'}",
                                      f"checkpoint_root_dir={tmp_path}", "buffer.explorer_input.eval_tasksets=[]"]))
    print(f"\n{sentence}; read in {time.monotonic() - begin:.0f} s")
    assert sentence.startswith(f"{len(shapes)} of {len(shapes)} ")
    assert len(shapes) > 3300
