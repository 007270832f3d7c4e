"""Tasks of fetched packages, as a run reads them."""

import json
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from ouroboros.pipeline.store import launch, packages


@cache
def rows(package: str, name: str, split: str = "all", **arguments: Any) -> list[dict]:
    """The tasks of a set; arguments: of its source_args."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tasks.jsonl"
        request = {"package": package, "name": name, "split": split, **arguments}
        subprocess.run(launch.command("ouroboros.operators.task_packages", json.dumps(request), str(path)), check=True,
                       env=packages.environment(packages.folder(package)))
        return [json.loads(line) for line in path.read_text().splitlines()]
