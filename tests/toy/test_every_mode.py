"""The modes with every real part: exploring alone, training alone on it, evaluating on the way and afterwards.

Only what is compared with the rft of the default recipe asks vLLM; the plain transformers engine starts sooner.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.store import files, records, tables
from tests.toy.conftest import REPOSITORY, SMALL, copy_upstream, plan_in, snakemake, stage_of

pytestmark = pytest.mark.slow

SFT = ("{stage_name: sft, algorithm: {algorithm_type: sft, optimizer: {lr: 1e-3, lr_scheduler_type: cosine}}, "
       "buffer: {batch_size: 128, total_steps: 60}}")
PLAIN = "explorer: {rollout_model: {engine_type: transformers}}"
STAGES = [SFT, "{stage_name: rft}",
          f"{{stage_name: look, after: sft, mode: explore, buffer: {{total_steps: 3}}, {PLAIN}}}",
          f"{{stage_name: learn, mode: train, {PLAIN}}}", "{stage_name: judge, after: rft, mode: bench}"]
"""Six steps: learn makes two passes over the three of look; rft keeps checkpoints 2, 4 and 6."""


def words(*stages: str) -> tuple[str, ...]:
    return (f"stages=[{','.join(stages)}]".replace(": ", ":").replace(", ", ","), "monitor.monitor_type=none")


@pytest.fixture(scope="module")
def made(finished, tmp_path_factory):
    """(root, plan) of the recipe, run once; data, model, sft and rft are those of the default recipe."""
    root = tmp_path_factory.mktemp("modes")
    plan = plan_in(root, *words(*STAGES))
    plan.freeze()
    copy_upstream(finished[1], plan, ("tasks", "curate", "model", "sft", "evaluate_sft", "rft", "evaluate_rft"))
    done = snakemake(root, overrides=words(*STAGES))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return root, plan


def rows(plan, stage: str, table: str) -> list[dict]:
    paths = sorted(Path(stage_of(plan, stage).directory).glob(tables.LOCATIONS[table]))
    return [row for path in paths for row in tables.read(path, records.TABLES[table]).to_pylist()]


def test_what_was_explored_is_trained_on_pass_after_pass(made):
    _, plan = made
    explored, trained = rows(plan, "look", "experience"), rows(plan, "learn", "trained")
    assert [r["step"] for r in explored] == [step for step in (1, 2, 3) for _ in range(32)]
    assert {r["weights_version"] for r in explored} == {0}
    assert sorted(r["experience_id"] for r in trained) == sorted(2 * [r["experience_id"] for r in explored])
    assert [(s["step"], s["staleness_max"]) for s in rows(plan, "learn", "steps")] == [(t, t - 1) for t in range(1, 7)]
    first = rows(plan, "learn", "steps")[0]
    assert first["mismatch_max"] < 1e-4  # the model that explored is the one that is trained
    assert rows(plan, "learn", "steps")[3]["kl"] > first["kl"]  # and then no more
    assert not (Path(stage_of(plan, "look").directory) / "model").exists()


def test_rft_is_evaluated_on_the_way(made):
    """Weights 2 are the only ones handed over. That it trains as without is told in test_resume.py."""
    _, plan = made
    assert [(s["model"].split("-")[0], s["step"]) for s in rows(plan, "rft", "scores") if s["metric"] == "pass@2"] == [
        ("rft", 2)]


def test_a_bench_scores_each_checkpoint_once(made):
    """Those of rft but the last; of sft none beside the last two is kept, which steps 58 and 60 are."""
    root, plan = made
    assert sorted({s["step"] for s in rows(plan, "judge_rft", "scores")}) == [2, 4]
    assert {s["step"] for s in rows(plan, "judge_sft", "scores")} == {58}
    on_the_way = [s["response"] for s in rows(plan, "rft", "samples")]
    assert on_the_way == [s["response"] for s in rows(plan, "judge_rft", "samples") if s["step"] == 2]
    report = (root / "runs/ouroboros/toy/report.html").read_text()
    assert "sampled accuracy, countdown_test" in report


def test_a_stage_that_fails_stops_what_needs_it_and_nothing_else(made, tmp_path):
    """broken has no task left after curation; late and later, whose engine answers nothing, do not need it."""
    root, _ = made
    nothing = tmp_path / "nothing.yaml"
    nothing.write_text("process: [{text_length_filter: {min_len: 1000}}]\n")
    data = f"data_processor: {{task_pipeline: {{config_path: {nothing}}}}}"
    explores = "mode: explore, explorer: {rollout_model: {engine_type: scripted}}, buffer: {total_steps: 2}"
    stages = [SFT, f"{{stage_name: broken, after: [], {data}}}",
              f"{{stage_name: late, after: sft, {explores}}}", f"{{stage_name: later, {explores}}}"]
    every = (f"checkpoint_root_dir={root}", *SMALL, *words(*stages), "buffer.explorer_input.eval_tasksets=[]")
    done = subprocess.run([sys.executable, "-m", "pipeline.cli", "run", *every], cwd=REPOSITORY, capture_output=True,
                          text=True, check=False)
    assert done.returncode not in (0, 2)
    *failed, end = [line for line in done.stderr.splitlines() if line.startswith("ouro: ")][-2:]
    assert failed[0].startswith(("ouro: curate_broken failed: ", "ouro: broken failed: "))
    assert "stages are complete, exit code 1" in end
    plan = plan_in(root, *every[1 + len(SMALL):])
    assert {s.name for s in plan.stages if not files.is_complete(Path(s.directory))} <= {
        "curate_broken", "broken", "report"}
    assert files.is_complete(Path(stage_of(plan, "later").directory))
