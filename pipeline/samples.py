"""Asks stages/preview.py, in a process of its own, what a sample of the data looks like to the model."""

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.errors import StageError
from pipeline.external import nothing_at, resolve
from pipeline.files import CONF
from pipeline.sources import sources as sources_of

ROWS = 200  # read of each source


def preview(config: dict[str, Any], stages: list[dict[str, Any]]) -> dict[str, list]:
    """Lists `problems`, `warnings`, `unjudged`, and `facts` as [word, sentence], of the sources that exist and of the
    Data-Juicer recipes and operators of the stages.

    stages: their whole settings. Raises StageError when the process dies.
    """
    sources = dict.fromkeys(source for stage in stages for source in sources_of(stage))
    pipelines = [stage["data_processor"]["task_pipeline"] for stage in stages]
    request = {
        "sources": [{**dataclasses.asdict(s), "key": s.told, "path": str(resolve(s.path)), "columns": dict(s.columns)}
                    for s in sources if not nothing_at(s.path)],
        "rows": ROWS,
        "model": config["model"],
        "system_prompt": config["buffer"]["explorer_input"]["system_prompt"],
        "recipes": _distinct(str(resolve(one["config_path"])) for one in pipelines
                             if one["config_path"] and resolve(one["config_path"]).is_file()),
        "operators": _distinct([one["operators"], one["target_fields"]] for one in pipelines if one["operators"]),
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


def _distinct(values: Iterable) -> list:
    """Values that need not be hashable, each once, in order."""
    kept: list = []
    for value in values:
        kept += [] if value in kept else [value]
    return kept
