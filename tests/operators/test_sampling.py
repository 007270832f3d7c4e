"""Sample strategies, asked of DuckDB: six candidates of versions 0 to 5, three expert rows."""

import duckdb
import pyarrow as pa

from ouroboros.operators.sampling import SAMPLE_STRATEGIES, default, mix, oldest_version, selected, staleness_control


def ask(query, candidates=6, experts=3):
    with duckdb.connect() as session:
        session.execute("CREATE TABLE candidates AS SELECT 'c' || i AS experience_id, i AS position, "
                        f"i AS weights_version FROM range({candidates}) r(i) ORDER BY i DESC")
        session.execute("CREATE TABLE experts AS SELECT 'x' || i AS experience_id, i AS position "
                        f"FROM range({experts}) r(i)")
        return session.execute(query).fetchall()


def names(rows):
    assert [place for _, _, place in rows] == list(range(1, len(rows) + 1))
    assert all(is_expert == (id_[0] == "x") for id_, is_expert, _ in rows)
    return [id_ for id_, _, _ in rows]


ALL = [f"c{i}" for i in range(6)]


def test_default_takes_all_in_order():
    assert names(ask(default(1, 4))) == ALL


def test_staleness_control_leaves_old_rows_out():
    """Step 6 trains version 5 fresh; staleness 2 is version 3."""
    assert names(ask(staleness_control(6, 4, 2))) == ["c3", "c4", "c5"]
    assert names(ask(staleness_control(6, 4, 0))) == ["c5"]
    assert names(ask(staleness_control(2, 2, 5))) == ALL
    assert names(ask(staleness_control(6, 4))) == ALL
    assert [oldest_version(6, 2), oldest_version(2, 5), oldest_version(9)] == [3, 0, 0]


def test_mix_takes_a_share_of_expert_rows_in_turn():
    """ceil(5 / 2) = 3 of 5 is all of them; 2 of 4: x0 x1, then x2 x0, then x1 x2. 0.07 of 100 is 7, in binary 8."""
    assert names(ask(mix(1, 5), candidates=2)) == ["c0", "c1", "x0", "x1", "x2"]
    assert [names(ask(mix(step, 4)))[6:] for step in (1, 2, 3)] == [["x0", "x1"], ["x2", "x0"], ["x1", "x2"]]
    assert len(names(ask(mix(1, 100, expert_data_ratio=0.07), candidates=93, experts=50))) == 100


def test_every_strategy_answers_with_its_defaults():
    for function in SAMPLE_STRATEGIES.values():
        assert len(ask(function(1, 4), candidates=2)) == (4 if function is mix else 2)


def test_what_sql_leaves_open_is_answered_alike_each_time():
    """Rows in several parts, which several threads would take in any order."""
    parts = [pa.table({"experience_id": [f"{part}-{i}" for i in range(64)], "group_id": [i % 8 for i in range(64)]})
             for part in range(8)]
    query = "SELECT any_value(experience_id), false, 0 FROM candidates GROUP BY group_id ORDER BY group_id"
    answers = {tuple(selected(query, pa.concat_tables(parts), 0)[0]) for _ in range(10)}
    assert len(answers) == 1
