"""Weights and checkpoints: complete or invisible, and what a stage that was cut off takes up."""

import pytest

from ouroboros.pipeline.store import checkpoints, files, records, recovery, tables, versions
from ouroboros.pipeline.store.errors import ModelError
from tests.factories import row
from tests.golden.messages import refuses


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def export(directory):
    (directory / checkpoints.WEIGHTS).write_bytes(b"abc")


def checkpoint(stage, step):
    directory = checkpoints.checkpoint_directory(stage, step)
    (directory / "model").mkdir(parents=True)
    files.write_json(directory / files.MANIFEST, {"step": step})
    return directory


def test_published_weights_come_with_their_hash_and_the_probe(tmp_path):
    probe = {"tokens": [1, 2], "logprobs": [-0.5]}
    directory = versions.publish(tmp_path, 12, export, probe)
    assert directory == tmp_path / "weights" / "version=000012"
    manifest = files.read_json(directory / files.MANIFEST)
    assert manifest == {"version": 12, "hash": "ba7816bf8f01cfea", "probe": probe}  # sha256("abc")


def test_a_half_written_checkpoint_is_none(tmp_path):
    assert checkpoints.complete_checkpoints(tmp_path) == []
    checkpoint(tmp_path, 25)
    checkpoint(tmp_path, 100)
    (checkpoints.checkpoint_directory(tmp_path, 125) / "model").mkdir(parents=True)
    files.write_json(tmp_path / "checkpoints" / ".step=000150.tmp" / files.MANIFEST, {})
    assert checkpoints.complete_checkpoints(tmp_path) == [25, 100]


def test_only_the_newest_are_kept(tmp_path):
    for step in (5, 10, 15, 1000):
        checkpoint(tmp_path, step)
    checkpoints.keep_newest(tmp_path, None)
    assert checkpoints.complete_checkpoints(tmp_path) == [5, 10, 15, 1000]
    checkpoints.keep_newest(tmp_path, 2)
    assert checkpoints.complete_checkpoints(tmp_path) == [15, 1000]
    checkpoints.keep_newest(tmp_path, 5)
    assert checkpoints.complete_checkpoints(tmp_path) == [15, 1000]


def test_a_checkpoint_whose_deletion_was_interrupted_is_not_complete(tmp_path, monkeypatch):
    """Its manifest may still be there: it lies under a temporary name, which the next launch removes."""
    for step in (5, 10):
        checkpoint(tmp_path, step)

    def killed(directory, **options):
        if directory.exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(files.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.keep_newest(tmp_path, 1)
    assert checkpoints.complete_checkpoints(tmp_path) == [10]
    monkeypatch.undo()
    files.remove_leftovers(tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step=000010"]


@pytest.mark.parametrize(("steps", "marked", "newest", "left"), [
    ((25, 50, 57), (57, "unscheduled"), 2, [25, 50, 57]),  # one of an interruption stays until the next
    ((25, 50, 57, 75), (57, "unscheduled"), 2, [50, 75]), ((25, 50, 75, 100), (50, "kept"), 1, [50, 100])])
def test_some_checkpoints_do_not_count(tmp_path, steps, marked, newest, left):
    for step in steps:
        checkpoint(tmp_path, step)
    place = checkpoints.checkpoint_directory(tmp_path, marked[0]) / files.MANIFEST
    files.write_json(place, files.read_json(place) | {marked[1]: True})
    checkpoints.keep_newest(tmp_path, newest)
    assert checkpoints.complete_checkpoints(tmp_path) == left


def test_a_linked_tree_is_a_copy_that_outlives_its_source_and_replaces_what_was_there(tmp_path):
    (tmp_path / "a" / "inner").mkdir(parents=True)
    (tmp_path / "a" / "inner" / "w").write_text("1")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "old").touch()
    checkpoints.link_tree(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "inner" / "w").samefile(tmp_path / "b" / "inner" / "w")
    (tmp_path / "a" / "inner" / "w").unlink()
    assert (tmp_path / "b" / "inner" / "w").read_text() == "1"
    assert names(tmp_path) == ["a", "b"]
    assert names(tmp_path / "b") == ["inner"]
    checkpoints.link_tree(tmp_path / "b", tmp_path / "new")
    assert names(tmp_path / "new") == ["inner"]


def test_a_model_is_copied_without_its_weights_and_our_own_files(tmp_path):
    kept = ["config.json", "generation_config.json", "merges.txt", "tokenizer.json", "tokenizer_config.json",
            "chat_template.jinja"]
    left = ["model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "stage.json",
            "pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "manifest.json", "stage.log", ".lock"]
    source = tmp_path / "source"
    (source / "folder").mkdir(parents=True)
    for name in [*kept, *left]:
        (source / name).touch()
    checkpoints.copy_model_files(source, tmp_path / "deep" / "target")
    assert names(tmp_path / "deep" / "target") == sorted(kept)


def test_a_model_is_found_in_the_directory_or_in_what_a_stage_made(tmp_path):
    with refuses(ModelError, "config.json", "model/config.json"):
        checkpoints.model_directory(tmp_path)
    files.write_json(tmp_path / "model" / "config.json", {})
    assert checkpoints.model_directory(tmp_path) == tmp_path / "model"
    assert checkpoints.model_directory(tmp_path / "model") == tmp_path / "model"


def test_the_step_of_a_model_is_that_of_the_stage_that_trained_it(tmp_path):
    """A model of the user's has none, whatever lies beside it."""
    files.write_json(tmp_path / "manifest.json", {"steps": 400})
    assert checkpoints.trained_steps(tmp_path) == 0
    files.write_json(tmp_path / "stage.json", {})
    assert checkpoints.trained_steps(tmp_path) == 400


def test_the_hash_of_a_model_is_that_of_its_weight_file_or_of_all_of_them(tmp_path):
    with refuses(ModelError, "weights"):
        checkpoints.weights_hash(tmp_path)
    (tmp_path / "model-1.safetensors").write_text("a")
    one = files.hash_text("a")
    assert checkpoints.weights_hash(tmp_path) == one
    (tmp_path / "model-2.safetensors").write_text("b")
    assert checkpoints.weights_hash(tmp_path) == files.hash_json([one, files.hash_text("b")])


def explore(stage, step, version):
    tables.write(tables.step_file(stage, "experience", step), records.Experience, [])
    rollout = row(records.Rollout, step=step, weights_version=version)
    tables.write(tables.step_file(stage, "rollouts", step), records.Rollout, [rollout])


def train(stage, step):
    for table in ("trained", "steps"):
        tables.write(tables.step_file(stage, table, step), records.TABLES[table], [])


def cut_off(stage):
    """One step off-policy, killed in explorer step 8 and after trainer step 6; the explorer was about to need 6."""
    for step in range(1, 8):
        explore(stage, step, max(step - 2, 0))
    tables.write(tables.step_file(stage, "experience", 8), records.Experience, [])  # its rollouts row never came
    for step in range(1, 7):
        train(stage, step)
    for version in (4, 5, 6):
        versions.publish(stage, version, export, {})


def present(stage):
    return {table: tables.steps_present(stage, table) for table in ("experience", "rollouts", "trained", "steps")}


def test_rewinding_goes_back_to_the_last_checkpoint_and_keeps_what_it_can(tmp_path):
    """Checkpoint 4: trainer steps 5 and 6 and weights 5 and 6 go. Explorer step s was made by version s - 2: steps 1 to
    6 (versions 0 to 4) stay, 7 (version 5) goes, and 8, which is half."""
    cut_off(tmp_path)
    checkpoint(tmp_path, 2)
    checkpoint(tmp_path, 4)
    checkpoints.checkpoint_directory(tmp_path, 6).mkdir()  # half-written
    assert recovery.rewind(tmp_path, print) == 4
    six = [1, 2, 3, 4, 5, 6]
    assert present(tmp_path) == {"experience": six, "rollouts": six, "trained": [1, 2, 3, 4], "steps": [1, 2, 3, 4]}
    assert names(tmp_path / "weights") == ["version=000004"]


def test_a_stage_that_begins_anew_keeps_nothing_but_its_logs(tmp_path):
    cut_off(tmp_path)
    checkpoint(tmp_path, 2)
    tables.write(tables.step_file(tmp_path, "scores", 2), records.Score, [])
    for name in ("stage.json", "trainer.log"):
        (tmp_path / name).touch()
    checkpoints.begin_anew(tmp_path)
    assert names(tmp_path) == ["stage.json", "trainer.log"]


def test_rewinding_keeps_evaluations_of_weights_that_it_keeps(tmp_path):
    for version in (2, 4):
        for table in ("samples", "scores"):
            tables.write(tables.step_file(tmp_path, table, version), records.TABLES[table], [])
    checkpoint(tmp_path, 3)
    recovery.rewind(tmp_path, print)
    assert [tables.steps_present(tmp_path, table) for table in ("samples", "scores")] == [[2], [2]]


def test_rewinding_without_a_checkpoint_keeps_what_the_first_model_made(tmp_path):
    assert recovery.rewind(tmp_path, print) == 0  # a new stage
    cut_off(tmp_path)
    versions.publish(tmp_path, 0, export, {})
    assert recovery.rewind(tmp_path, print) == 0
    assert present(tmp_path) == {"experience": [1, 2], "rollouts": [1, 2], "trained": [], "steps": []}
    assert names(tmp_path / "weights") == []  # the trainer publishes version 0 again
