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


OF_ONE = "FROM x AS one\nCOPY --chown=bob a b\nUSER bob\nFROM {} AS two\nRUN true\nFROM two\nUSER al\n"


@pytest.mark.parametrize(("text", "found"), [
    *((f"FROM x\n{line}\nUSER al\n", {"al"}) for line in (
        "USER bob\nUSER al", "USER bob\nCOPY a b", "COPY --chown=$UNKNOWN a b", "COPY --chown=:bob a b", "FROM x",
        "COPY --chown=root:bob a b", "COPY --chown=0 a b", "RUN echo --chown=bob")),
    # of the stages that the last one begins with
    (OF_ONE.format("One"), {"bob", "al"}), (OF_ONE.format("y"), {"al"}),
    # variables are those of arguments and of earlier stages
    ("ARG W=bob\nFROM x\nARG W\nCOPY --chown=$W a b\n", {"bob"}), ("ARG W=bob\nFROM x\nCOPY --chown=$W a b\n", set()),
    ("FROM x AS one\nENV W=bob V=al\nARG V=eve\nFROM one\nCOPY --chown=$W a b\nUSER $V\n", {"bob", "al"})])
def test_whose_files_an_image_has(text, found):
    assert owners(text) == found


def test_a_layer_names_the_owners_of_files_directories_and_links(tmp_path):
    with tarfile.open(tmp_path / "layer", "w") as archive:
        for number, kind in enumerate((tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE), 999):
            entry = tarfile.TarInfo(f"f{number}")
            entry.uid, entry.type = number, kind
            archive.addfile(entry, io.BytesIO())
    assert image_layer.owners(tmp_path / "layer") == {f"f{number}": number for number in range(999, 1003)}
