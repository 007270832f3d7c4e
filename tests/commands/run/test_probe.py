"""The probe: which run it makes, what of it stays, and when it stops."""

import time
from pathlib import Path

import pytest

from ouroboros.commands.run import invoke, probe
from ouroboros.pipeline.check import times
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.store import files


def test_a_probe_is_a_short_run_of_the_recipe_without_evaluations(tmp_path, monkeypatch):
    """Other settings are those of the overrides; an optimizer's state is deleted, and what the check reads stays."""
    monkeypatch.chdir(tmp_path)
    place, asked = times.probed("."), []
    stage = place / "store" / "sft-1"

    def run(words, *_, **__):
        asked.extend(words)
        for file in ("manifest.json", "steps/step=000002.parquet", "checkpoints/step=000003/manifest.json"):
            files.write_json(stage / file, {})

    monkeypatch.setattr(invoke, "run", run)
    probe.probe(["seed=7", "stages.sft.buffer.total_steps=40"])
    recipe = Recipe.of(compose(asked))
    assert {one.buffer.total_steps for one in recipe.settings.values() if one.kind.trains} == {probe.STEPS}
    assert (recipe.run.seed, recipe.run.buffer.explorer_input.eval_tasksets) == (7, [])
    assert Path(recipe.run.checkpoint_root_dir) == place
    assert not (stage / "checkpoints/step=000003").exists()
    assert (stage / "steps/step=000002.parquet").exists()


def test_a_stage_that_takes_long_after_its_first_step_is_interrupted(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "SECONDS", 0.0)
    files.write_json(tmp_path / "sft-1/steps/step=000001.parquet", {})
    with pytest.raises(KeyboardInterrupt), probe._at_most(tmp_path):
        time.sleep(10)
    files.write_json(tmp_path / "sft-1/manifest.json", {})
    with probe._at_most(tmp_path):
        time.sleep(1.5)
