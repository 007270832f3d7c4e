"""Runs side by side: which score counts, what differs, in which order, and the picture of it."""

import csv
import io
import json
import re

import pytest
import yaml

from ouroboros.commands import cli
from ouroboros.commands.run import failure
from ouroboros.pipeline.results import compare_page, page, sweep_view
from ouroboros.pipeline.results.compare import answer, compared, rounded
from ouroboros.pipeline.results.compare_page import picture
from ouroboros.pipeline.results.query import Answer
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import DataError
from tests.fake_run import FakeRun
from tests.golden.messages import refuses, wording


def point(root, name: str, value: float | None, lr: float = 1e-6, failed: str | None = None):
    """A run toy/NAME that ends with an evaluation, complete with `value`, or not complete."""
    run = FakeRun(root, f"toy/{name}").data()
    run.stage(f"sft{name}", "train", "curate", "model")
    run.evaluate(f"sft{name}", 0.2)  # an earlier model: not what the run is ranked by
    run.stage(f"rft{name}", "rft", "curate", f"sft{name}", complete=failed is None)
    if failed:
        (run.root / "store").joinpath(run.stages[-1]["directory"].rsplit("/", 1)[1], "stage.error").write_text(failed)
    if value is None:
        run.stage(f"evaluate_rft{name}", "evaluate", "curate", f"rft{name}", complete=False)
    else:
        run.evaluate(f"rft{name}", value)
    path = run.view()
    config = {"name": name, "seed": 1, "algorithm": {"optimizer": {"lr": lr, "eps": 1e-8}}, "log": {"level": name},
              "stages": [{"stage_name": "sft", "seed": len(name)}, {"stage_name": "rft"}]}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
def swept(tmp_path):
    """A sweep toy/s of four points: 0.5, 0.8, one that failed, one that was not begun."""
    names = {"s-lr=1": 0.5, "s-lr=2": 0.8, "s-lr=3": None, "s-lr=4": None}
    for name, value in names.items():
        point(tmp_path, name, value, failed="the trainer diverged\nlog\n" if name.endswith("3") else None)
    points = [{"run": f"toy/{n}", "overrides": [], "differs": {"algorithm.optimizer.lr": n[-1]}} for n in names]
    files.write_json(tmp_path / "runs/toy/s/sweep.json", {"project": "toy", "name": "s", "points": points})
    return tmp_path


def test_the_best_is_first_and_what_is_incomplete_last_and_says_so(swept):
    rows = compared([sweep_view.find(swept, "s")])
    assert [row.run for row in rows] == ["toy/s-lr=2", "toy/s-lr=1", "toy/s-lr=3", "toy/s-lr=4"]
    table = answer(rows, "sampled_accuracy")
    assert table.columns == ["run", "value", "low", "high", "lr", "metric", "state"]
    assert table.rows[0] == ("toy/s-lr=2", 0.8, pytest.approx(0.77), pytest.approx(0.83), 2, "sampled_accuracy",
                             "complete")
    assert table.rows[2] == ("toy/s-lr=3", None, None, None, 3, "sampled_accuracy", "failed: rfts-lr=3")
    wording(table.rows[3][-1], "6 of", "7 stages")


def test_another_metric_ranks_by_that_and_an_unknown_one_lists_those_there_are(swept):
    assert compared([sweep_view.find(swept, "s")], "greedy_accuracy")[0].value == pytest.approx(0.9)
    with refuses(DataError, "'greedy_acc'", "'greedy_accuracy'", "greedy_accuracy, pass@8, sampled_accuracy"):
        compared([sweep_view.find(swept, "s")], "greedy_acc")


def test_runs_that_are_no_sweep_are_compared_by_their_frozen_settings(tmp_path):
    point(tmp_path, "a", 0.5, 1e-6)
    point(tmp_path, "long", 0.6, 3e-6)
    rows = compared([sweep_view.find(tmp_path, name) for name in ("a", "long", "toy/a")])
    # log.level differs too, but says how; the name is the run's; toy/a is there once
    assert [row.differs for row in rows] == [{"lr": 3e-6, "sft.seed": 4}, {"lr": 1e-6, "sft.seed": 1}]


def test_a_search_hides_the_words_that_all_its_points_share(swept):
    path = swept / "runs/toy/s/sweep.json"
    kept = files.read_json(path)
    for entry in kept["points"]:
        entry["differs"]["seed"] = "7"
    files.write_json(path, kept)
    assert set(compared([sweep_view.find(swept, "s")])[0].differs) == {"lr"}


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_the_command_prints_the_forms_and_writes_the_page(swept, capsys, form):
    assert cli.main(["compare", "s", "--root", str(swept), "--format", form]) == 0
    shown = capsys.readouterr()
    if form == "json":
        assert json.loads(shown.out)[0]["value"] == 0.8
    elif form == "csv":
        assert [row[0][-3:] for row in csv.reader(io.StringIO(shown.out))] == ["run", "r=2", "r=1", "r=3", "r=4"]
    else:
        assert shown.out.splitlines()[2].split()[:2] == ["toy/s-lr=2", "0.8"]
    assert "compare.html" in shown.err
    assert (swept / "runs/toy/s/compare.html").exists()


def test_the_latest_sweep_is_the_default_and_without_one_all_runs(swept, tmp_path, capsys):
    assert cli.main(["compare", "--root", str(swept)]) == 0
    assert "toy/s-lr=2" in capsys.readouterr().out
    (swept / "runs/toy/s/sweep.json").unlink()
    assert cli.main(["compare", "--root", str(swept)]) == 0
    shown = capsys.readouterr().out
    assert all(f"toy/s-lr={lr}" in shown for lr in (1, 2, 3, 4))
    assert cli.main(["compare", "--root", str(tmp_path / "empty")]) == 2
    assert "no run below" in capsys.readouterr().err


def test_the_page_stands_alone_marks_what_is_incomplete_and_links_reports(swept):
    (swept / "runs/toy/s-lr=2/report.html").touch()
    cli.main(["compare", "s", "--root", str(swept)])
    html = (swept / "runs/toy/s/compare.html").read_text()
    assert "2 of 4" in html
    assert ">failed: rfts-lr=3</span>" in html
    assert "best 80.0% at" in html
    assert 'href="../s-lr%3D2/report.html"' in html
    assert html.count("<svg") == 1
    assert not re.search(r"https?://|#0a0a0|#0[1234]0", html)  # nothing to fetch, no stand-in colour left


def test_status_report_and_sql_take_the_name_of_a_sweep(swept, capsys):
    assert cli.main(["status", "s", "--root", str(swept)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"toy/s-lr=1 +complete", out)
    wording(out, "rfts-lr=3 (lr=3)")
    assert cli.main(["status", "s-lr=1", "--root", str(swept)]) == 0  # a name with a `=` in it is no override
    assert capsys.readouterr().out.startswith("toy/s-lr=1\n")
    assert cli.main(["report", "s", "--root", str(swept)]) == 2
    cli.main(["compare", "--root", str(swept)])
    capsys.readouterr()
    assert cli.main(["report", "s", "--root", str(swept)]) == 0
    assert capsys.readouterr().out == f"{swept}/runs/toy/s/compare.html\n"
    question = "SELECT count(DISTINCT run) AS n FROM scores"
    assert cli.main(["sql", question, "s", "--root", str(swept), "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines() == ["n", "4"]  # the early evaluation of all four is complete


def test_the_last_words_of_a_sweep_say_which_points_failed(swept):
    words = failure.what_failed(sweep_view.find(swept, "s"), 1, command="ouro run -m lr=1,2,3,4")
    wording(words.splitlines()[0], "rfts-lr=3", "(lr=3)")
    wording(words, "2 of", "4 points", "-m lr=1,2,3,4")


def rows(*points: tuple[dict, float | None]):
    """Rows of compared runs, made up."""
    from pathlib import Path

    from ouroboros.pipeline.results.compare import Row
    from ouroboros.pipeline.store.records import Score
    from tests.factories import row

    def scores(value):
        return {} if value is None else {"t": row(Score, taskset="t", value=value, low=value - 0.1, high=value + 0.1)}

    return [Row("p/r", Path("r"), differs, "complete", scores(value)) for differs, value in points]


def label(shown) -> str:
    return re.search(r'aria-label="([^"]*)"', shown["svg"]).group(1)


@pytest.mark.parametrize(("points", "words", "legend"), [
    # a scatter, of numbers and of names; of two settings the one with fewer values is the colour; parallel coordinates
    ([({"lr": "1e-6"}, 0.5), ({"lr": "1e-5"}, 0.7)], ("2 runs", "70.0%", "1e-5"), None),
    ([({"recipe": "a"}, 0.5), ({"recipe": "b"}, 0.4)], ("50.0%", "a"), None),
    ([({"lr": lr, "seed": s}, 0.5) for lr in ("1", "2", "3") for s in ("7", "8")], ("6 runs",), ["seed=7", "seed=8"]),
    ([({"a": "1", "b": "x", "c": "2"}, 0.5), ({"a": "2", "b": "y", "c": None}, 0.25)],
     ("2 runs", "50.0%", "a 1", "c 2"), None)])
def test_what_differs_is_drawn(points, words, legend):
    shown = picture("p", rows(*points), "t")
    wording(label(shown), *words)
    assert shown.get("legend") == legend or not legend


@pytest.mark.parametrize("more", [{}, {"b": "x", "c": "y"}])
def test_a_text_with_dollars_is_no_formula_and_markup_no_markup(more):
    shown = picture("p", rows(({"a": "$x_{$", **more}, 0.5), ({"a": "<b>", **more}, 0.25)), "t")
    assert "$x_{$" in shown["svg"]
    assert "<b>" not in shown["svg"]
    assert "&lt;b&gt;" in shown["svg"]


def test_without_a_score_or_a_difference_there_is_no_picture():
    assert picture("p", rows(({"lr": "1"}, None)), "t") is None
    assert picture("p", rows(({}, 0.5)), "t") is None


def test_scales():
    assert compare_page.logarithmic([1e-6, 1e-4])
    assert not compare_page.logarithmic([0, 1000])
    assert not compare_page.logarithmic([1, 19.9])
    assert compare_page.ordered([3, 1, 2, 1]) == [1, 2, 3]
    assert compare_page.ordered(["b", "a", "b"]) == ["b", "a"]
    assert (compare_page.word(1e-06), compare_page.word(0.12345), compare_page.word("x")) == ("1e-6", "0.1235", "x")


def test_settings_and_facts_are_shown_without_the_marks_of_python():
    wording(page._cell({"cores": 2, "trainer": None, "low": [0.0, 0.25]}), "cores 2", "0 0.25")
    assert (page._cell({}), page._cell([]), page._cell(True)) == ("–", "–", "True")


def test_people_see_four_digits_of_scores_and_settings_as_they_are():
    shown = rounded(Answer(["lr", "value", "low test"], [(0.00123456, 0.87654321, None), (1e-6, 90.0, 1.23456e-5)]))
    assert [[str(cell) for cell in row] for row in shown.rows] == [
        ["0.00123456", "0.8765", "None"], ["1e-06", "90", "0.00001235"]]
