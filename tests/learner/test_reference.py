"""The reference's log-probs as a table: made once a row, read afterwards."""

import numpy as np
import pytest

from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.checkpoints import weights_hash
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.learner.engine.batch import Origin, Row
from ouroboros.stages.learner.reference import References
from tests.golden.messages import refuses


class OneRank:
    rank = 0

    @staticmethod
    def first(value):
        return value


class Scorer:
    """An actor whose reference gives every action token -1, -2, ... and that remembers what it was asked."""

    process = OneRank

    def __init__(self):
        self.asked = []

    def reference_logprobs(self, rows):
        self.asked += [row.id for row in rows]
        return [-np.arange(1, sum(row.mask) + 1, dtype=np.float32) for row in rows]


@pytest.fixture
def references(tmp_path, context_of, tiny_model):
    return lambda: References(context_of(tmp_path / "rft"), tiny_model, Scorer())


def asked(references):
    """Ids of the rows that its actor scored."""
    return references.score.__self__.asked


def rows():
    """Rows 0, 1 are of explorer step 1, rows 2, 3 of step 2."""
    return [Row(f"{i}", [7, 8, 9, 9], 1, [1, 0, 1], {}, Origin(1 + i // 2, i, 0, "g", 0, 1.0, None)) for i in range(4)]


def test_a_row_is_scored_once_whoever_asks(references, tiny_model):
    """The environment's token has no log-prob."""
    first, some = references(), rows()
    first.add(some)
    assert some[3].columns["ref_logprobs"].tolist() == [-1.0, 0.0, -2.0]
    assert asked(first) == ["0", "1", "2", "3"]
    resumed, again = references(), rows()
    for reader in (first, resumed):
        reader.add(again[2:])
        assert again[2].columns["ref_logprobs"].tolist() == [-1.0, 0.0, -2.0]
    assert (asked(first), asked(resumed)) == (["0", "1", "2", "3"], [])
    found = tables.read(tables.step_file(first.context.directory, "reference", 1), records.FixedLogprobs).to_pylist()
    assert found[1] == {"experience_id": "1", "model_hash": weights_hash(tiny_model), "logprobs": [-1.0, -2.0],
                        "top_ids": None, "top_logprobs": None}


def test_another_reference_scores_anew(references, monkeypatch):
    references().add(rows())
    other = references()
    other.hash = "0123456789abcdef"
    other.add(rows())
    assert asked(other) == ["0", "1", "2", "3"]


def test_a_row_that_the_file_does_not_have_is_named(references):
    references().add(rows()[:3])
    with refuses(DataError, "reference/step=000002.parquet", "row 3"):
        references().add(rows())


def test_of_a_single_weight_file_the_hash_is_that_files(tmp_path):
    from ouroboros.pipeline.store import files

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a.safetensors").write_text("a")
    assert weights_hash(tmp_path) == files.hash_file(tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_text("b")
    assert weights_hash(tmp_path) not in (files.hash_file(tmp_path / "a.safetensors"), files.hash_text("b"))


def test_rows_are_scored_anew_by_a_reference_that_moved(tmp_path, context_of, tiny_model):
    """Every second train step. A resumed stage reads what the reference as it is then has scored."""
    settings = ("trainer.reference_update.interval=2", "trainer.reference_update.mix=0.5")
    moved = []

    def made():
        actor = Scorer()
        actor.follow = moved.append
        return References(context_of(tmp_path / "rft", *settings), tiny_model, actor)

    first = made()
    first.add(rows())
    first.follow(1)
    first.add(rows())
    assert (asked(first), moved) == (["0", "1", "2", "3"], [])
    first.follow(2)
    first.add(rows())
    assert (asked(first), moved) == (["0", "1", "2", "3"] * 2, [0.5])
    for step, again in ((3, []), (1, ["0", "1", "2", "3"]), (0, [])):
        resumed = made()
        resumed.resume(step)
        resumed.add(rows())
        assert asked(resumed) == again
