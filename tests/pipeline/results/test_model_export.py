"""What a model card says of its run."""

import shlex
import shutil
from dataclasses import replace

import pytest
import yaml

from ouroboros.pipeline.results import learnt, model_export
from ouroboros.pipeline.results.view import open_view
from ouroboros.pipeline.store import files, records, tables
from ouroboros.pipeline.store.errors import DataError
from tests.golden.messages import refuses

COMMIT = "0123456789ab" + "0" * 28
SETTINGS = {"algorithm": {"algorithm_type": "grpo"}, "buffer": {"explorer_input": {"tasksets": [
    {"default_reward_fn_type": "accuracy_reward"}], "default_reward_fn_type": "accuracy_reward"}}}
WORD = "algorithm.optimizer.lr=1e-4 and 2e-4"


def frozen(run, **changes):
    """The card of the last training stage, and its metadata, with changes of the stage.json of stages by name."""
    view = open_view(run.path)
    files.write_json(run.path / "plan.json", files.read_json(run.path / "plan.json") | {"overrides": [WORD]})
    for one in view.stages:
        spec, change = files.read_json(one.directory / "stage.json"), changes.get(one.name, {})
        files.write_json(one.directory / "stage.json", spec | {
            "inputs": spec["inputs"] | change.get("inputs", {}),
            "config": spec["config"] | SETTINGS | change.get("config", {})})
    stage = [one for one in view.stages if one.kind.trains][-1]
    manifest = files.read_json(stage.directory / files.MANIFEST)
    files.write_json(stage.directory / files.MANIFEST, manifest | {"steps": 4, "weights_hash": "0" * 16})
    card = model_export.card(view, stage, "float32")
    return card, yaml.safe_load(card.split("---")[1])


def test_the_base_is_the_model_that_the_first_stage_read(run):
    card, said = frozen(run, sft={"inputs": {"model": f"/home/me/hub/models--org--m/snapshots/{COMMIT}"}})
    assert said["base_model"] == "org/m"
    assert f"`org/m@{COMMIT[:12]}`" in card
    assert "/home/me" not in card


def test_a_base_in_a_directory_is_no_name_of_the_hub(run):
    """Which refuses the card otherwise."""
    card, said = frozen(run, sft={"inputs": {"model": "/home/me/own"}})
    assert "base_model" not in said
    assert "`own`" in card


def test_a_hub_reads_the_scores_of_the_card(run, monkeypatch):
    from huggingface_hub import ModelCard

    named, scores = {one.name: one.directory.name for one in open_view(run.path).stages}, learnt.scores
    monkeypatch.setattr(learnt, "scores", lambda view: [replace(one, model=named[one.model]) for one in scores(view)])
    card, _ = frozen(run)
    made = ModelCard(card).data.eval_results
    assert {(one.dataset_name, one.metric_type) for one in made} >= {("test", "sampled_accuracy")}
    assert all(0 <= one.metric_value <= 1 and "[" in one.metric_name for one in made)


def test_the_licence_is_what_the_card_of_the_base_names(run, tmp_path):
    _, said = frozen(run, sft={"inputs": {"model": str(tmp_path)}})
    assert "license" not in said
    (tmp_path / "README.md").write_text("---\nlanguage:\n- en\nlicense: apache-2.0\ntags: [a]\n---\n\nlicense: none\n")
    _, said = frozen(run, sft={"inputs": {"model": str(tmp_path)}})
    assert said["license"] == "apache-2.0"
    (tmp_path / "README.md").write_text("# no metadata\nlicense: none\n")
    assert model_export._licence(tmp_path) is None


def test_the_card_has_the_prompt_without_the_question_settings_and_the_curve(run, tmp_path):
    """A prompt of the made-up run is its question alone; the longest has 24 letters."""
    path = tables.step_file(run.stage("rft", "rft", "curate", "sft"), "experience", 1)
    run.stages.pop()
    rows = [records.Experience(**one) for one in tables.read(path, records.Experience).to_pylist()]
    for one in rows:
        one.prompt = f"<user>{one.prompt}<end>"
    tables.write(path, records.Experience, rows)
    card, _ = frozen(run, rft={"config": {"seed": 7, "model": {"model_path": "/home/me/own", "temperature": 0.5}}})
    assert "~~~~text\n<user>{question}<end>\n~~~~" in card
    assert {"| `seed` | `7` |", "| `model.temperature` | `0.5` |",
            '| `algorithm.algorithm_type` | `"grpo"` |'} <= {*card.splitlines()}
    assert "/home/me" not in card
    assert "![reward by optimizer step](curve.png)" in card
    model_export.draw(tmp_path / "curve.png", "reward", [1, 2], [0.0, 1.0])
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"


def test_rows_have_the_names_of_their_sets(run):
    sets = {"tasksets": [{"name": "math", "path": "math.jsonl"},
                         {"name": "b", "path": f"/home/me/hub/datasets--org--d/snapshots/{COMMIT}/b.parquet"}],
            "eval_tasksets": [{"name": "held", "path": "held.jsonl"}]}
    card, _ = frozen(run, tasks={"config": {"buffer": {"explorer_input": sets},
                                            "data_processor": {"task_pipeline": {"inputs": ["raw.jsonl"]}}}})
    assert {"* math: `math.jsonl`", f"* b: `hf://datasets/org/d@{COMMIT[:12]}/b.parquet`",
            "* inputs: `raw.jsonl`"} <= {*card.splitlines()}
    assert "held.jsonl" not in card


def test_generated_rows_have_their_generator_and_the_command_can_be_typed(run):
    card, _ = frozen(run, tasks={"config": {"data_processor": {"task_pipeline": {"inputs": [], "generator": "g"}}}})
    assert "* generator: `g`" in card.splitlines()
    (line,) = [one for one in card.splitlines() if "ouro run" in one]
    assert shlex.split(line.split("`")[1]) == ["ouro", "run", WORD]


@pytest.mark.parametrize("lose", [lambda stage: (stage / files.MANIFEST).unlink(), shutil.rmtree],
                         ids=["killed", "not there"])
def test_the_model_of_an_earlier_stage_is_exported_only_where_it_is_asked_for(run, lose):
    """The last stage is killed or running, or not there yet."""
    view = open_view(run.path)
    trained = {one.name: one for one in view.stages if one.kind.trains}
    for one in trained.values():
        (one.directory / model_export.MODEL).mkdir()
    assert model_export.choose_stage(view, None) == trained["rft"]
    lose(trained["rft"].directory)
    with refuses(DataError, "'rft'", "--stage: sft"):
        model_export.choose_stage(view, None)
    assert model_export.choose_stage(view, "sft") == trained["sft"]
