"""What a longer stage may take of made-up stages; tests/branches has real ones."""

import pytest

from ouroboros.pipeline.job import trunks
from ouroboros.pipeline.store import checkpoints, files, records, routings, tables
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


@pytest.mark.parametrize("state", ["state", "masters"])  # the first of a release before 2026-12, or of ZeRO-3
def test_the_ranks_of_a_checkpoint_are_those_of_its_files(tmp_path, state):
    place = checkpoints.checkpoint_directory(tmp_path, 3)
    for part, ranks in ((state, 2), ("critic/state", 2)):
        (place / part).mkdir(parents=True)
        for rank in range(ranks):
            (place / part / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    files.write_json(place / files.MANIFEST, {"step": 3, "zero_stage": 1})
    said = [trunks._unfit(tmp_path, 3, overridden(*TINY, f"trainer.ranks={ranks}"), "size") for ranks in (2, 4)]
    assert said == ["", "its checkpoint is of trainer.ranks=2"]


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
