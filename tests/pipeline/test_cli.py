"""The command line: what it prints, what it hands to snakemake, how it fails."""

import csv
import io
import json
import os
import shlex
import signal
import subprocess
import sys

import pytest

from pipeline import cli, invoke, launch
from pipeline.launch import split_overrides
from tests.fake_run import FakeRun


@pytest.fixture
def run(tmp_path):
    fake = FakeRun(tmp_path).whole()
    fake.view()
    return fake


def sql(run, capsys, question: str, *more: str):
    code = cli.main(["sql", question, "--root", str(run.root), *more])
    return code, capsys.readouterr()


# ------------------------------------------------------------------------------------------------------- ouro run


AWKWARD = ["name=two words", "a.b='it is \"so\", yes: {1} #2'", "'quoted=at both ends'", 'x="y"', "ü=☃", "seed=2"]


def as_snakemake_reads(command: list[str]):
    from snakemake.cli import get_argument_parser

    return get_argument_parser().parse_args(command[3:])


@pytest.mark.parametrize("overrides", [["seed=2"], AWKWARD, AWKWARD[1:2], AWKWARD[2:3], []])
def test_overrides_reach_the_snakefile_as_they_were_typed(overrides):
    from snakemake.cli import parse_config

    config = parse_config(as_snakemake_reads(invoke.snakemake_command(overrides, [])).config or [])
    assert split_overrides(config.get("overrides", "")) == overrides


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
        sys.executable, "-m", "snakemake", "--cores", "all", "--keep-going", "-n"]
    monkeypatch.chdir(tmp_path)
    elsewhere = invoke.snakemake_command(["seed=2"], [])
    assert elsewhere[3:7] == ["--snakefile", str(invoke.HOME / "Snakefile"), "--directory", str(tmp_path)]


@pytest.mark.parametrize("words", [["report", "--", "nosuchrun"], ["status", "--", "seed=2"], ["sql", "x", "--", "y z"],
                                   ["stages", "--", "--write"], ["config", "show", "--", "seed=2"]])
def test_words_after_the_dashes_of_another_command_are_refused(words, capsys):
    assert cli.main(words) == 2
    assert f"only `ouro run` starts: {shlex.quote(words[-1])}. Write them before --" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--config", "seed=2"], ["-n", "--config=seed=2"], ["-C", "seed=2"]])
def test_a_config_after_the_dashes_would_replace_the_overrides_and_is_refused(words, capsys):
    assert cli.main(["run", "--", *words]) == 2
    assert "Write them before --: ouro run seed=2" in capsys.readouterr().err


@pytest.fixture
def plan(run, monkeypatch):
    """A plan over the fake run, without composing; what snakemake would do is `snakemake`."""
    from types import SimpleNamespace

    nodes = [SimpleNamespace(name=s["name"], kind=s["kind"], directory=s["directory"]) for s in run.stages]
    made = SimpleNamespace(project="toy", name="first", view=run.path, stages=nodes, frozen=0,
                           targets=[f"{s['directory']}/manifest.json" for s in run.stages])
    made.freeze = lambda: setattr(made, "frozen", made.frozen + 1)
    monkeypatch.setattr(launch, "make_checked_plan", lambda overrides, plan_of=None: made)
    return made


def snakemake(monkeypatch, code: int, makes: str | None = None, interrupted: bool = False) -> list:
    """Stands in for the snakemake process: exits with `code` after making one manifest, or after Ctrl-C."""
    calls = []

    class Started:
        def __init__(self, command, env):
            calls.append((command, env))

        def wait(self):
            if makes:
                with open(makes, "w") as file:
                    json.dump({"seconds": 1.0}, file)
            if interrupted:
                signal.raise_signal(signal.SIGINT)
            return code

    monkeypatch.setattr(invoke.subprocess, "Popen", Started)
    return calls


def test_a_complete_run_starts_nothing_and_says_so(plan, monkeypatch, capsys):
    snakemake(monkeypatch, 0, plan.targets[-1])
    assert cli.main(["run"]) == 0
    calls = snakemake(monkeypatch, 1)
    capsys.readouterr()
    assert cli.main(["run"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "nothing to do: all 8 stages of toy/first are complete"
    assert "learnt: 38% [35, 41] after sft -> 81% [78, 84] after rft" in out
    assert calls == []
    assert plan.frozen == 1


def test_the_summary_follows_work_but_not_a_dry_run_or_a_failure(plan, monkeypatch, capsys):
    calls = snakemake(monkeypatch, 0)
    assert cli.main(["run", "--", "-n"]) == 0
    assert capsys.readouterr().out == ""
    assert calls[0][1][invoke.SUMMARY_FOLLOWS] == "1"
    assert calls[0][1]["PYTHONPATH"].split(":")[0] == str(invoke.HOME)
    snakemake(monkeypatch, 1, plan.targets[-1])
    assert cli.main(["run", "--", "--forceall"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "the run ended with exit code 1; `ouro status" in shown.err
    snakemake(monkeypatch, 0, plan.targets[-1])
    assert cli.main(["run", "--", "--forceall"]) == 0
    assert "8 of 8 stages complete" in capsys.readouterr().out


@pytest.fixture
def listening():
    """Ctrl-C is heard, as on a terminal; what is started in the background of a script ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_for_snakemake_and_is_130(listening, plan, monkeypatch, capsys):
    usual = signal.getsignal(signal.SIGINT)
    calls = snakemake(monkeypatch, 1, plan.targets[-1], interrupted=True)
    assert cli.main(["run"]) == 130
    assert len(calls) == 1
    assert capsys.readouterr().err == ""
    assert signal.getsignal(signal.SIGINT) is usual


def test_snakemake_itself_is_interrupted_as_usual(listening):
    """It must not inherit that this process ignores Ctrl-C."""
    ends_itself = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(10)"
    assert invoke._wait_for([sys.executable, "-S", "-c", ends_itself], dict(os.environ)) != 0


def test_an_interrupt_elsewhere_is_130_without_a_traceback(listening, plan, monkeypatch):
    monkeypatch.setattr(launch, "make_checked_plan", lambda *_: signal.raise_signal(signal.SIGINT))
    assert cli.main(["run"]) == 130


def test_what_the_operating_system_refuses_is_one_line(capsys):
    assert cli.main(["run", "checkpoint_root_dir=/dev/null/x"]) == 2
    assert capsys.readouterr().err == "ouro: Not a directory: /dev/null/x/store\n"


def test_a_mistake_is_one_message_and_exit_code_2(capsys):
    assert cli.main(["run", "algorithm.optimzer.lr=1"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "unknown key 'algorithm.optimzer.lr'. Did you mean 'algorithm.optimizer.lr'?" in shown.err
    assert "Traceback" not in shown.err


def test_help_is_quick_because_it_imports_nothing_heavy():
    code = "import sys; from pipeline import cli; cli.parser(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=invoke.HOME)
    heavy = {"torch", "hydra", "omegaconf", "duckdb", "mlflow", "pyarrow", "numpy", "snakemake"}
    assert not heavy & set(loaded.stdout.split())


# ---------------------------------------------------------------------------------------------- status, report, sql


def test_status_shows_every_stage(run, capsys):
    assert cli.main(["status", "first", "--root", str(run.root)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "toy/first"
    assert "report        missing" in out
    assert "\nrft: step 4/4  reward " in out


def test_status_takes_a_name_or_overrides(run, capsys):
    assert cli.main(["status", "first", "seed=2"]) == 2
    assert "not both" in capsys.readouterr().err


def test_status_with_overrides_takes_no_other_root(run, capsys):
    assert cli.main(["status", "seed=2", "--root", str(run.root)]) == 2
    assert "checkpoint_root_dir=DIR" in capsys.readouterr().err


def test_status_says_why_a_stage_failed(run, capsys):
    (sft := next(run.root.glob("store/sft-*")) / "manifest.json").unlink()
    (sft.parent / "stage.error").write_text("no disk\n")
    assert cli.main(["status", "first", "--root", str(run.root)]) == 0
    assert "\nsft: no disk\n" in capsys.readouterr().out


def test_report_names_the_file_or_says_how_to_make_it(run, capsys):
    assert cli.main(["report", "--root", str(run.root)]) == 2
    assert "`ouro run`" in capsys.readouterr().err
    (run.path / "report.html").touch()
    assert cli.main(["report", "--root", str(run.root)]) == 0
    assert capsys.readouterr().out.strip() == str(run.path / "report.html")


def test_sql_as_a_table(run, capsys):
    _, shown = sql(run, capsys, "SELECT model, value FROM scores WHERE metric = 'sampled_accuracy' ORDER BY value")
    assert shown.out.splitlines() == [
        "model  value", "-----  -----", "sft     0.38", "rft     0.81", "(2 rows)"]


def test_control_characters_of_a_rollout_never_reach_the_terminal(run, capsys):
    _, shown = sql(run, capsys, "SELECT chr(27) || '[31mred' || chr(10) AS text")
    assert "\x1b" not in shown.out
    assert r"\x1b[31mred\n" in shown.out


def test_sql_as_csv_quotes_what_needs_it(run, capsys):
    _, shown = sql(run, capsys, """SELECT 'a,"b"' AS text, NULL AS none, [1, 2] AS list, 1.5 AS x""", "--format", "csv")
    assert list(csv.reader(io.StringIO(shown.out))) == [["text", "none", "list", "x"], ['a,"b"', "", "[1, 2]", "1.5"]]


def test_sql_as_json_is_a_list_of_objects(run, capsys):
    question = "SELECT 1 AS a, 2 AS a, 'ü' AS text, map {'x': 1.5::DOUBLE} AS map, 'nan'::DOUBLE AS none"
    _, shown = sql(run, capsys, question, "--format", "json")
    assert json.loads(shown.out) == [{"a": 1, "a_2": 2, "text": "ü", "map": {"x": 1.5}, "none": None}]


def test_a_mistake_in_sql_lists_the_views_and_their_columns(run, capsys):
    code, shown = sql(run, capsys, "SELECT nothing FROM scores")
    assert code == 2
    assert '"nothing" not found' in shown.err
    assert "  scores: run, stage, model, step, taskset, metric, value" in shown.err


@pytest.mark.parametrize("question", ["", "  ", ";", "-- nothing"])
def test_an_empty_question_is_a_mistake(run, capsys, question):
    code, shown = sql(run, capsys, question)
    assert code == 2
    assert "an empty question" in shown.err


@pytest.mark.parametrize("step", [1, 2])
def test_a_truncated_table_is_named_when_it_is_read(run, capsys, step):
    """DuckDB opens the first file of a table for its columns, the others when a question needs them."""
    path = next(run.root.glob(f"store/sft-*/steps/step={step:06d}.parquet"))
    path.write_bytes(path.read_bytes()[:-9])
    code, shown = sql(run, capsys, "SELECT 1" if step == 1 else "SELECT sum(loss) FROM steps")
    assert code == 2
    assert f"ouro: {path} is not a readable Parquet file" in shown.err
    assert f"Delete {path.parent.parent} and run the same command again" in shown.err


def test_sql_over_several_runs(run, capsys):
    other = FakeRun(run.root, "toy/second")
    other.stages = run.stages
    other.view()
    question = "SELECT run, count(*) AS scores FROM scores GROUP BY run ORDER BY run"
    for which in (["toy/first", "second"], ["--all"]):
        _, shown = sql(run, capsys, question, "--format", "csv", *which)
        assert shown.out.splitlines() == ["run,scores", "toy/first,6", "toy/second,6"]


def test_no_rows_and_no_result(run, capsys):
    _, shown = sql(run, capsys, "SELECT model FROM scores WHERE false")
    assert shown.out.splitlines() == ["model", "-----", "(0 rows)"]


def test_an_unknown_option_of_run_points_to_the_dashes(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["run", "-n"])
    assert "unknown option -n. Arguments for snakemake come after --" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------- config, stages


def test_config_show_says_what_follows_from_the_settings(capsys):
    assert cli.main(["config", "show", "buffer.batch_size=6", "algorithm.repeat_times=4", "buffer.train_batch_size=48",
                     "buffer.total_steps=10"]) == 0
    out = capsys.readouterr().out
    assert "#   rft: explorer: 20 steps; each 6 tasks x 4 rollouts = 24 experiences; 480 experiences in all" in out
    assert "#   rft: trainer: 10 optimizer steps; each of 48 experiences, at most 1,728 tokens" in out
    import yaml

    assert yaml.safe_load(out)["buffer"]["batch_size"] == 6


def test_config_explain_a_setting(capsys):
    assert cli.main(["config", "explain", "algorithm.optimizer.lr", "algorithm.optimizer.lr=0.5"]) == 0
    lines = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert {"type float", "bounds >= 0", "default 1e-06", "value now 0.5", "in stage sft 0.001"} <= lines
    assert {"comes from the command line: algorithm.optimizer.lr=0.5",
            "comes from the stage's own entry (conf/recipe/countdown.yaml)"} <= lines


def test_the_page_of_settings_is_what_the_settings_say(capsys):
    """When this fails: ouro config reference > docs/configuration.md"""
    assert cli.main(["config", "reference"]) == 0
    page = capsys.readouterr().out
    assert page == (invoke.HOME / "docs" / "configuration.md").read_text()
    assert "| `trainer.zero_stage` | int | `1` | one of 1, 2, 3 | DeepSpeed ZeRO stage *(how)* |" in page


def test_nothing_more_where_nothing_more_is_needed(capsys):
    with pytest.raises(SystemExit):
        cli.main(["config", "reference", "seed=2"])
    assert "needed nothing more, found seed=2" in capsys.readouterr().err


def test_config_explain_a_prefix_a_group_and_a_misspelling(capsys):
    cli.main(["config", "explain", "algorithm.optimizer"])
    assert "algorithm.optimizer.weight_decay" in capsys.readouterr().out
    cli.main(["config", "explain", "recipe"])
    assert "countdown" in capsys.readouterr().out
    assert cli.main(["config", "explain", "weight_decay"]) == 2
    assert "Did you mean 'algorithm.optimizer.weight_decay'" in capsys.readouterr().err


@pytest.mark.parametrize(("key", "words"), [
    ("model.model_path", "by content and not by path; another model makes the first training stage anew"),
    ("data_processor.task_pipeline.inputs", "not by path; other content makes these kinds of stage anew"),
    ("checkpoint_root_dir", "below another directory nothing is made yet"),
    ("stages", "one whose own settings change is made anew"),
    ("buffer.batch_size", "changing it makes these kinds of stage anew, and those that read them: train, rft"),
    ("trainer.ranks", "changing it re-runs nothing"),
])
def test_config_explain_says_what_a_change_re_runs(key, words, capsys):
    assert cli.main(["config", "explain", key]) == 0
    assert words in " ".join(capsys.readouterr().out.split())


def test_config_explain_a_setting_of_one_stage(capsys):
    assert cli.main(["config", "explain", "stages.sft.buffer.batch_size"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "stages.sft.buffer.batch_size"
    assert lines[-4:] == ["value now 64", "comes from conf/recipe/countdown.yaml", "in stage sft 256",
                          "comes from the stage's own entry (conf/recipe/countdown.yaml)"]


@pytest.mark.parametrize(("key", "words"), [
    ("stages.stf.seed", "no stage 'stf' in this recipe. Did you mean 'sft'? Stages: sft, rft."),
    ("ray_namespace", "no key 'ray_namespace': there is no Ray: Snakemake starts the stages"),
    ("stages.rft.trainer.trainer_type", "no key 'trainer.trainer_type': DeepSpeed ZeRO trains"),
])
def test_config_explain_of_what_is_not_here_says_what_to_use(key, words, capsys):
    assert cli.main(["config", "explain", key]) == 2
    assert words in capsys.readouterr().err


def test_config_explain_an_entry_of_free_arguments(capsys):
    key = "algorithm.policy_loss_fn_args.clip_range_low"
    assert cli.main(["config", "explain", key, f"{key}=0.125"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == [key, "entry of algorithm.policy_loss_fn_args"]
    assert "value now 0.125" in lines
    for key in ("algorithm.advantage_fn_args.none", "algorithm.policy_loss_fn_args.clip_range_low.deeper"):
        assert cli.main(["config", "explain", key]) == 0
        assert capsys.readouterr().out.endswith("value now  not given\n")


def test_commands_of_stages_can_be_typed(tmp_path, capsys):
    root = tmp_path / "two words"
    assert cli.main(["stages", f"checkpoint_root_dir='{root}'"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "stages.tasks" in line)
    words = shlex.split(line)
    assert words[:4] == ["command", sys.executable, "-m", "stages.tasks"]
    assert words[4].startswith(f"{root}/store/tasks-")
    assert len(words) == 5


def test_stages_are_written_only_when_asked(tmp_path, capsys):
    root = f"checkpoint_root_dir={tmp_path}"
    assert cli.main(["stages", root]) == 0
    assert "rft  (rft)" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    assert cli.main(["stages", root, "--write"]) == 0
    assert len(list(tmp_path.glob("store/*/stage.json"))) == 8
    assert cli.main(["status", root]) == 0
    assert capsys.readouterr().out.count("missing") == 8
