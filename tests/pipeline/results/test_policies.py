"""`ouro weights`: what is kept of a stage's policies, and a model directory made of one."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import load_file

from ouroboros.commands.cli import main
from ouroboros.commands.run import invoke
from ouroboros.commands.run.planning import make_checked_plan
from ouroboros.commands.run.snakefile import make_plan_or_sweep
from ouroboros.pipeline.job.policies import kept, opened, rebuild, scorable
from ouroboros.pipeline.results import policies, sweep_view
from ouroboros.pipeline.results.view import Node
from ouroboros.pipeline.settings.kinds import ONLINE
from ouroboros.pipeline.settings.lora import ADAPTER
from ouroboros.pipeline.store import checkpoints, files, hashes, tensor_files, versions
from ouroboros.pipeline.store.errors import DataError, ModelError
from ouroboros.pipeline.store.tensor_files import Stored
from tests.fake_run import FakeRun
from tests.golden.messages import refuses, wording


def tensors(step):
    values = np.arange(10, dtype=np.float32)
    values[3] += step
    return {"w": Stored("F32", (10,), values.view(np.uint8))}


def write(stage, step, directory):
    """Version 0 is full, the others are deltas."""
    new = tensors(step)
    if step:
        versions.write_delta(directory / versions.DELTA, new, versions.changes(tensors(step - 1), new))
    else:
        tensor_files.write(directory / checkpoints.WEIGHTS, new)
    return {"hash": versions.hash_of(new), "tensors": tensor_files.hashes_of(new),
            "base": [step - 1, versions.hash_of(tensors(step - 1))] if step else None}


@pytest.fixture
def stage(tmp_path):
    """Versions 0 to 3 and a checkpoint of step 4, which began with a model of two files."""
    initial, directory = tmp_path / "initial", tmp_path / "rft"
    initial.mkdir()
    (initial / "tokenizer.json").write_text("{}")
    files.write_json(initial / "config.json", {"torch_dtype": "bfloat16", "text_config": {"dtype": "bfloat16"}})
    for version in range(4):
        versions.publish(directory, version, partial(write, directory, version), {})
    saved = checkpoints.checkpoint_directory(directory, 4)
    checkpoints.copy_model_files(initial, saved / "model")
    tensor_files.write(saved / "model" / checkpoints.WEIGHTS, tensors(4))
    files.write_json(saved / files.MANIFEST, {"step": 4, "files": hashes.hash_tree(saved, {})})
    files.write_json(directory / "stage.json", {"inputs": {"model": str(initial)}})
    return Node("rft", ONLINE, directory)


@pytest.mark.parametrize("step", [0, 1, 3, 4])
def test_the_weights_of_any_kept_step_are_a_model_directory(stage, tmp_path, step):
    out = tmp_path / "out"
    assert rebuild(stage.directory, step, out) == versions.hash_of(tensors(step))
    assert load_file(out / checkpoints.WEIGHTS)["w"].tolist() == tensors(step)["w"].data.view(np.float32).tolist()
    assert sorted(path.name for path in out.iterdir()) == ["config.json", checkpoints.WEIGHTS, "tokenizer.json"]
    assert files.read_json(out / "config.json") == {  # of the weights, and not the base's
        "torch_dtype": "float32", "text_config": {"dtype": "float32"}, "dtype": "float32"}


def test_kept_steps_are_listed_with_form_and_size(stage):
    found = kept(stage.directory)
    assert [(one.step, one.form) for one in found] == [
        (0, "full"), (1, "delta"), (2, "delta"), (3, "delta"), (4, "checkpoint")]
    assert all(one.size > 0 for one in found)
    assert "5 steps" in policies.table(stage)


def test_a_policy_is_there_while_it_is_needed(stage, tmp_path):
    """A published version as a temporary model directory, a checkpoint as it is; what a killed launch left goes."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "torn").touch()
    assert scorable(stage.directory) == [0, 1, 2, 3, 4]
    for step in (2, 4):
        with opened(stage.directory, step, scratch) as model:
            assert load_file(model / checkpoints.WEIGHTS)["w"].tolist() == tensors(step)["w"].data.view(
                np.float32).tolist()
            assert not (model / "torn").exists()
    assert not scratch.exists()


@pytest.mark.parametrize(("step", "to", "words"), [(7, "out", ("7 of", "'rft'", "of 4")), (1, "", ("already",))])
def test_a_step_that_is_not_kept_and_a_directory_that_is_there_are_refused(stage, tmp_path, step, to, words):
    with refuses(DataError, *words):
        rebuild(stage.directory, step, tmp_path / to)


@pytest.mark.parametrize(("step", "damaged"), [
    (2, "weights/version=000000/model.safetensors"), (4, "checkpoints/step=000004/model/model.safetensors")])
def test_damaged_weights_make_no_directory(stage, tmp_path, step, damaged):
    path = stage.directory / damaged
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(ModelError):
        rebuild(stage.directory, step, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))


def test_an_adapter_is_copied_as_peft_reads_it(stage, tmp_path):
    def export(directory):
        tensor_files.write(directory / ADAPTER, tensors(9))
        (directory / "adapter_config.json").write_text("{}")

    versions.publish(stage.directory, 9, export, {})
    rebuild(stage.directory, 9, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["adapter_config.json", ADAPTER]


@pytest.fixture
def trained(tmp_path):
    """A run with sft and rft, and trained(stage, version, …): its weights of these versions."""
    run = FakeRun(tmp_path, "toy/first").data().sft().rft()
    run.view()
    shown = sweep_view.find(tmp_path, "toy/first")

    def publish(name, *numbers):
        directory = next(one.directory for one in shown.stages if one.name == name)
        for version in numbers:
            versions.publish(directory, version, partial(write, directory, version), {})
        return shown, directory

    return publish


def test_the_command_lists_and_rebuilds(trained, tmp_path, capsys):
    trained("rft", 0, 1)
    assert main(["weights", "first", "--root", str(tmp_path)]) == 0
    wording(capsys.readouterr().out, "2 steps")
    assert main(["weights", "first", "--root", str(tmp_path), "--step", "1"]) == 2  # without --out
    assert main(["weights", "first", "--root", str(tmp_path), "--step", "9", "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()
    assert main(["weights", "first", "--root", str(tmp_path), "--stage", "sft"]) == 2


def test_weights_of_an_earlier_stage_are_made_only_where_it_is_asked_for(trained):
    """Step 1 of sft is no step 1 of the run, whose last training stage keeps none yet."""
    shown, directory = trained("sft", 1)
    with refuses(DataError, "'rft'", "--stage: sft"):
        policies.choose_stage(shown, None)
    assert policies.choose_stage(shown, "sft").directory == directory


@pytest.fixture
def asked(monkeypatch):
    """The overrides of the runs that are started, in place of runs."""
    found = []
    monkeypatch.setattr(invoke, "run", lambda overrides, *given, **named: found.append(overrides) or (0, None))
    return found


def test_a_run_is_evaluated_with_its_own_overrides(tmp_path, asked):
    """Those of an evaluation before it are replaced."""
    words = [f"checkpoint_root_dir={tmp_path}", "name=one", "seed=3"]
    plan = make_checked_plan(words)
    for earlier in (plan, replace(plan, overrides=(*words, "mode=bench", "explorer.bench_steps=[9]"))):
        earlier.freeze()
        assert main(["evaluate", "one", "--root", str(tmp_path), "--steps", "0,50"]) == 0
        assert asked.pop() == [*words, "mode=bench", "explorer.bench_steps=[0,50]"]


def test_a_point_of_a_sweep_is_evaluated_as_a_run(tmp_path, asked):
    root = f"checkpoint_root_dir={tmp_path}"
    make_plan_or_sweep(["-m", root, "name=swept", "seed=1,2"]).freeze()
    assert main(["evaluate", "swept-seed=2", "--root", str(tmp_path), "--steps", "4"]) == 0
    assert asked == [[root, "seed=2", "name='swept-seed=2'", "mode=bench", "explorer.bench_steps=[4]"]]
    assert make_checked_plan(asked[0][:3]).name == "swept-seed=2"
    assert main(["evaluate", "swept", "--root", str(tmp_path), "--steps", "4"]) == 2


def test_steps_that_are_no_numbers_and_runs_of_older_releases(tmp_path, capsys):
    FakeRun(tmp_path).view()
    assert main(["evaluate", "--root", str(tmp_path), "--steps", "4,"]) == 2
    assert main(["evaluate", "--root", str(tmp_path), "--steps", "4"]) == 2
    assert "plan.json" in capsys.readouterr().err
