"""Launch scripts run in bubblewrap: without it the tests that have one are skipped."""

import shutil

import pytest

from ouroboros.commands.bridges import bash


@pytest.fixture(autouse=True)
def confined(monkeypatch):
    """Skips a test when it comes to run a script, on a machine that cannot."""
    if not shutil.which("bwrap"):
        monkeypatch.setattr(bash, "_run", lambda *_: pytest.skip("needs bubblewrap"))
