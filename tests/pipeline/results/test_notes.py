"""`ouro note`: tags and a note, kept in the run's directory and shown by the page."""

import pytest

from ouroboros.commands import cli
from ouroboros.commands.web import overview
from ouroboros.pipeline.results import notes, view
from ouroboros.pipeline.store.errors import QueryError
from tests.fake_run import FakeRun


@pytest.fixture
def run(tmp_path):
    FakeRun(tmp_path).whole().view()
    return view.views(tmp_path)[0]


def test_tags_and_the_note_are_changed_and_shown(run, tmp_path, capsys):
    here = ["--root", str(tmp_path)]
    assert notes.read(run) == {"tags": [], "note": ""}
    assert cli.main(["note", *here, "--tag", "lr:high", "--tag", "kept", "--text", "rose at once"]) == 0
    assert cli.main(["note", "first", *here, "--tag", "kept", "--untag", "lr:high"]) == 0
    capsys.readouterr()
    assert cli.main(["note", *here]) == 0
    assert capsys.readouterr().out == "toy/first: kept\nrose at once\n"
    (shown,) = overview.table(tmp_path)
    assert (shown["tags"], shown["note"]) == (["kept"], "rose at once")
    assert cli.main(["note", *here, "--text", ""]) == 0
    assert notes.read(run) == {"tags": ["kept"], "note": ""}


@pytest.mark.parametrize("text", ["{", '{"tags": null}'])
def test_a_damaged_file_leaves_the_run_in_the_table_without_tags(run, tmp_path, text):
    (run.path / notes.FILE).write_text(text)
    (shown,) = overview.table(tmp_path)
    assert (shown["run"], shown["tags"], shown["note"]) == ("toy/first", [], "")


@pytest.mark.parametrize("tag", ["", "two words", "a,b", "x" * 51])
def test_a_tag_is_a_word(run, tag):
    with pytest.raises(QueryError):
        notes.change(run, [tag])
    assert notes.read(run)["tags"] == []
