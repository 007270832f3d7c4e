"""Files appear complete or not at all; locks end with their holder."""

import errno
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import StageError
from tests.golden.messages import refuses


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    """Globs such as *.parquet must never see a file that is being written: its name is hidden, with another suffix."""
    path = tmp_path / "a.parquet"
    path.write_text("old")

    def write_half(temporary):
        assert (temporary.parent, temporary.name[0], temporary.suffix) == (tmp_path, ".", ".tmp")
        temporary.write_text("ne")
        raise RuntimeError("cut off")

    with refuses(RuntimeError, "cut"):
        files.write_atomic(path, write_half)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.parquet"]


@pytest.mark.parametrize(("code", "words"), [
    (errno.ENOSPC, "no space left"), (errno.EDQUOT, "quota"), (errno.EROFS, "read-only"), (errno.EACCES, None)])
def test_a_full_file_system_is_named_with_what_it_lacks_and_other_errors_stay(tmp_path, monkeypatch, code, words):
    def full(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(StageError if words else PermissionError) as caught:
        files.write_json(tmp_path / "a.json", {})
    mounted = next(one for one in (tmp_path, *tmp_path.parents) if one.is_mount())
    assert not words or (words in str(caught.value) and f"file system {mounted} (" in str(caught.value))
    assert names(tmp_path) == []


@pytest.fixture
def mounted(tmp_path):
    """mounted(options): a tmpfs of one mebibyte, where this may be done."""
    places = []

    def make(options: str) -> Path:
        place = tmp_path / f"disk{len(places)}"
        place.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size=1m,{options}", "tmpfs", str(place)]
        if shutil.which("mount") is None or subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("nothing can be mounted here")
        places.append(place)
        return place

    yield make
    for place in places:
        subprocess.run(["umount", str(place)], check=True)


def test_of_what_a_real_file_system_has_no_more(mounted):
    few, small, fixed = mounted("nr_inodes=5"), mounted("nr_inodes=100"), mounted("ro")
    for number in range(4):  # the root is one, too
        assert files.lack(few) == ""
        (few / str(number)).touch()
    for place, words in ((few, "no inode is left"), (fixed, "is read-only")):
        assert words in files.lack(place)
        assert f"{place} (tmpfs)" in files.lack(place / "not" / "there")
        with refuses(StageError, words):
            files.write_json(place / "new" / "a.json", {"a": 1})
        with refuses(StageError, words), files.new_directory(place / "made"):
            pass
    with refuses(StageError, "space") as caught:
        files.write_atomic(small / "a", lambda path: path.write_bytes(bytes(2 << 20)))
    assert f"{small} (tmpfs)" in str(caught.value)
    assert files.lack(small) == ""
    assert "no space left" in files.lack(small, least=2 << 20)


def test_leftovers_of_one_file_go_with_those_of_its_database(tmp_path):
    left = [tmp_path / f".mlflow.db.7.tmp{end}" for end in ("", "-journal")]
    others = [tmp_path / name for name in ("mlflow.db", ".other.db.7.tmp")]
    for path in (*left, *others):
        path.touch()
    files.remove_leftovers_of(tmp_path / "mlflow.db")
    assert names(tmp_path) == sorted(path.name for path in others)


def test_equal_values_are_equal_files_and_hashes(tmp_path):
    files.write_json(tmp_path / "a.json", {"b": 1, "a": "ü"})
    files.write_json(tmp_path / "b.json", {"a": "ü", "b": 1})
    assert files.hash_file(tmp_path / "a.json") == files.hash_file(tmp_path / "b.json")
    assert files.hash_json({"b": 1, "a": 2}) == files.hash_json({"a": 2, "b": 1}) != files.hash_json({"a": 2, "b": 2})
    (tmp_path / "abc").write_bytes(b"abc")  # sha256("abc") = ba7816bf 8f01cfea 414140de ... (FIPS 180-2, appendix B.1)
    assert files.hash_text("abc") == files.hash_file(tmp_path / "abc") == "ba7816bf8f01cfea"


@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe\x00"])
def test_what_is_no_json_is_named(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with refuses(StageError, "a.json", "JSON"):
        files.read_json(tmp_path / "a.json")


@pytest.mark.parametrize("refused", [0, errno.EINVAL])
def test_the_names_of_a_directory_and_its_own_are_flushed_after_it_has_them(tmp_path, monkeypatch, refused):
    """File systems that cannot flush a directory say so."""
    flushed = []

    def fsync(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        flushed.append((path.name, names(path) if path.is_dir() else []))
        if refused and path.is_dir():
            raise OSError(refused, "refused")

    monkeypatch.setattr(os, "fsync", fsync)
    with files.new_directory(tmp_path / "made") as directory:
        (directory / "inner").mkdir()
        (directory / "inner" / "data").touch()
        files.write_json(directory / files.MANIFEST, {})
    assert flushed[-1] == (tmp_path.name, ["made"])
    for one in ((directory.name, ["inner", files.MANIFEST]), ("inner", ["data"]), ("data", []), (files.MANIFEST, [])):
        assert one in flushed
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EIO, "of the disk")))
    with pytest.raises(OSError, match="of the disk"):
        files.flush_to_disk(tmp_path)


def test_a_directory_appears_with_all_its_files_in_the_place_of_half_of_one_and_one_that_fails_leaves_nothing(tmp_path):
    def make(fails):
        with files.new_directory(tmp_path / "version=1") as directory:
            (directory / "data").write_text("x")
            files.write_json(directory / files.MANIFEST, {})
            assert not files.is_complete(tmp_path / "version=1")
            if fails:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        make(fails=True)
    assert names(tmp_path) == []
    (tmp_path / "version=1").mkdir()
    (tmp_path / "version=1" / "half").touch()
    make(fails=False)
    assert names(tmp_path) == ["version=1"]
    assert names(tmp_path / "version=1") == ["data", files.MANIFEST]
    assert files.is_complete(tmp_path / "version=1")


def test_leftovers_of_a_killed_process_go_and_nothing_else(tmp_path):
    (tmp_path / "deep" / ".version=1.77.tmp" / "inner").mkdir(parents=True)
    (tmp_path / "deep" / ".a.json.77.tmp").touch()
    (tmp_path / ".lock").touch()
    (tmp_path / "a.tmp").touch()
    files.remove_leftovers(tmp_path)
    assert names(tmp_path) == [".lock", "a.tmp", "deep"]
    assert names(tmp_path / "deep") == []


@pytest.mark.parametrize(("directory", "root", "inside"), [
    ("store/sft-1", ".", True), ("/data/store/sft-1", "/data", True), ("/models/store/qwen", "/data", False),
    ("/data/store/sft-1/model", "/data", False), ("models/qwen", ".", False)])
def test_a_model_that_lies_in_some_other_store_is_no_stage(directory, root, inside):
    assert files.in_store(directory, root) is inside


HOLD = """
import sys, time
from ouroboros.pipeline.store import files
with files.locked(sys.argv[1], print):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_waits_tells_who_holds_it_and_is_free_when_the_holder_is_killed(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True)
    told = []

    def kill_it(who):
        told.append(who)
        holder.kill()

    try:
        assert holder.stdout.readline() == "held\n"
        begin = time.monotonic()
        with files.locked(tmp_path / "lock", kill_it):
            assert time.monotonic() - begin < 5
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert told == [f"process {holder.pid} on {platform.node()}"]
    assert (tmp_path / "lock").read_text() == f"process {os.getpid()} on {platform.node()}"


def test_a_lock_is_given_back_by_an_error(tmp_path):
    with pytest.raises(RuntimeError), files.locked(tmp_path / "lock", print):
        raise RuntimeError
    with files.locked(tmp_path / "lock", lambda who: pytest.fail(f"still held by {who}")):
        pass


def test_a_json_object_carries_the_hash_of_its_text(tmp_path):
    path, value = tmp_path / "a.json", {"step": 8, "names": {"é": [1, 2.5, None]}}
    files.write_json(path, value)
    assert files.read_json(path) == value
    text = path.read_text()
    rest = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    assert json.loads(text) == {**value, files.CHECKSUM: hashlib.sha256(rest.encode()).hexdigest()[:16]}
    path.write_text(text.replace('"step": 8', '"step": 9'))
    with refuses(StageError, "a.json"):
        files.read_json(path)
    path.write_text(rest)  # of an older release
    assert files.read_json(path) == value


@pytest.mark.parametrize("value", [{}, [], ["a", 1], [{"a": 1}]])
def test_other_json_is_written_as_it_is(tmp_path, value):
    files.write_json(tmp_path / "a.json", value)
    assert json.loads((tmp_path / "a.json").read_text()) == value
    assert files.read_json(tmp_path / "a.json", kind=type(value)) == value


def test_any_other_byte_in_a_json_object_is_refused_or_changes_nothing(tmp_path):
    value = {"cores": 2, "seed": 1, "stop": "x"}
    files.write_json(tmp_path / "a.json", value)
    content = (tmp_path / "a.json").read_bytes()
    for place in range(len(content)):
        for other in {content[place] ^ 1, content[place] ^ 16, ord(" "), ord("1")} - {content[place]}:
            (tmp_path / "a.json").write_bytes(content[:place] + bytes([other]) + content[place + 1:])
            with suppress(StageError):
                assert files.read_json(tmp_path / "a.json") == value


def test_a_specification_is_written_again_if_a_stage_that_starts_removes_its_temporary_file(tmp_path, monkeypatch):
    """Two runs that share a stage are launched at once: the stage of the one starts while the other writes."""
    replace = os.replace

    def starts(source, target):
        monkeypatch.undo()
        files.remove_leftovers(tmp_path)
        replace(source, target)

    monkeypatch.setattr(os, "replace", starts)
    files.write_json_if_new(tmp_path / "stage.json", {"run": "b"})
    assert files.read_json(tmp_path / "stage.json")["run"] == "b"
    assert [one.name for one in tmp_path.iterdir()] == ["stage.json"]
