"""What a resumed stage makes of damaged files: the next older checkpoint, rows that are made again, or a refusal."""

import json
import shutil

import pytest

from ouroboros.pipeline.store import checkpoints, files, hashes, records, recovery, tables, versions
from ouroboros.pipeline.store.errors import StageError
from tests.damage import cut_short, flip
from tests.factories import row
from tests.golden.messages import refuses


def train(stage, step):
    tables.write(tables.step_file(stage, "steps", step), records.Step, [row(records.Step, step=step)])
    tables.write(tables.step_file(stage, "trained", step), records.Trained, [row(records.Trained, train_step=step)])


def explore(stage, step, version, newest=None):
    made = row(records.Experience, step=step)
    tables.write(tables.step_file(stage, "experience", step), records.Experience, [made])
    rollout = row(records.Rollout, step=step, weights_version=version, newest_version=newest)
    tables.write(tables.step_file(stage, "rollouts", step), records.Rollout, [rollout])


def checkpoint(stage, step):
    directory = checkpoints.checkpoint_directory(stage, step)
    (directory / "state").mkdir(parents=True)
    (directory / "state" / "optim.pt").write_bytes(b"state of %d" % step)
    files.write_json(directory / files.MANIFEST, {"step": step, "files": hashes.hash_tree(directory, {})})


def written(path, text):
    path.write_text(text)
    return path


def unlinked(path):
    path.unlink()
    return path


def export(directory):
    (directory / checkpoints.WEIGHTS).write_bytes(b"abc")


@pytest.fixture(params=[recovery.PART, 2])
def stage(tmp_path, request, monkeypatch):
    """On-policy: explorer step s uses version s - 1. Six steps, checkpoints 2, 4 and 6; step 7 is explored, and the
    explorer waits for version 7."""
    monkeypatch.setattr(recovery, "PART", request.param)
    for step in range(1, 8):
        explore(tmp_path, step, step - 1)
    for step in range(1, 7):
        train(tmp_path, step)
    for step in (2, 4, 6):
        checkpoint(tmp_path, step)
    return tmp_path


def state(stage, step):
    return checkpoints.checkpoint_directory(stage, step) / "state" / "optim.pt"


def rewound(stage, verify="hash"):
    said = []
    step = recovery.rewind(stage, said.append, verify)
    return step, tables.steps_present(stage, "steps"), tables.steps_present(stage, "rollouts"), said


def publish(stage):
    for version in (5, 6):
        versions.publish(stage, version, export, {})
    return stage / "weights" / "version=000005" / checkpoints.WEIGHTS


def unlisted(stage):
    """As an older release leaves it: no hashes of tables, and none in the manifest of the last checkpoint."""
    for path in stage.glob(f"*{hashes.LIST}"):
        path.unlink()
    flip(state(stage, 6))
    files.write_json(checkpoints.checkpoint_directory(stage, 6) / files.MANIFEST, {"step": 6})


def under_later_weights(stage):
    """Step 5 began with version 4, and its answers went on under version 5, which checkpoint 4 does not have."""
    explore(stage, 5, 4, newest=5)
    explore(stage, 4, 3, newest=4)
    return flip(state(stage, 6))


# what is damaged -> (the step resumed after, the last explorer step that is kept); optimizer steps are kept up to the
# first, and a damaged file that matters is named
@pytest.mark.parametrize(("damage", "step", "explored"), [
    (lambda stage: None, 6, 7),
    *((lambda stage, damage=damage: damage(state(stage, 6)), 4, 5) for damage in (flip, cut_short, unlinked)),
    (lambda stage: written(checkpoints.checkpoint_directory(stage, 6) / files.MANIFEST, "{"), 4, 5),
    # only the first explorer step had the initial weights
    (lambda stage: [flip(state(stage, step)) for step in (2, 4, 6)][2], 0, 1),
    *((lambda stage, table=table: flip(tables.step_file(stage, table, 5)), 4, 5) for table in ("steps", "trained")),
    # step 6 used version 5, which the trainer publishes again after checkpoint 4, and step 7 that of the last one
    (lambda stage: unlinked(tables.step_file(stage, "experience", 6)), 4, 5),
    (lambda stage: flip(tables.step_file(stage, "experience", 7)), 6, 6),
    # weights that are still there, damaged, or needed by no later step, which uses 6 or 7
    (lambda stage: publish(stage) and flip(tables.step_file(stage, "experience", 6)), 6, 5),
    (lambda stage: [flip(publish(stage)), flip(tables.step_file(stage, "experience", 6))][0].parent, 4, 5),
    (lambda stage: flip(publish(stage)) and None, 6, 7),
    (unlisted, 6, 7), (under_later_weights, 4, 4)])
def test_a_stage_goes_on_after_the_last_checkpoint_that_holds_with_the_steps_that_it_can_keep(
        stage, damage, step, explored):
    damaged = damage(stage)
    found, steps, kept, said = rewound(stage)
    assert (found, steps, kept) == (step, [*range(1, step + 1)], [*range(1, explored + 1)])
    assert tables.steps_present(stage, "experience") == kept
    assert any(str(damaged) in line for line in said) == bool(damaged), said
    assert len(said) == (3 if step == 0 else bool(damaged))
    assert checkpoints.complete_checkpoints(stage) == [one for one in (2, 4, 6) if one <= step]


def test_sizes_alone_do_not_see_a_flipped_byte_but_a_truncation(stage):
    flip(state(stage, 6))
    assert rewound(stage, "size")[0] == 6
    cut_short(state(stage, 6))
    assert rewound(stage, "size")[0] == 4


@pytest.mark.parametrize(("version", "step"), [(5, 4), (4, 4), (6, 6), (7, 6), (None, 6)])
def test_weights_that_the_next_explorer_step_lacks_are_published_again_from_a_checkpoint_before_them(
        stage, version, step):
    """The trainer has made six steps. It publishes version 6 as it goes on after that one, and 7 later."""
    said = []
    assert recovery.rewind(stage, said.append, version_of={8: version}.get) == step
    assert [f"version=00000{version}" in line for line in said] == [True] * (step == 4)


def test_weights_that_are_there_cost_nothing(stage):
    versions.publish(stage, 5, export, {})
    assert recovery.rewind(stage, [].append, version_of={8: 5}.get) == 6


def test_rows_older_than_every_checkpoint_are_refused_and_nothing_is_lost(stage):
    path = tables.step_file(stage, "experience", 2)
    content = path.read_bytes()
    flip(path)
    with pytest.raises(StageError) as caught:
        rewound(stage)
    assert str(path) in str(caught.value)
    path.write_bytes(content)  # the copy that the message asks for
    assert rewound(stage) == (6, [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7], [])


@pytest.mark.parametrize(("table", "old", "later"), [("experience", 2, 3), ("trained", 2, 3)])
def test_rows_that_are_read_no_more_are_compared_by_size_alone(stage, table, old, later):
    """After checkpoint 2 explorer steps from the third on are read."""
    def rewind():
        return recovery.rewind(stage, [].append, "hash", lambda step: step + 1)

    flip(tables.step_file(stage, table, old))
    assert rewind() == 6
    flip(tables.step_file(stage, table, later))
    assert rewind() == 2
    cut_short(tables.step_file(stage, table, old))
    assert rewind() == 2
    assert recovery.lost(stage) == [(table, old)]


@pytest.mark.parametrize("damage", [cut_short, unlinked])
@pytest.mark.parametrize("table", ["steps", "trained", "experience", "rollouts"])
def test_an_old_row_that_nothing_makes_again_is_lost_and_the_stage_goes_on(stage, table, damage):
    """Checkpoint 2 is deleted: nothing before step 4 makes step 3 again, and what follows 4 reads from step 5 on."""
    shutil.rmtree(checkpoints.checkpoint_directory(stage, 2))
    path = tables.step_file(stage, table, 3)
    damage(path)
    said = []
    for launch in (1, 2):
        assert recovery.rewind(stage, said.append, "hash", lambda step: step + 1) == 6
        assert recovery.lost(stage) == [(table, 3)]
        assert len(said) == 1, launch
    assert str(path) in said[0]
    assert not path.exists()
    for other in ("steps", "trained", "experience", "rollouts"):
        made = {*range(1, 7 if other in recovery.OF_TRAINER else 8)}
        assert {*tables.steps_present(stage, other)} == made - ({3} if other == table else set())
    flip(state(stage, 6))
    train(stage, 3) if table in recovery.OF_TRAINER else explore(stage, 3, 2)  # a copy was put back
    assert recovery.rewind(stage, said.append, "hash", lambda step: step + 1) == 4
    assert recovery.lost(stage) == []


def test_an_old_row_costs_nothing_where_another_one_can_not_be_lost(stage):
    """Step 5 is read after checkpoint 4, the only one left, and was explored with version 3."""
    for step in (2, 6):
        shutil.rmtree(checkpoints.checkpoint_directory(stage, step))
    explore(stage, 5, 3)
    old, read = cut_short(tables.step_file(stage, "steps", 2)), cut_short(tables.step_file(stage, "experience", 5))
    with refuses(StageError, "step 1"):
        recovery.rewind(stage, [].append, "hash", lambda step: step + 1)
    assert old.exists()
    assert read.exists()
    assert recovery.lost(stage) == []


@pytest.mark.parametrize("table", ["steps", "trained"])
def test_a_row_that_was_lost_with_its_list_after_the_last_checkpoint_is_missed(stage, table):
    """As a power cut leaves it: nothing but the other table and the checkpoint of step 6 tells that it was written."""
    hashes.remove(tables.step_file(stage, table, 6))
    assert rewound(stage)[0] == 4
    for step in (5, 6):
        train(stage, step)
    for step in (2, 4):
        shutil.rmtree(checkpoints.checkpoint_directory(stage, step))
    checkpoint(stage, 6)
    hashes.remove(tables.step_file(stage, table, 6))
    assert rewound(stage)[0] == 6
    assert recovery.lost(stage) == [(table, 6)]


def test_at_the_end_damaged_rows_of_any_age_are_lost(stage):
    said, path = [], flip(tables.step_file(stage, "experience", 2))
    recovery.lose_damaged(stage, "size", said.append)
    assert not said
    recovery.lose_damaged(stage, "hash", said.append)
    assert str(path) in said[0]
    assert recovery.lost(stage) == [("experience", 2)]
    assert path.with_name(f"_{path.name}.damaged").exists()


def bits(path):
    """The content of a file with each of its bits changed in turn."""
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)
    path.write_bytes(content)


def test_no_bit_of_a_checkpoints_manifest_changes_what_a_resume_does(stage):
    """Equal, or the checkpoint before it: the bits of the key of the checksum alone change nothing."""
    directory = checkpoints.checkpoint_directory(stage, 6)
    manifest, found = directory / files.MANIFEST, []
    written = files.read_json(manifest)
    for changed in bits(manifest):
        manifest.write_bytes(changed)
        words = checkpoints.difference(stage, 6, "size")
        found.append(words is None)
        assert words is None or str(manifest) in words
        if words is None:
            assert {**checkpoints.read_manifest(stage, 6), **written} == checkpoints.read_manifest(stage, 6)
    assert sum(found) <= 8 * len(files.CHECKSUM)


def test_a_checkpoint_of_an_older_release_with_another_step_than_its_directory_is_damaged(stage):
    manifest = checkpoints.checkpoint_directory(stage, 6) / files.MANIFEST
    for step, resumed in ((6, 6), (9, 4)):
        manifest.write_text(json.dumps({**files.read_json(manifest), "step": step}))
        found, *_, said = rewound(stage)
        assert found == resumed
    assert "step 9" in said[0]
    assert str(manifest) in said[0]


def test_a_whole_table_that_is_gone_is_noticed(stage):
    shutil.rmtree(stage / "experience")
    with refuses(StageError, "experience/step=000001"):
        rewound(stage)


def test_scores_of_a_fixed_model_are_computed_again_and_an_evaluation_is_lost(stage):
    for table in ("reference", "samples", "scores"):
        tables.write(tables.step_file(stage, table, 2), records.TABLES[table], [])
    flip(tables.step_file(stage, "reference", 2))
    flip(tables.step_file(stage, "scores", 2))
    step, _, _, said = rewound(stage)
    assert (step, len(said)) == (6, 2)
    assert [tables.steps_present(stage, name) for name in ("reference", "samples", "scores")] == [[], [], []]
    assert rewound(stage)[3] == []


def test_an_explorer_without_a_trainer_goes_on_before_the_damage(tmp_path):
    for step in range(1, 6):
        explore(tmp_path, step, 0)
    said = []
    assert recovery.rewind_explorer(tmp_path, said.append) == 5
    path = flip(tables.step_file(tmp_path, "experience", 4))
    assert recovery.rewind_explorer(tmp_path, said.append) == 3
    assert tables.steps_present(tmp_path, "experience") == [1, 2, 3]
    assert str(path) in said[0]
