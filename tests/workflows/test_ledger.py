"""Explorers killed once at each place of a tool call; `make test-kill` does so 320 times (tests/kills/ledger.py)."""

import subprocess
import sys

from ouroboros.pipeline.store.files import HOME


def test_tools_take_effect_once_whatever_is_killed(tmp_path):
    command = [sys.executable, "-m", "tests.kills.ledger", "--kills", "6", "--place", str(tmp_path / "ledger")]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| all " in done.stdout
