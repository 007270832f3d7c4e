"""`ouro tree`: which runs branch from which, and what each changed."""

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.results.tree import tree
from ouroboros.pipeline.results.view import views


def test_branches_are_below_their_trunk_and_runs_without_any_are_not_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    at, rate = "stages.rft.changes=", "algorithm.optimizer.lr"
    runs = {"trunk": (), "other": ("stages.rft.model.top_k=7",), "b": (f"{at}{{100:{{{rate}:1e-4}}}}",),
            "a": (f"{at}{{20:{{{rate}:1e-4}}}}",), "c": (f"{at}{{100:{{{rate}:1e-4}},200:{{model.top_k:5}}}}",)}
    for name, words in runs.items():
        make_plan(compose([f"name={name}", *words])).freeze()
    found = tree(views(tmp_path))
    assert [row[:4] for row in found.rows] == [
        ("ouroboros/trunk", "rft", "", 0), ("  ouroboros/a", "rft", f"@20 {rate}=0.0001", 0),
        ("  ouroboros/b", "rft", f"@100 {rate}=0.0001", 0), ("    ouroboros/c", "rft", "@200 model.top_k=5", 0)]
