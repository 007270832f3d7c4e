"""`ouro studio` in a browser: a recipe is opened, changed, mended, saved and started, by mouse and by keyboard."""

import json
import subprocess
import sys

import pytest

from ouroboros.commands.web.recipe_text import changed, written
from ouroboros.pipeline.store.files import CONF

pytestmark = pytest.mark.browser
EVIL = "<img src=x onerror=alert(1)>"
RATE = '[name="algorithm.optimizer.lr"]'


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return tmp_path_factory.mktemp("project")


@pytest.fixture(scope="module")
def address(project, served):
    with served("studio", here=project) as printed:
        yield printed


@pytest.fixture
def page(opened, address):
    page = opened(address)
    page.get_by_role("link", name="countdown", exact=True).click()
    page.get_by_text("no problem found").wait_for()
    return page


def test_a_shipped_recipe_is_changed_mended_saved_and_started(page, project):
    page.get_by_role("link", name="every setting").click()
    page.get_by_role("searchbox").fill("optimizer.lr")
    page.locator(RATE).fill("7")
    page.locator(f".field:has({RATE})").get_by_text("at most 1").wait_for()
    assert page.locator(RATE).get_attribute("aria-invalid") == "true"
    assert page.get_by_role("button", name="save and start").is_disabled()
    page.locator(RATE).fill("2e-4")
    page.get_by_text("no problem found").wait_for()
    page.get_by_role("searchbox").fill("grace_seconds")
    page.locator('[name="log.grace_seconds"]').fill("1")
    page.get_by_text("no problem found").wait_for()
    page.get_by_role("button", name="save", exact=True).click()
    page.get_by_text("saved", exact=True).wait_for()
    text = (project / "conf/recipe/my_countdown.yaml").read_text()
    shipped = (CONF / "recipe/countdown.yaml").read_text()
    meaning = text.partition("log:\n  # ")[2].partition("\n  grace")[0].replace("\n  #", "")
    assert meaning
    assert text == changed(shipped.replace("lr: 5e-4", "lr: 2e-4"), ["log", "grace_seconds"], "1", meaning)
    try:
        page.get_by_role("button", name="save and start").click()
        link = page.get_by_role("link", name="show the run")
        link.wait_for(timeout=120_000)
        link.click()
        page.get_by_role("heading", name="ouroboros/countdown").wait_for()
        assert "#/run/ouroboros/countdown" in page.url
        page.get_by_role("link", name="new run").click()
        page.get_by_role("heading", name="recipes here").wait_for()
    finally:
        subprocess.run([sys.executable, "-P", "-m", "ouroboros", "stop"], cwd=project, check=False)


def test_a_file_that_changed_meanwhile_is_not_overwritten(opened, address, project):
    file = project / "conf/recipe/other.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text((CONF / "recipe/countdown.yaml").read_text())
    page = opened(f"{address}?file=conf/recipe/other.yaml")
    page.get_by_text("no problem found").wait_for()
    file.write_text("name: theirs\n")
    page.locator('[name="seed"]').fill("5")
    page.get_by_text("changed", exact=True).wait_for()
    page.keyboard.press("Control+s")
    page.get_by_role("alert").wait_for()
    assert file.read_text() == "name: theirs\n"


def test_texts_of_a_recipe_are_no_html(page):
    page.get_by_role("link", name="text", exact=True).click()
    page.get_by_label("Text of the recipe").fill(f'name: "{EVIL}"\n"{EVIL}": 1\nmodel: {{model_path: "{EVIL}"}}\n')
    page.locator("#panel .failed").first.wait_for()
    assert EVIL in page.locator("#panel").inner_text()
    page.get_by_role("link", name="first questions").click()
    assert page.locator('[name="model.model_path"]').input_value() == EVIL
    assert page.locator("img").count() == 0


def test_a_setting_of_one_stage_and_the_arguments_of_what_it_chooses(page):
    page.get_by_role("link", name="every setting").click()
    page.get_by_label("settings of").select_option("rft")
    search = page.get_by_role("searchbox")
    search.fill("clip_range")
    page.locator('[name="algorithm.policy_loss_fn_args.clip_range"]').wait_for()
    search.fill("algorithm_type")
    page.locator('[name="algorithm.algorithm_type"]').fill("sapo")
    page.keyboard.press("Enter")
    search.fill("policy_loss_fn_args tau")
    page.locator('[name="algorithm.policy_loss_fn_args.tau_pos"]').wait_for()
    search.fill("clip_range")
    assert page.locator('[name="algorithm.policy_loss_fn_args.clip_range"]').count() == 0
    page.get_by_role("link", name="text", exact=True).click()
    found = written(page.get_by_label("Text of the recipe").input_value())
    assert (found["rft"]["algorithm.algorithm_type"], found[""]["algorithm.algorithm_type"]) == ("sapo", "grpo")


def test_columns_of_a_file_are_read_and_taken(page, project):
    rows = [json.dumps({"asked": f"{i} + {i} =", "sum": str(2 * i)}) for i in range(40)]
    (project / "sums.jsonl").write_text("\n".join(rows))
    page.locator('[name="buffer.explorer_input.taskset.path"]').fill("sums.jsonl")
    page.keyboard.press("Tab")
    page.get_by_role("button", name="read its columns").first.click()
    page.get_by_role("alert").get_by_text("asked").wait_for()
    rows = [one.replace("asked", "problem").replace("sum", "target") for one in rows]
    (project / "sums.jsonl").write_text("\n".join(rows))
    page.get_by_role("button", name="read its columns").first.click()
    page.get_by_role("button", name="take prompt_key: problem").click()
    page.locator('.field.set [name="buffer.explorer_input.taskset.format.response_key"]').wait_for()
    page.get_by_role("link", name="text", exact=True).click()
    found = written(page.get_by_label("Text of the recipe").input_value())[""]
    assert found["buffer.explorer_input.taskset.format.prompt_key"] == "problem"
    assert found["buffer.explorer_input.taskset.format.response_key"] == "target"


def test_the_prompt_of_a_task_is_shown(page):
    page.get_by_role("button", name="show a prompt").click()
    page.locator("#panel pre").wait_for(timeout=60_000)
    assert "[call 0] prompt" in page.locator("#panel pre").inner_text()


def test_an_empty_recipe_is_begun_and_a_value_that_is_repeated_says_so_at_its_field(opened, address):
    page = opened(address)
    page.locator("form").nth(1).get_by_label("name").fill("fresh")
    page.get_by_role("button", name="begin").click()
    page.locator("#panel .failed").first.wait_for()
    assert page.get_by_label("File").input_value() == "conf/recipe/fresh.yaml"
    page.get_by_role("link", name="text", exact=True).click()
    page.get_by_label("Text of the recipe").fill("log: &all {level: INFO}\nstages:\n  - {stage_name: rft, log: *all}\n")
    page.get_by_role("link", name="every setting").click()
    page.get_by_role("searchbox").fill("log.level")
    page.locator('[name="log.level"]').select_option("DEBUG")
    page.locator('.field:has([name="log.level"]) .failed').get_by_text("(*name)").wait_for()
    assert page.get_by_role("button", name="save", exact=True).is_enabled()


def test_what_is_in_effect_instead_of_what_is_written_is_named(opened, address, project):
    (project / "conf/trainer").mkdir(parents=True, exist_ok=True)
    (project / "conf/trainer/often.yaml").write_text("save_interval: 7\n")
    (project / "conf/config.yaml").write_text("defaults: [{trainer: often}]\n")
    page = opened(f"{address}?file=countdown")
    page.locator('.field:has([name="trainer.save_interval"])').get_by_text("in effect: 7").wait_for()
    assert page.locator('[name="trainer.save_interval"]').input_value() == "25"
    (project / "conf/config.yaml").unlink()


def test_a_sweep_is_of_one_recipe(page):
    page.locator("summary", has_text="sweep").click()
    page.get_by_role("button", name="add a setting").click()
    page.get_by_label("Setting to vary").fill("seed")
    page.get_by_label("Its values, with commas").fill("1,2,3")
    assert page.get_by_role("button", name="save and start 3 runs").count() == 1
    page.get_by_role("link", name="new run").click()
    page.get_by_role("link", name="gsm8k", exact=True).click()
    page.locator("#panel [role=status]").wait_for()
    assert page.get_by_role("button", name="save and start", exact=True).count() == 1


def test_strangers_are_told_to_use_the_address(address, opened):
    page = opened(address.partition("?")[0])
    page.get_by_role("alert").get_by_text("its command printed").wait_for()


def test_the_keyboard_alone_changes_and_saves(page, project):
    page.locator('[name="name"]').focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("typed")
    page.keyboard.press("Tab")
    reached = set()
    for _ in range(30):
        reached.add(page.evaluate("document.activeElement.name"))
        page.keyboard.press("Tab")
    assert {"seed", "model.model_path", "model.init.enable"} <= reached
    page.keyboard.press("Control+s")
    page.get_by_text("saved", exact=True).wait_for()
    assert any("name: typed\n" in one.read_text() for one in (project / "conf/recipe").glob("*.yaml"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_every_part_without_a_line_that_leaves_it(opened, address, scheme):
    page = opened(address, viewport={"width": 390, "height": 800}, color_scheme=scheme)
    page.get_by_role("heading", name="shipped").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("link", name="gsm8k", exact=True).click()
    page.locator("#panel [role=status]").wait_for()
    for part in ("first questions", "every setting", "text"):
        page.get_by_role("link", name=part, exact=True).click()
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, part
