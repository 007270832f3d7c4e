"""docs/examples/train.ipynb: its cells train, as in a notebook, and a second call or process makes nothing again."""

import json
import linecache

import pytest

import ouroboros
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.files import HOME

pytestmark = pytest.mark.slow


def test_the_cells_of_the_notebook_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads((HOME / "docs/examples/train.ipynb").read_text())["cells"]
    names: dict = {"__name__": "__main__"}
    code = {f"/tmp/ipykernel_1/{at}.py": "".join(one["source"]) for at, one in enumerate(cells)
            if one["cell_type"] == "code"}
    for name, text in code.items():
        monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name))
        exec(compile(text, name, "exec"), names)
    run = names["run"]
    assert run == f"{tmp_path.name}/train"
    assert {"taskset", "value"} <= {*run.scores.columns}
    assert len(run.table("experience")) == 2 * 4 * 8
    assert [len([*place.glob("*.safetensors")]) for place in (names["weights"], run.export("out"))] == [1, 1]
    assert names["page"].exists()
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("manifest.json")}
    exec(next(text for text in code.values() if "train(" in text), names)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("manifest.json")} == made
    planned = ouroboros.check("train", data=False, call=False).plan.stages
    assert all(files.is_complete(stage.directory) for stage in planned)
