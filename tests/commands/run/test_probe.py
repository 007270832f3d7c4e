"""The probe: which run it makes, what of it stays, and when it stops."""

import os
import signal
import time
from pathlib import Path

import pytest

from ouroboros.commands.run import invoke, probe
from ouroboros.pipeline.check import times
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose import axes
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.store import files


def asked_for(monkeypatch, *overrides, made=()) -> tuple[Recipe, list[str]]:
    """The recipe that a probe of overrides runs, and the targets for snakemake. made: files that the run leaves."""
    asked = []

    def run(words, extra, **_):
        asked.extend((words, extra))
        for file in made:
            files.write_json(file, {})

    monkeypatch.setattr(invoke, "run", run)
    probe.probe(list(overrides))
    return Recipe.of(compose(asked[0])), asked[1]


def test_a_probe_is_a_short_run_of_the_recipe_without_evaluations(tmp_path, monkeypatch):
    """Other settings are those of the overrides; an optimizer's state is deleted, and what the check reads stays."""
    (tmp_path / "it's [a=b").mkdir()
    monkeypatch.chdir(tmp_path / "it's [a=b")
    place = times.probed(str(Path.cwd()))
    stage = place / "store" / "sft-1"
    recipe, extra = asked_for(
        monkeypatch, "seed=7", "stages.sft.buffer.total_steps=40", "explorer.eval_interval=2",
        axes.word_of("checkpoint_root_dir", Path.cwd()), made=[stage / one for one in (
            "manifest.json", "steps/step=000002.parquet", "checkpoints/step=000003/manifest.json")])
    assert {(one.buffer.total_steps, one.explorer.eval_interval) for one in recipe.settings.values()} == {
        (probe.STEPS, None)}
    assert (recipe.run.seed, Path(recipe.run.checkpoint_root_dir), extra) == (7, place, ["sft", "rft"])
    assert not (stage / "checkpoints/step=000003").exists()
    assert (stage / "steps/step=000002.parquet").exists()


def test_stages_that_do_not_train_are_short_or_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe, extra = asked_for(monkeypatch, "stages.rft.mode=explore")
    assert (recipe.settings["rft"].buffer.total_steps, extra) == (probe.STEPS, ["sft"])
    assert asked_for(monkeypatch, "mode=bench")[1] == ["sft", "rft"]
    Path("one.yaml").write_text("buffer: {total_steps: 9}\nstages: []\n")
    recipe, extra = asked_for(monkeypatch, "recipe=one.yaml")
    assert ([one.buffer.total_steps for one in recipe.settings.values()], extra) == ([probe.STEPS], ["rft"])


@pytest.fixture(params=[signal.SIG_IGN, signal.default_int_handler], ids=["background", "terminal"])
def interrupts(request):
    """What SIGINT does to a job in the background of a shell, and to a command on a terminal."""
    before = signal.signal(signal.SIGINT, request.param)
    yield request.param
    assert signal.signal(signal.SIGINT, before) == request.param


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize(("kind", "place"), [("train", "it-1/steps"), ("rollout", "it-1/rollouts")])
def test_a_stage_that_takes_long_after_its_first_step_is_interrupted(tmp_path, monkeypatch, kind, place):
    """One of an earlier probe, which was stopped, is not."""
    monkeypatch.setattr(probe, "SECONDS", 0.0)
    step = tmp_path / place / "step=000001.parquet"
    files.write_json(tmp_path / "it-1/stage.json", {"kind": kind})
    files.write_json(step, {})
    os.utime(step, (1, 1))
    with probe._at_most(tmp_path):
        time.sleep(1.5)
        files.write_json(tmp_path / "it-1/manifest.json", {})
        step.touch()
        time.sleep(1.5)
    (tmp_path / "it-1/manifest.json").unlink()
    os.utime(step, (time.time() + 0.5,) * 2)
    with pytest.raises(KeyboardInterrupt), probe._at_most(tmp_path):
        time.sleep(10)
