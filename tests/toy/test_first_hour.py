"""docs/first-hour.md: what a reader types works, in the order of the page."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ouroboros.commands import cli
from ouroboros.pipeline.check import preflight
from ouroboros.pipeline.check.judge import compose
from tests import pages
from tests.toy.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "first-hour.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```$", PAGE, re.M | re.S)
OURO = [shlex.split(words.partition(" || ")[0]) for kind, text in BLOCKS if kind == "sh"
        for words in re.findall(r"\bouro (.*)", text)]


def script() -> str:
    """The page as one script of bash; a block of Python is a file of the name in its first line."""
    parts = [text if kind == "sh" else f"cat > {text.split()[1]} <<'END'\n{text}END\n" for kind, text in BLOCKS]
    return "set -ex\n" + "".join(parts)


def test_every_run_of_the_page_would_go_through(tmp_path, monkeypatch):
    runs = [words[1:] for words in OURO if words[0] == "run"]
    assert len(runs) == 3
    cli.main(["init", str(tmp_path / "sums"), "--template", "math"])
    monkeypatch.chdir(tmp_path / "sums")
    for words in runs:
        assert preflight.check(compose(cli.split_at_dashes(words)[0])).problems == []


def test_every_ouro_of_the_page_is_a_command():
    assert {pages.parsed(words) for words in OURO} == {"init", "config check", "run", "status", "report", "sql"}


@pytest.mark.slow
def test_the_page_from_its_first_command_to_its_last(tmp_path):
    """One small run, interrupted once, and all else that the page shows."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(["bash", "-c", script()], cwd=tmp_path, env=os.environ | {"PATH": path}, check=False,
                          capture_output=True, text=True)
    shown = done.stdout[-6000:] + done.stderr[-6000:]
    assert done.returncode == 0, shown
    interrupted, after = re.split(r"report +waiting", done.stdout, maxsplit=1)  # in the answer of `ouro status`
    assert "12 of 12" not in interrupted
    assert after.count("12 of 12") == 1, shown
    assert done.stdout.count("no problem found") == 3, shown
    assert re.search(r"problem: .\+.\+0\+0\n +result:", done.stderr), shown
    assert len(list((tmp_path / "sums" / "store").glob("rft-*"))) == 1
