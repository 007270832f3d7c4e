"""A terminal for Harbor tasks: `bash`, and `edit`, which writes files without a shell's quoting."""

import base64
import os
import tempfile

from workflows.environments.harbor import FILE_SECONDS, OWN_LIMIT, Harbor
from workflows.environments.sandbox import SHOWN, Ended
from workflows.protocol.tools import tool

PART = SHOWN * 3 // 4 // 1000 * 1000  # bytes of a file whose base64 is shown whole
LARGEST = 64 * PART
READ = 'test -f "$1" || { echo "$1 is no file"; exit 1; }; tail -c "+$2" "$1" | head -c "$3" | base64'
WRITE = 'mkdir -p "${1%/*}/" && cat > "$1"'


class Terminal(Harbor):
    """What Harbor is, with a second tool."""

    @tool(seconds=OWN_LIMIT)
    def edit(self, path: str, new_text: str, old_text: str = "") -> str:
        """Replaces old_text, which must be in the file exactly once, by new_text. Without old_text the file is written
        anew, with its directories."""
        place = os.path.normpath(os.path.join(self._task.workdir, path))
        try:
            text = self._edited(place, old_text, new_text) if old_text else new_text
        except ValueError as error:
            return f"not edited: {error}"
        with tempfile.TemporaryFile() as made:
            made.write(text.encode())
            made.seek(0)
            ended = self._shell(WRITE, place, stdin=made)
        return f"not edited: {ended.output.strip()}" if ended.code else f"wrote {place}"

    def _edited(self, place: str, old_text: str, new_text: str) -> str:
        content = b""
        while not len(content) % PART and len(content) <= LARGEST:
            ended = self._shell(READ, place, str(len(content) + 1), str(PART))
            if ended.code or not (part := base64.b64decode(ended.output)):
                break
            content += part
        if ended.code:
            raise ValueError(ended.output.strip() or f"{place} could not be read")
        if len(content) > LARGEST:
            raise ValueError(f"{place} has more than {LARGEST:,} bytes; use bash")
        found = content.decode()  # its error is a ValueError too
        if (times := found.count(old_text)) != 1:
            raise ValueError(f"old_text is {times} times in {place}; needed once")
        return found.replace(old_text, new_text)

    def _shell(self, script: str, *words: str, **more) -> Ended:
        return self._sandbox.run(["sh", "-c", script, "sh", *words], FILE_SECONDS, self._task.workdir,
                                 {"PATH": self._path()}, **more)
