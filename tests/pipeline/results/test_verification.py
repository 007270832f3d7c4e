"""`ouro verify` and `ouro gc` on a run whose stages were made by hand."""

import shutil
import subprocess
import sys

import pytest

from ouroboros.commands import cli
from ouroboros.pipeline.results import sweep_view, verification
from ouroboros.pipeline.store import checkpoints, files, hashes, records, tables
from tests.damage import cut_short, flip
from tests.factories import row
from tests.fake_run import FakeRun
from tests.golden.messages import wording
from tests.kills.shim import shimmed


@pytest.fixture
def run(tmp_path):
    """tasks, curate, model, sft, rft and evaluations of both, each with the hashes of its files."""
    made = FakeRun(tmp_path).whole()
    made.view()
    for manifest in tmp_path.glob("store/*/manifest.json"):
        stage, found = manifest.parent, files.read_json(manifest)
        if files.read_json(stage / "stage.json")["kind"] in ("train", "rft"):
            (stage / "model").mkdir()
            (stage / "model" / "model.safetensors").write_bytes(stage.name.encode())
            steps = len(tables.steps_present(stage, "steps"))
            files.write_json(checkpoints.checkpoint_directory(stage, steps) / files.MANIFEST, {"step": steps})
            found |= {"steps": steps, "weights_hash": checkpoints.weights_hash(stage / "model")}
        files.write_json(manifest, found | {"files": hashes.seal(stage)})
    return made


def stage(run, name):
    return next(run.root / "store" / path.name for path in (run.root / "store").glob(f"{name}-*"))


def verdicts(run):
    return {one.stage.name: one for one in verification.verify(sweep_view.find(run.root))}


def reseal(directory):
    """Records the files as they are: rows can be wrong although every byte is as written."""
    files.write_json(directory / files.MANIFEST, files.read_json(directory / files.MANIFEST)
                     | {"files": hashes.seal(directory)})


def ouro(run, *words):
    return cli.main([*words, "--root", str(run.root)])


def test_a_run_as_it_was_written_is_intact(run, capsys):
    assert {name: one.problems for name, one in verdicts(run).items()} == {name: [] for name in verdicts(run)}
    assert ouro(run, "verify") == 0
    assert "DAMAGED" not in capsys.readouterr().out


@pytest.mark.parametrize(("name", "file", "damage"), [
    ("curate", "tasks.parquet", flip), ("sft", "model/model.safetensors", cut_short),
    ("rft", "experience/step=000002.parquet", flip), ("rft", "trained/step=000001.parquet", cut_short),
    ("curate", "_hashes.jsonl", flip), ("rft", "steps_hashes.jsonl", lambda path: path.unlink()),
    ("rft", "experience/step=000003.parquet", lambda path: path.unlink()), ("sft", "checkpoints", shutil.rmtree)])
def test_a_damaged_or_missing_file_is_named_and_the_exit_code_is_1(run, capsys, name, file, damage):
    directory = stage(run, name)
    damage(directory / file)
    assert ouro(run, "verify") == 1
    shown = capsys.readouterr().out
    assert file in shown
    assert f"rm -r {files.near(directory)}" in shown
    assert [one for one, verdict in verdicts(run).items() if verdict.problems] == [name]


@pytest.mark.parametrize("lose", [lambda place: (place / files.MANIFEST).unlink(), shutil.rmtree],
                         ids=["manifest", "directory"])
def test_a_missing_manifest_is_damage_where_complete_stages_rest_on_it(run, capsys, lose):
    """evaluate_rft rests on rft, and by way of it on sft; nothing complete rests on evaluate_sft."""
    for name in ("sft", "evaluate_sft"):
        lose(stage(run, name))
    (stage(run, "rft") / files.MANIFEST).unlink()
    assert ouro(run, "verify") == 1
    wording(capsys.readouterr().out, f"{files.MANIFEST} is missing")
    assert {one: "evaluate_rft" in verdict.problems[0] for one, verdict in verdicts(run).items()
            if verdict.problems} == {"sft": True, "rft": True}


def test_rows_that_do_not_belong_together_are_counted(run):
    rft = stage(run, "rft")
    path = tables.step_file(rft, "experience", 1)
    rows = tables.read(path, records.Experience).to_pylist()[:-1]
    tables.write(path, records.Experience, [records.Experience(**{**one, "task_id": "nobody's"}) for one in rows])
    hashes.remove(tables.step_file(rft, "steps", 2))
    tables.write(tables.step_file(rft, "rollouts", 3), records.Rollout, [
        row(records.Rollout, step=3, weights_version=99)])
    reseal(rft)
    found = " ".join(verdicts(run)["rft"].problems)
    wording(found, "7 rows", "tasks.parquet", "1 optimizer", "1 explorer", "1 trained")


def test_a_run_of_an_older_release_has_no_verdict(run):
    for manifest in run.root.glob("store/*/manifest.json"):
        files.write_json(manifest, {**files.read_json(manifest), "files": None})
    (words,) = {one.words for one in verdicts(run).values() if one.stage.name != "report"}
    wording(words, "no hashes", "older release")


def test_it_imports_neither_torch_nor_vllm(run):
    program = ("import sys; from ouroboros.commands import cli; cli.main(['verify', '--root', sys.argv[1]]); "
               "sys.exit(len({'torch', 'vllm', 'transformers'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", program, str(run.root)], cwd=files.HOME, check=False,
                          capture_output=True)
    assert done.returncode == 0


def checkpoint(directory, step):
    place = checkpoints.checkpoint_directory(directory, step)
    place.mkdir(parents=True, exist_ok=True)
    (place / "state").write_bytes(b"x" * 1000)
    files.write_json(place / files.MANIFEST, {"files": {}})
    return place


def test_gc_lists_and_deletes_only_what_no_run_needs(run, capsys):
    rft = stage(run, "rft")
    old, last = checkpoint(rft, 2), checkpoint(rft, 4)
    (rft / "experience" / ".step.tmp").touch()
    (rft / "checkpoints" / "damaged-step=000003").mkdir()
    nobodys = run.root / "store" / "sft-99999999"
    files.write_json(nobodys / "stage.json", {})
    assert ouro(run, "gc") == 0
    shown = capsys.readouterr().out
    listed = [old, rft / "experience" / ".step.tmp", rft / "checkpoints" / "damaged-step=000003", nobodys]
    assert all(path.exists() and path.name in shown for path in listed)
    before = {path for path in run.root.rglob("*") if not any(path.is_relative_to(one) for one in listed)}
    assert ouro(run, "gc", "--delete") == 0
    assert {*run.root.rglob("*")} == before
    assert last.exists()
    capsys.readouterr()
    ouro(run, "gc")
    assert "nothing" in capsys.readouterr().out


@pytest.mark.parametrize(("file", "kind"), [
    ("checkpoints/step=000002/state", "checkpoints/.step=N.N.old.tmp/state"),
    ("../sft-99999999/stage.json", "stage.json")])
def test_a_killed_gc_leaves_no_half_directory_and_the_next_one_deletes_the_rest(run, file, kind):
    rft, nobodys = stage(run, "rft"), run.root / "store" / "sft-99999999"
    checkpoint(rft, 2)
    checkpoint(rft, 4)
    files.write_json(nobodys / "stage.json", {})
    files.write_json(nobodys / files.MANIFEST, {})
    killed = run.root.parent / "killed"
    command = [sys.executable, "-m", "ouroboros", "gc", "--delete", "--root", str(run.root)]
    subprocess.run(command, cwd=files.HOME, check=False, capture_output=True,
                   env=shimmed(run.root, point=f"ouro|unlink|{kind}|1|self|0", killed=killed))
    assert killed.exists(), "it was not killed"
    assert not (rft / file).exists()
    assert not (rft / file).parent.exists()
    assert ouro(run, "gc", "--delete") == 0
    assert not list(run.root.rglob("*.old.tmp"))
    assert checkpoints.complete_checkpoints(rft) == [4]


def test_gc_needs_a_store(tmp_path, capsys):
    assert cli.main(["gc", "--root", str(tmp_path)]) == 2
    assert "no store/" in capsys.readouterr().err


def test_gc_keeps_what_a_setting_of_a_run_names_and_what_runs(run):
    theirs, running = run.root / "store" / "sft-99999999", run.root / "store" / "rft-88888888"
    for one in (theirs, running):
        files.write_json(one / "stage.json", {})
    (run.path / "config.yaml").write_text(f"model:\n  teacher_model_path: {theirs}/model\n")
    with files.locked(running / ".lock", print):
        ouro(run, "gc", "--delete")
    assert theirs.exists()
    assert running.exists()
    ouro(run, "gc", "--delete")
    assert not running.exists()
