"""Build hook of hatchling: what an installed wheel needs besides the packages; an editable install has the checkout."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BESIDE = ("Snakefile", "requirements.lock", "requirements-gpu.lock", "requirements-gpu-old.lock")
COMMIT = "COMMIT"  # of the checkout that the wheel was built in: pipeline/job/context.py


class Files(BuildHookInterface):
    """Adds files to a wheel."""

    _made: Path | None = None  # holds those that no checkout has

    def initialize(self, version: str, build_data: dict) -> None:
        """version: `editable` or `standard`. build_data: maps files to their place in the wheel, among other things."""
        if version == "editable":
            return
        made = self._made = Path(tempfile.mkdtemp())
        build_data["force_include"] |= {str(Path(self.root, name)): f"ouroboros/{name}" for name in BESIDE}
        described = subprocess.run(["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+dirty"],
                                   cwd=self.root, capture_output=True, text=True, check=False)
        if described.returncode == 0 and Path(self.root, ".git").exists():
            (made / COMMIT).write_text(described.stdout.strip())
            build_data["force_include"][str(made / COMMIT)] = f"ouroboros/{COMMIT}"

    def finalize(self, version: str, build_data: dict, artifact_path: str) -> None:
        """Deletes what `initialize` made."""
        if self._made:
            shutil.rmtree(self._made)
