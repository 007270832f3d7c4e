"""What a longer stage may take of made-up stages; tests/branches has real ones."""

import pytest

from ouroboros.pipeline.job import trunks
from ouroboros.pipeline.store import files, records, routings, tables
from tests.configs import TINY, overridden
from tests.factories import row

ROWS = ("buffer.batch_size=2", "algorithm.repeat_times=4", "buffer.train_batch_size=4")  # an explorer step: two steps


def test_rows_older_than_the_longer_stage_allows_are_not_taken(tmp_path):
    """Explorer step 2 has the rows of steps 3 and 4. A donor of 3 steps allows the weights of step 1 for it, one of 5
    those of step 2."""
    config = overridden(*TINY, *ROWS, "synchronizer.sync_style=explorer_driven", "synchronizer.max_staleness=1")
    for step, version in ((1, 0), (2, 1)):
        tables.write(tables.step_file(tmp_path, "rollouts", step), records.Rollout,
                     [row(records.Rollout, step=step, weights_version=version)])
    taken = [trunks._rollouts(tmp_path, config, total, ()) for total in (3, 5)]
    assert [[found.step for found in rows] for rows in taken] == [[1, 2], [1]]


def test_routings_behind_the_checkpoint_must_be_there(tmp_path):
    config = overridden(*TINY, *ROWS, "algorithm.enable_router_replay=true")
    for step in (2, 3):
        files.write_atomic(routings.file_of(tmp_path, step), lambda path: path.write_bytes(b""))
    lacks = [trunks.lacks(tmp_path, config, 9, step, 3, ()) for step in (1, 2)]
    assert ["step=000001" in words for words in lacks] == [True, False]


def test_a_directory_that_is_deleted_meanwhile_gives_no_manifest(tmp_path, monkeypatch):
    source, link = tmp_path / "source", files.link
    for name in (files.MANIFEST, "model.safetensors"):
        files.write_atomic(source / name, lambda path: path.write_bytes(b"1"))

    def deleting(one, target):
        link(one, target)
        files.remove_tree(source)

    monkeypatch.setattr(files, "link", deleting)
    with pytest.raises(FileNotFoundError):
        files.link_files(source, tmp_path / "target")
    assert not files.is_complete(tmp_path / "target")
