"""One whole pipeline with every real part, looked at as its user would."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ouroboros.commands import cli
from ouroboros.pipeline.job.progress import SAMPLED, interval
from ouroboros.pipeline.results import learnt
from ouroboros.pipeline.results.view import of_plan
from ouroboros.pipeline.store import records, tables
from tests.toy.conftest import REPOSITORY, snakemake, stage_of

pytestmark = pytest.mark.slow


def read(plan, stage: str, table: str):
    """All rows of one table of one stage, as Arrow, checked against the record."""
    import pyarrow as pa

    directory = Path(stage_of(plan, stage).directory)
    paths = sorted(directory.glob(tables.LOCATIONS[table]))
    return pa.concat_tables([tables.read(path, records.TABLES[table]) for path in paths])


def test_every_stage_is_complete_and_the_last_lines_say_what_was_learnt(finished):
    root, plan, output = finished
    assert all(Path(manifest).exists() for manifest in plan.targets)
    learnt_line = next(line for line in output.splitlines() if "learnt: " in line)
    assert [len(re.findall(r"\d+% \[\d+, \d+\]", part)) for part in learnt_line.split(" -> ")] == [1, 1]
    assert (root / "runs/ouroboros/toy/report.html").exists()


def test_every_stage_has_its_measurements_in_the_view_of_the_run(finished):
    _, plan, _ = finished
    assert {path.stem for path in (plan.view / "benchmarks").glob("*.tsv")} == {stage.name for stage in plan.stages}


def test_every_row_read_is_kept_or_rejected(finished):
    _, plan, _ = finished
    raw, kept, rejected = (read(plan, s, t) for s, t in (("tasks", "raw"), ("curate", "tasks"), ("curate", "rejected")))
    assert kept.num_rows + rejected.num_rows == raw.num_rows
    assert set(kept["row"].to_pylist()).isdisjoint(rejected["row"].to_pylist())
    assert min(len(reason) for reason in rejected["reason"].to_pylist()) > 0


def test_experience_has_as_many_rows_as_the_schedule_says_and_their_provenance(finished):
    _, plan, _ = finished
    rows = read(plan, "rft", "experience")
    assert rows.num_rows == 6 * 8 * 4
    assert len(set(rows["experience_id"].to_pylist())) == rows.num_rows
    assert len(set(zip(rows["step"].to_pylist(), rows["seed"].to_pylist(), strict=True))) == rows.num_rows
    # sync_offset 2: step s could have version s - 3, but with sync_interval 2 only version 2 is handed over
    versions = {(s, v) for s, v in zip(rows["step"].to_pylist(), rows["weights_version"].to_pylist(), strict=True)}
    assert versions == {(1, 0), (2, 0), (3, 0), (4, 0), (5, 2), (6, 2)}
    assert len(set(rows["weights_hash"].to_pylist())) == 2
    assert all("vllm" in engine for engine in set(rows["engine"].to_pylist()))


def test_every_row_is_trained_on_once_and_log_probs_agree(finished):
    _, plan, _ = finished
    experience, trained = read(plan, "rft", "experience"), read(plan, "rft", "trained")
    assert sorted(trained["experience_id"].to_pylist()) == sorted(experience["experience_id"].to_pylist())
    steps = read(plan, "rft", "steps").to_pydict()
    assert steps["step"] == [1, 2, 3, 4, 5, 6]
    fresh = [m for m, age in zip(steps["mismatch_max"], steps["staleness_max"], strict=True) if age == 0]
    assert max(fresh) < 1e-4  # float32: vLLM and the trainer agree
    assert all(m > max(fresh) for m, age in zip(steps["mismatch_max"], steps["staleness_max"], strict=True) if age)
    probes = [d for d in read(plan, "rft", "rollouts")["probe_max_difference"].to_pylist() if d is not None]
    assert len(probes) == 2
    assert max(probes) < 1e-4


def test_metrics_are_in_mlflow_nested_under_one_run(finished):
    root, _, _ = finished
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{root}/mlflow.db")
    experiment = client.get_experiment_by_name("ouroboros")
    runs = client.search_runs([experiment.experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 1
    rft = next(run for run in runs if run.data.tags.get("ouro.stage", "").startswith("rft-"))
    assert rft.data.tags["mlflow.parentRunId"] == parents[0].info.run_id
    assert [m.step for m in client.get_metric_history(rft.info.run_id, "actor/loss")] == [1, 2, 3, 4, 5, 6]


def test_a_second_run_makes_nothing_with_another_monitor_and_other_devices(finished):
    root, _, _ = finished
    settings = ("monitor.monitor_type=none", "trainer.ranks=2", "trainer.zero_stage=2", "cluster.gpu_per_node=8")
    done = snakemake(root, overrides=settings)
    assert done.returncode == 0
    assert "Nothing to be" in done.stdout + done.stderr


def test_a_dry_run_says_that_another_learning_rate_remakes_rft_and_what_follows_and_freezes_nothing(finished):
    frozen = finished[0] / "runs/ouroboros/toy/config.yaml"
    before = frozen.read_text()
    done = snakemake(finished[0], "-n", overrides=("algorithm.optimizer.lr=4e-4",))
    assert done.returncode == 0
    rules = re.findall(r"^(?:local)?rule (\w+):", done.stdout + done.stderr, re.M)
    assert {*rules} - {"all"} == {"rft", "evaluate_rft", "report"}
    assert frozen.read_text() == before


def typed(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "snakemake", *words], cwd=REPOSITORY, capture_output=True, text=True,
                          check=False)


def test_lint_finds_nothing_but_the_missing_conda_environments():
    done = typed("--lint")
    remarks = re.findall(r"^    \* (.*)$", done.stdout + done.stderr, re.M)
    assert set(remarks) == {"Specify a conda environment or container for each rule.:"}  # the lock file is ours


def test_the_dag_is_drawn_bare():
    done = typed("--dag")
    assert done.returncode == 0
    assert "digraph" in done.stdout


def test_the_exported_model_has_the_weights_and_a_card_of_its_provenance(finished, tmp_path):
    import yaml
    from transformers import AutoModelForCausalLM

    root, plan, _ = finished
    out = tmp_path / "given"
    assert cli.main(["export", "--root", str(root), "--out", str(out)]) == 0
    rft = Path(stage_of(plan, "rft").directory)
    kept, given = (AutoModelForCausalLM.from_pretrained(place).state_dict() for place in (rft / "model", out))
    assert all(kept[name].equal(given[name]) for name in kept)
    card = (out / "README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["tags"] == ["ouroboros", "sft", "grpo"]
    manifest = json.loads((rft / "manifest.json").read_text())
    assert manifest["steps"] == 6
    (score,) = [one for one in learnt.scores(of_plan(plan)) if one.model == rft.name and one.metric == SAMPLED[0]]
    for fact in (rft.name, Path(stage_of(plan, "sft").directory).name, manifest["weights_hash"], interval(score),
                 "countdown_reward"):
        assert fact in card
    assert cli.main(["export", "--root", str(root), "--out", str(out)]) == 2  # it exists
    assert cli.main(["export", "--root", str(root), "--out", str(tmp_path / "b"), "--push", "no name"]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given"]
