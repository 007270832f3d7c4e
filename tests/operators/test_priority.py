"""Priorities, asked of DuckDB."""

import statistics

import duckdb
import pytest

from ouroboros.operators.priority import PRIORITIES, decay_limit_randomization, linear_decay

ROWS = [("a", 7, 0), ("b", 7, 1), ("c", 9, 2), ("d", 9, 3)]


def ask(expression, rows=ROWS):
    with duckdb.connect() as session:
        session.execute("CREATE TABLE rows (group_id VARCHAR, weights_version INTEGER, use_count INTEGER)")
        session.executemany("INSERT INTO rows VALUES (?, ?, ?)", rows)
        return dict(session.execute(f"SELECT group_id, {expression} FROM rows").fetchall())


def test_a_use_counts_like_two_versions():
    assert ask(linear_decay()) == {"a": 7, "b": 5, "c": 5, "d": 3}
    assert ask(linear_decay(decay=0.5)) == {"a": 7, "b": 6.5, "c": 8, "d": 7.5}


def test_after_so_many_uses_a_row_is_not_used_again():
    assert ask(decay_limit_randomization()) == {"a": 7, "b": 5, "c": 5, "d": None}
    assert ask(decay_limit_randomization(use_count_limit=1)) == {"a": 7, "b": None, "c": None, "d": None}
    assert ask(decay_limit_randomization(use_count_limit=0))["d"] == 3


def test_noise_is_normal_seeded_and_drawn_anew_after_each_use():
    rows = [(f"r{i}", 0, i % 2) for i in range(2000)]
    found = ask(decay_limit_randomization(decay=0, sigma=2.0), rows)
    assert found == ask(decay_limit_randomization(decay=0, sigma=2.0), rows[::-1])
    assert abs(statistics.mean(found.values())) < 0.2  # its standard error is 2 / sqrt(2000) = 0.045
    assert statistics.stdev(found.values()) == pytest.approx(2.0, rel=0.1)
    used = ask(decay_limit_randomization(decay=0, sigma=2.0), [(id_, 0, count + 1) for id_, _, count in rows])
    other = ask(decay_limit_randomization(decay=0, sigma=2.0, seed=1), rows)
    assert all(found[id_] != used[id_] and found[id_] != other[id_] for id_ in found)


def test_every_name_has_defaults_and_the_guides_name_is_known():
    assert all(ask(f())["a"] == 7 for f in PRIORITIES.values())
    assert PRIORITIES["linear_decay_use_count_control_randomization"] is PRIORITIES["decay_limit_randomization"]
