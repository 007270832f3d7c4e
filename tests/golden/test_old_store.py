"""store-5acdd8e9.tar.xz: two runs as commit 5acdd8e9 finished them (model, tasks, curate, sft, rft, evaluations), moved
to another directory. Every command that reads finished runs reads them."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from ouroboros.commands import cli
from ouroboros.commands.web.app import App
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.setting import Absent
from ouroboros.pipeline.store import files

FIRST, SECOND = "old/small-lr=0.001", "old/small-lr=0.005"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    made = tmp_path_factory.mktemp("old")
    with tarfile.open(Path(__file__).with_name("store-5acdd8e9.tar.xz")) as archive:
        archive.extractall(made, filter="data")
    yield made
    shutil.rmtree(made)


@pytest.fixture
def ouro(root, capsys):
    """ouro(words): what a command prints that succeeds."""

    def run(*words: str) -> str:
        assert cli.main([*words, "--root", str(root)]) == 0
        return capsys.readouterr().out

    return run


def test_it_is_shown(root, ouro):
    assert ouro("status", SECOND).count(" complete ") == 8
    assert "step 4" in ouro("logs", SECOND)
    assert json.loads(ouro("timeline", SECOND))["traceEvents"]
    client = TestClient(App(root, "secret").asgi(), base_url="http://localhost:9000",
                        headers={"authorization": "Bearer secret"})
    assert len(client.get("/api/run", params={"run": SECOND}).json()["stages"]) == 8


def test_it_is_queried(ouro):
    rows = json.loads(ouro("sql", "select step, reward from steps where reward is not null order by step", SECOND,
                          "--format", "json"))
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[1]["reward"] == pytest.approx(0.0541667, rel=1e-5)
    tables = {table: json.loads(ouro("sql", f"select count(*) n from {table}", "--format", "json"))[0]["n"]
              for table in ("experience", "trained", "scores", "samples", "tasks", "rejected")}
    assert all(tables.values())


def test_the_doctor_finds_its_few_steps_alone(root, capsys):
    for run in (FIRST, SECOND):
        assert cli.main(["doctor", run, "--format", "json", "--root", str(root)]) == 1
        rows = json.loads(capsys.readouterr().out)
        assert {row["rule"] for row in rows if row["verdict"] == "found"} == {"few_steps"}


def test_it_is_verified(ouro):
    assert ouro("verify", FIRST).count(" intact") == 8


def test_it_is_compared(ouro):
    assert {row["lr"] for row in json.loads(ouro("compare", FIRST, SECOND, "--format", "json"))} == {0.001, 0.005}


def test_settings_that_are_newer_are_at_their_defaults_and_others_absent(root):
    """Those that a kind reads or watches are there."""
    opened = {spec["kind"]: Config.of_stage(spec["kind"], spec["config"])
              for spec in map(files.read_json, (root / "store").glob("*/stage.json"))}
    assert (opened["rft"].trainer.freeze_vision_tower, opened["rft"].algorithm.optimizer.state_bytes) == (True, 12)
    assert opened["rft"].data_processor.experience_pipeline.operators == []
    assert opened["rft"].trainer.reference_update.mix == 1.0
    for kind in ("evaluate", "rft"):  # whose stage watches them
        assert [(one.columns, one.format.image_key) for _, one in
                opened[kind].buffer.explorer_input.eval_places] == [([], None)]
    with pytest.raises(Absent):
        opened["evaluate"].trainer.reference_update  # noqa: B018


@pytest.mark.slow
def test_it_is_replayed(ouro):
    """The gradient of step 1 is the stored one. dapo reads settings that are newer than the run."""
    found = json.loads(ouro("replay", SECOND, "algorithm=dapo", "--format", "json"))
    assert [row["algorithm"] for row in found] == ["as it was", "algorithm=dapo"]
    assert found[0]["grad_norm"] == pytest.approx(0.466841, rel=1e-4)


def test_it_is_exported(root, ouro):
    ouro("export", SECOND, "--out", str(root / "model"))
    assert (root / "model" / "model.safetensors").read_bytes() == (
        root / "store" / "rft-c1333f91" / "model" / "model.safetensors").read_bytes()
    assert "grpo" in (root / "model" / "README.md").read_text()
    assert "4" in ouro("weights", SECOND)
