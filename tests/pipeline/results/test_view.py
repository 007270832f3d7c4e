"""Which runs there are, and how far their stages are."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ouroboros.commands import cli
from ouroboros.pipeline.job.activity import Activity
from ouroboros.pipeline.results import sweep_view, unreferenced, view
from ouroboros.pipeline.settings.kinds import KINDS
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.errors import DataError, StageError
from ouroboros.pipeline.store.files import HOME
from ouroboros.pipeline.store.records import Image, Rollout
from tests.damage import flip
from tests.factories import row
from tests.fake_run import FakeRun
from tests.golden.messages import refuses, wording
from tests.kills.shim import shimmed


def test_the_latest_launch_is_the_default_and_names_may_be_short(tmp_path):
    old, new = FakeRun(tmp_path, "toy/old").view(), FakeRun(tmp_path, "toy/new").view()
    os.utime(old / "plan.json", (1, 1))
    os.utime(new / "plan.json", (2, 2))
    assert view.find_view(tmp_path).run == "toy/new"
    assert view.find_view(tmp_path, "old").run == "toy/old"
    assert view.find_view(tmp_path, "toy/old").run == "toy/old"


def test_an_unknown_or_ambiguous_name_lists_the_runs(tmp_path):
    FakeRun(tmp_path, "toy/a").view()
    FakeRun(tmp_path, "other/a").view()
    with refuses(DataError, "which", "toy/a"):
        view.find_view(tmp_path, "a")
    with refuses(DataError, "'toy/b'", "'toy/a'", "other/a, toy/a"):
        view.find_view(tmp_path, "toy/b")
    with refuses(DataError, "below"):
        view.find_view(tmp_path / "empty")


@pytest.mark.parametrize("word", ["first", "first/", "toy/first", "toy/first/", "name=first", "name=toy/first",
                                  "runs/toy/first", "./runs/toy/first/", "{root}/runs/toy/first", "s-lr=1",
                                  "runs/toy/s-lr=1/"])
@pytest.mark.parametrize("is_here", [True, False])
def test_a_run_has_a_name_and_a_place(tmp_path, monkeypatch, word, is_here):
    for name in ("toy/first", "toy/s-lr=1", "toy/last"):
        FakeRun(tmp_path, name).view()
    monkeypatch.chdir(tmp_path if is_here else "/")
    word, root = word.format(root=tmp_path), Path() if is_here else tmp_path
    assert sweep_view.find(root, word).run == ("toy/s-lr=1" if "lr" in word else "toy/first")
    assert sweep_view.is_known(root, word)


@pytest.mark.parametrize("command", [
    ["status"], ["logs"], ["report"], ["compare"], ["replay"], ["verify"], ["weights"], ["serve"], ["stop"],
    ["evaluate", "--steps", "1"], ["sql", "SELECT 1"], ["config", "diff", "toy/first"]])
@pytest.mark.parametrize("word", ["frist", "runs/toy/frist/"])
def test_every_command_says_the_same_of_a_name_that_no_run_has(tmp_path, monkeypatch, capsys, command, word):
    FakeRun(tmp_path, "toy/first").view()
    monkeypatch.chdir(tmp_path)
    words = [word] if command[0] in ("serve", "config") else [word, f"name={word}"]
    for one in words:
        assert cli.main([*command, one]) == 2
        shown = capsys.readouterr().err
        wording(shown, f"'{one}'", "mean", "first", "toy/first")


def test_states_of_stages(tmp_path):
    run = FakeRun(tmp_path, steps=4).data().sft()
    (sft := view.open_view(run.view()).stages[-1].directory / "manifest.json").unlink()
    partial = view.state(view.open_view(run.view()).stages[-1])
    wording(partial.state, "partial", "4 of 4")
    wording(partial.latest, "4/4", "1.9212")
    with open(sft.parent / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wording(view.state(view.open_view(run.path).stages[-1]).state, "running", "4 of 4")
        doing = Activity(sft.parent / "trainer.activity")
        doing.now("trains", "step 5")
        wording([view.state(view.open_view(run.path).stages[-1]).doing], "trainer", "step 5")
    tasks, missing = view.open_view(run.path).stages[0], run.report()
    assert (view.state(tasks).state, view.state(tasks).seconds) == ("complete", 0.4)
    assert view.state(view.Node("report", KINDS["report"], missing)).state == "waiting"


def test_a_stage_that_depends_on_time_says_so(tmp_path):
    for ratio, noted in ((0.25, True), (0.0, False)):
        config = {"buffer": {"total_steps": 4}, "explorer": {"over_rollout": {"ratio": ratio}}}
        for kind, explores in (("rft", True), ("train", False)):
            files.write_json(tmp_path / kind / "stage.json", {"run": "toy/a", "config": config})
            stage = view.Node(kind, KINDS[kind], tmp_path / kind)
            note = view.state(stage).note
            assert ("explorer.over_rollout" in (note or "")) == (noted and explores)
            files.write_json(stage.directory / files.MANIFEST, {"seconds": 1.0})
            assert view.state(stage).note == note
            (stage.directory / files.MANIFEST).unlink()


def test_the_state_of_a_run_is_that_of_its_stages_and_counts_the_complete_ones(tmp_path):
    run = FakeRun(tmp_path)
    first, second = (run.stage(name, "tasks", complete=False) for name in ("one", "two"))
    found = view.open_view(run.view())
    assert found.report == tmp_path / "runs/toy/first/report.html"
    assert view.state_of_run(found) == ("waiting", 0)
    files.write_json(first / files.MANIFEST, {})
    (second / "stage.error").write_text("no memory\nlog: ...\n")
    assert view.state_of_run(found) == ("failed", 1)
    with files.locked(second / ".lock", lambda holder: None):
        assert view.state_of_run(found) == ("running", 1)
    files.write_json(second / files.MANIFEST, {})
    assert view.state_of_run(found) == ("complete", 2)


@pytest.mark.parametrize(("room", "kept"), [(1, ["a"]), (2, ["a", "e"]), (3, ["a", "d", "e"]), (5, ["a", *"bcde"])])
def test_an_error_keeps_its_first_and_last_lines(room, kept):
    assert view.shortened("a\n b\n\nc\nd\ne", room) == kept


def test_a_file_system_without_locks_is_named(tmp_path):
    run = FakeRun(tmp_path, steps=4).data()
    run.view()
    stage = view.open_view(run.path).stages[0].directory
    (stage / ".lock").touch()
    done = subprocess.run([sys.executable, "-m", "ouroboros", "status", "--root", str(tmp_path)], cwd=HOME,
                          capture_output=True, text=True, check=False, env=shimmed(tmp_path, no_flock=errno.ENOLCK))
    assert done.returncode == 2
    wording(done.stderr, stage / '.lock', "No", "available")
    assert "Traceback" not in done.stderr


def test_a_failed_stage_says_why_until_a_later_life_of_it_is_cut_off(tmp_path):
    run = FakeRun(tmp_path, steps=4).data().sft()
    stage = view.open_view(run.view()).stages[-1]
    (stage.directory / "manifest.json").unlink()
    (stage.directory / "stage.error").write_text("the trainer died\nlog: ...\n")
    wording(view.state(stage).state, "failed", "4 of 4")
    assert view.state(stage).problem == "the trainer died"
    (stage.directory / "stage.error").write_text("interrupted by SIGINT; step 4 is saved\nlog: ...\n")
    wording(view.state(stage).state, "interrupted", "4 of 4")
    wording(view.state(stage).problem, "SIGINT", "4 is")
    (stage.directory / "stage.log").touch()
    os.utime(stage.directory / "stage.error", (1, 1))
    wording([(view.state(stage).state, view.state(stage).problem)], "partial", "None")


def test_a_stage_that_completes_while_it_is_looked_at_is_complete(tmp_path, monkeypatch):
    run = FakeRun(tmp_path)
    stage = view.Node("sft", KINDS["train"], run.stage("sft", "train", complete=False))

    def completes(path):
        view.files.write_json(stage.directory / "manifest.json", {"seconds": 3.0})
        return False

    monkeypatch.setattr(view, "is_locked", completes)
    assert view.state(stage).state == "complete"


def test_how_far_a_stage_is_that_only_explores(tmp_path):
    run = FakeRun(tmp_path, steps=4)
    directory = run.stage("look", "rollout", complete=False)
    tables.write(tables.step_file(directory, "rollouts", 3), Rollout, [row(
        Rollout, step=3, rows=8, failed_rows=1, tokens=500, rollout_seconds=0.25, other_seconds=0.05)])
    found = view.state(view.open_view(run.view()).stages[-1])
    wording(found.state, "partial", "3 of 4")
    wording(found.latest, "8 rows", "(1 failed)", "2.0k tokens/s", "0.30")


def test_a_damaged_plan_hides_its_run_alone_and_says_so(tmp_path, capsys):
    whole, damaged = FakeRun(tmp_path, "toy/whole").view(), FakeRun(tmp_path, "toy/damaged").view()
    flip(damaged / "plan.json")
    assert [one.run for one in view.views(tmp_path)] == ["toy/whole"]
    said = capsys.readouterr().err
    assert str(damaged / "plan.json") in said
    assert str(whole) not in said
    (tmp_path / "store").mkdir()
    with refuses(StageError, "plan.json"):  # what that run needs is not known
        unreferenced.find(tmp_path)


@pytest.mark.parametrize("plan", [b'{"project": "toy", "name": "x", "stages": [{"name": null, "kind": "alien"}]}',
                                  b'{"project": "toy", "name": "x", "stages": 5}', b'{"stages": []}'])
def test_a_plan_of_other_types_is_a_damaged_one(tmp_path, plan):
    FakeRun(tmp_path, "toy/whole").view()
    (FakeRun(tmp_path, "toy/damaged").view() / "plan.json").write_bytes(plan)
    assert [one.run for one in view.views(tmp_path)] == ["toy/whole"]


def test_a_stage_that_is_a_link_to_itself_is_missing(tmp_path):
    run = FakeRun(tmp_path)
    directory = run.stage("tasks", "tasks")
    path = run.view()
    rename = directory.with_name("elsewhere")
    directory.rename(rename)
    directory.symlink_to(directory.name)
    assert [view.state(stage).state for stage in view.open_view(path).stages] == ["waiting"]
    assert directory.name in sweep_view.status(view.open_view(path))


@pytest.mark.parametrize("damage", ["no plan", "loop", "no directory", "no disk", "bytes"])
def test_gc_deletes_no_stage_of_a_run_that_it_cannot_read(tmp_path, damage):
    """Without its plan a run keeps what its links name; where the runs cannot be listed, nothing is deleted."""
    run = FakeRun(tmp_path)
    kept, unneeded = run.stage("tasks", "tasks"), FakeRun(tmp_path, "toy/other").stage("other", "tasks")
    plan = run.view() / "plan.json"
    if damage == "bytes":
        (plan.parent / "config.yaml").write_bytes(b"\xff")
    else:
        plan.unlink()
    if damage == "no disk":
        plan.parent.rename(tmp_path / "moved")
        plan.parent.symlink_to(tmp_path / "unmounted")
        with pytest.raises(DataError):
            unreferenced.find(tmp_path)
        return
    if damage == "loop":
        plan.symlink_to("plan.json")
    if damage == "no directory":
        (tmp_path / "runs").rename(tmp_path / "moved")
        (tmp_path / "runs").touch()
        with pytest.raises(NotADirectoryError):
            unreferenced.find(tmp_path)
        return
    assert [one.path for one in unreferenced.find(tmp_path)] == [unneeded]
    assert kept.exists()


def test_gc_lists_images_that_no_stage_built_and_layers_of_no_other_image(tmp_path):
    """Of the images a and b, which share the layer base, a stage of a run built a; a process that builds holds all."""
    run = FakeRun(tmp_path)
    built = run.stage("images", "images")
    tables.write(built / "images.parquet", Image, [row(Image, key="a")])
    run.view()
    place = tmp_path / "images"
    for key, layers in (("a", ["base", "own"]), ("b", ["base", "other"])):
        files.write_json(place / f"{key}.json", {"layers": layers})
        place.joinpath(f"{key}.log").write_text("STEP 1\n")
        for layer in layers:
            place.joinpath("layers", layer).mkdir(parents=True, exist_ok=True)
            place.joinpath("layers", layer, "file").write_text(layer)
    found = {one.path.relative_to(place): one for one in unreferenced.find(tmp_path)}
    assert {*map(str, found)} == {"b.json", "b.log", "layers/other"}
    assert found[Path("layers/other")].bytes == 5
    with files.locked(place / ".lock", lambda holder: None):
        assert unreferenced.find(tmp_path) == []
    unreferenced.remove(list(found.values()))
    assert unreferenced.find(tmp_path) == []


def test_gc_leaves_what_another_stage_takes_steps_of(tmp_path):
    """Whose lock is shared, and taken after the list was made."""
    place = FakeRun(tmp_path).stage("rft", "rft")
    found = unreferenced.find(tmp_path)
    with open(place / ".lock", "a", encoding="utf-8") as lock:
        files.take_lock(lock, shared=True)
        assert unreferenced.remove(found) == []
    assert (len(unreferenced.remove(found)), place.exists()) == (1, False)


def test_gc_lists_models_of_gguf_files_that_no_run_names(tmp_path):
    """A stage of a run reads the first, the plan of another run the second; a process still makes the last."""
    first, second, third, made = (tmp_path / "store" / "gguf" / name for name in (
        "\u00e9-0011223344556677-float32", "b-1122334455667700-bfloat16", "b-1122334455667700-float32",
        ".c-2233445566770011-float32.1.tmp"))
    run = FakeRun(tmp_path)
    files.write_json(run.stage("rft", "rft") / "stage.json", {"inputs": {"model": str(first / "m")}})
    files.write_json(run.view() / "config.yaml", {"model": str(second / "m")})
    for directory in (first, second, third, made):
        (directory / "m").mkdir(parents=True)
    assert [one.path for one in unreferenced.find(tmp_path)] == [third]
    os.utime(made, (1, 1))
    assert {one.path for one in unreferenced.find(tmp_path)} == {third, made}


def test_gc_lists_old_temporary_files_outside_of_stages(tmp_path):
    run = FakeRun(tmp_path).whole()
    run.view()
    names = (".mlflow.db.12.tmp", ".mlflow.db.12.tmp-journal", "store/.digests.json.3.tmp")
    left = [*(tmp_path / name for name in names), run.path / ".plan.json.4.tmp"]
    for path in left:
        path.touch()
    assert unreferenced.find(tmp_path) == []  # a living process may write them
    for path in left:
        os.utime(path, (1, 1))
    assert {one.path for one in unreferenced.find(tmp_path)} == {*left}
