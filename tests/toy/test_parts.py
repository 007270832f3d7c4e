"""One sweep with the parts that the default recipe leaves out: PPO, turns, a teacher, the other modes, two ranks.

Data, model and sft are those of the default recipe. The plain transformers engine starts sooner than vLLM; its
log-probs, unlike vLLM's, follow the number of threads.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.results import sweep_view
from ouroboros.pipeline.store import files
from tests.toy import kill
from tests.toy.conftest import REPOSITORY, SMALL, copy_upstream, stage_of, table

SFT = """
- stage_name: sft
  algorithm: {algorithm_type: sft, optimizer: {lr: 4.0e-3, lr_scheduler_type: cosine, lr_warmup_steps: 0}}
  buffer: {batch_size: 64, total_steps: 30}
"""
PARTS = SFT + """
- stage_name: ppo
  algorithm:
    algorithm_type: ppo
    bypass_old_logprobs: false
    kl_loss_fn: k3
    kl_loss_fn_args: {adaptive: true, target_kl: 0.001, horizon: 100}
    kl_penalty_fn: k1
    kl_penalty_fn_args: {adaptive: true, target_kl: 0.001, horizon: 100}
  trainer: {critic_warmup: 1, critic: {optimizer: {lr: 1.0e-3}}, max_checkpoints_to_keep: 9}
  explorer: {eval_interval: 2}
- {stage_name: judge, after: ppo, mode: bench}
- {stage_name: look, after: sft, mode: explore, buffer: {total_steps: 3, explorer_input: {eval_tasksets: []}}}
- {stage_name: learn, mode: train, buffer: {explorer_input: {eval_tasksets: []}}}
- stage_name: turns
  after: []
  seed: 7
  model: {max_model_len: 64, init: {num_hidden_layers: 2}}
  algorithm: {algorithm_type: gigpo}
  trainer: {ranks: 2, zero_stage: 2}
  buffer: &retried
    total_steps: 4
    explorer_input:
      eval_tasksets: []
      taskset: {default_workflow_type: retry_workflow, workflow_args: {max_env_steps: 2, feedback: 'no'}}
- stage_name: taught
  after: []
  model: {max_model_len: 64, teacher_model_path: turns, init: {num_hidden_layers: 1}}
  algorithm: {algorithm_type: jsd}
  buffer: *retried
"""
"""Of six steps where nothing else is said: learn makes two passes over the three of look. The model of taught is not of
its teacher's architecture."""
RATES = (1.25e-4, 5e-4)  # of learn
UPSTREAM = ("tasks", "curate", "model", "sft", "evaluate_sft")


def flow(value) -> str:
    """A value as a word of the command line."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(flow, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def words(root: Path, stages: str) -> list[str]:
    """Overrides of a run of these stages."""
    return [f"checkpoint_root_dir={root}", *(word for word in SMALL if not word.startswith("stages.")),
            "stages=" + flow(yaml.safe_load(stages)), "explorer=transformers", "synchronizer.sync_interval=1",
            "algorithm.optimizer.lr_warmup_steps=0"]


def run(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "ouroboros", "run", *words], cwd=REPOSITORY, capture_output=True,
                          text=True, check=False)


@pytest.fixture(scope="module")
def made(finished, tmp_path_factory):
    """(root, plan of the first point) of the sweep, run once."""
    root = tmp_path_factory.mktemp("parts")
    plan = make_plan(compose([*words(root, PARTS), f"stages.learn.algorithm.optimizer.lr={RATES[0]}"]))
    plan.freeze()
    copy_upstream(finished.plan, plan, UPSTREAM)
    done = run("-m", *words(root, PARTS), f"stages.learn.algorithm.optimizer.lr={RATES[0]},{RATES[1]}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return root, plan


def directory_of(plan, name: str) -> Path:
    return Path(stage_of(plan, name).directory)


@pytest.mark.slow
def test_two_points_share_all_but_the_stage_that_differs(made, finished):
    """Stages of the default recipe, copied, are not made again: their identities are the same."""
    root, plan = made
    assert [stage_of(plan, name).identity for name in UPSTREAM] == [
        stage_of(finished.plan, name).identity for name in UPSTREAM]
    stages = Counter(path.parent.name.rsplit("-", 1)[0] for path in (root / "store").glob("*/manifest.json"))
    assert stages == {stage.name: 1 + (stage.name in ("learn", "report")) for stage in plan.stages}
    entries = sweep_view.find(root, "toy").entries
    first, second = (table(entry.view.path / "stages/learn", "steps")[1]["lr"] for entry in entries)
    assert second / first == pytest.approx(RATES[1] / RATES[0])
    assert all((entry.view.path / "report.html").exists() for entry in entries)
    assert (root / "runs/ouroboros/toy/compare.html").exists()
    assert (directory_of(plan, "ppo") / "stage.log").read_text().count("complete in") == 1


@pytest.mark.slow
def test_what_was_explored_is_trained_on_pass_after_pass(made):
    _, plan = made
    look, learn = directory_of(plan, "look"), directory_of(plan, "learn")
    explored, steps = table(look, "experience"), table(learn, "steps")
    assert [r["step"] for r in explored] == [step for step in (1, 2, 3) for _ in range(32)]
    assert {r["weights_version"] for r in explored} == {0}
    assert sorted(r["experience_id"] for r in table(learn, "trained")) == sorted(
        2 * [r["experience_id"] for r in explored])
    assert [(s["step"], s["staleness_max"]) for s in steps] == [(t, t - 1) for t in range(1, 7)]
    assert steps[0]["mismatch_max"] < 1e-4  # the model that explored is the one that is trained
    assert steps[3]["kl"] > steps[0]["kl"]  # and then no more
    assert not (look / "model").exists()


@pytest.mark.slow
def test_a_bench_scores_each_checkpoint_once_and_as_the_evaluation_on_the_way(made):
    """The last checkpoint of each is left to its evaluate stage; of sft the last two are kept, of steps 28 and 30.

    With sync_offset 2, step 6 needs weights 3: of every second version only 2 is handed over.
    """
    root, plan = made
    assert [s["step"] for s in table(directory_of(plan, "ppo"), "scores") if s["metric"] == "pass@2"] == [2]
    assert {s["step"] for s in table(directory_of(plan, "judge_ppo"), "scores")} == {2, 4}
    assert {s["step"] for s in table(directory_of(plan, "judge_sft"), "scores")} == {28}
    on_the_way, afterwards = (
        [s["response"] for s in table(directory_of(plan, name), "samples")] for name in ("ppo", "judge_ppo"))
    assert on_the_way == afterwards[:len(on_the_way)]  # then those of step 4
    for entry in sweep_view.find(root, "toy").entries:
        assert "sampled accuracy, countdown_test" in (entry.view.path / "report.html").read_text()


@pytest.mark.slow
def test_ppo_warms_its_critic_up_and_its_coefficients_move(made):
    steps = table(directory_of(made[1], "ppo"), "steps")
    assert [row["lr"] > 0 for row in steps] == [False, *[True] * 5]  # 1: the critic alone
    assert steps[4]["grad_norm"] > 0
    assert len({row["kl_loss_coef"] for row in steps}) > 3


@pytest.mark.slow
def test_turns_are_trained_together_by_two_ranks(made):
    directory = directory_of(made[1], "turns")
    rows = {row["experience_id"]: row for row in table(directory, "experience")}
    trained = [rows[row["experience_id"]] | row for row in table(directory, "trained")]
    for step in range(1, 5):
        assert {row["slot"] for row in trained if row["train_step"] == step} == set(range(32))  # 8 tasks x 4 repeats
        assert {row["turn"] for row in trained if row["train_step"] == step} == {0, 1}
    assert list(directory.rglob("*rank_1_*"))


@pytest.mark.slow
def test_a_student_learns_from_its_teachers_scores(made):
    directory = directory_of(made[1], "taught")
    assert all(step["teacher_kl"] > 0 and step["grad_norm"] > 0 for step in table(directory, "steps")[:3])
    assert {row["experience_id"] for row in table(directory, "teacher")} >= {
        row["experience_id"] for row in table(directory, "trained")}


@pytest.mark.kill
def test_killed_by_hand_a_stage_ends_as_under_snakemake(made, tmp_path):
    """Killed a step after a checkpoint. The shell has set other numbers of threads than Snakemake's."""
    _, plan = made
    again = make_plan(compose(words(tmp_path, PARTS)))
    again.freeze()
    copy_upstream(plan, again, (*UPSTREAM, "turns", "model_taught"))
    stage, shell = stage_of(again, "taught"), {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}
    kill.killed(stage, "steps", 3, **shell)
    assert kill.start(stage, **shell).wait(timeout=400) == 0
    found, expected = (kill.made(Path(one.directory)) for one in (stage, stage_of(plan, "taught")))
    for key in expected:
        assert found[key] == expected[key], key


@pytest.mark.wide
def test_a_stage_that_fails_stops_what_needs_it_and_nothing_else(finished, tmp_path):
    """broken has no task left after curation; late and later, whose engine answers nothing, do not need it."""
    nothing = tmp_path / "nothing.yaml"
    nothing.write_text("process: [{text_length_filter: {min_len: 1000}}]\n")
    explores = "mode: explore, explorer: {rollout_model: {engine_type: scripted}}, buffer: {total_steps: 2}"
    stages = f"""{SFT}
- {{stage_name: broken, after: [], data_processor: {{task_pipeline: {{config_path: {nothing}}}}}}}
- {{stage_name: late, after: sft, {explores}}}
- {{stage_name: later, {explores}}}
"""
    every = [*words(tmp_path, stages), "buffer.explorer_input.eval_tasksets=[]"]
    plan = make_plan(compose(every))
    plan.freeze()
    copy_upstream(finished.plan, plan, UPSTREAM[:4])
    done = run(*every)
    assert done.returncode not in (0, 2)
    *failed, end = [line for line in done.stderr.splitlines() if line.startswith("ouro: ")][-2:]
    assert failed[0].startswith(("ouro: curate_broken failed: ", "ouro: broken failed: "))
    assert "exit code 1" in end
    assert {s.name for s in plan.stages if not files.is_complete(Path(s.directory))} <= {
        "curate_broken", "broken", "report"}
    assert files.is_complete(Path(stage_of(plan, "later").directory))
