"""The union of the points' graphs: what is shared, what the points are called, which problems are told."""

import os
import time

import pytest

from ouroboros.commands.run import sweep
from ouroboros.commands.run.sweep import make_sweep, rules
from ouroboros.pipeline.check import judge
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.results import view
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import ConfigError
from tests.golden.messages import wording

LR = "algorithm.optimizer.lr"


def made(root, *words: str) -> sweep.Sweep:
    return make_sweep([f"checkpoint_root_dir={root}", *words])


def refused(root, *words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        made(root, *words)
    return str(caught.value)


def test_a_learning_rate_of_rft_shares_what_comes_before_it(tmp_path):
    """Five stages up to evaluate_sft once; rft, evaluate_rft and the report for each of the two points."""
    made_sweep = made(tmp_path, f"{LR}=1e-6,3e-6")
    assert [len(p.plan.stages) for p in made_sweep.points] == [8, 8]
    names = [name for name, _ in rules(made_sweep.stages)]
    assert names[:5] == ["tasks", "curate", "model", "sft", "evaluate_sft"]
    assert [name.rsplit("_", 1)[0] for name in names[5:]] == ["rft", "evaluate_rft", "report"] * 2
    assert len(set(names)) == len(names) == 11
    assert all(name.endswith(stage.identity) for name, stage in rules(made_sweep.stages)[5:])


def test_points_that_differ_in_how_a_stage_runs_are_told_to_be_one(tmp_path):
    assert made(tmp_path, f"{LR}=1e-6,3e-6").warnings == []
    first, second = made(tmp_path, f"{LR}=1e-6,3e-6", "trainer.ranks=1,2").warnings
    wording(first, "lr=1e-6,ranks=1; lr=1e-6,ranks=2")
    wording(second, "lr=3e-6,ranks=1")


def test_a_seed_shares_nothing_and_every_stage_comes_after_its_inputs(tmp_path):
    stages = made(tmp_path, f"{LR}=1e-6,3e-6", "seed=1,2").stages
    assert len(stages) == 2 * (5 + 2 * 3)  # per seed five shared ones, and three for each learning rate
    for i, stage in enumerate(stages):
        assert set(stage.upstream) <= {s.manifest for s in stages[:i]}


def test_one_point_names_its_rules_after_its_stages(tmp_path):
    one = made(tmp_path, "name=x")
    assert [name for name, _ in rules(one.stages)] == [s.name for s in one.stages]
    assert [p.plan.name for p in one.points] == ["x"]


def test_a_point_is_the_run_that_its_overrides_make_alone(tmp_path):
    from ouroboros.pipeline.plan.plan import make_plan

    point = made(tmp_path, f"{LR}=1e-6,3e-6", "stages.sft.seed=5,6").points[3]
    assert point.differs == {LR: "3e-6", "stages.sft.seed": "6"}
    assert point.plan.name == "countdown-lr=3e-6,sft.seed=6"
    alone = make_plan(judge.compose([*point.overrides, "name='countdown-lr=3e-6,sft.seed=6'"]))
    assert [s.identity for s in alone.stages] == [s.identity for s in point.plan.stages]


def test_freezing_leaves_a_view_of_every_point_and_of_the_sweep(tmp_path):
    both = made(tmp_path, "name=x", f"{LR}=1e-6,3e-6")
    assert not (tmp_path / "runs").exists()
    both.freeze()
    assert sorted(os.listdir(tmp_path / "runs/ouroboros")) == ["x", "x-lr=1e-6", "x-lr=3e-6"]
    kept = files.read_json(tmp_path / "runs/ouroboros/x/sweep.json")
    assert [p["run"] for p in kept["points"]] == ["ouroboros/x-lr=1e-6", "ouroboros/x-lr=3e-6"]
    assert kept["points"][1]["differs"] == {LR: "3e-6"}
    assert f"{LR}=3e-06" in kept["points"][1]["overrides"]
    assert view.open_view(tmp_path / "runs/ouroboros/x-lr=3e-6").run == "ouroboros/x-lr=3e-6"
    by_name = {name: files.read_json(f"{s.directory}/stage.json")["run"] for name, s in rules(both.stages)}
    assert by_name["sft"] == "ouroboros/x-lr=1e-6"  # the first that has it
    assert sorted(run for name, run in by_name.items() if name.startswith("rft")) == [
        "ouroboros/x-lr=1e-6", "ouroboros/x-lr=3e-6"]


def test_recipes_with_names_of_their_own_are_joined_in_the_sweeps_name(tmp_path, monkeypatch):
    real = judge.compose

    def named(overrides):
        chosen = next((o for o in overrides if o.startswith("seed=")), "seed=0")
        return real([*overrides, f"name=recipe{chosen[-1]}"])

    monkeypatch.setattr(sweep, "compose", named)
    both = made(tmp_path, "seed=1,2")
    assert both.name == "recipe1+recipe2"
    assert [p.plan.name for p in both.points] == ["recipe1+recipe2-seed=1", "recipe1+recipe2-seed=2"]


def test_a_problem_is_told_once_with_the_points_it_concerns(tmp_path):
    message = refused(tmp_path, f"{LR}=1e-6,-1", "algorithm.repeat_times=1,2", "trainer.grad_clip=-1")
    lines = message.splitlines()
    wording(lines[0], "problems")
    told = {line.strip().removeprefix("stage 'rft': ").split(":")[0]: line for line in lines[1:]}
    wording(told["trainer.grad_clip=-1"], "all 4", "points")
    assert told["algorithm.optimizer.lr=-1"].endswith("(points: lr=-1,repeat_times=1; lr=-1,repeat_times=2)")
    assert told["algorithm.repeat_times=1"].endswith("(points: lr=1e-6,repeat_times=1; lr=-1,repeat_times=1)")
    assert len(lines) == len(set(lines))


def test_many_points_with_a_problem_are_counted(tmp_path):
    message = refused(tmp_path, "seed=-6,-5,-4,-3,-2,-1,1", "stages.rft.algorithm.repeat_tims=4", "trainer.ranks=0,1")
    wording(message, "algorithm.repeat_tims", "'algorithm.repeat_times'? ", "points")


def test_problems_that_only_planning_finds_are_told_for_all_points(tmp_path):
    message = refused(tmp_path, "data_processor.task_pipeline.generator=null",
                      "data_processor.task_pipeline.inputs=[/nowhere/a],[/nowhere/b]")
    assert "/nowhere/a" in message
    assert "/nowhere/b" in message
    assert "(point: inputs=[/nowhere/a])" in message


def test_a_sweep_has_one_project(tmp_path, monkeypatch):
    real = judge.compose
    monkeypatch.setattr(sweep, "compose", lambda o: real(o).but("project", "a" if "seed=1" in o else "b"))
    wording(refused(tmp_path, "seed=1,2"), "2 values", "(a, b)", "project=VALUE")


@pytest.mark.parametrize("points", [10_000, 1_000_000_000])
def test_more_points_than_wanted_are_counted_and_refused_after_one_composition(tmp_path, monkeypatch, points):
    calls = []
    real = judge.compose
    monkeypatch.setattr(sweep, "compose", lambda o: calls.append(o) or real(o))
    begin = time.monotonic()
    message = refused(tmp_path, f"seed=range(0,{points})")
    wording(message, f"{points}", "sweep.max_points=64")
    assert f"sweep.max_points={points}." in message
    assert len(calls) == 1
    wording(refused(tmp_path, f"seed=range(0,{points})", "trainer.ranks=0"), f"{points}", "sweep.max_points=64")
    assert time.monotonic() - begin < 10


def test_the_points_wanted_count_where_the_first_has_a_problem(tmp_path):
    wording(refused(tmp_path, "seed=range(0,65)", "foo=1"), "65 points", "sweep.max_points=64")
    wording(refused(tmp_path, "seed=range(0,65)", "foo=1", "sweep.max_points=65"), "(all 65 points)")
    wording(refused(tmp_path, "seed=1,2", "sweep.max_points=1"), "2 points", "sweep.max_points=1")
    assert len(made(tmp_path, "seed=1,2", "sweep.max_points=2").points) == 2


def test_eight_points_take_no_longer_to_plan_than_twice_eight_single_ones(tmp_path):
    made(tmp_path, "seed=1")  # imports
    begin = time.process_time()  # the machine may be busy with something else
    made(tmp_path, "seed=2")
    single = time.process_time()
    made(tmp_path, f"{LR}=1e-6,3e-6", "seed=1,2,3,4")
    assert time.process_time() - single < 2 * 8 * (single - begin)


def test_a_long_sweep_says_how_far_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ouroboros.commands.run.sweep.PROGRESS_SECONDS", 0.0)
    made(tmp_path, "seed=1,2,3")
    said = capsys.readouterr().err
    wording(said, "2 of", "3 points", "3 of")


def test_a_warning_is_told_with_its_points(tmp_path, capsys):
    def plan_of(config, on_warning):
        on_warning("a word about every point")
        if config.seed == 2:
            on_warning("a word about seed 2")
        return make_plan(config)

    make_sweep([f"checkpoint_root_dir={tmp_path}", "seed=1,2,3"], plan_of)
    told = " ".join(capsys.readouterr().err.split())
    wording(told, "(all 3 points)", "2 (point: seed=2)")
