"""What a stage takes of another, where that is damaged, changed, elsewhere or being deleted."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from benchmarks import equality
from ouroboros.pipeline.job import taking, trunks
from ouroboros.pipeline.job.context import open_stage
from ouroboros.pipeline.store import checkpoints, files, tables, versions
from ouroboros.pipeline.store.errors import StageError
from tests.branches.conftest import TASKS, count_of_adam
from tests.damage import flip
from tests.toy.conftest import table

pytestmark = pytest.mark.branches
SFT = ("algorithm.algorithm_type=sft",)


@pytest.fixture
def donor(planned, run) -> Path:
    """A stage of five steps with checkpoints of 2, 4 and 5."""
    return run(planned("here", *SFT, "buffer.total_steps=5"))


def found(stage) -> tuple[int | None, str]:
    """The step that a stage would take, or why it takes none."""
    directory = Path(stage.directory)
    chosen, unlike = trunks.find(directory, files.read_json(directory / "stage.json"),
                                 open_stage(directory, terminal=False).config, "hash")
    return chosen and chosen.step, unlike


@pytest.mark.parametrize("name", ["steps/step=000005.parquet", "checkpoints/step=000005/model/model.safetensors"])
def test_of_a_damaged_one_the_steps_before_are_taken(donor, planned, run, name):
    flip(donor / name)
    longer, alone = (run(planned(root, *SFT, "buffer.total_steps=6")) for root in ("here", "other"))
    assert files.read_json(longer / files.MANIFEST)["taken"] == {donor.name: 4}
    assert list(equality.differences(longer, alone)) == []


def test_what_changed_is_named(donor, planned):
    longer = planned("here", *SFT, "buffer.total_steps=6")
    assert found(longer) == (5, "")
    assert found(planned("other", *SFT, "buffer.total_steps=6")) == (None, "")
    assert found(planned("here", *SFT, "buffer.total_steps=6", "repetition=1")) == (None, "")
    assert found(planned("here", *SFT, "buffer.total_steps=6", "algorithm.optimizer.lr=1e-3")) == (None, "")
    assert "lr_scheduler_type" in found(planned("here", *SFT, "buffer.total_steps=6",
                                                "algorithm.optimizer.lr_scheduler_type=cosine"))[1]
    assert found(planned("here", *SFT, "buffer.total_steps=6", "buffer.explorer_input.taskset.path=other.jsonl",
                         tasks=TASKS[:-1])) == (None, "")
    chosen, unlike = found(planned("here", *SFT, "buffer.total_steps=6", tasks=TASKS[:-1]))
    assert chosen is None
    assert {donor.name, "tasks"} <= {*unlike.replace(":", " ").split()}
    spec = files.read_json(donor / "stage.json")
    files.write_json(donor / "stage.json", spec | {"trunk": spec["trunk"] | {"code": "of before"}})
    assert found(longer)[1].endswith(" code")
    (donor / "stage.json").write_text("{")
    assert donor.name in found(longer)[1]


def test_the_checkpoint_must_be_one_that_can_be_loaded(donor, planned):
    for other in ("trainer.ranks=2", "trainer.zero_stage=2"):
        chosen, unlike = found(planned("here", *SFT, "buffer.total_steps=6", other))
        assert chosen is None
        assert other.partition("=")[0] in unlike
    assert found(planned("here", *SFT, "buffer.total_steps=4")) == (4, "")
    assert found(planned("here", *SFT, "buffer.total_steps=3")) == (2, "")


def test_a_users_class_which_has_all_settings_gives_and_takes_nothing(planned):
    assert planned("here", "algorithm.algorithm_type=tests.operators.own_algorithms:OwnKlCov").trunk == {}


def test_evaluations_of_other_tasks_are_not_taken(planned, run):
    """A complete stage that is planned with other ones has them in stage.json, and made its scores with the former."""
    settings = ("synchronizer.sync_offset=1",)
    donor = run(planned("here", *settings, "buffer.total_steps=3"))
    other = (*settings, "buffer.explorer_input.eval_tasksets.0.limit=1")
    planned("here", *other, "buffer.total_steps=3")
    longer = run(planned("here", *other, "buffer.total_steps=5"))
    assert files.read_json(longer / files.MANIFEST)["taken"] == {donor.name: 3}
    assert {row["stage"] for row in table(donor, "scores")} == {donor.name}
    assert {row["stage"] for row in table(longer, "scores")} == {longer.name}


def test_files_are_links_and_where_there_are_none_copies(donor, planned, run, monkeypatch):
    name = "steps/step=000003.parquet"
    assert (run(planned("here", *SFT, "buffer.total_steps=6")) / name).samefile(donor / name)

    def refused(*_):
        raise OSError(errno.EXDEV, "another file system")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refused)
        longer = run(planned("here", *SFT, "buffer.total_steps=7"))
    assert not (longer / name).samefile(donor / name)
    assert sum(files.read_json(longer / files.MANIFEST)["taken"].values()) == 5 + 6  # of both before it
    assert list(equality.differences(longer, run(planned("other", *SFT, "buffer.total_steps=7")))) == []


def test_nothing_is_left_of_what_could_not_be_taken(donor, planned, run, monkeypatch):
    """A full disk ends the stage; where a donor deletes what it needs no more, another attempt follows."""
    stage = planned("here", *SFT, "buffer.total_steps=6")
    link, errors = os.link, [errno.ENOSPC]

    def failing(source, target):
        if "checkpoints" in str(target) and errors:
            raise OSError(errors.pop(), "test", str(target))
        link(source, target)

    monkeypatch.setattr(os, "link", failing)
    with pytest.raises(StageError):
        run(stage)
    directory = Path(stage.directory)
    assert tables.steps_present(directory, "steps") == checkpoints.complete_checkpoints(directory) == []
    assert not list(directory.glob(".taking*"))
    errors.append(errno.ENOENT)
    assert files.read_json(run(stage) / files.MANIFEST)["taken"] == {donor.name: 5}


def test_of_one_at_work_only_scheduled_checkpoints_are_taken(donor, planned):
    place = checkpoints.checkpoint_directory(donor, 5) / files.MANIFEST
    files.write_json(place, files.read_json(place) | {"unscheduled": True})
    longer = planned("here", *SFT, "buffer.total_steps=6")
    assert found(longer) == (5, "")
    with files.locked(donor / ".lock", print):
        assert found(longer) == (4, "")


@pytest.mark.parametrize("times", [1, 100])
def test_a_checkpoint_that_vanishes_while_it_is_looked_at(donor, planned, monkeypatch, times):
    longer, read, left = planned("here", *SFT, "buffer.total_steps=6"), checkpoints.read_manifest, [None] * times

    def vanished(stage, step):
        if left:
            left.pop()
            raise FileNotFoundError
        return read(stage, step)

    monkeypatch.setattr(checkpoints, "read_manifest", vanished)
    chosen, unlike = found(longer)
    assert (chosen, donor.name in unlike) == ((5, False) if times == 1 else (None, True))


def test_rows_and_weights_that_a_longer_stage_needs_must_be_there(planned, run, monkeypatch):
    """After checkpoint 5 explorer step 6 begins with the weights of step 4; after 4 the trainer has them."""
    settings = ("synchronizer.sync_offset=1", "explorer.eval_interval=100")
    donor = run(planned("here", *settings, "buffer.total_steps=5"))
    longer = planned("here", *settings, "buffer.total_steps=7")
    assert found(longer) == (5, "")
    place, config = Path(longer.directory), longer.config
    with monkeypatch.context() as patch:
        patch.setattr(versions, "numbers", lambda stage: [])
        taking.take(place, vars(longer), config, open_stage(place, terminal=False).log)
    assert checkpoints.complete_checkpoints(place) == []
    files.remove_tree(versions.version_directory(donor, 4))
    assert found(longer) == (4, "")


@pytest.mark.parametrize(("gone", "changes", "taken"), [
    (False, "{}", 5), (True, "{}", 5), (False, "{4: {algorithm.optimizer.lr: 0.001}}", 4)])
def test_one_that_was_killed_while_it_took_ends_as_if_undisturbed(donor, planned, run, monkeypatch, gone, changes,
                                                                  taken):
    """A longer one and a branch, before the last rename, that of the checkpoints; and then without the donor."""
    words = (*SFT, "buffer.total_steps=6", f"changes={changes}")
    stage, replace = planned("here", *words), os.replace

    def killed(source, target):
        if str(target).endswith("/checkpoints"):
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            run(stage)
    assert tables.steps_present(Path(stage.directory), "steps") == [*range(1, taken + 1)]
    if gone:
        shutil.rmtree(donor)
    assert ("taken" in files.read_json(run(stage) / files.MANIFEST)) is not gone
    alone = run(planned("other", *words))
    assert list(equality.differences(Path(stage.directory), alone)) == []


def test_a_count_of_adam_that_was_not_carried_is_found(donor, planned, run, monkeypatch):
    count_of_adam(monkeypatch)
    longer, alone = (run(planned(root, *SFT, "buffer.total_steps=7")) for root in ("here", "other"))
    assert [line.partition(":")[0] for line in equality.differences(longer, alone)] == ["weights", "steps"]


@pytest.mark.parametrize(("kind", "one", "two"), [("sft", 3, 7), ("grpo", 3, 7)])
def test_passes_are_counted_as_steps(planned, run, kind, one, two):
    """Seven demonstrations, and as many tasks, in batches of two."""
    passes = (f"algorithm.algorithm_type={kind}", "synchronizer.sync_offset=1", "buffer.total_steps=null")
    first, longer = (run(planned("here", *passes, f"buffer.total_epochs={count}")) for count in (1, 2))
    manifest = files.read_json(longer / files.MANIFEST)
    assert (manifest["taken"], manifest["steps"]) == ({first.name: one}, two)
