"""The report page, over a small run made by hand."""

import base64
import hashlib
import io
import json
import logging
import re
import shlex
from collections import Counter
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.results import charts, learnt, sampled, stage_picture, view
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.files import read_json
from ouroboros.pipeline.store.records import Score
from ouroboros.stages import report
from tests.factories import row
from tests.fake_run import FakeRun
from tests.golden.messages import wording
from tests.pictures import png


def make(run: FakeRun) -> str:
    """Makes the report of a fake run; the text of the page."""
    directory = run.report()
    run.view()
    spec = read_json(directory / "stage.json")
    inputs = {role: Path(d) for role, d in spec["inputs"].items()}
    log = logging.getLogger("test")
    report.work(Context(run.run, "report", spec["identity"], directory, Config.partial(spec["config"]), inputs, log))
    return (run.path / "report.html").read_text(encoding="utf-8")


def text(html: str) -> str:
    """What a reader sees, on one line."""
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]*>", " ", html, flags=re.DOTALL))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    run = FakeRun(tmp_path_factory.mktemp("run"), steps=6).data().sft().evaluate("sft", 0.38).rft()
    run.evaluate("rft", 0.81)
    return make(run)


def test_the_headline_is_the_solve_rate_before_and_after_with_intervals(page):
    assert "38% → 81%" in text(page)
    assert all(one in text(page) for one in ("38.0% [35.0, 41.0]", "81.0% [78.0, 84.0]"))
    assert all(one in text(page) for one in ("+0.0", "[-66.4, +66.4]", "4 paired"))  # the same made-up responses


def test_tasks_that_were_trained_on_and_duplicates_stand_beside_the_score(tmp_path, page):
    run = FakeRun(tmp_path, steps=2).data().sft().evaluate("sft", 0.38, rows=260, trained_tasks=0).rft()
    run.evaluate("rft", 0.81, rows=260, trained_tasks=31)
    words = text(make(run))
    headline, rest = words.split("Brackets are 95% intervals.")
    assert all(one in headline for one in ("31 of the", "256 tasks (260", "4 duplicates merged)"))
    assert "held out" not in headline
    assert all(one in rest for one in ("31 of the", "256 tasks"))
    assert "data of sft" not in words
    assert "the training data" not in text(page)
    summary = learnt.summary(view.open_view(run.path)).splitlines()
    wording(summary, "81% [78, 84]", "8; 31 of")


def test_a_page_of_what_is_there_names_what_is_not_and_gives_way_to_the_whole(tmp_path):
    run = FakeRun(tmp_path).whole()
    run.view()
    directory = Path(run.stages[-1]["directory"])
    for stage in run.stages:
        if stage["name"] in ("rft", "evaluate_rft"):
            (Path(stage["directory"]) / "manifest.json").unlink()
    report.partial(directory)
    words = text((run.path / "report.html").read_text(encoding="utf-8"))
    assert "evaluate_rft" in words
    assert "38.0%" in words
    assert "81.0%" not in words
    assert not (directory / "manifest.json").exists()
    assert (run.path / "report.html").readlink() == Path("stages/report/partial.html")


def test_every_section_is_there(page):
    for heading in ("Stages", "Findings", "Learning", "Evaluation", "Time", "Data", "Rollouts", "Agreement",
                    "Provenance", "SQL"):
        assert re.search(rf"<h2[^>]*>[^<]*{heading}", page), heading
    words = text(page)
    assert all(one in unescape(words) for one in ("rft: steps 6 (limit 30)", "FROM steps) GROUP BY stage\" toy/first"))
    assert all(one in words for one in ("6 rows read", "= 4 kept", "(3 train, 1", "+ 2 dropped.", "needed 5",
                                        "text_length_filter 1 0", "48 rollouts", "vllm 0.32.0", "reference answer 24"))
    assert Counter(re.findall(r'data-stage="rft" data-step="(\d)"', page)) == dict.fromkeys("123456", 8)  # all 48


def test_rollout_text_is_escaped_and_no_script_but_the_page_s_own_may_run(page):
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert all(one in page for one in ("default-src 'none'; style-src", f"script-src 'sha256-{digest}';"))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "make &lt;b&gt;7&lt;/b&gt; from" in page


def test_nothing_is_fetched_from_anywhere(page):
    assert not re.search(r"""(?:src|href|url|@import)\s*[=(]?\s*["'(]?\s*(?:https?:)?//""", page)
    assert "http:" not in page
    assert "https:" not in page
    assert "<link" not in page
    assert "<img" not in page


def test_pictures_and_tables_can_be_heard(page):
    pictures = re.findall(r"<svg[^>]*>", page)
    assert len(pictures) == 14  # the DAG; 3 curves of sft and 7 of rft; 1 + 2 stacks
    assert all('role="img"' in p and "aria-label=" in p for p in pictures)
    for table in re.findall(r"<table>.*?</table>", page, re.DOTALL):
        assert '<th scope="col"' in table


def test_the_page_is_well_formed(page):
    open_tags, void = [], {"meta", "br", "input"}

    class Balance(HTMLParser):
        def handle_starttag(self, tag, attributes):
            if tag not in void:
                open_tags.append(tag)

        def handle_startendtag(self, tag, attributes):
            pass

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag

    Balance().feed(re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL))
    assert open_tags == []
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_a_run_of_sft_alone_without_evaluation(tmp_path):
    run = FakeRun(tmp_path, steps=2).data().sft()
    page = make(run)
    assert "1.98 → 1.96" in text(page)  # 2 x 0.99, 2 x 0.99^2
    assert "Evaluation</h2>" not in page
    assert "Rollouts</h2>" not in page


def test_preference_training_shows_its_accuracy_and_margin(tmp_path):
    run = FakeRun(tmp_path, steps=2).data()
    stage = run.stage("dpo", "train", "curate", "model", seconds=1.0)
    for step, (chosen, rejected) in enumerate([(0.0, 0.0), (0.5, -0.25)], start=1):
        run._step(stage, step, loss=0.5, entropy=1.0, statistics=[
            ("accuracy", float(step - 1)), ("chosen_reward", chosen), ("rejected_reward", rejected)])
    page = make(run)
    assert all(one in page for one in ("step 1, 100.0%", "step 1, 0.75"))


def test_evaluations_on_the_way_are_a_curve_with_its_interval(tmp_path):
    run = FakeRun(tmp_path, steps=3).data().rft("model").interim(0.4, 0.55)
    page = make(run)
    assert "<figcaption>sampled accuracy, test</figcaption>" in page
    words = "sampled accuracy, test by step, with its 95% interval: 40.0% [35.0, 45.0] at step 1, 55.0% [50.0, 60.0]"
    assert words in page


def test_a_model_that_was_evaluated_twice_has_two_rows():
    found = [row(Score, model="rft-1", stage=stage, taskset="test", metric="pass@2", value=value)
             for stage, value in (("evaluate_rft-2", 0.5), ("judge_rft_last-3", 0.7))]
    (table,) = report._evaluation(found)
    assert table["models"] == ["rft-1 (evaluate_rft-2)", "rft-1 (judge_rft_last-3)"]
    assert table["score"]["rft-1 (judge_rft_last-3)", "pass@2"].value == 0.7


def test_one_evaluation_on_the_way_is_no_curve(tmp_path):
    run = FakeRun(tmp_path, steps=3).data().rft("model").interim(0.4)
    assert "sampled accuracy, test" not in make(run)


def test_without_rollouts_the_evaluated_answers_are_shown(tmp_path):
    run = FakeRun(tmp_path, steps=1).data().sft().evaluate("sft", 0.38)
    page = make(run)
    outcomes = re.findall(r'data-stage="evaluate_sft" data-step="1" data-outcome="(\w+)"', page)
    assert outcomes == ["wrong"] * 2 + ["right"] * 2


def test_one_evaluation_and_rft_gives_the_solve_rate_of_training(tmp_path):
    run = FakeRun(tmp_path, steps=3).data().rft("model")
    assert "(rft)" in text(make(run))


def test_stages_come_after_their_inputs_and_evaluations_after_their_model(tmp_path):
    specs = {name: {"kind": kind, "directory": f"store/{name}-0", "inputs": {str(i): f"store/{i}-0" for i in inputs}}
             for name, kind, inputs in (("rft", "rft", ["sft"]), ("evaluate_sft", "evaluate", ["sft"]),
                                        ("sft", "train", ["curate"]), ("curate", "curate", []))}
    specs = {name: {**spec, "name": name} for name, spec in specs.items()}
    assert [s["name"] for s in report.in_order(specs)] == ["curate", "sft", "evaluate_sft", "rft"]


def test_smoothing_keeps_a_constant_and_weighs_neighbours():
    assert charts.smooth(np.full(9, 3.0), 2.0) == pytest.approx(np.full(9, 3.0))
    near = np.exp(-0.5)  # weight of the next point at width 1
    assert charts.smooth(np.array([0.0, 1.0]), 1.0) == pytest.approx([near / (1 + near), 1 / (1 + near)])


def test_an_exact_curve_is_not_smoothed():
    """A rate that is halved in one step: smoothed over 200 steps its last value before would be less than 1."""
    rates = np.where(np.arange(200) < 100, 1.0, 0.5)
    svg = charts.curve("c", "rate", np.arange(1, 201), rates, exact=True)
    assert all(one in svg for one in ("step 1, 0.5", "at step 200"))
    assert "smoothed" not in svg
    x, y = charts.every(np.arange(6.0), np.array([0, 2, np.nan, 4, 6, 8]), most=3)
    assert (list(x), list(y)) == ([0, 3, 5], [0, 4, 8])


def test_curves_name_their_axes_and_shares_end_at_0_and_100_percent():
    svg = charts.curve("c", "solve rate", np.arange(1, 4), np.zeros(3), "share of rollouts", percent=True)
    words = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert {"optimizer step", "share of rollouts", "0.0%"} <= set(words)
    assert not any(word.startswith("−") for word in words)


def test_a_long_name_loses_its_middle():
    name = "supervised_warmup_on_demonstrations"
    svg = stage_picture.dag([stage_picture.Box(name, "1 s", [], False)])
    assert f"<title>{name}: 1 s</title>" in svg
    assert ">supervis…strations<" in svg


def test_long_curves_are_averaged_in_bins_and_gaps_left_out():
    x, y = charts.thin(np.arange(6.0), np.array([0, 2, np.nan, 4, 6, 8]), most=2)
    assert list(x) == [4 / 3, 4.5]  # steps 0, 1, 3 and 4, 5
    assert list(y) == [2.0, 7.0]


def test_labels_of_small_numbers_are_not_cut():
    svg = charts.curve("c", "kl", np.arange(1, 5), np.array([1.0e-4, 1.5e-4, 1.2e-4, 1.8e-4]))
    assert "1e−4" in svg
    assert all(one in svg for one in ("kl by step:", "at step 1, ", "at step 4"))


def test_edges_that_a_longer_way_implies_are_left_out():
    box = [stage_picture.Box(name, "", inputs, False) for name, inputs in (("a", []), ("b", ["a"]), ("c", ["a", "b"]))]
    assert stage_picture._edges(box) == [("a", "b"), ("b", "c")]


def test_two_boxes_never_share_a_place():
    boxes = [stage_picture.Box(n, "", [], False) for n in "abc"]
    column, lane = stage_picture._places(boxes)
    assert len({(column[n], lane[n]) for n in "abc"}) == 3


def test_a_curve_says_its_values_and_where_they_are():
    svg = charts.curve("c", "lr", np.arange(1, 4), np.array([1.0, np.nan, 0.5]), exact=True)
    (values,) = re.findall(r'data-values="([^"]*)"', svg)
    (first, one), (last, two) = json.loads(unescape(values))
    assert (one, two) == ("step 1: 1", "step 3: 0.5")
    # axes from 0.165 to 0.99 of the width; margins of 2% at both sides
    assert (first, last) == pytest.approx((0.165 + 0.825 * 0.02 / 1.04, 0.99 - 0.825 * 0.02 / 1.04), abs=1e-4)
    assert "data-values" not in charts.curve("c", "lr", np.array([1.0]), np.array([np.nan]))


def test_a_stack_says_the_seconds_of_each_part():
    svg = charts.stack("s", "explorer", np.array([7]), {"rollout": np.array([0.25]), "sync": np.array([np.nan])})
    assert all(one in unescape(svg) for one in ("step 7:", "rollout 0.25 s", "sync 0 s"))


def rows_of(*given: tuple, table: type = records.Experience) -> list:
    """given: (step, accuracy, reward, status)"""
    return [row(table, stage="rft-1", experience_id=f"rft-1/{step}/{i}/0", step=step, task_id=f"t{i}", prompt="p",
                response="r", accuracy=accuracy, reward=reward, status=status)
            for i, (step, accuracy, reward, status) in enumerate(given)]


def sample_of(stage: Path, rows: list) -> dict:
    for step in {one.step for one in rows}:
        tables.write(tables.step_file(stage, "experience", step), records.Experience,
                     [one for one in rows if one.step == step])
    return sampled.sample(tables.connect([("toy/first", stage)]), "toy/first", [])


def test_a_sample_has_as_much_of_each_outcome_and_third_as_of_any_other(tmp_path, monkeypatch):
    """Steps 1 to 9: 30 wrong in the first third, 2 right in the middle, 1 failed in the last. Of six, the first three
    are one of each, then one of each that has two, then wrong."""
    monkeypatch.setattr(sampled, "MOST", 6)
    rows = rows_of(*[(i % 3 + 1, 0.0, 0.1, "ok") for i in range(30)], *[(5, 1.0, 1.1, "ok")] * 2,
                   (9, None, None, "workflow_failed"))
    found = sample_of(tmp_path / "rft-1", rows)
    assert Counter((one["outcome"], one["third"]) for one in found["rows"]) == {
        ("wrong", "first"): 3, ("right", "middle"): 2, ("failed", "last"): 1}
    assert found["strata"] == {"rft": {"failed": {"shown": 1, "all": 1}, "wrong": {"shown": 3, "all": 30},
                                       "right": {"shown": 2, "all": 2}}}
    assert sample_of(tmp_path / "again" / "rft-1", rows[::-1]) == found  # whatever their order in the files


def test_outcomes_are_of_the_accuracy_else_of_the_range_of_rewards(tmp_path):
    rows = rows_of((1, 0.5, 2.0, "ok"), (1, 1.0, 9.0, "late"), (1, None, 0.0, "ok"), (1, None, 1.5, "ok"),
                   (1, None, 3.0, "ok"), (1, None, None, "no_feedback"), (1, None, None, "prompt_too_long"))
    found = sample_of(tmp_path / "rft-1", rows)["rows"]
    assert [one["outcome"] for one in found] == ["partly right", "right", "low reward", "middle reward", "high reward",
                                                 "not rewarded", "failed"]


def test_the_command_of_a_sampled_row_finds_it(tmp_path):
    stage, task = tmp_path / "judge-1", """it's "$HOME"/`x`"""
    tables.write(tables.step_file(stage, "samples", 2), records.Sample, [
        row(records.Sample, stage="judge-1", model="m", step=2, taskset="test", decoding="greedy", task_id=one)
        for one in (task, "other")])
    session = tables.connect([("toy/first", stage)])
    commands = [shlex.split(one["sql"]) for one in sampled.sample(session, "toy/first", [])["rows"]]
    assert {session.execute(f"SELECT task_id FROM ({question})").fetchall()[0][0]
            for _, _, question, _ in commands} == {task, "other"}


def test_the_images_of_a_prompt_are_part_of_the_page(tmp_path, monkeypatch):
    """Task t0 has three images, of which two are shown; 2 of 8 rows of the step are attempts at it. The page has each
    image once."""
    monkeypatch.setattr(sampled, "IMAGES", 2)
    run = FakeRun(tmp_path, steps=1).data().images(png(), png(640, 320), png(9)).rft("model")
    html = make(run)
    kept = dict(re.findall('<symbol id="([^"]*)".*?href="data:image/webp;base64,([^"]*)', html))
    assert html.count("base64,") == len(kept) == 2
    shown = re.findall('<svg role="img"[^>]* width="([^"]*)" height="([^"]*)">.*?href="#([^"]*)', html)
    assert [(float(width), float(height)) for width, height, _ in shown] == [(8, 8), (160, 80)] * 2
    assert [Image.open(io.BytesIO(base64.b64decode(kept[name]))).size for *_, name in shown] == [(8, 8), (160, 80)] * 2
    assert text(html).count("2 of 3") == 2


def test_long_texts_have_their_ends(tmp_path):
    run = FakeRun(tmp_path, steps=1).data().rft("model")
    path = tables.step_file(run.stages[-1]["directory"], "experience", 1)
    made = [records.Experience(**one) for one in tables.read(path, records.Experience).to_pylist()]
    made[1].response = "a" * 700 + "b" * 700
    tables.write(path, records.Experience, made)
    (shown,) = re.findall(r">(a+)\n[^a-z]*400 [^<]*\n(b+)<", make(run))
    assert tuple(map(len, shown)) == (500, 500)
