"""The wordings of messages, on one page that a person reads: messages.md, beside this file.

    with refuses(ConfigError, "trainer.packing"):  # our error is raised, and its message names the key
        ...
    wording(capsys.readouterr().err, "8 of 8")     # a line says this figure

    make golden TESTS=tests/learner                # writes the page again, of the tests that run and pass

A test asserts what a message names (a key, a file, a figure); the page holds the message, below the test. A message
that the page does not have fails its test, and so does one that its test no longer produces. What differs between
machines and runs is replaced (VARIABLE), as are temporary directories and this clone. tests/conftest.py has the hooks.
"""

import platform
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ouroboros.pipeline.store.errors import OuroError
from ouroboros.pipeline.store.files import HOME

PAGE = Path(__file__).with_name("messages.md")
TITLE = """# Messages

What the product says in tests, below the test that makes it say so. `make golden` writes this page; read its diff.
"""
VARIABLE = [(re.compile(pattern), steady) for pattern, steady in (
    (r"/[^\s'\"]*?/pytest-of-[^/]+/pytest-\d+(/popen-gw\d+)?/[\w-]*\d", "TMP"), (re.escape(str(HOME)), "HOME"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID"),
    (r"(\.py)(:|, line | line )\d+", r"\1\2LINE"), (r"(?<=[a-z]-)[0-9a-f]{8}\b", "HASH"),
    (r"(?<=\()[0-9a-f]{8}(?= \|)|(?<=\| )[0-9a-f]{8}(?=\))", "HASH"),
    (r"\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{8,64}\b", "HASH"),
    (r"(plan\.json is not valid JSON) \([^)]*\(char \d+\)\)", r"\1"), (r"(127\.0\.0\.1|localhost):\d{4,5}", r"\1:PORT"),
    (r"\b(process|CONT) \d{2,}(?![.\d])", r"\1 PID"), (r"\.\d+\.tmp\b", ".PID.tmp"),
    (rf"\bon {re.escape(platform.node() or 'HOST')}\b", "on HOST"),
    (r"\S+/python[\d.]* -m", "python -m"), (r"\b\d+ threads", "N threads"),
    (r"this machine has \d+", "this machine has N"), (r"[\d.]+ MiB are free", "N MiB are free"),
    (r"is up to \d[\d.e+-]*", "is up to N"),
    (r"\d{1,3}(,\d{3})+ (bytes|were written)", r"N \2"), (r"file system /\S* \(\w+\)", "file system X"))]


class Record:
    """The messages that tests of this process record.

    writes: the page is made again, nothing is compared. chosen: single cases of tests were asked for, f[a] or by -k.
    """

    def __init__(self):
        self.test, self.told, self.writes, self.chosen, self.page, self.tests = "", [], False, False, read(), set()

    def begin(self, test: str) -> None:
        self.test, self.told = test, []

    def add(self, message: str) -> None:
        """Compares one message with the page, in the order of the test."""
        self.told.append(steady(message))
        self._compare(self.page.get(self.test, [])[:len(self.told)])

    def end(self) -> None:
        """Compares all messages of a test that passed."""
        self._compare(self.page.get(self.test, []))

    def _compare(self, expected: list[str]) -> None:
        assert self.writes or self.told == expected, "not as on tests/golden/messages.md; if it is meant: make golden"

    def ran(self, test: str, told: list[str] | None) -> None:
        """Takes what a test was told for the page; None: it failed, and the page keeps what it has."""
        self.tests.add(test)
        if told is not None:
            self.page[test] = told

    def there(self) -> dict[str, list[str]]:
        """Returns the page without tests that are gone: their function, or, where all its cases ran, their parameters.
        """
        ran = set() if self.chosen else {test.partition("[")[0] for test in self.tests}
        return {test: told for test, told in self.page.items() if told and is_there(test)
                and (test in self.tests or test.partition("[")[0] not in ran)}


@contextmanager
def refuses(errors: type[BaseException] | tuple[type[BaseException], ...],
            *names: Any) -> Iterator[pytest.ExceptionInfo]:
    """Expects one of these errors, whose message has each of the names. The page holds it if it is one of ours."""
    with pytest.raises(errors) as caught:
        yield caught
    said, ours = str(caught.value), isinstance(caught.value, OuroError)
    del caught  # the error's traceback has this frame: what its frames hold would stay, such as locks
    assert not (absent := [name for name in map(str, names) if name not in said]), (absent, said)
    if ours:
        RECORD.add(said)


def wording(said: str | Iterable[Any], *names: Any) -> None:
    """Expects each of the names in a text, or in one of several. The page holds the lines with one of them, or all."""
    lines = "\n".join([said] if isinstance(said, str) else map(str, said)).splitlines()
    named = {name: [line for line in lines if name in line] for name in map(str, names)}
    assert all(named.values()), ([name for name in named if not named[name]], lines)
    kept = [line for line in dict.fromkeys(lines) if not named or any(name in line for name in named)]
    assert any(kept)
    RECORD.add("\n".join(kept))


def steady(message: str) -> str:
    """Returns a message as it is on every machine, without empty lines."""
    for pattern, replacement in VARIABLE:
        message = pattern.sub(replacement, message)
    return "\n".join(line.rstrip() for line in re.split(r"[\n\r]", message) if line.strip())


def read() -> dict[str, list[str]]:
    """Returns the page: test, as pytest names it -> its messages."""
    found, file, told = {}, "", []
    for line in PAGE.read_text(encoding="utf-8").removeprefix(TITLE).split("\n"):
        if line.startswith("- "):
            told.append(line[2:])
        elif line.startswith("  "):
            told[-1] += "\n" + line[2:]
        elif line.startswith("`"):
            found[f"{file}::{line[1:-1]}"] = told
        else:
            file, told = line.removeprefix("## ") or file, []
    return found


def is_there(test: str) -> bool:
    """Whether this test's file has its function."""
    path, function = HOME / test.partition("::")[0], test.partition("::")[2].partition("[")[0]
    return path.is_file() and f"def {function}(" in path.read_text(encoding="utf-8")


def write(page: dict[str, list[str]]) -> None:
    """Writes the page, sorted; cases of one test with the same messages share one entry."""
    alike: dict[tuple, list[str]] = {}
    for test, told in sorted(page.items()):
        file, _, name = test.partition("::")
        alike.setdefault((file, name.partition("[")[0], *told), []).append(name)
    lines, last = [TITLE], ""
    for (file, _, *told), names in alike.items():
        lines += [f"## {file}\n"] if file != last else []
        lines += [*(f"`{name}`" for name in names), *("- " + one.replace("\n", "\n  ") for one in told), ""]
        last = file
    PAGE.write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")


RECORD = Record()
