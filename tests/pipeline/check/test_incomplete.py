"""What is wrong beside what keeps a configuration from being composed: told in the same list."""

import pytest

from ouroboros.commands import cli
from ouroboros.pipeline.job import devices
from ouroboros.pipeline.settings import monitors
from tests.golden.messages import wording

TASKS = "data_processor.task_pipeline"
NO_MODEL = "model.model_path: no model."
WRONG = "seed=-1"
TASKSET = "buffer.explorer_input.taskset"
NOTHING = ("model.init.enable=false", "model.model_path=.")


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """One without GPUs, at whose present directory nothing lies."""
    monkeypatch.setattr(devices, "torch_has_cuda", lambda: False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def told(capsys):
    """The lines of `ouro config check` on words, and its exit code."""
    def check(*words: str) -> tuple[list[str], int]:
        code = cli.main(["config", "check", *words])
        out = capsys.readouterr()
        return (out.out + out.err).splitlines(), code
    return check


def has(lines: list[str], words: str) -> bool:
    return any(words in line for line in lines)


@pytest.mark.parametrize("words", [(), ("--elsewhere",), (WRONG,), (WRONG, "--elsewhere"),
                                   (f"{TASKS}.generator=null", f"{TASKS}.inputs=[no.jsonl]")])
def test_a_recipe_without_a_model_is_told_so_whatever_else_is_wrong(told, words):
    """But a wrong section: it says nothing of the model."""
    lines, code = told("--no-data", "model.init.enable=false", *words)
    assert (code, sum(NO_MODEL in line for line in lines)) == (2, 1)
    assert not has(told("--no-data", "model.init.enable=false", "model.model_pat=here")[0], NO_MODEL)


@pytest.mark.parametrize("words", [(), (WRONG,), (WRONG, "--elsewhere")])
def test_a_model_that_cannot_be_read_is_told_once_beside_all_else(told, tmp_path, words):
    (tmp_path / "config.json").write_text("{")
    lines, code = told("--no-data", "model.init.enable=false", f"model.model_path={tmp_path}",
                       "algorithm.policy_loss_fn_args.x=1", *words)
    assert code == 2
    text = " ".join(" ".join(lines).split())
    assert text.count("not valid JSON") == 1
    assert "argument 'x'" in text


@pytest.mark.parametrize("words", [
    (*NOTHING, f"{TASKSET}.path=1"), (*NOTHING, f"{TASKSET}.path=[1]"), (*NOTHING, "algorithm.algorithm_type=mix")])
def test_nothing_is_read_where_a_setting_of_the_rows_is_wrong(told, words):
    lines, code = told(*words)
    assert code == 2
    assert has(lines, words[-1].partition("=")[0].replace("algorithm_type", "sample_strategy_args"))


def test_gpus_are_counted_beside_a_wrong_value(told):
    lines, _ = told("--no-data", WRONG, "trainer.ranks=5", "cluster.gpu_per_node=2")
    wording(lines, "'sft': trainer.ranks=5")
    lines, _ = told("--no-data", "cluster.node_num=abc", "trainer.ranks=5", "cluster.gpu_per_node=2")
    assert not has(lines, "needs 5 GPUs")  # it depends on the value that is wrong
    lines, _ = told("--no-data", "explorer.eval_interval=5", "buffer.explorer_input.eval_tasksets=[]",
                    "trainer.ranks=5", "cluster.gpu_per_node=2")
    wording(lines, "explorer.eval_interval=5")
    assert has(lines, "needs 5 GPUs")  # which does not


@pytest.mark.parametrize("more", [(), (WRONG,)])
def test_a_stage_may_have_another_machine(told, more):
    """Two ranks and one engine: three GPUs of eight, but not of the stage's own two."""
    own = "stages.rft.cluster.gpu_per_node=2"
    lines, code = told("--no-data", "cluster.gpu_per_node=8", "trainer.ranks=2", own, *more)
    assert code == 2
    wording(lines, "3 GPUs")
    assert not has(lines, "stage 'sft'")


def test_columns_are_looked_for_beside_a_wrong_value(told, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    words = (f"{TASKS}.generator=null", f"{TASKS}.inputs=[rows.jsonl]", f"{TASKS}.format.prompt_key=problem")
    lines, _ = told(WRONG, *words)
    assert has(lines, "problem")
    assert has(lines, "rows.jsonl")
    lines, _ = told(WRONG, "--no-data", *words)
    assert not has(lines, "rows.jsonl")


def test_a_stage_behind_one_that_there_is_not_hides_nothing(told, tmp_path):
    (tmp_path / "r.yaml").write_text("stages:\n  - {stage_name: a, after: [b], algorithm: {algorithm_type: sft}}\n")
    lines, code = told("--no-data", "recipe=r.yaml", WRONG, f"{TASKS}.inputs=[no.jsonl]")
    assert code == 2
    assert has(lines, "stage 'a': after=b: ")
    assert has(lines, "seed=-1")
    assert has(lines, "no.jsonl")
    assert has(lines, NO_MODEL)


def test_an_entry_with_a_bad_name_is_looked_into(told, tmp_path):
    (tmp_path / "r.yaml").write_text(
        "stages:\n  - {stage_name: 2x, algorithm: {algorithm_type: grop}, trainer: {rnks: 2}, name: x}\n")
    lines, _ = told("--no-data", "recipe=r.yaml")
    for words in ("stage_name=2x: ", "algorithm.algorithm_type=grop: Did you mean 'grpo'?",
                  "trainer.rnks: unknown key", "name: "):
        assert has(lines, f"entry 1 of `stages`: {words}"), words


def test_a_monitor_that_is_not_installed_is_no_problem_elsewhere(told, monkeypatch):
    monkeypatch.setattr(monitors.importlib.util, "find_spec", lambda name: None)
    lines, code = told("--no-data", "--elsewhere", "monitor.monitor_type=tensorboard")
    assert code == 0
    assert lines.index("not judged here") < next(i for i, line in enumerate(lines) if "is not installed" in line)
    lines, code = told("--no-data", "--elsewhere", "monitor.monitor_type=wandb", "monitor.monitor_args.entitty=x")
    assert code == 2
    assert has(lines, "entitty")
