"""What surrounds the work of a stage: specification, lock, manifest, and how mistakes end it."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ouroboros.commands.run.snakefile import load_plan
from ouroboros.pipeline.job.context import advised, commit, open_stage, repeat_command, run_stage
from ouroboros.pipeline.job.waiting import wait_for
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import DataError, ModelError, StageError
from tests.golden.messages import refuses, wording


@pytest.fixture
def stage(tmp_path, environment_kept):
    """A stage directory as the launcher leaves it."""
    directory = tmp_path / "store" / "tasks-0123abcd"
    spec = {"run": "toy/one", "name": "tasks", "kind": "tasks", "identity": "0123abcd", "root": str(tmp_path),
            "inputs": {}, "config": {"seed": 1, "verify": "hash", "log": {"level": "INFO"}}}
    files.write_json(directory / "stage.json", spec)
    return directory


def start(directory, work, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tasks", str(directory)])
    run_stage(work, "doc")


def log(directory) -> str:
    return (directory / "stage.log").read_text()


def test_a_stage_that_is_done_has_a_manifest_and_is_not_done_twice(stage, monkeypatch):
    calls = []

    def work(context):
        calls.append(context.config.seed)
        context.made["rows"] = 7
        context.earlier_seconds = 100.0

    (stage / ".raw.parquet.77.tmp").touch()
    start(stage, work, monkeypatch)
    start(stage, work, monkeypatch)
    manifest = files.read_json(stage / files.MANIFEST)
    assert calls == [1]
    assert (manifest["name"], manifest["identity"], manifest["rows"]) == ("tasks", "0123abcd", 7)
    assert 100 <= manifest["seconds"] < 101  # with those of earlier lives
    assert "already complete" in log(stage)
    assert not list(stage.glob(".*.tmp"))


@pytest.mark.parametrize(("ends", "code", "reason"), [
    (lambda: 1 / 0, 1, "ZeroDivisionError: division by zero"), (lambda: sys.exit(0), 1, "SystemExit: 0"),
    (lambda: sys.exit(3), 1, "SystemExit: 3")])
def test_a_mistake_of_ours_or_an_exit_of_user_code_is_a_traceback_and_exit_code_1(
        stage, monkeypatch, ends, code, reason):
    with pytest.raises(SystemExit) as ended:
        start(stage, lambda context: ends(), monkeypatch)
    assert ended.value.code == code
    assert reason.partition(":")[0] in log(stage)
    assert (stage / "stage.error").read_text().startswith(f"{reason} (tests/pipeline/job/test_process.py:")
    assert not files.is_complete(stage)


def test_a_mistake_of_the_user_is_one_message_and_exit_code_2(stage, monkeypatch, capsys):
    def work(context):
        raise DataError("the file is empty.")

    with pytest.raises(SystemExit) as ended:
        start(stage, work, monkeypatch)
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    wording(shown, "tasks")
    assert f"{sys.executable} -m ouroboros.stages.tasks {stage}" in shown
    wording((stage / "stage.error").read_text(), "empty")
    assert "Traceback" not in shown
    assert not files.is_complete(stage)


def test_what_user_code_raises_keeps_its_secrets_out_of_the_log(stage, monkeypatch, capsys):
    monkeypatch.setenv("OURO_TEST_TOKEN", "hush-hush")

    def work(context):
        context.log.warning("asking with %s", "hush-hush")
        raise RuntimeError("401 of hush-hush, Bearer hush-hush")

    with pytest.raises(SystemExit):
        start(stage, work, monkeypatch)
    told = log(stage), (stage / "stage.error").read_text(), capsys.readouterr().err
    assert not any("hush" in text for text in told)
    assert all("***, Bearer ***" in text for text in told)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_stage_that_is_asked_to_end_does_so_without_a_traceback(stage, monkeypatch, capsys, number, code):
    signal.signal(number, signal.SIG_DFL)  # ignored where the tests run in the background of a script

    def work(context):
        signal.raise_signal(number)

    with pytest.raises(SystemExit) as ended:
        start(stage, work, monkeypatch)
    assert ended.value.code == code
    assert f"tasks: interrupted by {number.name}\n" in capsys.readouterr().err
    assert (stage / "stage.error").read_text().startswith(f"interrupted by {number.name}\n")


def test_a_directory_without_a_specification_is_refused(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        start(tmp_path, lambda context: None, monkeypatch)
    assert ended.value.code == 2
    assert "ouro stages --write" in capsys.readouterr().err


def with_input(stage, path):
    spec = json.loads((stage / "stage.json").read_text()) | {"inputs": {"tasks": str(path)}}
    files.write_json(stage / "stage.json", spec)


def test_an_input_that_is_not_complete_names_the_command_that_makes_it(stage):
    other = stage.parent / "curate-1"
    with_input(stage, other)
    with refuses(StageError, "'tasks'"):
        open_stage(stage)  # the directory was deleted
    files.write_json(other / "stage.json", {"kind": "curate"})
    with refuses(StageError, "first", "-m", "curate-1"):
        open_stage(stage)
    files.write_json(other / files.MANIFEST, {})
    assert open_stage(stage).inputs == {"tasks": other}


def test_a_model_of_the_user_needs_no_manifest(stage, tmp_path):
    model = tmp_path / "elsewhere" / "store" / "qwen"
    with_input(stage, model)
    assert list(open_stage(stage).inputs.values()) == [model]


def test_two_processes_that_want_the_same_stage_wait_for_each_other(stage):
    """The second finds the stage made and does nothing."""
    program = ("import time\nfrom ouroboros.pipeline.job.context import run_stage\n"
               "def work(context):\n    time.sleep(0.5)\n    open(context.directory / 'made', 'a').write('x')\n"
               "run_stage(work, 'doc')")
    both = [subprocess.Popen([sys.executable, "-c", program, str(stage)], stderr=subprocess.PIPE, text=True)
            for _ in range(2)]
    said = [process.communicate(timeout=30)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert (stage / "made").read_text() == "x"
    assert sum("already complete" in text for text in said) == 1


GUARDED = """
import os, signal, subprocess, sys, time
from ouroboros.pipeline.job import guard, watchdog
from ouroboros.pipeline.job.context import run_stage
guard.LIMIT_SECONDS, watchdog.LEAST_SECONDS = {limit}, {stopped}
def formats(row):
    subprocess.Popen(["sleep", "{seconds}"])
    {body}
run_stage(lambda context: formats(1), "doc")
"""


@pytest.mark.parametrize(("limit", "stopped", "body", "said"), [
    (0.7, 60, "time.sleep(60)", "in formats"),
    (0.7, 60, "__import__('re').match('(a|a)+$', 64 * 'a' + 'b')", "in formats"),  # holds the interpreter
    (60, 0.7, "os.kill(os.getpid(), signal.SIGSTOP)", "is stopped (state T): something sent it SIGSTOP")])
def test_a_stage_that_hangs_is_named_with_its_stack_and_ends(stage, limit, stopped, body, said):
    seconds = f"60.{time.monotonic_ns()}"
    program = GUARDED.format(limit=limit, stopped=stopped, body=body, seconds=seconds)
    done = subprocess.run([sys.executable, "-c", program, str(stage)], stderr=subprocess.PIPE, text=True, timeout=40,
                          check=False)
    assert done.returncode == -signal.SIGKILL
    reason = (stage / "stage.error").read_text()
    wording(reason, "tasks-0123abcd", "1 s")
    assert "; activity: works; " in reason
    assert said in reason
    assert reason.splitlines()[0] in done.stderr
    assert f"sleep\0{seconds}" not in "".join(path.read_text() for path in Path("/proc").glob("[1-9]*/cmdline")
                                           if path.exists())
    assert not files.is_complete(stage)


def catches_sigterm(process: subprocess.Popen) -> bool:
    """Whether it is as far as to have a handler of its own."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())[1]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def test_a_stage_that_waits_for_its_turn_does_not_hang(stage):
    program = GUARDED.format(limit=0.5, stopped=60, body="", seconds=0).replace("    subprocess.Popen", "    print")
    with files.locked(stage / ".lock", print):
        waiting, ended = (subprocess.Popen([sys.executable, "-c", program, str(stage)], stderr=subprocess.DEVNULL)
                          for _ in range(2))
        while not all(map(catches_sigterm, (waiting, ended))):
            time.sleep(0.1)
        time.sleep(1.0)
        assert waiting.poll() is None
        ended.terminate()
        assert ended.wait(20) == 143
        assert not (stage / "stage.error").exists()  # whoever makes the stage was not asked to end
    assert waiting.wait(20) == 0


def test_a_stage_reads_its_settings_alone_and_arguments_stay_dicts():
    source = {"eval_tasksets": [{"limit": 2, "reward_fn_args": {"x": {"y": 1}}}]}
    made = Config.partial({"buffer": {"explorer_input": source}}).buffer
    assert made.explorer_input.eval_tasksets[0].limit == 2
    assert made.explorer_input.eval_tasksets[0].reward_fn_args == {"x": {"y": 1}}
    with refuses(AttributeError, "batch_size"):
        made.batch_size  # noqa: B018
    with refuses(AttributeError, "name"):
        made.explorer_input.eval_tasksets[0].name  # noqa: B018


def test_again_is_a_command_one_can_type(stage):
    assert repeat_command(stage) == f"{sys.executable} -m ouroboros.stages.tasks {stage}"
    apart = stage.with_name("with a space")
    files.write_json(apart / "stage.json", {"kind": "tasks"})
    assert repeat_command(apart).endswith(f"ouroboros.stages.tasks '{apart}'")


def test_the_commit_is_one():
    assert commit() == "unknown" or len(commit().removesuffix("+dirty")) == 12


def test_waiting_returns_the_seconds_or_says_for_what(tmp_path):
    (tmp_path / "there").touch()
    assert wait_for(tmp_path / "there", 0.0, "it", tmp_path / "log") < 5
    begin = time.perf_counter()
    with refuses(StageError, "0 s", "(synchronizer.sync_timeout)", "step 3", "here"):
        wait_for(tmp_path / "here", 0.05, "explorer step 3", tmp_path / "explorer.log")
    assert 0.05 <= time.perf_counter() - begin < 2


@pytest.mark.parametrize(("overrides", "words"), [
    ("seeed=1", "seeed: unknown key"), ("seed=1 x", "'x': is not an override"),
    (["monitor.monitor_args.urii=x"], "monitor_args.urii: unknown"),
    (["model.init.enable=false"], "model.model_path: no model")])
def test_a_mistake_in_the_snakefile_is_a_message_and_exit_code_2(overrides, words, capsys):
    with pytest.raises(SystemExit) as ended:
        load_plan({"overrides": overrides})
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith("ouro: ")
    assert words in shown


def test_of_a_damaged_model_the_stage_to_delete_is_named(tmp_path, context_of):
    for name in ("sft-1", "own"):
        (tmp_path / name).mkdir()
    (tmp_path / "sft-1" / "stage.json").write_text("{}")
    context = context_of(tmp_path / "rft-1", model=tmp_path / "sft-1", teacher=tmp_path / "own")
    assert f"delete {tmp_path}/sft-1 and" in advised(ModelError(f"{tmp_path}/sft-1/model has no tokenizer"), context)
    for error in (ModelError(f"{tmp_path}/own has no tokenizer"), DataError(f"{tmp_path}/sft-1/model")):
        assert advised(error, context) == str(error)
