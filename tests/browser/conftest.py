"""Chromium, and servers of `ouro` that it opens."""

import contextlib
import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=os.environ["OURO_CHROMIUM"], args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def served():
    """A command of ours that prints the address of its page and serves it until the end of the block."""

    @contextlib.contextmanager
    def start(*words: str, here=None):
        server = subprocess.Popen([sys.executable, "-P", "-m", "ouroboros", *words], stdout=subprocess.PIPE,
                                  text=True, cwd=here)
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()
            server.wait()

    return start


@pytest.fixture
def opened(chromium):
    """Opens a page; at the end it fails where a script failed or a text was run."""
    contexts, wrong = [], []

    def open_page(address: str, **given):
        contexts.append(chromium.new_context(**{"viewport": {"width": 1280, "height": 900}} | given))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(dialog.message) if dialog.type == "alert" else None,
                                          dialog.accept()))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
