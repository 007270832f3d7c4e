"""`ouro sql`: what it prints, and what a mistake is answered with."""

import csv
import io
import json
import re

import duckdb
import pytest

from ouroboros.commands import cli
from ouroboros.pipeline.results import query
from ouroboros.pipeline.results.findings import QUESTIONS
from ouroboros.pipeline.store.files import CONF
from ouroboros.pipeline.store.tables import LOCATIONS
from tests.fake_run import FakeRun, whole
from tests.golden.messages import wording


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One for all tests that only read it."""
    return whole(tmp_path_factory.mktemp("run"))


def sql(run, capsys, question: str, *more: str):
    code = cli.main(["sql", question, "--root", str(run.root), *more])
    return code, capsys.readouterr()


def test_every_view_is_named_where_one_looks_for_them(capsys):
    assert cli.main(["sql", "--help"]) == 0
    page = " ".join((CONF.parent / "docs" / "sql.md").read_text().split())
    listed = re.search(r"provides the views `([a-z_, ]+)`", page)[1]
    assert sorted(listed.split(", ")) == sorted(LOCATIONS)
    assert listed in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("rows", "shown"), [
    ("metric = 'sampled_accuracy'", ["model  value", "-----  -----", "sft     0.38", "rft     0.81", "(2 rows)"]),
    ("false", ["model  value", "-----  -----", "(0 rows)"])])
def test_sql_as_a_table(run, capsys, rows, shown):
    assert sql(run, capsys, f"SELECT model, value FROM scores WHERE {rows} ORDER BY value")[1].out.splitlines() == shown


def test_control_characters_of_a_rollout_never_reach_the_terminal(run, capsys):
    _, shown = sql(run, capsys, "SELECT chr(27) || '[31mred' || chr(10) AS text")
    assert "\x1b" not in shown.out
    assert r"\x1b[31mred\n" in shown.out


def test_one_long_column_gets_what_the_line_has_left(run, capsys, monkeypatch):
    """Of 100 characters `a` and two spaces take 3; of two long columns each has 60."""
    monkeypatch.setenv("COLUMNS", "100")
    _, shown = sql(run, capsys, "SELECT 1 AS a, repeat('x', 97) AS b")
    assert "x" * 97 in shown.out
    assert "cut" not in shown.out
    _, shown = sql(run, capsys, "SELECT repeat('y', 97) AS a, repeat('x', 97) AS b")
    assert "x" * 29 + "…" + "x" * 30 in shown.out
    wording(shown.out, "1 row", "2 cells", "--format", "whole")


def test_sql_as_csv_quotes_what_needs_it(run, capsys):
    _, shown = sql(run, capsys, """SELECT 'a,"b"' AS text, NULL AS none, [1, 2] AS list, 1.5 AS x""", "--format", "csv")
    assert list(csv.reader(io.StringIO(shown.out))) == [["text", "none", "list", "x"], ['a,"b"', "", "[1, 2]", "1.5"]]


def test_sql_as_json_is_a_list_of_objects(run, capsys):
    question = "SELECT 1 AS a, 2 AS a, 'ü' AS text, map {'x': 1.5::DOUBLE} AS map, 'nan'::DOUBLE AS none"
    _, shown = sql(run, capsys, question, "--format", "json")
    assert json.loads(shown.out) == [{"a": 1, "a_2": 2, "text": "ü", "map": {"x": 1.5}, "none": None}]


MISTAKES = [
    *(([question], "an empty question") for question in ("", "  ", ";", "-- nothing")),
    (["SELECT nothing FROM scores"], "  scores: run, stage, model, step, taskset, metric, value"),
    (["SELECT * FROM batches"], "no table is called batches.\n"),  # a variable of this process is no table
    (["SELECT * FROM experiences"], "no table is called experiences. Did you mean 'experience'?"),
    *((["SELECT 1", "--with", word], f"--with {word}") for word in (
        "labels", "=x.csv", "scores=x.csv", "a b=x.csv", "a=x.pickle", "a=absent.csv")),
    *((["SELECT 1", "--out", file], f"--out {file}") for file in ("answer", "out.xlsx", "/proc/x.csv")),
    (["SELECT error('no') FROM range(3)", "--out", "out.parquet"], "no")]


@pytest.mark.parametrize(("words", "answer"), MISTAKES)
def test_a_mistake_says_what_is_wrong_and_leaves_no_file(run, capsys, tmp_path, monkeypatch, words, answer):
    monkeypatch.chdir(tmp_path)
    code, shown = sql(run, capsys, *words)
    assert code == 2
    assert answer in shown.err
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize("step", [1, 2])
def test_a_truncated_table_is_named_when_it_is_read(tmp_path, capsys, step):
    """DuckDB opens the first file of a table for its columns, the others when a question needs them."""
    run = whole(tmp_path)
    path = next(run.root.glob(f"store/sft-*/steps/step={step:06d}.parquet"))
    path.write_bytes(path.read_bytes()[:-9])
    code, shown = sql(run, capsys, "SELECT 1" if step == 1 else "SELECT sum(loss) FROM steps")
    assert code == 2
    wording(shown.err, path, path.parent.parent)


def test_sql_over_several_runs(tmp_path, capsys):
    run = whole(tmp_path)
    other = FakeRun(run.root, "toy/second")
    other.stages = run.stages
    other.view()
    question = "SELECT run, count(*) AS scores FROM scores GROUP BY run ORDER BY run"
    for which in (["toy/first", "second"], ["--all"]):
        _, shown = sql(run, capsys, question, "--format", "csv", *which)
        assert shown.out.splitlines() == ["run,scores", "toy/first,6", "toy/second,6"]


def test_a_mistake_lists_the_columns_of_its_views_alone_and_wrong_syntax_none(run, capsys):
    _, shown = sql(run, capsys, "SELECT nothing FROM scores JOIN samples USING (task_id)")
    assert [line.split(":")[0].strip() for line in shown.err.splitlines() if line.startswith("  ")] == [
        "samples", "scores", "others"]
    code, shown = sql(run, capsys, "SELECT 'x")
    assert (code, "rollouts" in shown.err) == (2, False)


FORBIDDEN = {
    "copy to": "COPY scores TO '{store}/out.csv'", "copy a query": "COPY (SELECT 1) TO '{store}/out.parquet'",
    "explain analyze executes": "EXPLAIN ANALYZE COPY scores TO '{store}/out.csv'",
    "explain with options": "EXPLAIN (ANALYZE, FORMAT json) COPY scores TO '{store}/out.csv'",
    "a comment before": "/* SELECT */ -- SELECT\nCOPY scores TO '{store}/out.csv'",
    "a comment before explain": "/* ; */ EXPLAIN ANALYZE COPY scores TO '{store}/out.csv'",
    "a comment inside explain": "EXPLAIN/**/ANALYZE/* x */COPY scores TO '{store}/out.csv'",
    "a comment that \\r ends": "explain --\ranalyze copy (select '\n(x) select 1 as \"') to '{store}/out.csv' --\"",
    "a comment in a comment": "explain /*/**/(x) select 1 as \"*/ (analyze) copy (select 1) to '{store}/out.csv' --\"",
    "a comment in options":
        "explain (analyze, format json --) select 1 as \"\n) copy (select 1) to '{store}/out.csv' --\"",
    "quotes in options":
        "explain (analyze, format $$json$$ /*) select 1 as \"*/) copy (select 1) to '{store}/out.csv' --\"",
    "a byte order mark": "\ufeffexplain analyze copy (select 1) to '{store}/out.csv'",
    "attach": "ATTACH '{store}/other.db'", "export": "EXPORT DATABASE '{store}/dump'", "drop": "DROP VIEW scores",
    "create": "CREATE TABLE t AS SELECT 1", "insert": "INSERT INTO scores SELECT * FROM scores",
    "delete": "DELETE FROM scores", "two statements": "SELECT 1; SELECT 2",
    "a second that writes": "SELECT 1; COPY scores TO '{store}/out.csv'",
    "setting": "SET enable_external_access = true", "pragma": "PRAGMA database_list", "install": "INSTALL httpfs",
    "load": "LOAD httpfs", "update extensions": "UPDATE EXTENSIONS", "call": "CALL pragma_version()",
    "prepare": "PREPARE p AS SELECT 1",
}


@pytest.mark.parametrize("question", FORBIDDEN.values(), ids=FORBIDDEN)
def test_what_does_not_only_read_is_refused_in_one_line(run, capsys, question):
    before = sorted(run.root.rglob("*"))
    code, shown = sql(run, capsys, question.format(store=run.root / "store"))
    assert code == 2
    wording(shown.err, "SELECT")
    assert len(shown.err.splitlines()) == 1
    assert sorted(run.root.rglob("*")) == before


@pytest.mark.parametrize("question", [
    "SELECT * FROM read_csv('{file}')", "SELECT * FROM read_text('{file}')", "FROM '{file}'",
    "SELECT * FROM glob('{folder}/*')", "SELECT * FROM query('FROM ''{file}''')",
    "WITH x AS (FROM read_csv('{file}')) SELECT * FROM x"])
def test_files_outside_the_stages_cannot_be_read(run, capsys, tmp_path_factory, question):
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "secret.csv").write_text("a,b\n1,hidden\n")
    code, shown = sql(run, capsys, question.format(file=folder / "secret.csv", folder=folder))
    assert code == 2
    assert "hidden" not in shown.out + shown.err


@pytest.mark.parametrize("question", ["EXPLAIN SELECT * FROM scores", "explain analyze select 1", "DESCRIBE scores",
                                      "SUMMARIZE scores", "SHOW TABLES", "FROM scores", "VALUES (1)", "SELECT 1;",
                                      "-- why\nSELECT 1", "--why\nSELECT 1 = 1"])
def test_whatever_only_reads_is_answered(run, capsys, question):
    assert sql(run, capsys, question)[0] == 0


def test_a_file_of_ones_own_joins(run, capsys, tmp_path):
    (tmp_path / "labels.csv").write_text("model,label\nsft,warm\nrft,hot\n")
    (tmp_path / "more.jsonl").write_text('{"label": "hot", "degrees": 90}\n')
    question = ("SELECT label, degrees, value FROM scores JOIN labels USING (model) LEFT JOIN more USING (label) "
                "WHERE metric = 'sampled_accuracy' ORDER BY value")
    code, shown = sql(run, capsys, question, "--format", "csv", "--with", f"labels={tmp_path / 'labels.csv'}",
                      "--with", f"more={tmp_path / 'more.jsonl'}")
    assert (code, shown.out.splitlines()) == (0, ["label,degrees,value", "warm,,0.38", "hot,90,0.81"])


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_an_answer_is_exported_and_joins_again(run, capsys, tmp_path, suffix):
    file = tmp_path / f"out.{suffix}"
    question = "SELECT model, value, [1, 2] AS list FROM scores WHERE metric = 'sampled_accuracy' ORDER BY value"
    code, shown = sql(run, capsys, question, "--out", str(file))
    assert code == 0
    wording(shown.out, "2 rows", file)
    _, shown = sql(run, capsys, "SELECT model, value FROM mine", "--with", f"mine={file}", "--format", "csv")
    assert shown.out.splitlines() == ["model,value", "sft,0.38", "rft,0.81"]


def test_an_exported_csv_is_the_csv_that_is_printed(run, capsys, tmp_path):
    question = """SELECT 'a,"b"' AS text, NULL AS none, [1, NULL] AS list, {'x': 1.5} AS struct, 0.1::FLOAT AS f"""
    sql(run, capsys, question, "--out", str(tmp_path / "out.csv"))
    _, shown = sql(run, capsys, question, "--format", "csv")
    assert (tmp_path / "out.csv").read_text() == shown.out


ENDLESS = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT x FROM t WHERE x < 0"


@pytest.mark.parametrize("words", [[ENDLESS], ["SELECT * FROM range(1000000000000)", "--out", "big.parquet"]])
def test_a_question_without_end_is_interrupted_and_leaves_no_file(run, capsys, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    code, shown = sql(run, capsys, *words, "--timeout", "1")
    assert (code, "after 1 s" in shown.err) == (2, True)
    assert not list(tmp_path.glob("*big*"))


def test_an_interrupted_question_is_no_traceback():
    """DuckDB answers Ctrl-C with a RuntimeError."""
    def interrupted(*_):
        raise RuntimeError("Query interrupted")

    with pytest.raises(KeyboardInterrupt):
        query._checked(None, "SELECT 1", interrupted)


def test_what_no_command_can_work_with(capsys, tmp_path, monkeypatch):
    assert cli.main(["status", "a\udcff"]) == 2
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert cli.main(["status"]) == 2
    assert "directory was deleted" in capsys.readouterr().err


def test_the_questions_of_the_pages():
    """Two attempts at one task, one solved in its second turn and one failed at once: half is solved. Versions 0 to 40
    of one row each, task a with reward 0, b with 1: bins of 8 from 0, 8, ..., 40."""
    session = duckdb.connect()
    versions, hardest, *_ = QUESTIONS.values()
    session.execute("CREATE TABLE experience AS SELECT *, 0.25 AS reward, 0 AS weights_version, 'w' AS weights_hash, "
                    "[1, 2] AS response_tokens, 'ok' AS status FROM (VALUES ('t', 'p', 0, 1.0), ('t', 'p', 1, 1.0), "
                    "('t', 'p', 0, 0.0)) AS _(task_id, prompt, turn, accuracy)")
    assert session.execute(versions).fetchall() == [(0, 2, 0.25, 0.5, 2.0, 1)]
    assert session.execute(hardest).fetchall() == [("p", 2, 0.25, 0.5)]
    session.execute("CREATE OR REPLACE TABLE experience AS SELECT version AS weights_version, version % 2 AS reward, "
                    "0 AS turn, NULL::DOUBLE AS accuracy, ['a', 'b'][version % 2 + 1] AS task_id, task_id AS prompt, "
                    "'ok' AS status, [1] AS response_tokens, 'w' AS weights_hash FROM range(41) AS _(version)")
    assert [row[0] for row in session.execute(versions).fetchall()] == [0, 8, 16, 24, 32, 40]
    assert session.execute(hardest).fetchall() == [("a", 21, 0.0, None), ("b", 20, 1.0, None)]
