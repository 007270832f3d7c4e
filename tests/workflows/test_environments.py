"""The built-in environments: their rules, bad input, and demonstrations that play as they say."""

import ast
import json
import os
import time
from pathlib import Path

import pytest

from benchmarks import blind
from ouroboros.operators.curation import KEYS
from ouroboros.operators.generate import GENERATORS
from ouroboros.operators.worlds import sudoku as grids
from ouroboros.operators.worlds.frozen_lake import Lake
from ouroboros.pipeline.settings.arguments.rows import GENERATORS as ARGUMENTS
from ouroboros.pipeline.store.errors import ConfigError, DataError
from ouroboros.stages.curate import as_texts
from ouroboros.workflows.environments import folder, shop
from ouroboros.workflows.environments.folder import Folder
from ouroboros.workflows.environments.frozen_lake import FrozenLake
from ouroboros.workflows.environments.interpreter import Interpreter
from ouroboros.workflows.environments.shop import Shop
from ouroboros.workflows.environments.sudoku import Sudoku
from ouroboros.workflows.protocol.tools import Situation, methods_of
from tests.golden.messages import refuses
from tests.workflows.test_tools import used  # noqa: F401 - a fixture

WORLDS = {"frozen_lake": FrozenLake, "sudoku": Sudoku, "shop": Shop, "folder": Folder}


def begun(environment, answer, messages=()):
    world = environment()
    world.reset(Situation(list(messages), answer if isinstance(answer, str) else json.dumps(answer)))
    return world


def acted(world, written):
    """What a call such as `[move(direction="left")]` returns."""
    call = ast.parse(written.strip("[]"), mode="eval").body
    return getattr(world, call.func.id)(**{one.arg: ast.literal_eval(one.value) for one in call.keywords})


@pytest.mark.parametrize("name", WORLDS)
def test_demonstrations_play_as_they_say_and_without_guesses_they_solve(name):
    rows = list(GENERATORS[name](1, 10, 30, guesses=0.0))
    for end in (row for row in rows if row.solution == "done"):
        world = WORLDS[name]()
        first = end.context[0]["content"]
        shown = world.reset(Situation([], end.answer))
        assert first.partition("\n")[2] == (shown or "")
        turns = [*(turn["content"] for turn in end.context), end.question]
        for said, seen in zip(turns[1::2], turns[2::2], strict=True):
            assert acted(world, said) == seen
        assert world.reward()["accuracy"] == 1.0
        assert begun(WORLDS[name], end.answer).reward()["accuracy"] < 1.0


@pytest.mark.parametrize("name", [*WORLDS, "terminal"])
def test_tasks_follow_from_the_seed_and_all_replies_of_a_demonstration_are_held_out_together(name):
    rows = list(GENERATORS[name](1, 10, 20))
    assert rows == list(GENERATORS[name](1, 10, 20))
    assert rows != list(GENERATORS[name](2, 10, 20))
    assert [row.row for row in rows] == list(range(len(rows)))
    tasks = {(row.question, row.answer) for row in rows if row.solution is None}
    ends = [row for row in rows if row.solution == "done"]
    assert (len(tasks), len(ends)) == (10, 20)
    for end in ends:
        first = end.context[0]["content"].partition("\n")[0]
        assert (first, end.answer) not in tasks
        texts = as_texts({one: getattr(end, one) for one in (
            "row", "question", "answer", "solution", "chosen", "rejected", "split", "context", "messages")})
        assert KEYS["first_line"](texts) == first


def test_a_world_without_enough_tasks_says_so():
    with refuses(ConfigError, "distinct"):  # of 2x2 cells, one the player's and one the goal's
        list(GENERATORS["frozen_lake"](1, 13, 0, size=2, holes=0))
    assert len(list(GENERATORS["frozen_lake"](1, 12, 0, size=2, holes=0))) == 12


@pytest.mark.parametrize(("name", "wrong"), [
    ("frozen_lake", {"size": 3, "holes": 5}), ("frozen_lake", {"size": 1}), ("sudoku", {"size": 6}),
    ("sudoku", {"size": 4, "blanks": 11}), ("shop", {"shops": 0}), ("folder", {"files": 1})])
def test_arguments_out_of_bounds_are_refused(name, wrong):
    with refuses(ValueError, next(iter(wrong)) if 'holes' not in wrong else 'holes'):
        ARGUMENTS[name](tasks=1, demonstrations=1, **wrong)


@pytest.mark.parametrize("name", WORLDS)
def test_all_methods_are_described_and_effects_can_be_repeated(name):
    tools = methods_of(WORLDS[name])
    assert {one.name for one in tools} == {"frozen_lake": {"move"}, "sudoku": {"look", "place"},
                                           "shop": {"query", "submit"},
                                           "folder": {"find", "list", "read", "write", "move"}}[name]
    assert all(one.definition["function"]["description"] for one in tools)
    assert all(one.declaration.idempotent for one in tools)


def test_a_lake_is_crossed_around_its_hole():
    world = begun(FrozenLake, "PFF FHF FFG")
    assert world.move("left") == "PFF FHF FFG wall"
    assert world.move("up") == "PFF FHF FFG wall"
    assert [world.move(one) for one in ("right", "right", "down")] == ["FPF FHF FFG", "FFP FHF FFG", "FFF FHP FFG"]
    assert world.reward() == {"accuracy": 0.0}
    assert world.move("down") == "FFF FHF FFP goal"
    assert world.reward() == {"accuracy": 1.0}
    assert world.move("left") == "FFF FHF FFP over"
    assert world.reward() == {"accuracy": 1.0}


def test_a_hole_ends_the_game():
    world = begun(FrozenLake, "PH GF")
    assert world.move("right") == "FP GF hole"
    assert world.move("left") == world.move("down") == "FP GF over"
    assert world.reward() == {"accuracy": 0.0}


@pytest.mark.parametrize(("read", "text"), [
    *((Lake, text) for text in ("", "PF", "PG FX", "PP GF", "FF FG", "PGF FF FFF")),
    *((grids.read, text) for text in ("", "12 21", "1234 1234 1234 12345", "1239 .... .... ...."))])
def test_what_is_no_lake_or_no_sudoku_is_refused(read, text):
    with refuses(DataError, "no lake" if read is Lake else "no sudoku"):
        read(text)


PUZZLE, SOLVED = "1.34 34.. .... 4321", "1234 3412 2143 4321"


def test_a_sudoku_counts_the_right_digits():
    world = begun(Sudoku, {"puzzle": PUZZLE, "solution": SOLVED})
    assert world.place(3, 2, 2) == "1.34 34.. .2.. 4321"  # allowed, but the solution has 1 there
    assert world.reward() == {"accuracy": 0.0, "cells": 0.0}
    assert world.place(1, 2, 2) == "2 is already in the column"
    assert world.place(3, 2, 1) == "1.34 34.. .1.. 4321"
    assert world.reward() == {"accuracy": 0.0, "cells": 1 / 7}
    for row, column, digit in ((1, 2, 2), (2, 3, 1), (2, 4, 2), (3, 1, 2), (3, 3, 4), (3, 4, 3)):
        shown = world.place(row, column, digit)
    assert (shown, world.reward()) == (SOLVED, {"accuracy": 1.0, "cells": 1.0})


@pytest.mark.parametrize(("cell", "why"), [
    ((0, 1, 1), "row 0"), ((1, 5, 1), "column 5"), ((1, 2, 9), "digit 9"), ((1, 2, -1), "digit -1"),
    ((1, 1, 2), "given digit 1")])
def test_what_is_no_empty_cell_or_digit_is_refused(cell, why):
    world = begun(Sudoku, {"puzzle": PUZZLE, "solution": SOLVED})
    with refuses(ValueError, why):
        world.place(*cell)
    assert world.place(1, 2, 2) == "1234 34.. .... 4321"


@pytest.mark.parametrize(("cell", "group"), [((1, 4), "row"), ((4, 1), "column"), ((2, 2), "box")])
def test_what_breaks_a_rule_is_not_written(cell, group):
    world = begun(Sudoku, {"puzzle": "1... .... .... ....", "solution": SOLVED})
    assert world.place(*cell, 1) == f"1 is already in the {group}"
    assert world.place(*cell, 2).count("2") == 1


def test_a_look_shows_the_digits_of_row_column_and_box():
    world = begun(Sudoku, {"puzzle": PUZZLE, "solution": SOLVED})
    assert [world.look(1, 2), world.look(3, 3), world.look(2, 4)] == ["134", "123", "134"]
    world.place(2, 3, 1)
    assert world.look(3, 3) == "123"
    with refuses(ValueError, "row 5"):
        world.look(5, 1)


def test_demonstrations_without_a_look_end_at_the_first_rule_they_break():
    ends = [row for row in GENERATORS["sudoku"](1, 1, 200, blanks=3) if row.solution == "done"]
    calls = [[turn["content"] for turn in row.context if turn["role"] == "assistant"] for row in ends]
    guessed = [one for one in calls if not any(call.startswith("[look") for call in one)]
    assert 70 < len(guessed) < 130  # half of 200: five standard deviations are 35
    for row, said in zip(ends, calls, strict=True):
        broken = row.question.endswith(("in the row", "in the column", "in the box"))
        assert broken or "." not in row.question
        assert not (broken and said not in guessed)


def test_a_sudoku_has_one_solution():
    assert list(grids.solutions(grids.read(PUZZLE))) == [grids.read(SOLVED)]
    assert not grids.is_unique([0] * 16)
    assert list(grids.solutions(grids.read("12.. ..3. ..4. ...."))) == []  # neither 3 nor 4 in the first row's end
    for size, blanks in ((4, 8), (9, 40)):
        row = next(GENERATORS["sudoku"](3, 1, 0, size=size, blanks=blanks))
        puzzle, solved = (grids.read(text) for text in json.loads(row.answer).values())
        assert puzzle.count(0) == blanks
        assert list(grids.solutions(puzzle)) == [solved]
        assert all(sorted(solved[at:at + size]) == list(range(1, size + 1)) for at in range(0, size * size, size))


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(shop, "SECONDS", 0.3)
    world = begun(Shop, {"shop": 5, "value": "12"})
    yield world
    world._connection.close()


def test_a_query_shows_columns_and_rows_and_the_last_answer_counts(world):
    assert world.query("SELECT 2 AS two, NULL AS none") == "two, none\n2, NULL"
    assert world.query("SELECT count(*) FROM customers;") == "count_star()\n8"
    people = world.query("SELECT name, city FROM customers ORDER BY name").splitlines()
    assert people == begun(Shop, {"shop": 5, "value": ""}).query("FROM customers").splitlines()
    assert world.reward() == {"accuracy": 0.0}
    world.submit(12.0)
    assert world.reward() == {"accuracy": 1.0}
    world.submit("thirteen")
    assert world.reward() == {"accuracy": 0.0}


@pytest.mark.parametrize("sql", [
    "DELETE FROM orders", "DROP TABLE orders", "INSERT INTO customers VALUES ('x', 'y')", "SELECT 1; SELECT 2", "",
    "COPY orders TO 'out.csv'", "ATTACH 'other.db'", "SET memory_limit = '9GB'", "EXPLAIN ANALYZE DELETE FROM orders",
    "PRAGMA database_list", "CREATE TABLE t AS SELECT 1", "INSTALL httpfs", "CALL pragma_version()"])
def test_sql_with_effects_is_refused(world, tmp_path, monkeypatch, sql):
    monkeypatch.chdir(tmp_path)
    with refuses(ValueError, "exactly one SELECT"):
        world.query(sql)
    assert world.query("SELECT count(*) FROM orders") == "count_star()\n20"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sql", ["SELECT * FROM '/etc/passwd'", "SELECT * FROM read_csv('/etc/passwd')",
                                 "SELECT * FROM glob('/*')", "SELECT * FROM nothing", "SELEC 1"])
def test_files_and_mistakes_are_errors_of_the_database(world, sql):
    import duckdb

    with pytest.raises(duckdb.Error):
        world.query(sql)
    assert world.query("SELECT 1 AS one") == "one\n1"


def test_an_endless_query_ends_and_the_database_is_still_there(world):
    with refuses(TimeoutError, "no answer"):
        world.query("WITH RECURSIVE a AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM a) SELECT max(x) FROM a")
    assert world.query("SELECT 1 AS one") == "one\n1"


def test_large_results_are_cut(world):
    rows = world.query("SELECT * FROM range(100)").splitlines()
    assert rows == ["range", *map(str, range(50)), "(more rows)"]
    text = world.query("SELECT repeat('x', 1000000) AS x")
    assert len(text) < shop.CHARACTERS + 20


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return begun(Folder, {"files": {"a/note": "calm", "b/plan": "deep"},
                          "goal": {"a/plan": "deep", "c/d/note": "blue"}})


def test_a_chore_is_done_by_moving_and_writing(files):
    assert files.list() == "a/note\nb/plan"
    assert files.list("a") == "a/note"
    assert files.find("plan") == "b/plan"
    assert files.read("b/plan") == "deep"
    assert files.move("b/plan", "a/plan") == "moved"
    assert files.move("a/note", "c/d/note") == "moved"
    assert files.reward() == {"accuracy": 0.0}
    assert files.write("./c/d/../d/note", "blue") == "written"
    assert files.reward() == {"accuracy": 1.0}
    files.write("more", "")
    assert files.reward() == {"accuracy": 0.0}


def test_files_are_found_by_name(files):
    files.write("a/plan", "blue")
    assert files.find("plan") == "a/plan\nb/plan"
    for name in ("memo", "b", "../a/note", "*"):
        with refuses(ValueError, name):
            files.find(name)


@pytest.mark.parametrize("path", ["../secret", "a/../../secret", "/etc/passwd", "link/secret", "circle", "x\0y",
                                  "y" * 300])
def test_what_is_outside_is_neither_read_nor_written_nor_moved(files, tmp_path, path):
    (tmp_path / "secret").write_text("key")
    (files._root / "link").symlink_to(tmp_path)
    (files._root / "circle").symlink_to("circle")
    before = sorted(str(one) for one in tmp_path.rglob("*"))
    for act in (lambda: files.read(path), lambda: files.write(path, "x"), lambda: files.move(path, "mine"),
                lambda: files.move("a/note", path), lambda: files.list(path)):
        with pytest.raises(ValueError) as error:  # noqa: PT011 - of five kinds
            act()
        assert str(tmp_path) not in str(error.value)
    assert sorted(str(one) for one in tmp_path.rglob("*")) == before
    assert (tmp_path / "secret").read_text() == "key"


def test_a_link_to_a_file_outside_is_not_its_text(files, tmp_path):
    (tmp_path / "secret").write_text("blue")
    files.move("b/plan", "a/plan")
    os.unlink(files._root / "a/note")
    (files._root / "c/d").mkdir(parents=True)
    (files._root / "c/d/note").symlink_to(tmp_path / "secret")
    assert files.reward() == {"accuracy": 0.0}


@pytest.mark.parametrize(("act", "why"), [
    (lambda one: one.read("nothing"), "no such file"), (lambda one: one.read("a"), "no such file"),
    (lambda one: one.list("a/note"), "no such directory"), (lambda one: one.move("nothing", "b/x"), "no such file"),
    (lambda one: one.move("a/note", "b/plan"), "already"), (lambda one: one.move(".", "b/x"), "no such file"),
    (lambda one: one.move("a", "a/b"), "a/b: Invalid"), (lambda one: one.write("a/note/x", "y"), "a/note/x: "),
    (lambda one: one.write("a", "y"), "directory"), (lambda one: one.write("a/x", "y" * 70_000), "70000 bytes")])
def test_what_cannot_be_done_is_said(files, act, why):
    with refuses(ValueError, why):
        act(files)
    assert files.list() == "a/note\nb/plan"


def test_files_are_bounded_in_number_and_size(files, monkeypatch):
    monkeypatch.setattr(folder, "MOST", 8)
    for number in range(4):  # beside two files in two directories
        files.write(f"e{number}", "")
    with refuses(ValueError, "8 files"):
        files.write("e4", "")
    monkeypatch.setattr(folder, "MOST", 1000)
    for number in range(16):
        files.write(f"f{number}", "y" * 65_000)
    with refuses(ValueError, "in all files"):
        files.write("f16", "y" * 65_000)
    (files._root / "huge").write_bytes(b"\xff" * 70_000)  # from elsewhere
    with refuses(ValueError, "70000 bytes"):
        files.read("huge")


def test_temporary_files_of_tools_are_deleted_with_the_attempt(used, tmp_path, monkeypatch):  # noqa: F811
    from ouroboros.workflows.attempts.isolated import host

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    host.cache_clear()
    found, seen = used([["keeps", {"text": "x"}], ["variables", {"names": ["TMPDIR"]}]], "keeps", "variables")
    host.cache_clear()
    assert Path(found).parent.parent == tmp_path
    assert json.loads(seen)["TMPDIR"] == str(Path(found).parent)
    deadline = time.monotonic() + 60
    while any(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(tmp_path.iterdir())


def test_a_world_whose_answers_are_withheld_acts_all_the_same():
    world = begun(blind.Folder, {"files": {"a/x": "1"}, "goal": {"b/x": "1"}})
    assert [world.list(), world.read("none"), world.move("a/x", "b/x")] == ["", "", ""]
    assert world.reward() == {"accuracy": 1.0}
    assert [one.definition for one in methods_of(blind.Folder)] == [one.definition for one in methods_of(Folder)]


def test_programs_run_in_a_sandbox_and_keep_nothing(used):  # noqa: F811
    """Through the process that tools have: what is printed, an error's last line, no network, no file of before."""
    try:
        Interpreter.check()
    except ConfigError as error:
        pytest.skip(str(error))
    programs = ["print(6 * 7)", "open('kept', 'w'); 1 / 0", "import os; print(os.listdir('.'))",
                "import socket; socket.create_connection(('1.1.1.1', 80), 2)"]
    found = used([["execute_python_code", {"code": one}] for one in programs],
                 environment_class="ouroboros.workflows.environments.interpreter:Interpreter")
    assert (found[0], found[2]) == ("42\n", "[]\n")
    assert "ZeroDivisionError" in found[1]
    assert "unreachable" in found[3]
    with pytest.raises(ValueError, match="65536"):
        Interpreter().execute_python_code("#" * 65537)
