"""What the user's code raised is shown with the user's frames."""

import json
import sys

import pytest

from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.user_errors import brief, load_dotted, users_traceback
from tests.golden.messages import refuses, wording

MINE = """\
import json
def score(response, answer):
    try:
        return parse(response)
    except ValueError as error:
        raise RuntimeError("no\\nnumber") from error
def parse(text):
    return json.loads(text)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "ouro_test_mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield load_dotted("ouro_test_mine:score")
    sys.modules.pop("ouro_test_mine")


def raised(function, *arguments) -> Exception:
    try:
        function(*arguments)
    except Exception as error:
        error.__traceback__ = error.__traceback__.tb_next  # this file would count as the user's
        return error
    raise AssertionError("nothing was raised")


def test_one_line_with_the_place_in_the_users_file(mine):
    wording(brief(raised(mine, "x", "")), "RuntimeError", "ouro_test_mine.py:6", "score")


def test_the_traceback_has_the_users_frames_alone_causes_included(mine):
    told = users_traceback(raised(mine, "x", ""))
    assert [line.split('"')[1].rsplit("/", 1)[1] for line in told.splitlines() if line.startswith("  File")] == [
        "ouro_test_mine.py"] * 3
    assert "JSONDecodeError: Expecting value" in told
    assert "direct cause" in told
    assert told.endswith("RuntimeError: no\nnumber")


def test_an_error_of_nobodys_file_is_shown_whole():
    error = raised(json.loads, "x")
    wording(brief(error), "JSONDecodeError", "1 column", "1 (char 0)")
    assert "json/decoder.py" in users_traceback(error)


@pytest.mark.parametrize("line", ["json.loads('x')", "sys.exit(0)", "sys.exit('no')", "raise GeneratorExit"])
def test_a_module_that_does_not_import_or_ends_its_process_is_named_with_its_line(mine, tmp_path, line):
    (tmp_path / "ouro_test_ends.py").write_text(f"import json, sys\n{line}\n")
    with refuses(ConfigError, "'ouro_test_ends:f'", "ouro_test_ends", "py:2", "<module>"):
        load_dotted("ouro_test_ends:f")


def test_errors_without_a_message_or_with_an_odd_one_are_told(mine):
    def fails():
        raise AssertionError

    class Mute(Exception):
        def __str__(self):
            raise KeyError("none")

    assert brief(raised(fails)).startswith("AssertionError (")
    wording(brief(Mute()), "__str__", "KeyError")
    assert brief(ValueError("\x1b[31mno file\x1b[0m")).startswith("ValueError: no file")
    large = ValueError("x" * 10_000_000)
    assert len(brief(large)) < 3000
    assert len(users_traceback(large)) < 3000
