"""`ouro run`: its command for snakemake, its output before and after, interrupts; the plan in the Snakefile."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from ouroboros.commands import cli
from ouroboros.commands.run import invoke, outcome, snakefile, submission
from ouroboros.commands.run.console import STARTED
from ouroboros.commands.run.override_words import split_overrides
from ouroboros.commands.run.planning import make_checked_plan
from ouroboros.commands.run.snakefile import MULTIRUN, load_plan, make_plan_or_sweep
from ouroboros.pipeline.check import preflight
from ouroboros.pipeline.job import process_group
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.kinds import KINDS
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import ConfigError
from tests.configs import composed
from tests.golden.messages import refuses, wording

AWKWARD = ["name=two words", "a.b='it is \"so\", yes: {1} #2'", "'quoted=at both ends'", 'x="y"', "ü=☃", "seed=2"]


def as_snakemake_reads(command: list[str]):
    from snakemake.cli import get_argument_parser

    return get_argument_parser().parse_args(command[4:])


@pytest.mark.parametrize("overrides", [["seed=2"], AWKWARD, AWKWARD[1:2], AWKWARD[2:3], []])
def test_overrides_reach_the_snakefile_as_they_were_typed(overrides):
    from snakemake.cli import parse_config

    config = parse_config(as_snakemake_reads(invoke.snakemake_command(overrides, [])).config or [])
    assert split_overrides(config.get("overrides", "")) == overrides


@pytest.mark.parametrize("word", ["x='a b'", 'x="a"', "x=a\\b", "x=$HOME", "x=`a`"])
def test_no_override_ends_the_quotes_of_a_job_script(word):
    (text,) = as_snakemake_reads(invoke.snakemake_command([word], [])).config
    assert not set(text) & set("'\"\\$`")
    assert split_overrides(text.removeprefix("overrides=")) == [word]


@pytest.mark.parametrize("extra", [["curate"], ["-n", "--", "curate"], ["-c1", "curate"]])
@pytest.mark.parametrize("home", [True, False])
def test_a_target_after_the_dashes_is_a_target(extra, home, monkeypatch, tmp_path):
    monkeypatch.chdir(invoke.HOME if home else tmp_path)
    read = as_snakemake_reads(invoke.snakemake_command(["seed=2"], extra))
    assert set(read.targets) == {"curate"}
    assert read.config == ['overrides=["seed=2"]']
    assert read.cores == (1 if "-c1" in extra else os.cpu_count())


def test_words_after_the_dashes_go_to_snakemake(monkeypatch, tmp_path):
    assert cli.split_at_dashes(["run", "a=1", "--", "-n", "--", "x"]) == (["run", "a=1"], ["-n", "--", "x"])
    monkeypatch.chdir(invoke.HOME)
    assert invoke.snakemake_command([], ["-n"]) == [
        sys.executable, "-P", "-m", "snakemake", "--cores", "all", "--keep-going", "-n"]
    monkeypatch.chdir(tmp_path)
    elsewhere = invoke.snakemake_command(["seed=2"], [])
    assert elsewhere[4:8] == ["--snakefile", str(invoke.HOME / "Snakefile"), "--directory", str(tmp_path)]


@pytest.mark.parametrize("words", [["--config", "seed=2"], ["-n", "--config=seed=2"], ["-C", "seed=2"]])
def test_a_config_after_the_dashes_would_replace_the_overrides_and_is_refused(words, capsys):
    assert cli.main(["run", "--", *words]) == 2
    wording(capsys.readouterr().err, "seed=2")


@pytest.fixture
def plan(run, monkeypatch):
    """A plan over the fake run, without composing; what snakemake would do is `snakemake`."""
    from types import SimpleNamespace

    nodes = [SimpleNamespace(name=s["name"], kind=KINDS[s["kind"]], directory=s["directory"], hub=(),
                             root=str(run.root), run="toy/first", error=f"{s['directory']}/stage.error",
                             config=composed(), trunk={})
             for s in run.stages]
    made = SimpleNamespace(project="toy", name="first", view=run.path, stages=nodes, frozen=0, config=composed(),
                           expected=(), continued=(), targets=[f"{s['directory']}/manifest.json" for s in run.stages])
    made.freeze = lambda: setattr(made, "frozen", made.frozen + 1)
    monkeypatch.setattr(snakefile, "make_checked_plan", lambda overrides, plan_of=None: made)
    return made


def snakemake(monkeypatch, code: int, makes: str | None = None, interrupted: bool = False) -> list:
    """Stands in for the snakemake process: exits with `code` after making one manifest, or after Ctrl-C."""
    calls = []

    def run_group(command, environment, streams, poll, grace):
        calls.append((command, environment))
        if makes:
            os.write(streams["stderr"], STARTED.encode())
            with open(makes, "w") as file:
                json.dump({"seconds": 1.0}, file)
        return code, signal.SIGINT if interrupted else None

    monkeypatch.setattr(process_group, "run_group", run_group)
    return calls


def test_a_complete_run_starts_nothing_and_says_so(plan, monkeypatch, capsys):
    snakemake(monkeypatch, 0, plan.targets[-1])
    assert cli.main(["run"]) == 0
    calls = snakemake(monkeypatch, 1)
    capsys.readouterr()
    assert cli.main(["run"]) == 0
    out = capsys.readouterr().out.splitlines()
    wording(out[0], "8 stages", "toy/first")
    wording(out, "38% [35, 41]", "-> 81% ", "84")
    assert calls == []
    assert plan.frozen == 2  # before snakemake started, and now


def test_the_summary_follows_work_but_not_a_dry_run_or_a_failure(plan, monkeypatch, capsys):
    calls = snakemake(monkeypatch, 0)
    assert cli.main(["run", "--", "-n"]) == 0
    assert capsys.readouterr().out == ""
    assert calls[0][1]["OURO_SUMMARY_FOLLOWS"] == "1"
    assert calls[0][1]["PYTHONPATH"].split(":")[0] == os.getcwd()
    snakemake(monkeypatch, 1, plan.targets[-1])
    assert cli.main(["run", "--", "--forceall"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "exit code 1" in shown.err
    wording(shown.err, "-- --forceall")
    snakemake(monkeypatch, 0, plan.targets[-1])
    assert cli.main(["run", "--", "--forceall"]) == 0
    wording(capsys.readouterr().out, "8 of", "8 stages")


@pytest.mark.parametrize(("words", "plans_only"), [
    (["--dry"], True), (["--", "-n"], True), (["--", "--dag"], True), ([], False), (["--", "--forceall"], False)])
def test_what_runs_nothing_plans_only(words, plans_only, plan, monkeypatch):
    asked = []
    monkeypatch.setattr(preflight, "judged_plan", lambda config, **given: asked.append(given["plans_only"]))
    monkeypatch.setattr(snakefile, "make_checked_plan", lambda overrides, plan_of: plan_of({}) or plan)
    monkeypatch.setattr(submission, "requested", lambda plan: "")
    snakemake(monkeypatch, 0)
    assert cli.main(["run", *words]) == 0
    assert asked == [plans_only]


@pytest.mark.parametrize(("words", "declared", "gpus", "told"), [
    (["--executor", "slurm", "--jobs", "8"], None, 0, True), (["--executor=slurm"], None, 0, True),
    (["-n"], None, 0, False), (["--executor", "slurm"], 0, 0, False), (["--executor", "slurm"], None, 2, False)])
def test_jobs_of_slurm_that_would_ask_for_no_gpu_are_told(words, declared, gpus, told, plan, monkeypatch, capsys):
    for stage in plan.stages:
        stage.gpus = gpus
        stage.config = Config.partial({"cluster": {"gpu_per_node": declared, "node_num": 1},
                                       "log": {"grace_seconds": 1.0}, "continue_from_checkpoint": True})
    preflight.warn.cache_clear()
    snakemake(monkeypatch, 0)
    assert cli.main(["run", "--", *words]) == 0
    assert ("jobs of SLURM" in " ".join(capsys.readouterr().err.split())) == told


def test_a_failed_stage_leaves_a_report_of_what_is_there(plan, monkeypatch, capsys):
    """rft is complete, the report is not, and something was made before snakemake gave up."""
    from types import SimpleNamespace

    asked, ended = [], SimpleNamespace(returncode=0)
    monkeypatch.setattr(outcome.subprocess, "run", lambda command, **_: asked.append(command[1:]) or ended)
    report = Path(plan.targets[-1]).parent
    rft = next(m for m in plan.targets if "/rft-" in str(m))
    snakemake(monkeypatch, 1, rft)
    os.utime(rft, ns=(1, 1))
    assert cli.main(["run"]) == 1
    assert asked == [["-P", "-m", "ouroboros.stages.report", "--partial", str(report)]]
    wording(capsys.readouterr().out, plan.view / 'report.html')


def test_an_interrupt_names_the_command_to_go_on_and_is_130(plan, monkeypatch, capsys):
    calls = snakemake(monkeypatch, 1, plan.targets[-1], interrupted=True)
    assert cli.main(["run"]) == 130
    assert len(calls) == 1
    wording([capsys.readouterr().err.splitlines()[-2:]], "toy/first: 8", "8 stages", "ouro")


@pytest.fixture
def listening():
    """Ctrl-C is heard, as on a terminal; what is started in the background of a script ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_elsewhere_is_130_without_a_traceback(listening, plan, monkeypatch, capsys):
    monkeypatch.setattr(snakefile, "make_checked_plan", lambda *_: signal.raise_signal(signal.SIGINT))
    assert cli.main(["run"]) == 130
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("ouro: ")  # what is done, at once
    assert others == ["", "ouro: interrupted"]


def test_a_verbose_run_shows_no_reason_of_an_earlier_launch(plan, monkeypatch, capsys):
    rft = Path(next(m for m in plan.targets if "/rft-" in str(m))).parent
    (rft / files.MANIFEST).unlink()
    (rft / "stage.log").unlink(missing_ok=True)
    (rft / "stage.error").write_text("no GPU\nlog: x\n")
    snakemake(monkeypatch, 1)
    for seconds, first in ((1, "ouro: snakemake ended with exit code 1"), (2**40, "ouro: rft failed: no GPU")):
        os.utime(rft / "stage.error", (seconds, seconds))
        assert cli.main(["run", "-v"]) == 1
        assert capsys.readouterr().err.splitlines()[1] == first


def test_a_person_may_type_overrides_as_shell_words():
    assert split_overrides("""seed=2 name='two words'""") == ["seed=2", "name=two words"]
    assert split_overrides(None) == []
    with refuses(ConfigError, "quotation"):
        split_overrides("name='a")
    with refuses(ConfigError, "read"):
        split_overrides({"seed": "2"})


@pytest.mark.parametrize(("given", "words"), [
    ({"seed": 2}, """--config seed=2: the only key that is read is `overrides`. Write --config overrides="seed=2", """
                  "or use `ouro run seed=2`."),
    ({"overrides": "name=x", "seed": 2}, 'overrides="name=x seed=2"'),
    ({"overrides": ["name=x"], "seed": 2}, "`ouro run name=x seed=2`"),
    ({"overrides": "checkpoint_root_dir=/dev/null/x"}, "checkpoint_root_dir=/dev/null/x: /dev/null is no directory."),
    ({"overrides": "continue_from_checkpoint=false"}, "repetition")])
def test_what_cannot_be_run_is_a_message_and_exit_code_2(given, words, capsys):
    with pytest.raises(SystemExit) as ended:
        load_plan(given)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("plus", ["", "++"])
def test_a_run_that_does_not_go_on_is_made_beside_what_was_begun(tmp_path, plus):
    words = [f"checkpoint_root_dir={tmp_path}", "name=x", f"{plus}continue_from_checkpoint=false"]
    first = make_checked_plan(words)
    assert invoke.anew(words, first) == [*words[:2], "continue_from_checkpoint=true"]
    first.freeze()
    (sft,) = (Path(stage.directory) for stage in first.stages if stage.name == "sft")
    (sft / "stage.log").touch()
    second = make_checked_plan(new := invoke.anew(words, first))
    assert invoke.anew(new, second) == new
    assert second.name.startswith("x_")
    before, after = ({stage.name: stage.directory for stage in one.stages} for one in (first, second))
    assert {name for name in before if before[name] == after[name]} == {"tasks", "curate", "model"}


def test_whether_a_run_goes_on_is_no_setting_of_a_stage():
    with pytest.raises(ConfigError) as refused:
        make_checked_plan(["stages.rft.continue_from_checkpoint=false"])
    assert [(one.key, one.stages) for one in refused.value.problems] == [("continue_from_checkpoint", ("rft",))]


@pytest.mark.parametrize(("words", "told"), [
    *((words, "seed=1,2") for words in ([], ["seed=1"], ["seed=1", "name=x"], ["seed=range(1)"], ["seed=choice(1)"])),
    (["seed=[1,2"], "match")])  # what cannot be read comes first
def test_a_sweep_in_which_nothing_varies_is_refused(words, told):
    with refuses(ConfigError, told):
        make_plan_or_sweep([MULTIRUN, *words])
