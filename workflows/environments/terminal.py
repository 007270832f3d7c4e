"""A terminal for Harbor tasks: `bash`, and `edit`, which writes files without a shell's quoting."""

import base64
import os
import tempfile
import time

from ouroboros.workflows.environments.harbor import OWN_LIMIT, Harbor
from ouroboros.workflows.environments.sandbox import SHOWN
from ouroboros.workflows.protocol.tools import tool

PART = SHOWN * 3 // 4 // 1000 * 1000  # bytes of a file whose base64 is shown whole
LARGEST = 64 * PART
READ = 'test -f "$1" || { echo "$1 is no file"; exit 1; }; tail -c "+$2" "$1" | head -c "$3" | base64'
# a file is replaced whole or not at all: the new one is written next to it, with its mode
WRITE = """
file=$(readlink -f "$1") || file=$1
test -f "$file" || ! test -e "$file" || { echo "$1 is no file"; exit 1; }
mkdir -p "${file%/*}/" || exit 1
! test -f "$file" || cp -p "$file" "$file.$$" || { rm -f "$file.$$"; exit 1; }
cat > "$file.$$" && mv -f "$file.$$" "$file" || { rm -f "$file.$$"; exit 1; }
"""


class Terminal(Harbor):
    """What Harbor is, with a second tool."""

    @tool(seconds=OWN_LIMIT)
    def edit(self, path: str, new_text: str, old_text: str = "") -> str:
        """Replaces old_text, which must be in the file exactly once, by new_text. Without old_text the file is written
        anew, with its directories."""
        place = os.path.normpath(os.path.join(self._task.workdir, path))
        with self._spending() as seconds, tempfile.TemporaryFile() as made:
            until = time.monotonic() + seconds
            try:
                made.write((self._edited(place, old_text, new_text, until) if old_text else new_text).encode())
                made.seek(0)
                self._shell(until, WRITE, place, stdin=made)
            except ValueError as error:
                return f"not edited: {error}"
        return f"wrote {place}"

    def _edited(self, place: str, old_text: str, new_text: str, until: float) -> str:
        content, part = b"", b" " * PART
        while len(part) == PART and len(content) <= LARGEST:
            part = base64.b64decode(self._shell(until, READ, place, str(len(content) + 1), str(PART)))
            content += part
        if len(content) > LARGEST:
            raise ValueError(f"{place} has more than {LARGEST:,} bytes; use bash")
        found = content.decode()  # its error is a ValueError too
        if (times := found.count(old_text)) != 1:
            raise ValueError(f"old_text is {times} times in {place}; needed once")
        return found.replace(old_text, new_text)

    def _shell(self, until: float, script: str, *words: str, **more) -> str:
        """What a script prints. Raises ValueError where it fails or the time is over."""
        ended = self._sandbox.run(["sh", "-c", script, "sh", *words], max(until - time.monotonic(), 0.0),
                                  self._task.workdir, {"PATH": self._path()}, **more)
        if ended.code is None:
            raise ValueError(f"it {ended.why}, and was ended")
        if ended.code:
            raise ValueError(ended.output.strip() or f"exit code {ended.code}")
        return ended.output
