"""DuckDB sessions: their threads."""

import os

import pytest

from ouroboros.pipeline.store import sessions, tables


@pytest.mark.parametrize(("opened", "threads"), [(lambda: sessions.new(1), 1), (lambda: sessions.new(3), 3),
                                                 (tables.connect, 2), (lambda: tables.connect(threads=1), 1)])
def test_threads_are_by_number_and_not_by_core(opened, threads):
    """The thread that asks works too; four for each that works read and write."""
    before = len(os.listdir("/proc/self/task"))
    with opened() as session:
        assert session.sql("SELECT count(*) FROM range(10)").fetchall() == [(10,)]
        assert len(os.listdir("/proc/self/task")) - before == threads - 1 + 4 * threads
