"""`ouro sql`: what it prints, and what a mistake is answered with."""

import csv
import io
import json
import re

import pytest

from pipeline import cli
from pipeline.files import CONF
from pipeline.tables import LOCATIONS
from tests.fake_run import FakeRun


def sql(run, capsys, question: str, *more: str):
    code = cli.main(["sql", question, "--root", str(run.root), *more])
    return code, capsys.readouterr()


def test_every_view_is_named_where_one_looks_for_them(capsys):
    with pytest.raises(SystemExit):
        cli.main(["sql", "--help"])
    readme = (CONF.parent / "README.md").read_text()
    listed = re.search(r"opens the views `([a-z, ]+)`", readme)[1]
    assert sorted(listed.split(", ")) == sorted(LOCATIONS)
    assert listed in " ".join(capsys.readouterr().out.split())


def test_sql_as_a_table(run, capsys):
    _, shown = sql(run, capsys, "SELECT model, value FROM scores WHERE metric = 'sampled_accuracy' ORDER BY value")
    assert shown.out.splitlines() == [
        "model  value", "-----  -----", "sft     0.38", "rft     0.81", "(2 rows)"]


def test_control_characters_of_a_rollout_never_reach_the_terminal(run, capsys):
    _, shown = sql(run, capsys, "SELECT chr(27) || '[31mred' || chr(10) AS text")
    assert "\x1b" not in shown.out
    assert r"\x1b[31mred\n" in shown.out


def test_sql_as_csv_quotes_what_needs_it(run, capsys):
    _, shown = sql(run, capsys, """SELECT 'a,"b"' AS text, NULL AS none, [1, 2] AS list, 1.5 AS x""", "--format", "csv")
    assert list(csv.reader(io.StringIO(shown.out))) == [["text", "none", "list", "x"], ['a,"b"', "", "[1, 2]", "1.5"]]


def test_sql_as_json_is_a_list_of_objects(run, capsys):
    question = "SELECT 1 AS a, 2 AS a, 'ü' AS text, map {'x': 1.5::DOUBLE} AS map, 'nan'::DOUBLE AS none"
    _, shown = sql(run, capsys, question, "--format", "json")
    assert json.loads(shown.out) == [{"a": 1, "a_2": 2, "text": "ü", "map": {"x": 1.5}, "none": None}]


def test_a_mistake_in_sql_lists_the_views_and_their_columns(run, capsys):
    code, shown = sql(run, capsys, "SELECT nothing FROM scores")
    assert code == 2
    assert '"nothing" not found' in shown.err
    assert "  scores: run, stage, model, step, taskset, metric, value" in shown.err


@pytest.mark.parametrize("question", ["", "  ", ";", "-- nothing"])
def test_an_empty_question_is_a_mistake(run, capsys, question):
    code, shown = sql(run, capsys, question)
    assert code == 2
    assert "an empty question" in shown.err


@pytest.mark.parametrize("step", [1, 2])
def test_a_truncated_table_is_named_when_it_is_read(run, capsys, step):
    """DuckDB opens the first file of a table for its columns, the others when a question needs them."""
    path = next(run.root.glob(f"store/sft-*/steps/step={step:06d}.parquet"))
    path.write_bytes(path.read_bytes()[:-9])
    code, shown = sql(run, capsys, "SELECT 1" if step == 1 else "SELECT sum(loss) FROM steps")
    assert code == 2
    assert f"ouro: {path} is not a readable Parquet file" in shown.err
    assert f"Delete {path.parent.parent} and run the same command again" in shown.err


def test_sql_over_several_runs(run, capsys):
    other = FakeRun(run.root, "toy/second")
    other.stages = run.stages
    other.view()
    question = "SELECT run, count(*) AS scores FROM scores GROUP BY run ORDER BY run"
    for which in (["toy/first", "second"], ["--all"]):
        _, shown = sql(run, capsys, question, "--format", "csv", *which)
        assert shown.out.splitlines() == ["run,scores", "toy/first,6", "toy/second,6"]


def test_no_rows_and_no_result(run, capsys):
    _, shown = sql(run, capsys, "SELECT model FROM scores WHERE false")
    assert shown.out.splitlines() == ["model", "-----", "(0 rows)"]
