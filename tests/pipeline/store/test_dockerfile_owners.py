"""Which users files of an image belong to, as far as instructions of a Dockerfile say, and as its layers say."""

import io
import tarfile

import pytest

from ouroboros.pipeline.store.dockerfiles import owners
from ouroboros.pipeline.store.harbor import read_task
from ouroboros.stages import image_layer
from tests.harbor_kit import write_task


@pytest.mark.parametrize("line", [
    "USER bob\nRUN touch /f", "COPY --chown=bob:al a b", "ADD --chmod=1 --chown='bob' a b",
    "COPY --chown=bob --from=x a b", "ENV W bob\nUSER ${W}\nRUN true", "ENV W=bob\nCOPY --chown=$W a b",
    "COPY --chown=${W:-bob} a b", "USER bob:al\nRUN true\nUSER root\nRUN true", "USER bob\nRUN <<EOF\ntouch /f\nEOF"])
@pytest.mark.parametrize("before", ["FROM x\n", "FROM x AS one\nRUN true\nFROM one\n"])
def test_two_owners_are_found(line, before, tmp_path):
    assert owners(f"{before}{line}\n") == {"bob"}
    reason = read_task(write_task(tmp_path, environment__Dockerfile=f"{before}{line}\nUSER al\n")).unsupported
    assert "al and bob" in reason


@pytest.mark.parametrize("line", [
    "USER bob\nUSER al", "USER bob\nCOPY a b", "COPY --chown=$UNKNOWN a b", "COPY --chown=:bob a b", "FROM x",
    "COPY --chown=root:bob a b", "COPY --chown=0 a b", "RUN echo --chown=bob"])
def test_one_owner_is_one(line):
    assert owners(f"FROM x\n{line}\nUSER al\n") == {"al"}


def test_owners_are_those_of_the_stages_that_the_last_one_begins_with():
    text = "FROM x AS one\nCOPY --chown=bob a b\nUSER bob\nFROM {} AS two\nRUN true\nFROM two\nUSER al\n"
    assert owners(text.format("One")) == {"bob", "al"}
    assert owners(text.format("y")) == {"al"}


def test_variables_are_those_of_arguments_and_of_earlier_stages():
    assert owners("ARG W=bob\nFROM x\nARG W\nCOPY --chown=$W a b\n") == {"bob"}
    assert owners("ARG W=bob\nFROM x\nCOPY --chown=$W a b\n") == set()
    assert owners("FROM x AS one\nENV W=bob V=al\nARG V=eve\nFROM one\nCOPY --chown=$W a b\nUSER $V\n") == {"bob", "al"}


def test_a_layer_names_the_owners_of_files_directories_and_links(tmp_path):
    with tarfile.open(tmp_path / "layer", "w") as archive:
        for number, kind in enumerate((tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE), 999):
            entry = tarfile.TarInfo(f"f{number}")
            entry.uid, entry.type = number, kind
            archive.addfile(entry, io.BytesIO())
    assert image_layer.owners(tmp_path / "layer") == {f"f{number}": number for number in range(999, 1003)}
