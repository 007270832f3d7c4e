"""`ouro view` in a browser: what a person finds with the mouse and the keyboard. `make test-browser` runs it.

A stage of 40 steps in which one rollout of step 23 was rewarded for its words alone; two optimizer steps later it was
trained on. Of step 24 one is a chat in Markdown with formulas, another is full of what would run or fetch something.
"""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ouroboros.pipeline.store import files, records, tables
from tests.factories import row
from tests.fake_run import FakeRun
from tests.pictures import png

pytestmark = pytest.mark.browser
CHAT = "<|im_start|>user\nHow far?<|im_end|>\n<|im_start|>assistant\n"
MARKDOWN = r"""# Plan

* first **half**
* then `rest`

| a | b |
|---|---|
| 1 | 2 |

So \(x^2\) and $$\frac{1}{2}$$ for $5 and $6."""
HOSTILE = r"""<script>alert(1)</script> <svg onload=alert(1)> <iframe srcdoc="<script>alert(1)</script>"></iframe>
[a](javascript:alert(1)) ![b](http://evil.example/b.png) <http://evil.example/c> http://evil.example/d
$\href{javascript:alert(1)}{g}$ $\includegraphics{http://evil.example/h.png}$ $\class{i}{j}$ $\def\m{\m\m}\m$
$\style{background:url(http://evil.example/k)}{l}$ `</pre><img src=x onerror=alert(1)>`
<style>@import url(http://evil.example/n)</style>

[e]: http://evil.example/e "f"

[e]"""
DEEP = ">" * 20000
CHEAT = "the grader should print PASS <img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two runs; only in the first there is a rollout that cheats."""
    place = tmp_path_factory.mktemp("view")
    for name, cheats in (("toy/first", True), ("toy/second", False)):
        run = FakeRun(place / name.partition("/")[2], name, steps=40).whole().interim(0.4, 0.5, 0.6)
        run.images(png(), png(900, 300))
        (run.view() / "config.yaml").write_text(f"name: {name}\nseed: {1 if cheats else 2}\n")
        if cheats:
            plant(run)
        else:
            files.write_json(run.path / "notes.json", {"tags": ["slow"], "note": "again?"})
        (place / "all/runs/toy").mkdir(parents=True, exist_ok=True)
        (place / "all/runs" / name).symlink_to(run.path)
    return place / "all"


def plant(run: FakeRun) -> None:
    rft = next(stage["directory"] for stage in run.stages if stage["name"] == "rft")
    path = tables.step_file(rft, "experience", 23)
    rows = [records.Experience(**one) for one in tables.read(path, records.Experience).to_pylist()]
    rows[5].response, rows[5].reward = CHEAT, 7.0
    tables.write(path, records.Experience, rows)
    path = tables.step_file(rft, "experience", 24)
    rows[:3] = [dataclasses.replace(rows[at], experience_id=f"{rft}/24/{at}/0", step=24, task_id="t0", prompt=CHAT,
                                    response=text) for at, text in enumerate([MARKDOWN, HOSTILE, DEEP])]
    tables.write(path, records.Experience, rows[:3])
    for step, ids in ((23, [one.experience_id for one in rows if one is not rows[5]]), (25, [rows[5].experience_id])):
        trained = tables.step_file(rft, "trained", step)
        before = tables.read(trained, records.Trained).to_pylist() if step == 25 else []
        tables.write(trained, records.Trained, [records.Trained(**one) for one in before] + [
            row(records.Trained, experience_id=one, train_step=step, train_logprobs=[-0.5] * 6, advantage=2.5)
            for one in ids])


@pytest.fixture(scope="module")
def address(root, served):
    with served("view", "toy/first", "--root", str(root)) as printed:
        yield printed


@pytest.fixture
def page(opened, address):
    page = opened(address)
    page.get_by_role("heading", name="toy/first").wait_for()
    return page


def test_the_token_is_in_no_address_and_no_cookie_and_opens_another_tab(page):
    assert "token" not in page.url
    assert page.context.cookies() == []
    other = page.context.new_page()
    other.goto(page.url.partition("#")[0])
    other.get_by_role("heading", name="toy/").wait_for()


def test_a_planted_rollout_the_step_that_trained_it_and_the_run_without_it_are_found(page):
    """At most 12 clicks and one typed word."""
    page.get_by_role("link", name="rollouts").click()
    page.get_by_role("searchbox").fill("grader")
    page.get_by_role("button", name="show").click()
    page.get_by_role("link", name="the grader should").click()
    assert CHEAT in page.locator("article").inner_text()
    page.get_by_role("link", name="step 25").click()
    page.get_by_role("heading", name="group").wait_for(state="hidden")
    page.get_by_role("link", name="the grader should").wait_for()
    assert page.locator("tbody tr").count() == 9  # eight of its own step
    page.get_by_role("link", name="toy/second").click()
    page.get_by_text("the grader should").wait_for(state="hidden")
    page.get_by_role("searchbox").fill("grader")
    page.get_by_role("button", name="show").click()
    page.get_by_text("no such text").wait_for()


def test_a_row_shows_the_images_of_its_prompt(page):
    page.goto(f"{page.url.partition('#')[0]}#/run/toy/first/rollouts?stage=rft&table=experience&row=2:0")
    image = page.get_by_alt_text("image 2 of the prompt")
    image.wait_for()
    assert image.evaluate("one => [one.naturalWidth, one.naturalHeight]") == [400, 133]
    page.get_by_text("images of the prompt (2)").press("Enter")
    image.wait_for(state="hidden")


def test_a_page_opened_before_any_run_shows_the_first_one(served, opened, root, tmp_path):
    with served("view", "--root", str(tmp_path)) as address:
        page = opened(address)
        page.get_by_role("status").get_by_text("No run here yet").wait_for()
        (tmp_path / "runs").symlink_to(root / "runs")
        page.get_by_role("link", name="rollouts").wait_for()
        page.get_by_role("heading", name="toy/").wait_for()


def test_rows_by_columns_pages_and_their_links(page, chromium):
    page.get_by_role("link", name="rollouts").click()
    page.get_by_role("link", name="next rows").click()
    page.get_by_role("link", name="first rows").wait_for()
    first = page.locator("tbody tr").first.inner_text()
    assert first.startswith("34\t34/1")  # 50 rows before it are steps 40 to 35 of 8 and 2 more
    page.get_by_label("reward from").fill("5")
    page.keyboard.press("Enter")
    page.get_by_text("the grader should").wait_for()
    assert page.locator("tbody tr").count() == 1
    link = page.url
    page.get_by_role("link", name="evaluations").click()
    page.goto(link)
    page.get_by_text("the grader should").wait_for()
    stranger = chromium.new_page()
    stranger.goto(link)
    assert "its command printed" in stranger.inner_text("body")
    stranger.close()


def test_curves_of_two_runs_over_each_other(page):
    page.get_by_role("link", name="curves").click()
    page.get_by_label("over another run").select_option("toy/second")
    page.locator("figure").first.get_by_text("toy/second rft").wait_for()
    assert page.locator("figure").first.locator(".u-label").all_inner_texts() == ["step", "toy/first rft",
                                                                                  "toy/second rft"]
    page.get_by_text("toy/second against toy/first").wait_for()
    page.get_by_role("link", name="by tokens").click()
    page.wait_for_url("**axis=tokens**")
    page.get_by_label("add a column").select_option("kl")
    page.get_by_role("img", name="kl:").wait_for()


def test_a_chart_is_looked_at_closely_smoothed_on_a_log_axis_and_saved(page):
    page.get_by_role("link", name="curves").click()
    box = page.get_by_role("img", name="solve_rate:").locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60, steps=5)
    page.mouse.up()
    zoomed = page.evaluate("Object.values(OuroCharts.zoomed).map(({min, max}) => [min, max])")
    assert zoomed
    assert all(low == pytest.approx(1 + 39 / 4, abs=0.5) and high == pytest.approx(1 + 39 / 2, abs=0.5)
               for low, high in zoomed)  # steps 1 to 40; every chart of the page
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + 60)
    assert page.evaluate("Object.keys(OuroCharts.zoomed)") == []
    for link, asked in (("more smoothed", "smooth=3"), ("log", "log=1"), ("time", "group=time")):
        page.get_by_role("link", name=link, exact=True).click()
        page.wait_for_url(f"**{asked}**")
    page.get_by_role("img", name="train_seconds, rft:").wait_for()
    with page.expect_download() as saved:
        page.locator("figure").first.get_by_role("button", name="CSV").click()
    assert saved.value.path().read_text().count("\n") == 41


def test_distributions(page):
    page.get_by_role("link", name="curves").click()
    page.get_by_role("link", name="distributions").click()
    for name in ("reward, rft:", "response length, tokens, rft:", "advantage, rft:"):
        page.get_by_role("img", name=name).wait_for()
    assert page.locator("figure").count() == 3  # rewards have no components


def test_findings_of_the_doctor_and_their_queries(page):
    page.get_by_role("link", name="doctor").click()
    verdicts = page.locator("tbody tr td:first-child")
    verdicts.first.wait_for()
    shown = verdicts.all_inner_texts()
    assert shown == sorted(shown, key=["found", "healthy", "skipped"].index)
    page.get_by_role("link", name="constant_reward").first.click()
    assert "share_of_steps" in page.get_by_role("textbox", name="Question in SQL").input_value()


def test_the_rows_that_taught_a_behaviour_are_ranked_and_linked(page):
    page.get_by_role("link", name="doctor").click()
    page.get_by_label("condition").fill("response LIKE '%grader%'")
    page.get_by_role("button", name="rank").click()
    page.get_by_text("1 rows").wait_for()
    page.locator("tbody a").click()
    page.get_by_role("link", name="the grader should").wait_for()
    assert page.locator("tbody tr").count() == 1


def test_rewards_of_the_stored_responses_under_a_corrected_function(page, root):
    """The answer of the command is given here: a stage with inputs takes it seconds."""
    asked, counts = [], dict.fromkeys(("higher", "lower", "newly_solved", "no_longer_solved", "newly_failed"), 1)
    (path,) = (root.parent / "first").glob("store/rft-*/experience/step=000023.parquet")
    shown = tables.read(path, records.Experience).to_pylist()[0]["experience_id"]
    found = {"stage": "rft", "changed": 2, "attempts": 160, "first_explorer_step": 23, "first_trainer_step": 25,
             "certain": False, "components": [{"component": "digits", "changed": 2, "mean_before": None}], "tasks": [],
             "rows": [{"experience_id": shown, "before": 7.0, "after": 0.5}], **counts}
    page.route("**/api/rewards", lambda route: (asked.append(route.request.post_data_json),
                                                route.fulfill(json=found))[1])
    page.get_by_role("link", name="rewards", exact=True).click()
    page.get_by_label("recipe or settings").fill("corrected.yaml")
    page.get_by_role("button", name="reward again").click()
    page.get_by_text("at the earliest 25").wait_for()
    assert asked == [{"run": "toy/first", "words": "corrected.yaml"}]
    assert page.get_by_role("table").first.locator("tbody td").all_inner_texts() == ["digits", "2", "–"]
    page.get_by_role("link", name=shown).click()
    page.get_by_text("1 rows").or_(page.get_by_role("searchbox")).first.wait_for()
    assert f"experience_id={shown}" in page.url.replace("%2F", "/")


def test_runs_are_sorted_filtered_and_laid_over_each_other(page):
    page.get_by_role("link", name="all runs").click()
    page.get_by_role("button", name="seed").click()
    page.locator("th[aria-sort=ascending]").wait_for()
    seeds = page.locator("tbody tr td:nth-child(5)")
    assert seeds.all_inner_texts() == ["1", "2"]
    page.get_by_role("button", name="seed").click()
    assert seeds.all_inner_texts() == ["2", "1"]
    assert "60.0% [55.0%, 65.0%]" in page.locator("tbody tr").first.inner_text()
    page.get_by_role("searchbox").fill("second complete")
    assert page.locator("tbody tr:visible").count() == 0  # its report is not complete
    page.get_by_role("searchbox").fill("toy waiting")
    assert page.locator("tbody tr:visible").count() == 2
    page.get_by_role("searchbox").fill("slow")
    page.get_by_role("cell", name="again?").wait_for()
    assert page.locator("tbody tr:visible").count() == 1
    page.get_by_role("searchbox").fill("")
    for name in ("choose toy/first", "choose toy/second"):
        page.get_by_label(name).check()
    page.get_by_role("button", name="curves of the chosen ones").click()
    page.locator("figure").first.get_by_text("toy/second rft").wait_for()


def test_settings_and_their_difference_and_logs(page):
    page.get_by_role("link", name="settings").click()
    page.get_by_role("cell", name="seed").wait_for()
    page.get_by_label("difference to").select_option("toy/second")
    page.get_by_role("button", name="toy/second").wait_for()
    assert page.get_by_role("heading", name="settings that differ").count() == 1
    assert page.locator("tbody tr").all_inner_texts() == ['name\t"toy/first"\t"toy/second"', "seed\t1\t2"]
    page.get_by_role("link", name="logs").click()
    page.get_by_role("link", name="warning").click()
    page.wait_for_url("**level=WARNING**")


def test_a_chat_is_read_as_markdown_with_formulas_and_raw_at_a_key(page, address):
    page.goto(address.partition("?")[0] + "#/run/toy/first/rollouts?stage=rft&row=24:0")
    answer = page.locator(".turn.assistant")
    answer.get_by_role("heading", name="Plan").wait_for()
    assert page.locator(".turn.user").inner_text().split("\n")[-1] == "How far?"
    assert answer.get_by_role("listitem").all_inner_texts() == ["first half", "then rest"]
    assert answer.locator("td").all_inner_texts() == ["1", "2"]
    assert answer.locator("math").count() == 2
    assert "$5 and $6" in answer.inner_text()
    page.keyboard.press("r")
    page.locator("pre", has_text="<|im_start|>user").first.wait_for()
    page.keyboard.press("r")
    answer.wait_for()


def test_hostile_texts_run_and_fetch_nothing(page, address):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address.partition("?")[0] + "#/run/toy/first/rollouts?stage=rft&row=24:1")
    answer = page.locator(".turn.assistant")
    for text in ("<script>alert(1)</script>", "<svg onload=alert(1)>", "![b](http://evil.example/b.png)",
                 "a (javascript:alert(1))", "<style>@import"):
        answer.get_by_text(text).first.wait_for()
    assert answer.locator("a, img, iframe, script, style, svg, [href], [src], [style*=url]").count() == 0
    page.goto(address.partition("?")[0] + "#/run/toy/first/rollouts?stage=rft&row=24:2")
    answer.get_by_text(DEEP).wait_for()
    page.wait_for_timeout(500)
    assert [url for url in asked if not url.startswith(address.partition("?")[0])] == []


def test_two_rollouts_of_a_task_side_by_side_and_the_task_over_steps(page):
    page.get_by_role("link", name="rollouts").click()
    page.locator("tbody a").first.click()
    page.get_by_role("img", name="task t0: mean reward").wait_for()
    page.get_by_role("link", name="compare with another").click()
    page.get_by_role("status").get_by_text("compare").wait_for()
    page.locator("tbody tr", has_text="39/0").first.get_by_role("link").first.click()
    page.locator("article").nth(1).wait_for()
    steps = [page.locator("article").nth(at).locator("dd", has_text="version").inner_text() for at in (0, 1)]
    assert sorted(steps) == ["version 38", "version 39"]
    page.get_by_role("link", name="the second alone").click()
    page.locator("article").nth(1).wait_for(state="detached")


def test_keys_go_from_row_to_row_and_to_the_search(page):
    page.get_by_role("link", name="rollouts").click()
    page.locator("tbody a").first.wait_for()
    for key in "jjjk":
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.closest('tr').rowIndex") == 2
    page.keyboard.press("/")
    page.keyboard.type("jk")
    assert page.get_by_role("searchbox").input_value() == "jk"


def test_every_part_renews_itself(served, opened, tmp_path):
    """A stage in progress: a step, its rows and an evaluation come while each part is looked at; then another run."""
    run = FakeRun(tmp_path, steps=3).data().rft("model").interim(0.25)
    stage = Path(run.stages[-1]["directory"])
    (stage / files.MANIFEST).unlink()
    run.view()
    with served("view", "--root", str(tmp_path)) as address:
        page = opened(address)
        page.get_by_role("link", name="curves").click()
        page.get_by_role("img", name="loss: rft").wait_for()
        run._step(stage, 4, loss=70.5)
        page.get_by_role("img", name=re.compile("loss: rft .* to 70.5")).wait_for()
        page.get_by_role("link", name="evaluations").click()
        page.get_by_role("cell", name="25.0%", exact=True).wait_for()
        run.interim(0.25, 0.75)
        page.get_by_role("cell", name="75.0%", exact=True).wait_for()
        page.get_by_role("link", name="rollouts").click()
        page.get_by_role("link", name="3/0").first.wait_for()
        run._rollouts(stage, 4, 0.5)
        page.get_by_role("link", name="4/0").first.wait_for()
        page.get_by_role("link", name="stages").click()
        page.get_by_role("cell", name="partial, step 4 of 3").wait_for()
        page.get_by_role("link", name="logs").click()
        (stage / "stage.log").write_text("2026-01-01 00:00:00,000 INFO it goes on\n")
        page.get_by_text("it goes on").wait_for()
        page.get_by_role("link", name="all runs").click()
        FakeRun(tmp_path, "toy/later").whole().view()
        page.get_by_role("cell", name="toy/later", exact=True).wait_for()
        assert page.locator("aside").get_by_role("link", name="toy/later").count() == 1


def test_a_question_and_its_mistake(page):
    page.get_by_role("link", name="SQL").click()
    box = page.get_by_label("Question in SQL")
    box.fill("select step, loss from steps where step > 38 order by step")
    page.keyboard.press("Control+Enter")
    page.get_by_text("4 rows").wait_for()
    box.fill("drop view steps")
    page.get_by_role("button", name="ask").click()
    assert "found DROP" in page.get_by_role("alert").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_every_part_without_a_line_that_leaves_it(chromium, address, scheme, tmp_path):
    context = chromium.new_context(viewport={"width": 390, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    page.get_by_role("link", name="curves", exact=True).click()
    page.locator("summary", has_text="axes and columns").wait_for()
    assert page.get_by_role("link", name="by tokens").count() == 0  # folded
    for part in ("stages", "curves", "evaluations", "rollouts", "settings", "logs", "SQL"):
        page.get_by_role("link", name=part, exact=True).click()
        page.wait_for_timeout(500)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, part
    context.close()


def test_the_page_from_the_disk_needs_no_server(chromium, root, tmp_path):
    subprocess.run([sys.executable, "-P", "-m", "ouroboros", "view", "toy/first", "--root", str(root), "--export",
                    str(tmp_path / "page")], check=True)
    page = chromium.new_page()
    page.goto((tmp_path / "page/index.html").as_uri() + "#/run/toy/first/rollouts?stage=rft&train_step=1")
    page.locator("tbody tr").first.wait_for()
    page.locator("tbody tr a").first.click()
    page.get_by_role("heading", name="group").wait_for()
    assert page.get_by_role("link", name="SQL").count() == 0
    page.close()


def test_focus_reaches_what_a_mouse_does(page):
    page.get_by_role("link", name="rollouts").focus()
    page.keyboard.press("Enter")
    page.get_by_role("searchbox").wait_for()
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(json.dumps(page.evaluate("[document.activeElement.tagName, document.activeElement.name || '']")))
    assert {'["INPUT", "text"]', '["INPUT", "steps"]', '["SELECT", "status"]', '["BUTTON", ""]'} <= reached
