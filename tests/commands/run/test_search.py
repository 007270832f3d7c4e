"""A search that decides point after point: what one point returns, what it leaves, how it fails."""

import signal
import sys
import threading
from pathlib import Path

import pytest

from ouroboros.commands.run import invoke, search
from ouroboros.commands.run.console import Ended
from ouroboros.commands.run.planning import make_checked_plan
from ouroboros.pipeline.job.process_group import run_group
from ouroboros.pipeline.results import sweep_view
from ouroboros.pipeline.results.compare import compared
from ouroboros.pipeline.store import files, records, tables
from ouroboros.pipeline.store.errors import ConfigError, DataError, StageError
from tests.factories import row
from tests.golden.messages import refuses, wording

LR = "algorithm.optimizer.lr"


@pytest.fixture
def started(monkeypatch):
    """Stands in for snakemake: makes what is missing; the solve rate is 1 - |lr - 0.3|. Returns what it was given."""
    calls = []

    def start(overrides: list[str], extra: list[str], plan) -> Ended:
        calls.append((overrides, extra))
        plan.freeze()
        for stage in plan.stages:
            directory = Path(stage.directory)
            if stage.kind == "evaluate":
                value = 1 - abs(plan.config.algorithm.optimizer.lr - 0.3)
                tables.write(tables.step_file(directory, "scores", 1), records.Score, [
                    row(records.Score, model=stage.name, taskset=taskset, metric="sampled_accuracy", value=value - less)
                    for taskset, less in (("first", 0), ("second", 0.1))])
            files.write_json(directory / files.MANIFEST, {"seconds": 1.0})
        return Ended(0.0, 0)

    monkeypatch.setattr(invoke, "start", start)
    return calls


def test_a_sweeper_that_halves_its_interval_finds_the_best_learning_rate(tmp_path, started):
    """Thirds of [0, 1]: the scores at 1/3 and 2/3 drop the right third, and so on around 0.3."""
    fixed = [f"checkpoint_root_dir={tmp_path}", "name=hunt"]
    low, high = 0.0, 1.0
    for _ in range(6):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        better = search.objective([*fixed, f"{LR}={a:.4f}"]) >= search.objective([*fixed, f"{LR}={b:.4f}"])
        low, high = (low, b) if better else (a, high)
    assert low < 0.3 < high
    assert high - low == pytest.approx((2 / 3) ** 6)
    assert len(started) == 12
    hunt = sweep_view.find(tmp_path, "hunt")
    assert len(hunt.entries) == 12
    best = compared([hunt])[0]
    assert float(best.differs["lr"]) == pytest.approx(0.3, abs=0.02)
    assert best.run == f"ouroboros/hunt-lr={float(best.differs['lr'])}"


def test_a_point_that_is_complete_is_not_run_again_and_stands_once_in_the_search(tmp_path, started):
    words = [f"checkpoint_root_dir={tmp_path}", f"{LR}=0.25"]
    assert search.objective(words) == search.objective(words) == pytest.approx(0.95)
    assert len(started) == 1
    assert len(sweep_view.find(tmp_path, "countdown").entries) == 1


def test_metric_and_evaluation_set_can_be_chosen(tmp_path, started):
    words = [f"checkpoint_root_dir={tmp_path}", f"{LR}=0.25"]
    assert search.objective(words, taskset="second", snakemake=["--cores", "4"]) == pytest.approx(0.85)
    assert started[0][1] == ["--cores", "4"]
    with refuses(DataError, "pass@1", "sampled_accuracy"):
        search.objective(words, "pass@1", "third")


def test_a_stage_that_fails_is_an_error_that_says_why(tmp_path, monkeypatch):
    def start(overrides, extra, plan):
        plan.freeze()
        (Path(plan.stages[0].directory) / "stage.error").write_text("no such file\nlog")
        return Ended(0.0, 1)

    monkeypatch.setattr(invoke, "start", start)
    with refuses(StageError, "failed"):
        search.objective([f"checkpoint_root_dir={tmp_path}", f"{LR}=0.25"])
    assert not (tmp_path / "runs/ouroboros/countdown/sweep.json").exists()


@pytest.mark.parametrize(("word", "key"), [
    ("algorithm.optimizer.lrr=1", "algorithm.optimizer.lrr"),
    ("++continue_from_checkpoint=false", "continue_from_checkpoint")])  # points would be made again
def test_a_mistake_is_told_before_anything_runs(tmp_path, started, word, key):
    with pytest.raises(ConfigError) as refused:
        search.objective([f"checkpoint_root_dir={tmp_path}", word])
    assert [problem.key for problem in refused.value.problems] == [key]
    assert not started


def test_ctrl_c_ends_the_search_and_not_only_its_point(tmp_path, monkeypatch):
    monkeypatch.setattr(invoke, "start", lambda *_: Ended(0.0, 1, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        search.objective([f"checkpoint_root_dir={tmp_path}", f"{LR}=0.25"])


def test_it_composes_inside_an_application_of_hydra_and_leaves_that_as_it_was(tmp_path, started):
    from hydra import initialize
    from hydra.core.global_hydra import GlobalHydra

    with initialize(version_base="1.3", config_path=None):
        outer = GlobalHydra.instance().hydra
        assert search.objective([f"checkpoint_root_dir={tmp_path}", f"{LR}=0.25"]) == pytest.approx(0.95)
        assert GlobalHydra.instance().hydra is outer


def test_points_that_end_together_are_all_recorded(tmp_path):
    """As from several processes: none may overwrite what another added."""
    from ouroboros.commands.run.sweep import Point

    plan = make_checked_plan([f"checkpoint_root_dir={tmp_path}"])
    points = [Point([], {"seed": str(i)}, plan) for i in range(8)]
    workers = [threading.Thread(target=search._record, args=(tmp_path / "runs/p/s", renamed(p, i)))
               for i, p in enumerate(points)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    kept = files.read_json(tmp_path / "runs/p/s/sweep.json")["points"]
    assert sorted(p["differs"]["seed"] for p in kept) == [str(i) for i in range(8)]


def renamed(point, index: int):
    from dataclasses import replace

    return replace(point, plan=replace(point.plan, name=f"s-seed={index}"))


def test_snakemake_can_be_started_from_a_worker_thread():
    """Optuna's n_jobs are threads, and only the main one may listen to Ctrl-C."""


    codes = []
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    worker = threading.Thread(target=lambda: codes.append(run_group(command, {}, {}, lambda: None)))
    worker.start()
    worker.join()
    assert codes == [(3, None)]


def test_the_script_for_optuna_does_what_optuna_asks(tmp_path, started, monkeypatch, capsys):
    """A stand-in that proposes two points, the second of them the better one: lr 0.003 against 0.0001."""
    import runpy
    import types

    class Study:
        best_params = "those of the second"

        def optimize(self, score, n_trials, catch):
            proposed = ({"lr": 1e-4, "clip_high": 0.2}, {"lr": 3e-3, "clip_high": 0.4})
            trials = [types.SimpleNamespace(suggest_float=lambda name, low, high, log=False, at=at: at[name])
                      for at in proposed]
            self.best_value = max(score(trial) for trial in trials)

    monkeypatch.setitem(sys.modules, "optuna", types.SimpleNamespace(create_study=lambda **words: Study()))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(invoke.HOME / "docs/examples/optuna_search.py"))
    wording(capsys.readouterr().out, "70.3%")  # 1 - |0.003 - 0.3|
    rows = compared([sweep_view.find(tmp_path, "hunt")])
    assert [row.differs for row in rows] == [{"lr": "0.003", "clip_range_high": "0.4"},
                                             {"lr": "0.0001", "clip_range_high": "0.2"}]
