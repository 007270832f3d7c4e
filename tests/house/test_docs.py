"""README.md and docs/: recipes compose and pass `ouro config check`, and no page is long."""

import re

import pytest
from omegaconf import OmegaConf

from ouroboros.pipeline.check import preflight
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store.files import CONF, HOME
from tests import pages

BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.M | re.S)
PAGES = pages.PAGES
BLOCKS = {f"{page.name}-{number}": text for page in PAGES
          for number, text in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")))}
OTHERWISE = {"add-an-algorithm.md-0",  # a file of conf/algorithm/: tests/operators/test_add_an_algorithm.py
             "migrate.md-0", "migrate.md-1"}  # of Trinity-RFT, and what becomes of it: tests/commands/bridges/


def test_there_are_recipes_in_the_pages():
    assert {name for name, text in BLOCKS.items() if "@package _global_" in text} >= {"README.md-0", "recipes.md-0"}
    assert set(BLOCKS) >= OTHERWISE


@pytest.mark.parametrize("name", sorted(set(BLOCKS) - OTHERWISE))
def test_a_recipe_of_the_pages_has_no_problem(tmp_path, monkeypatch, name):
    """A part of a recipe is laid over the default one. What is on no machine (models, data) is not judged."""
    given = OmegaConf.create(BLOCKS[name])
    assert set(given) <= set(Config.model_fields)
    if "@package _global_" not in BLOCKS[name]:
        given = OmegaConf.merge(OmegaConf.load(CONF / "recipe" / "countdown.yaml"), given)
    monkeypatch.chdir(tmp_path)
    OmegaConf.save(given, "recipe.yaml")
    report = preflight.check(compose(["recipe=recipe.yaml"]), elsewhere=True)
    assert report.problems == []


def test_the_steps_that_the_pages_replay_are_there_after_the_default_run():
    """Step 1 has the initial model; others need the checkpoint before them, among those that a run keeps."""
    (rft,) = (entry for entry in effective_stages() if entry.algorithm.algorithm_type == "grpo")
    total, every = rft.buffer.total_steps, rft.trainer.save_interval
    saved = [step for step in range(1, total + 1) if step % every == 0 or step == total]
    kept = saved[-rft.trainer.max_checkpoints_to_keep :]
    named = {int(step) for page in PAGES for step in re.findall(r"^ouro replay .*--step (\d+)",
                                                               page.read_text(encoding="utf-8"), re.M)}
    assert kept == [425, 450]
    assert named == {1, 426} <= {1, *(step + 1 for step in kept)}


COMMANDS = [block for page in PAGES for block in pages.blocks(page)]
INDENTED = re.compile(r"^\n {4}(?=(?:ouro|make|python|snakemake|pytest|pip|cd) )", re.M)


def test_few_command_blocks_are_not_run_and_each_says_why():
    kept = [block for block in COMMANDS if block.reason]
    assert {block.reason for block in kept} == {*pages.REASONS}
    assert len(kept) <= 15
    assert [page.name for page in PAGES if INDENTED.search(page.read_text(encoding="utf-8"))] == []
    assert all((HOME / test).exists() for test in pages.OWN.values())


@pytest.mark.parametrize("block", COMMANDS, ids=lambda block: f"{block.page}-{block.line}")
def test_the_commands_of_a_block_exist(block):
    """Those that are not run as well; a mistake that a page shows on purpose is one of values, not of words."""
    assert block.commands()
    for words in pages.ouro(block):
        pages.parsed(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_read_in_one_sitting(page):
    """Tables apart, and pages or parts of them that a command writes."""
    if page.name not in ("configuration.md", "trinity-keys.md"):
        written, _, _ = page.read_text(encoding="utf-8").partition("\n## Algorithms by type\n")
        assert sum(not line.startswith("|") for line in written.splitlines()) <= 250


def effective_stages():
    config = compose([])
    return list(Recipe(config).settings.values())
