"""Unpacks a layer of an image as overlayfs mounts it, in a chroot: its names and links lead to no file of the host.

    python -m ouroboros.stages.image_layer ARCHIVE DIRECTORY

All files get one owner, without set-user-id; devices and pipes are left out. What the layer deletes of those below it
is marked as overlayfs reads it. Needs root. The last line of an error says why.
"""

import os
import sys
import tarfile
from pathlib import Path

from ouroboros.pipeline.store.images import OWNER

WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"  # names in layers: of what is deleted; all that lies below is


def unpack(archive: Path, target: Path) -> None:
    """This process has `target` as its root from then on. Raises tarfile.TarError, OSError or KeyError."""
    marks: list[Path] = []

    def filtered(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        place = Path(os.path.normpath(f"/{member.name}"))
        if place.name.startswith(WHITEOUT):
            marks.append(place)
        elif not (member.ischr() or member.isblk() or member.isfifo()):
            return tarfile.tar_filter(member, path).replace(uid=OWNER, gid=OWNER, uname="", gname="",
                                                            mode=member.mode & 0o1777, deep=False)
        return None

    with tarfile.open(archive) as opened:  # from here on nothing is imported
        os.chroot(target)
        os.chdir("/")
        opened.extractall("/", filter=filtered, numeric_owner=True)
    for mark in marks:
        _delete(mark)
    os.chown("/", OWNER, OWNER)
    os.chmod("/", 0o755)


def owners(archive: Path) -> dict[str, int]:
    """Returns the number of the user to whom each file of a layer belongs. Raises tarfile.TarError or OSError."""
    with tarfile.open(archive) as opened:
        return {member.name: member.uid for member in opened}


def _delete(mark: Path) -> None:
    """What the layer has itself in the place of what it deletes stays."""
    mark.parent.mkdir(parents=True, exist_ok=True)
    place = mark.parent if mark.name == OPAQUE else mark.with_name(mark.name.removeprefix(WHITEOUT))
    if place.is_dir() and not place.is_symlink():
        os.setxattr(place, "user.overlay.opaque", b"y")
    elif not os.path.lexists(place):
        os.mknod(place, 0o020000, os.makedev(0, 0))


if __name__ == "__main__":
    try:
        unpack(Path(sys.argv[1]), Path(sys.argv[2]))
    except (tarfile.TarError, OSError, KeyError) as error:  # KeyError: a hard link to nothing
        sys.exit(str(error))
