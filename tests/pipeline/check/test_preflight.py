"""`ouro config check`: what it tells, and what it does not load."""

import json
import re
import shutil
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from ouroboros.commands import cli
from ouroboros.pipeline.check import preflight, samples
from ouroboros.pipeline.check.report import WIDTH
from ouroboros.pipeline.job import devices
from ouroboros.pipeline.plan.plan import Plan
from ouroboros.pipeline.store.errors import ConfigError, Problem, StageError
from tests.configs import changed, places
from tests.golden.messages import refuses, wording
from tests.models import safetensors
from tests.sizes import QWEN2, answered

TASKS = "data_processor.task_pipeline"
GPU = {"cluster.gpu_per_node": 2, "cluster.gpu_memory_gib": 80.0}


def disk_of(free: int):
    return lambda path: namedtuple("usage", "total used free")(free, 0, free)


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """One without GPUs and with a large disk, at whose present directory nothing lies."""
    monkeypatch.setattr(devices, "torch_has_cuda", lambda: False)
    monkeypatch.setattr(shutil, "disk_usage", disk_of(1 << 50))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model(tmp_path) -> dict:
    """The settings that name a model directory of half a billion parameters."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(QWEN2))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(safetensors({}))
    return {"model.init.enable": False, "model.model_path": str(directory)}


def check(values: dict, **how) -> preflight.Report:
    """The report without samples of the data; sizes of models are those of tests/sizes.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "preview", lambda config, stages, models: answered(models))
        return preflight.check(changed(values), **{"data": True} | how)


def facts(report: preflight.Report, stage: str) -> dict[str, str]:
    return dict(next(found for heading, found in report.facts if heading == stage))


def test_the_default_recipe_has_no_problem():
    report = check({})
    assert report.problems == report.warnings == report.unjudged == []
    assert [s.name for s in report.plan.stages][:4] == ["tasks", "curate", "model", "sft"]
    wording(facts(report, "rft")["explorer"], "450", "64 tasks", "8 rollouts", "= 512")
    wording(facts(report, "rft")["GPUs"], "CPU", "SLURM", "GPU")
    wording(facts(report, "rft")["memory"], "trainer", "GiB")


def test_a_run_that_names_no_data_at_all_is_told():
    report = check({f"{TASKS}.generator": None})
    assert places(report.problems) == [
        "sft: buffer.trainer_input.experience_buffer.path", "buffer.explorer_input.eval_tasksets.0.path",
        "rft: buffer.explorer_input.taskset.path"]


def test_a_setting_of_the_run_that_no_stage_reads_is_told_and_left():
    """grpo has no critic and no penalty; of a run of demonstrations alone nothing hands weights over."""
    found = check({"trainer.critic.cliprange_value": 0.7, "algorithm.kl_penalty_fn_args": {"kl_coef": 0.1}}).warnings
    assert places(found) == ["algorithm.kl_penalty_fn_args, trainer.critic.cliprange_value"]
    sft = {"stages": [{"stage_name": "sft", "algorithm": {"algorithm_type": "sft"}}]}
    (warning,) = check({**sft, "algorithm.policy_loss_fn": "sft_phi", "synchronizer.sync_interval": 7}).warnings
    assert {"algorithm.policy_loss_fn", "synchronizer.sync_interval"} <= set(warning.key.split(", "))
    used = {"algorithm.advantage_fn": "ppo", "algorithm.kl_penalty_fn": "k2", "trainer.critic.cliprange_value": 0.7,
            "algorithm.kl_penalty_fn_args": {"kl_coef": 0.1}}
    assert check(used).warnings == []


@pytest.mark.parametrize(("stages", "expected"), [
    ([{"stage_name": "rft"}], ["generator"]), ([{"stage_name": "sft", "algorithm": {"algorithm_type": "sft"}}], [])])
def test_a_pool_that_no_set_takes_rows_from_is_told(stages, expected):
    """The set of rft has a file; demonstrations come from the generator."""
    sets = {"buffer.explorer_input.taskset.path": "a.jsonl", "buffer.explorer_input.eval_tasksets": []}
    warned = check({"stages": stages} | sets, elsewhere=True).warnings
    assert [one.key for one in warned if one.key.startswith(TASKS)] == [f"{TASKS}.{word}" for word in expected]


def test_what_every_stage_says_and_a_value_that_comes_to_another_are_told_once(model):
    report = check({**model, **GPU, "explorer.rollout_model.tensor_parallel_size": 4, "cluster.gpu_per_node": 8})
    assert places(report.problems).count("sft: explorer.rollout_model.tensor_parallel_size") == 1
    assert not any(place.startswith("rft: explorer") for place in places(report.problems))
    report = check({"explorer.eval_interval": 3})
    assert (report.problems, len(report.warnings)) == ([], 1)
    wording(report.warnings[0], "4, 6, 10", "12")


def test_files_that_are_absent_come_beside_other_problems(capsys):
    words = ["config", "check", "--no-data", "seed=-1", f"{TASKS}.generator=null", f"{TASKS}.inputs=[none.jsonl]"]
    assert cli.main(words) == 2
    wording(capsys.readouterr().err, f"{TASKS}.inputs.0: none.jsonl")
    assert cli.main([*words, "--elsewhere"]) == 2
    assert "none.jsonl" not in capsys.readouterr().err


def test_problems_of_every_kind_are_told_at_once(model):
    report = check({**model, **GPU, f"{TASKS}.generator": None, f"{TASKS}.inputs": ["none.jsonl"],
                    "algorithm.policy_loss_fn_args": {"x": 1}, "trainer.ranks": 2, "model.max_response_tokens": 40_000,
                    "explorer.rollout_model.tensor_parallel_size": 4, "cluster.gpu_memory_gib": 8.0,
                    "trainer.max_token_len_per_gpu": 50_000})
    assert {f"{TASKS}.inputs.0", "sft: explorer.rollout_model", "sft: model.model_path", "sft: trainer", "rft: mode",
            "sft: explorer.rollout_model.tensor_parallel_size", "rft: algorithm.policy_loss_fn_args"} <= set(
                places(report.problems))
    assert report.plan is None


def test_prompts_in_parts_need_a_gpu():
    key = "explorer.rollout_model.extra_engine_args"
    values = {key: {"enable_chunked_prefill": True}, "explorer.rollout_model.engine_type": "vllm"}
    assert {place.partition(": ")[2] for place in places(check(values).problems)} == {f"{key}.enable_chunked_prefill"}
    assert check({key: {"enable_chunked_prefill": False}}).problems == []
    assert not any(key in place for place in places(check({**values, **GPU}).problems))


def test_elsewhere_what_is_not_here_is_no_problem():
    values = {"model.init.enable": False, "model.model_path": "/no/model", f"{TASKS}.generator": None,
              f"{TASKS}.inputs": ["none.jsonl"]}
    assert len(check(values).problems) == 2
    report = check(values, elsewhere=True)
    assert report.problems == []
    *keyed, memory = report.unjudged
    assert [one.key for one in keyed] == [
        f"{TASKS}.inputs.0", "model.model_path", "cluster.gpu_per_node", "cluster.gpu_memory_gib"]
    wording(memory, "GPU", "disk")
    still_wrong = check({**values, "algorithm.policy_loss_fn_args": {"x": 1}}, elsewhere=True)
    assert len(still_wrong.problems) == 1


def test_a_stage_begins_with_the_model_that_it_names_itself(model):
    """sft names half a billion parameters, the run a small one; rft begins with what sft makes."""
    report = check({"stages.sft.model": {"init": {"enable": False}, "model_path": model["model.model_path"]}, **GPU})
    assert "weights 0.9" in facts(report, "sft")["memory"] == facts(report, "rft")["memory"]
    # 2 bytes a parameter, 0.92 GiB, and 12 of the optimizer, 5.52
    wording(facts(report, "rft")["memory"], "0.9", "5.5", "1.9")


@pytest.mark.parametrize(("window", "said"), [(8, True), (4096, False)])
def test_a_window_that_is_shorter_than_rows_is_a_fact_of_the_stage(model, tmp_path, window, said):
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN2 | {
        "model_type": "mistral", "sliding_window": window}))
    found = facts(check({**model, "explorer.rollout_model.engine_type": "transformers"}), "rft")
    assert ("attention" in found) is said


def test_without_the_sizes_of_models_memory_and_disk_are_not_judged(model):
    report = check({**model, **GPU, "cluster.gpu_memory_gib": 8.0}, data=False)
    assert report.problems == report.unjudged == []
    assert [word for word, _ in dict(report.facts)["rft"]] == [
        "explorer", "trainer", "micro-batch", "checkpoints", "time", "GPUs"]
    assert not any(heading == "disk" for heading, _ in report.facts)


def test_a_run_counts_its_models_where_the_memory_of_a_gpu_is_known(model, monkeypatch):
    """In a process of its own, once however many points of a sweep have the same models."""
    asked = []
    samples.answered.cache_clear()
    monkeypatch.setattr(samples, "ask", lambda request, module="ouroboros.stages.preview": (
        asked.append(module) or answered(request["models"])))
    tight = changed({**model, **GPU, "cluster.gpu_memory_gib": 8.0})
    for _ in range(2):
        with refuses(ConfigError, "trainer"):
            preflight.judged_plan(tight)
    assert asked == ["ouroboros.stages.preview"]
    preflight.judged_plan(changed(model))
    assert asked == ["ouroboros.stages.preview"]


def test_an_estimate_over_the_limit_is_a_warning_when_suggestions_are_ignored_and_unjudged_without_a_limit(model):
    values = {**model, **GPU, "cluster.gpu_memory_gib": 8.0, "trainer.compile": False,
              "trainer.enable_gradient_checkpointing": False}
    assert sum("trainer: needs about" in line for line in check(values).problems) == 1
    report = check({**values, "ignore_validator_suggestions": True})
    assert report.problems == []
    assert sum("trainer: needs about" in line for line in report.warnings) == 1


def test_without_the_memory_of_a_gpu_the_estimate_is_told_and_not_judged(model):
    report = check({**model, "cluster.gpu_per_node": 2})
    assert report.problems == []
    assert places(report.unjudged) == ["cluster.gpu_memory_gib"]
    assert facts(report, "rft")["memory"].startswith("trainer about ")


def test_a_disk_that_is_too_small_is_a_problem_of_what_is_not_made_yet(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", disk_of(1 << 20))
    (problem,) = check({}).problems
    assert (problem.key, problem.found, "1.0 MiB" in problem) == ("checkpoint_root_dir", ".", True)
    assert check({}, elsewhere=True).problems == []  # it is another disk
    wrong = {"algorithm.policy_loss_fn_args": {"x": 1}}
    report = check(wrong, elsewhere=True)
    assert len(report.problems) == 1
    for stage in report.plan.stages:
        Path(stage.directory).mkdir(parents=True)
        Path(stage.directory, "manifest.json").write_text("{}")
    report = check(wrong)
    assert report.problems == []
    assert "rft (made)" in report.text()


def test_what_a_stage_has_written_already_is_not_needed_again(monkeypatch):
    needed = facts(check({}), "disk")["needed"]
    stage = next(s for s in check({}).plan.stages if s.name == "sft")
    Path(stage.directory).mkdir(parents=True)
    Path(stage.directory, "file").write_bytes(bytes(5 << 20))
    less = facts(check({}), "disk")["needed"]
    first, second = (float(words.split()[2]) for words in (needed, less))
    assert first - second == pytest.approx(5.0, abs=0.1)


def test_the_command_prints_problems_first_and_ends_with_2(capsys):
    assert cli.main(["config", "check", "--no-data", "algorithm.policy_loss_fn_args.x=1"]) == 2
    out = capsys.readouterr().out
    wording(out, "ouroboros/countdown: 1", "'rft': algorithm.policy_loss_fn_args")
    assert max(map(len, out.splitlines())) <= WIDTH
    assert cli.main(["config", "check", "--no-data"]) == 0
    shown = capsys.readouterr().out
    wording(shown, "ouroboros/countdown")
    assert "\n\nstages  tasks, curate, " in shown


@pytest.mark.usefixtures("without_preview")
def test_a_run_with_a_problem_does_not_begin(capsys):
    assert cli.main(["run", "algorithm.policy_loss_fn_args.x=1", "cluster.gpu_per_node=1"]) == 2
    shown = capsys.readouterr()
    wording(shown.err, "'ppo'", "'x'", "mode=both", "2 GPUs")
    assert not Path("runs").exists()


def test_a_run_whose_data_lacks_a_column_does_not_begin(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1", "answer": 2}\n')
    columns = ("{prompt_key: qestion}", "{prompt_type: messages, messages_key: turns}")
    sets = [f"{{name: s{i}, path: '{tmp_path}/rows.jsonl', format: {one}}}" for i, one in enumerate(columns)]
    assert cli.main(["run", f"buffer.explorer_input.tasksets=[{', '.join(sets)}]"]) == 2
    err = capsys.readouterr().err
    assert (err.count("no column 'qestion'"), err.count("tasksets.1.format.messages_key.")) == (1, 1)
    assert not Path("runs").exists()


def test_an_argument_that_a_reward_lacks_is_a_column_that_a_generator_lacks(tmp_path):
    (tmp_path / "ouro_test_graded.py").write_text("def score(response, answer, scale): return 1.0")
    report = check({"buffer.explorer_input.default_reward_fn_type": "ouro_test_graded:score"}, code=True, call=True)
    assert any("'scale'" in one for one in report.problems)


@pytest.mark.usefixtures("without_preview")
def test_a_problem_of_a_sweep_is_told_with_its_points(capsys):
    assert cli.main(["run", "-m", "seed=1,2", "cluster.gpu_per_node=1,4"]) == 2
    shown = capsys.readouterr().err
    assert shown.count("needs 2 GPUs") == 1
    assert "(points: seed=1,gpu_per_node=1; seed=2,gpu_per_node=1)" in shown


def test_only_the_same_line_is_not_told_again():
    report = preflight.Report("a/b")
    for stage, line in (("sft", "too long"), ("rft", "too long"), ("", "too long"), ("", "b is: too long"),
                        ("", "is: too long"), ("", "long"), ("rft", "long"), ("", None)):
        report.add(stage, [line])
    assert report.problems == ["stage 'sft': too long", "b is: too long", "is: too long", "long"]


def test_a_run_with_a_warning_begins(monkeypatch, capsys):
    plan = Plan("a", "b", ".", None, [])
    begins = preflight.Report("a/b", warnings=["mind"], plan=plan, expected=[("rft", "2 s", None)])
    monkeypatch.setattr(preflight, "check", lambda config, **asked: begins)
    assert preflight.judged_plan({}) == replace(plan, expected=(("rft", "2 s", None),))
    assert capsys.readouterr().err == "ouro: warning: mind\n"
    monkeypatch.setattr(preflight, "check", lambda config, **asked: preflight.Report("a/b", problems=["x", "y"]))
    with refuses(ConfigError, "through") as error:
        preflight.judged_plan({})
    assert error.value.problems == ["x", "y"]


HEAVY = ("torch", "transformers", "vllm", "deepspeed", "datasets", "data_juicer", "mlflow", "duckdb",
         "ouroboros.workflows", "ouroboros.stages")


def test_nothing_heavy_is_loaded_to_judge_a_run():
    """Under 1.5 s: torch alone takes 1.2."""
    program = ("import sys\nfrom ouroboros.commands import cli\ncode = cli.main(['config', 'check', '--no-data'])\n"
               f"print([name for name in {HEAVY!r} if name in sys.modules])\nsys.exit(code)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_data_is_read_by_a_process_of_its_own_and_its_findings_are_the_reports(monkeypatch):
    found = {"problems": ["p"], "warnings": ["w"], "unjudged": ["u"], "facts": [["inputs", "3 rows"]], "sizes": {}}
    monkeypatch.setattr(samples, "preview", lambda config, stages, models: found)
    report = preflight.check(changed({}), data=True)
    assert (report.problems, report.warnings, report.unjudged) == (["p"], ["w"], ["u"])
    assert report.facts[0] == ("data", [("inputs", "3 rows")])


@pytest.mark.slow
def test_a_preview_that_dies_says_so(monkeypatch):
    monkeypatch.setattr(samples, "ROWS", "many")
    source = "tasks.jsonl"
    Path(source).write_text('{"question": "1", "answer": "2"}\n')
    with pytest.raises(StageError) as caught:  # its message ends with a traceback
        preflight.check(changed({f"{TASKS}.generator": None, f"{TASKS}.inputs": [source]}), data=True)
    assert "`python -m ouroboros.stages.preview`" in str(caught.value)
    assert "code 1:" in str(caught.value)


@pytest.mark.slow
def test_the_data_is_seen_as_the_model_will_see_it():
    Path("tasks.jsonl").write_text("".join(
        json.dumps({"question": "9=3 5 7" * (1 + 9 * (i % 2)), "answer": "9"}) + "\n" for i in range(300)))
    report = preflight.check(changed({f"{TASKS}.generator": None, f"{TASKS}.inputs": ["tasks.jsonl"],
                                      "buffer.explorer_input.default_reward_fn_type": "accuracy_reward"}), data=True)
    assert report.problems == []
    (over, words), = re.findall(r"(\d+) of 200 sampled prompts (\(rows .*\) are longer than [^\s,]+)",
                               "\n".join(report.warnings))
    assert (abs(int(over) - 100) < 20, "model.max_prompt_tokens=24" in words) == (True, True)
    assert all(int(one) % 2 == 0 for one in re.findall(r"\d+", words.partition(" and ")[0]))  # the long ones


def test_what_is_said_of_a_model_has_its_setting_and_is_not_said_twice():
    known = Problem("model.model_path", "has no weights.", found="m")
    report = preflight.Report("a/b", problems=[known])
    named = {"m": "model.model_path", "t": "model.teacher_model_path"}
    found = report.news_of_models(["m: odd", "t: odd", "t has no tokenizer", "data: odd"], named)
    assert [getattr(one, "key", None) for one in found] == ["model.teacher_model_path"] * 2 + [None]
    assert [str(one) for one in found[:1]] == ["model.teacher_model_path=t: odd"]
