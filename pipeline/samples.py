"""Asks stages/preview.py, in a process of its own, what a sample of the data looks like to the model."""

import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.errors import StageError
from pipeline.external import resolve
from pipeline.files import CONF
from pipeline.inputs import Source

ROWS = 200  # read of each source


def preview(config: dict[str, Any], sources: list[Source]) -> dict[str, list]:
    """Lists `problems`, `warnings`, `unjudged`, and `facts` as [word, sentence], of the sources that exist.

    Raises StageError when the process dies.
    """
    recipe = config["data_processor"]["task_pipeline"]["config_path"]
    request = {
        "sources": [{**dataclasses.asdict(s), "key": s.told, "path": str(resolve(s.path)), "columns": dict(s.columns)}
                    for s in sources if resolve(s.path).exists()],
        "rows": ROWS,
        "model": config["model"],
        "system_prompt": config["buffer"]["explorer_input"]["system_prompt"],
        "recipe": str(resolve(recipe)) if recipe and resolve(recipe).exists() else None,
    }
    with tempfile.TemporaryDirectory() as directory:
        asked, answer = Path(directory) / "request.json", Path(directory) / "answer.json"
        files.write_json(asked, request)
        path = os.pathsep.join([str(CONF.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run([sys.executable, "-m", "stages.preview", str(asked), str(answer)], capture_output=True,
                              text=True, env=os.environ | {"PYTHONPATH": path}, check=False)
        if done.returncode:
            last = "\n".join(done.stderr.strip().splitlines()[-5:])
            raise StageError(f"the preview of the data ended with exit code {done.returncode}:\n{last}")
        return files.read_json(answer)
