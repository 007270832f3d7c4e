import contextlib
import os
import stat
import tarfile

import pytest

from ouroboros.pipeline.store.images import OWNER
from ouroboros.stages.image_builder import NotBuilt, _user, _users, unpack

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a chroot needs root")
FILE, LINK, HARD, DIRECTORY, DEVICE = (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE,
                                       tarfile.CHRTYPE)


@pytest.fixture
def layer(tmp_path):
    """layer((name, kind, link), …): the directory of the unpacked layer, beside a directory `victim` of the host."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "secret").write_text("hush")
    (victim / "secret").chmod(0o600)

    def made(*entries):
        with tarfile.open(tmp_path / "layer.tar", "w") as archive:
            for name, kind, link in entries:
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname, entry.mode = kind, link.format(victim=victim), 0o4777
                archive.addfile(entry)
        target = tmp_path / "target"
        target.mkdir()
        unpack(tmp_path / "layer.tar", target)
        return target

    made.victim = victim
    return made


@pytest.mark.parametrize("entries", [
    [("h", HARD, "{victim}/secret")], [("h", HARD, "../victim/secret")],
    [("a", LINK, "{victim}"), ("h", HARD, "a/secret")], [("s", LINK, "{victim}/secret"), ("h", HARD, "s")],
    [("a", LINK, "{victim}"), ("a/new", FILE, "")], [("a", LINK, "{victim}"), ("a/.wh.secret", FILE, "")],
    [("a", LINK, "{victim}"), ("a/.wh..wh..opq", FILE, "")], [("a", LINK, "../victim"), ("a/.wh.new", FILE, "")],
    [("../victim/.wh.new", FILE, "")], [("../victim/new", FILE, "")], [("/victim/new", FILE, "")]])
def test_a_layer_changes_nothing_of_the_host(layer, entries):
    before = os.lstat(layer.victim / "secret")
    with contextlib.suppress(NotBuilt):
        layer(*entries)
    after = os.lstat(layer.victim / "secret")
    assert (after.st_mode, after.st_uid, after.st_nlink) == (before.st_mode, before.st_uid, 1)
    assert (layer.victim / "secret").read_text() == "hush"
    assert os.listdir(layer.victim) == ["secret"]
    assert not os.listxattr(layer.victim)


def test_hard_links_lead_to_files_of_the_layer(layer):
    target = layer(("bin", DIRECTORY, ""), ("bin/one", FILE, ""), ("two", HARD, "/bin/one"), ("three", HARD, "bin/one"))
    assert os.lstat(target / "bin" / "one").st_nlink == 3


def test_a_hard_link_to_nothing_is_not_built(layer):
    with pytest.raises(NotBuilt, match="absent"):
        layer(("h", HARD, "absent"))


def test_files_have_one_owner_no_special_rights_and_no_devices(layer):
    target = layer(("one", FILE, ""), ("null", DEVICE, ""))
    found = os.lstat(target / "one")
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (OWNER, OWNER, 0o777)
    assert os.listdir(target) == ["one"]


def test_what_a_layer_deletes_is_marked_as_overlayfs_reads_it(layer):
    target = layer((".wh.gone", FILE, ""), ("all", DIRECTORY, ""), ("all/.wh..wh..opq", FILE, ""),
                   (".wh.new", FILE, ""), ("new", DIRECTORY, ""), (".wh.file", FILE, ""), ("file", FILE, ""))
    gone = os.lstat(target / "gone")
    assert stat.S_ISCHR(gone.st_mode)
    assert gone.st_rdev == 0
    for name in ("all", "new"):  # a directory in the place of what is deleted hides all that was below
        assert os.getxattr(target / name, "user.overlay.opaque") == b"y"
    assert stat.S_ISREG(os.lstat(target / "file").st_mode)


@pytest.mark.parametrize(("line", "named"), [
    ("bob:x::1::/home/bob:/bin/sh", "bob"), ("bob:x:4294967296:1::/home/bob:/bin/sh", "bob"), ("", "4294967296"),
    ("bob:x:7", "bob"), ("", "bob")])
def test_a_user_without_a_usable_number_is_not_built(tmp_path, line, named):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text(f"{line}\n")
    with pytest.raises(NotBuilt, match=f"USER {named}"):
        _user(named, _users([tmp_path]))


def test_a_user_is_that_of_the_topmost_layer_with_a_file(tmp_path):
    below, link, above = (tmp_path / name for name in ("below", "link", "above"))
    for place, number in ((below, 7), (above, 8)):
        (place / "etc").mkdir(parents=True)
        (place / "etc" / "passwd").write_text(f"bob:x:{number}:1::/home/bob:/bin/sh\n")
    link.mkdir()
    (link / "etc").symlink_to(above / "etc")  # of the host, as an absolute link of a layer is
    assert _user("bob:staff", _users([below, above])) == (8, "/home/bob")
    assert _user("bob", _users([below, link])) == (7, "/home/bob")
    assert _user("0", []) == _user("", []) == (0, "/root")
