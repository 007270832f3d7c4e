"""A problem of a configuration: its sentence and its parts, as text and as JSON."""

import json
from pathlib import Path

import pytest

from ouroboros.commands import cli
from ouroboros.pipeline.job import devices
from ouroboros.pipeline.store.errors import UNSAID, ConfigError, Problem
from tests.golden.messages import wording

FULL = Problem("trainer.ranks", "needed at least 1.", "Raise it.", found=0, stages=["sft", "rft"], file="r.yaml",
               line=4)


@pytest.mark.parametrize(("problem", "sentence"), [
    (FULL, "stages 'sft', 'rft': trainer.ranks=0: needed at least 1. Raise it. (r.yaml, line 4)"),
    (Problem("seed", "unknown."), "seed: unknown."), (Problem(needed="no disk."), "no disk."),
    (Problem("seed", "no.", stages=["a"], file="r.yaml"), "stage 'a': seed: no. (r.yaml)"),
    (Problem("seed", "no.", found=None), "seed=null: no."), (Problem("seed", "no.", found=True), "seed=true: no."),
    (Problem("name", "no.", found=""), "name='': no."), (Problem("name", "no.", " Go. "), "name: no. Go.")])
def test_the_sentence_has_the_parts_that_are_known(problem, sentence):
    assert problem == sentence


def test_below_a_section_the_key_is_longer_and_another_stage_or_part_leaves_the_others():
    assert Problem("ranks", "no.", found=0).below("trainer") == "trainer.ranks=0: no."
    assert Problem(needed="no.").below("trainer").key == "trainer"
    assert FULL.below("") is FULL
    assert FULL.of(["rft"]).stages == ("rft",)
    other = FULL.but(key="seed", found=UNSAID, file=None, line=None)
    wording(other, "'sft', 'rft'", "least 1")
    assert (other.needed, other.do, FULL.key) == (FULL.needed, FULL.do, "trainer.ranks")


def test_no_part_shows_a_secret(monkeypatch):
    monkeypatch.setenv("OURO_TEST_KEY", "hush-hush")
    made = Problem("a.hush-hush", "not hush-hush.", "Leave hush-hush.", found=["hush-hush"], line=3).masked()
    assert (made.key, made.found, made.needed, made.do, made.line) == ("a.***", "['***']", "not ***.", "Leave ***.", 3)
    assert FULL.masked() is FULL
    assert "hush" not in json.dumps(ConfigError(Problem("seed", "no.", found="hush-hush")).problems[0].parts())


def test_the_parts_are_those_that_are_known_and_a_value_may_be_null():
    assert FULL.parts() == {"key": "trainer.ranks", "found": "0", "needed": FULL.needed, "do": FULL.do,
                            "stages": ["sft", "rft"], "file": "r.yaml", "line": 4, "text": str(FULL)}
    assert Problem("seed", "no.", found=None).parts() == {"key": "seed", "found": "null", "needed": "no.",
                                                          "text": "seed=null: no."}
    assert Problem(needed="no disk.").parts() == {"needed": "no disk.", "text": "no disk."}


RECIPE = """name: mine
trainer: {zero_stage: 7}
model: {init: {enable: true}}
stages:
  - stage_name: sft
    algorithm: {algorithm_type: sft}
    buffer:
      batch_size: 0
  - stage_name: rft
buffer:
  explorer_input:
    eval_tasksets:
      - name: a
      - name: b
        limit: 0
"""


@pytest.fixture
def checked(monkeypatch, tmp_path, capsys):
    """checked(*words): exit code and report of `ouro config check --format json`, on a machine without GPUs."""
    monkeypatch.setattr(devices, "torch_has_cuda", lambda: False)
    monkeypatch.chdir(tmp_path)

    def check(*words: str) -> tuple[int, dict]:
        code = cli.main(["config", "check", "--no-data", "--format", "json", *words])
        return code, json.loads(capsys.readouterr().out)

    return check


def test_a_healthy_configuration_has_facts_and_stages_and_exit_code_0(checked):
    code, report = checked()
    assert (code, report["run"], report["problems"]) == (0, "ouroboros/countdown", [])
    assert "rft" in [part["heading"] for part in report["facts"]]
    assert [stage["name"] for stage in report["stages"]][:4] == ["tasks", "curate", "model", "sft"]
    assert not any(stage["complete"] for stage in report["stages"])


@pytest.mark.parametrize("path", ["mine.yaml", "conf/recipe/mine.yaml"])
def test_a_problem_has_the_file_and_line_of_its_value(checked, path):
    """In the recipe, in a stage's entry, in an element of a list; none for a value of the command line."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(RECIPE)
    code, report = checked(f"recipe={path}", "seed=-1", "stages.rft.trainer.ranks=0")
    found = {one["key"]: one for one in report["problems"]}
    assert (code, len(report["problems"])) == (2, 5)
    assert {key: (one.get("file"), one.get("line")) for key, one in found.items()} == {
        "trainer.zero_stage": (path, 2), "buffer.batch_size": (path, 8),
        "buffer.explorer_input.eval_tasksets.1.limit": (path, 15), "seed": (None, None), "trainer.ranks": (None, None)}
    size = found["buffer.batch_size"]
    assert size == {"key": "buffer.batch_size", "found": "0", "needed": size["needed"], "stages": ["sft"],
                    "file": path, "line": 8, "text": size["text"]}
    wording([size["needed"]], "at least 1")
    wording([size["text"]], "stage 'sft'", "buffer.batch_size=0", size["needed"], f"({path}, line 8)")


def test_a_problem_that_only_the_whole_check_finds_has_its_place_too(checked):
    Path("mine.yaml").write_text("model:\n  model_path: /nowhere\n")
    code, report = checked("recipe=mine.yaml", "data_processor.task_pipeline.generator=countdown")
    (place,) = [(one["file"], one["line"]) for one in report["problems"] if one.get("key") == "model.model_path"]
    assert (code, place) == (2, ("mine.yaml", 2))


def test_a_file_that_cannot_be_read_is_a_report_too(checked):
    code, report = checked("recipe=no.yaml", "foo=2")
    assert code == 2
    assert [one.get("key") for one in report["problems"]] == [None, "foo"]
    assert "no.yaml" in report["problems"][0]["text"]


def test_no_report_shows_a_secret(checked, monkeypatch):
    monkeypatch.setenv("OURO_TEST_KEY", "hush-hush")
    for words in (("seed=hush-hush",), ("explorer.env_vars.OPENAI_API_KEY=hush-hush",),
                  ("buffer.explorer_input.taskset.reward_fn_args.api_key=${oc.env:OURO_TEST_KEY}",)):
        code, report = checked(*words)
        assert code == 2
        assert "hush" not in json.dumps(report)
