"""An agent that works with files, in its own temporary directory (chores: operators/worlds/folder.py).

Paths are relative to that directory; what leads out of it, by `..` or a symbolic link, is refused. That keeps a model
inside, which calls these methods alone; it is no sandbox for other programs. The directory is deleted with the attempt.
"""

import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from ouroboros.workflows.protocol.tools import Environment

LARGEST, WHOLE = 1 << 16, 1 << 20  # bytes of a file that is read or written, and of all files
MOST = 1000  # files and directories
LONGEST = 200  # bytes of a path


class Folder(Environment):
    """The truth of a task is `{"files": {path: text}, "goal": {path: text}}`. accuracy: whether the goal is there."""

    idempotent = True

    def reset(self, task) -> None:
        truth = json.loads(task.answer)
        self._root, self._goal = Path(tempfile.mkdtemp()).resolve(), truth["goal"]
        for path, text in truth["files"].items():
            self.write(path, text)

    def list(self, path: str = ".") -> str:
        """The paths of all files in a directory and below, one a line."""
        return self._shown(files_below(self._inside(path)))

    def find(self, name: str) -> str:
        """The paths of all files of a name, one a line."""
        found = [one for one in files_below(self._root) if one.name == name]
        if not found:
            raise ValueError(f"{name}: there is no such file")
        return self._shown(found)

    def read(self, path: str) -> str:
        """The text of a file."""
        found = self._inside(path)
        if not found.is_file():
            raise ValueError(f"{path}: there is no such file")
        if found.stat().st_size > LARGEST:
            raise ValueError(f"{path}: it has {found.stat().st_size} bytes; needed at most {LARGEST}")
        return found.read_text(encoding="utf-8", errors="replace")

    def write(self, path: str, text: str) -> str:
        """Writes a file, with its directories, over one that is there."""
        found, data = self._inside(path), text.encode(errors="replace")
        there = [one for one in files_below(self._root) if one != found]
        if len(data) > LARGEST or sum(one.lstat().st_size for one in there) + len(data) > WHOLE:
            raise ValueError(f"{path}: {len(data)} bytes; needed at most {LARGEST}, and {WHOLE} in all files")
        if sum(1 for _ in self._root.rglob("*")) + len(Path(path).parts) > MOST:
            raise ValueError(f"{path}: there are {MOST} files and directories; move or write those")
        do(path, lambda: (found.parent.mkdir(parents=True, exist_ok=True), found.write_bytes(data)))
        return "written"

    def move(self, source: str, target: str) -> str:
        """Moves a file or directory, also to another name; there must be nothing at the target."""
        found, place = self._inside(source), self._inside(target)
        if not found.exists() or found == self._root:
            raise ValueError(f"{source}: there is no such file or directory")
        if place.exists():
            raise ValueError(f"{target}: it is there already")
        do(target, lambda: (place.parent.mkdir(parents=True, exist_ok=True), found.rename(place)))
        return "moved"

    def reward(self) -> dict[str, float]:
        there = {str(one.relative_to(self._root)): one for one in files_below(self._root)}
        return {"accuracy": float(there.keys() == self._goal.keys() and all(
            not one.is_symlink() and one.stat().st_size <= LARGEST
            and one.read_text(encoding="utf-8", errors="replace") == self._goal[path] for path, one in there.items()))}

    def _shown(self, found: Iterable[Path]) -> str:
        return "\n".join(sorted(str(one.relative_to(self._root)) for one in found))

    def _inside(self, path: str) -> Path:
        """Where a path leads. Raises ValueError outside the directory."""
        if len(path.encode(errors="replace")) > LONGEST:
            raise ValueError(f"'{path[:LONGEST]}…' is longer than {LONGEST} bytes")
        try:
            found = (self._root / path).resolve()
        except (OSError, ValueError, RuntimeError) as error:  # a null character, links in a circle
            raise ValueError(f"'{path}' is no path") from error
        if not found.is_relative_to(self._root):
            raise ValueError(f"'{path}' is outside the directory; needed a relative path below it")
        return found


def files_below(directory: Path) -> list[Path]:
    """Files and symbolic links, which are not followed."""
    if not directory.is_dir():
        raise ValueError("there is no such directory")
    return [one for one in directory.rglob("*") if one.is_symlink() or one.is_file()]


def do(path: str, work: Callable[[], object]) -> None:
    """Runs work; the reason of an error names the path as given, not where the directory is."""
    try:
        work()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
