"""`from=RUN@STEP`: what a branch has of its run, what it changes, and how it is called."""

import pytest

from ouroboros.commands.run.sweep import make_sweep
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import ConfigError
from tests.configs import refused

LR = "algorithm.optimizer.lr=1e-4"


@pytest.fixture
def first(tmp_path, monkeypatch) -> str:
    """A run of the default recipe, whose stage rft has made steps 100 and 217."""
    monkeypatch.chdir(tmp_path)
    plan = make_plan(compose(["name=first", "seed=3"]))
    plan.freeze()
    steps = tmp_path / next(stage.directory for stage in plan.stages if stage.name == "rft") / "steps"
    steps.mkdir()
    for step in (100, 217):
        (steps / f"step={step:06d}.parquet").touch()
    return "from=first@217"


def test_a_branch_has_the_configuration_of_its_run_and_the_changes(first):
    config = compose([first, LR, "trainer.save_interval=7", "buffer.total_steps=+50"])
    stage, before = Recipe.of(config).settings["rft"], compose(["name=first", "seed=3"])
    assert stage.changes == {"217": {"algorithm.optimizer.lr": 1e-4}}
    assert (stage.algorithm.optimizer.lr, stage.seed) == (Recipe.of(before).settings["rft"].algorithm.optimizer.lr, 3)
    assert (stage.buffer.total_steps, stage.trainer.save_interval) == (267, 7)
    assert config.name == "first-at217-lr1e-4"
    assert Recipe.of(config).settings["sft"].changes == {}


def test_a_name_that_is_given_and_a_stage_that_is_named(first):
    config = compose(["from=ouroboros/first/rft@100", "stages.rft.model.temperature=0.5", "name=cooler"])
    assert (config.name, Recipe.of(config).settings["rft"].changes) == ("cooler", {"100": {"model.temperature": 0.5}})


def test_a_branch_of_a_branch_has_the_changes_of_both(first, tmp_path):
    branch = make_plan(compose([first, LR, "name=second"]))
    branch.freeze()
    steps = tmp_path / next(stage.directory for stage in branch.stages if stage.name == "rft") / "steps"
    steps.mkdir()
    (steps / "step=000300.parquet").touch()
    assert Recipe.of(compose(["from=second@300", "model.top_k=5"])).settings["rft"].changes == {
        "217": {"algorithm.optimizer.lr": 1e-4}, "300": {"model.top_k": 5}}


@pytest.mark.parametrize(("words", "named"), [
    (["from=first@217", "recipe=gsm8k"], "recipe"), (["from=frist@217"], "'first'"), (["from=first@218"], "@218"),
    (["from=first/sft@217"], "rft"), (["from=first"], "from=RUN@STEP"), (["from=first@217", "seed=4"], "seed"),
    (["from=first@217", LR, "name=first"], "name=first"), (["from=first@217", "changes={}"], "changes")])
def test_what_is_no_branch_is_refused(first, words, named):
    assert named in refused(*words)


def test_several_steps_are_points_of_a_sweep(first):
    with pytest.raises(ConfigError):
        compose(["from=first@100,217", LR])
    points = make_sweep(["from=first@100,217", "algorithm.optimizer.lr=1e-5,1e-6"],
                        plan_of=lambda one, **_: make_plan(one)).points
    assert [point.plan.name for point in points] == [
        f"first-at{step}-lr{rate}" for step in (100, 217) for rate in ("1e-5", "1e-6")]


def test_a_change_to_what_is_there_is_none(first):
    lr = Recipe.of(compose(["name=first", "seed=3"])).settings["rft"].algorithm.optimizer.lr
    stages = [next(stage for stage in make_plan(compose(words)).stages if stage.name == "rft")
              for words in (["name=first", "seed=3"], [first, f"algorithm.optimizer.lr={lr}"], [first, LR])]
    assert stages[0].identity == stages[1].identity != stages[2].identity
    assert (stages[1].config.changes, [*stages[2].config.changes]) == ({}, ["217"])
    assert "changes" not in stages[1].trunk
    assert stages[2].trunk["settings"] == stages[0].trunk["settings"]
    assert files.read_json(f"{stages[0].directory}/stage.json")["trunk"] == stages[1].trunk
