"""Tasks of a locked environment, whose Python is a script here."""

import json

import pytest

from ouroboros.operators.task_packages import Mistake, tasks

NAMES = [f"task {one}" for one in range(60)]
ROWS = "\n".join(json.dumps({"question": "(the environment begins)", "task": {"name": one}}) for one in NAMES)


@pytest.fixture
def taken(tmp_path):
    """taken(script, split="all", lock=…, **env): the names of the tasks that a script prints."""
    def run(script, split="all", lock="0123", **env):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        found = list(tasks("verifiers", "kit/sums", split, lock=[lock, str(python)], env=env))
        return [json.loads(one["answer"])["task"]["name"] for one in found]

    return run


def test_what_a_package_prints_fills_no_pipe(taken):
    assert taken(f"head -c 300000 /dev/zero >&2\ncat <<'END'\n{ROWS}\nEND") == NAMES


def test_a_failure_has_the_last_line_or_the_exit_code(taken):
    with pytest.raises(Mistake, match=r"^it has no words$"):
        taken("echo loading >&2; echo 'it has no words' >&2; exit 1")
    with pytest.raises(Mistake, match="-9"):
        taken("kill -9 $$")


def test_a_task_is_in_one_split_whatever_the_lock_and_the_configuration(taken):
    script = f"cat <<'END'\n{ROWS}\nEND"
    test = taken(script, "test")
    assert 0 < len(test) < 30
    assert taken(script, "test", lock="4567", agent={"max_turns": 3}) == test
    assert sorted(test + taken(script, "train")) == sorted(NAMES)
