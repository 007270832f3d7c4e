"""Harbor tasks for tests."""

import json
from pathlib import Path

SHAPES = Path(__file__).with_name("harbor_shapes.json")
# programs of RUN in the shapes -> what stands for them without a network; others print their name
OFFLINE = {"ln": "ln -sf /usr/bin/python3 /usr/local/bin/python", "rm": "rm -rf /var/lib/apt/lists/*",
           "mkdir": "mkdir -p /app /data", "chmod": "chmod 1777 /tmp", "touch": "touch /tmp/touched",
           "cd": "cd /", "true": "true", "chown": "chown root /tmp", "cp": "cp /etc/passwd /tmp/copied",
           "useradd": "echo 'me:x:1000:1000::/home/me:/bin/sh' >> /etc/passwd"}
PYTEST = """if pytest -q /tests/test_sum.py; then
  echo 1 > /logs/verifier/reward.txt
  exit 0
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
SHAPE_TOML = """version = "1.0"
[metadata]
author_name = "a"
author_email = "a@example.org"
difficulty = "easy"
category = "files"
tags = ["files"]
expert_time_estimate_min = 1.0
junior_time_estimate_min = 2.0
[verifier]
timeout_sec = 60.0
[verifier.env]
[agent]
timeout_sec = 60.0
[environment]
build_timeout_sec = 600.0
cpus = 1
memory_mb = 2048
storage_mb = 256
gpus = 0
allow_internet = true
mcp_servers = []
[solution.env]
"""

TOML = """
version = "1.0"
[metadata]
difficulty = "easy"
[verifier]
timeout_sec = 30.0
[agent]
timeout_sec = 60.0
[environment]
build_timeout_sec = 600.0
cpus = 1
memory_mb = 2048
storage_mb = 64
[environment.env]
LEVEL = "3"
NAME = "a b"
"""
DOCKERFILE = """
FROM ubuntu:24.04
WORKDIR /app
ENV LEVEL=3 NAME="a b"
# the numbers
COPY numbers.txt \\
     ./
"""
TEST = """#!/bin/bash
mkdir -p /logs/verifier
if [ "$(cat sum.txt)" = "$(cat /tests/expected)" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
FILES = {
    "instruction.md": "<!-- harbor-canary GUID 1 -->\n\nWrite the sum of the lines of numbers.txt to sum.txt.\n",
    "task.toml": TOML, "environment/numbers.txt": "1\n2\n4\n", "tests/test.sh": TEST, "tests/expected": "7\n",
    "solution/solve.sh": "echo $(($(paste -sd+ numbers.txt))) > sum.txt\n",
}


def write_task(directory: Path, **changed: str | None) -> Path:
    """A task whose sum is to be found. changed: texts of files in place of FILES, with `__` for `/` and `_dot_` for
    a dot; None: without it."""
    named = {name.replace("__", "/").replace("_dot_", "."): text for name, text in changed.items()}
    for name, text in (FILES | named).items():
        if text is not None:
            file = directory / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return directory


def shapes_of_tasks() -> list[list]:
    """The distinct sequences of instructions in 3,566 public tasks (zjysteven/terminal-bench-env, 2026-11-25): how many
    tasks have each, and the instructions, those of RUN with the names of their programs."""
    return json.loads(SHAPES.read_text())


def write_shape(directory: Path, shape: list[str], number: int) -> Path:
    """A task whose Dockerfile has these instructions. Programs that need a network are replaced (OFFLINE)."""
    lines, copies, document = [], 0, []
    for word, _, programs in (one.partition(" ") for one in shape):
        if word == "EOF":  # what was counted since the last RUN is of its here-document
            lines[-1] = "RUN cat > /tmp/text <<'EOF'\n" + "\n".join([*document, "EOF"])
        elif word not in ("FROM", "RUN", "COPY", "ENV", "WORKDIR", "EXPOSE"):
            document.append(f"{word.lower()} x")
        elif word == "COPY":
            copies += 1
            lines.append(f"COPY file{copies}.txt /app/file{copies}.txt")
        else:
            document = []
            lines.append({
                "FROM": "FROM ubuntu:24.04", "ENV": "ENV DEBIAN_FRONTEND=noninteractive LANG=C.UTF-8",
                "EXPOSE": "EXPOSE 80", "WORKDIR": "WORKDIR /app",
                "RUN": "RUN " + " && ".join(OFFLINE.get(one, f"echo {one}") for one in programs.split(","))}[word])
    files = {f"environment__file{place + 1}_dot_txt": f"{number}\n{place}\n" for place in range(max(copies, 1))}
    if not copies:
        lines.insert(-1, f"RUN mkdir -p /app && printf '{number}\\n0\\n' > /app/file1.txt")
    return write_task(directory, environment__Dockerfile="\n".join(lines) + "\n", environment__numbers_dot_txt=None,
                      task_dot_toml=SHAPE_TOML, tests__test_dot_sh="#!/bin/bash\n" + PYTEST, tests__expected=None,
                      instruction_dot_md=f"Write the sum of the lines of file1.txt to sum.txt. ({number})",
                      tests__test_sum_dot_py="from pathlib import Path\n\n\ndef test_sum():\n"
                                             f"    assert int(Path('/app/sum.txt').read_text()) == {number}\n",
                      solution__solve_dot_sh="echo $(($(paste -sd+ /app/file1.txt))) > /app/sum.txt\n", **files)
