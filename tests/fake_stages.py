"""Stage modules that do nothing but leave what the next ones and the tests look at, in a directory of their own.

A sitecustomize.py in the working directory, which Python imports at its start, puts them before ours, so the real
Snakefile, started there, runs these. Each appends its directory to made.txt; `rft` fails where its learning rate is
0.5.
"""

from pathlib import Path

KINDS = ("tasks", "curate", "model", "train", "rft", "evaluate", "report")

STAGE = '''
import os, sys
from pathlib import Path
from ouroboros.pipeline.store import files, records, tables
from tests.factories import row

directory = Path(sys.argv[1])
spec = files.read_json(directory / "stage.json")
with open("made.txt", "a") as made:
    made.write(directory.name + "\\n")
lr = spec["config"].get("algorithm", {}).get("optimizer", {}).get("lr")
if spec["kind"] == "rft" and lr == 0.5:
    (directory / "stage.error").write_text("the trainer diverged\\nlog: none\\n")
    sys.exit(2)
if spec["kind"] == "evaluate":  # the solve rate is 1 - lr of the stage that made the model
    model = Path(spec["inputs"]["model"])
    value = 1 - files.read_json(model / "stage.json")["config"]["algorithm"]["optimizer"]["lr"]
    tables.write(tables.step_file(directory, "scores", 1), records.Score, [
        row(records.Score, stage=directory.name, model=model.name.rsplit("-", 1)[0], taskset="test",
            metric="sampled_accuracy", value=value, low=value - 0.1, high=value + 0.05, tasks=8, runs=4)])
files.write_json(directory / "manifest.json", {"name": spec["name"], "identity": spec["identity"], "seconds": 1.0})
'''

OURS = """
import runpy, sys

import ouroboros

ouroboros.__path__.remove({fakes!r})
for name in [one for one in sys.modules if one.startswith("ouroboros.stages")]:
    del sys.modules[name]
runpy.run_module("ouroboros.stages.preview", run_name="__main__")
"""


def write(directory: Path) -> None:
    """A package `stages` below `directory`, and what makes it the `ouroboros.stages` of processes started there."""
    package = directory / "fakes" / "stages"
    package.mkdir(parents=True)
    (directory / "sitecustomize.py").write_text(
        f"import ouroboros\nouroboros.__path__.insert(0, {str(package.parent)!r})\n")
    (package / "__init__.py").touch()
    (package / "preview.py").write_text(OURS.format(fakes=str(package.parent)))  # no stage: ours samples the data
    for kind in KINDS:
        (package / f"{kind}.py").write_text(STAGE)
