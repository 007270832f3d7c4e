"""The command line: what it prints, what it hands to snakemake, how it fails."""

import csv
import io
import json
import subprocess
import sys

import pytest

from pipeline import cli
from pipeline.errors import ConfigError
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


@pytest.mark.parametrize("overrides", [["seed=2"], AWKWARD, AWKWARD[1:2], AWKWARD[2:3], []])
def test_overrides_reach_the_snakefile_as_they_were_typed(overrides):
    from snakemake.cli import parse_config

    command = cli.snakemake_command(overrides, [])
    config = parse_config([command[command.index("--config") + 1]]) if overrides else {}
    assert split_overrides(config.get("overrides", "")) == overrides


def test_a_person_may_type_overrides_as_shell_words():
    assert split_overrides("""seed=2 name='two words'""") == ["seed=2", "name=two words"]
    assert split_overrides(None) == []
    with pytest.raises(ConfigError, match="No closing quotation"):
        split_overrides("name='a")
    with pytest.raises(ConfigError, match="it was read as dict"):
        split_overrides({"seed": "2"})


def test_words_after_the_dashes_go_to_snakemake(monkeypatch, tmp_path):
    assert cli.split_at_dashes(["run", "a=1", "--", "-n", "--", "x"]) == (["run", "a=1"], ["-n", "--", "x"])
    monkeypatch.chdir(cli.HOME)
    assert cli.snakemake_command([], ["-n"]) == [sys.executable, "-m", "snakemake", "--cores", "all", "-n"]
    monkeypatch.chdir(tmp_path)
    elsewhere = cli.snakemake_command(["seed=2"], ["--cores", "1"])
    assert elsewhere[3:7] == ["--snakefile", str(cli.HOME / "Snakefile"), "--directory", str(tmp_path)]
    assert elsewhere.count("--cores") == 1


@pytest.fixture
def plan(run, monkeypatch):
    """A plan over the fake run, without composing; what snakemake would do is `snakemake`."""
    from types import SimpleNamespace

    nodes = [SimpleNamespace(name=s["name"], kind=s["kind"], directory=s["directory"]) for s in run.stages]
    made = SimpleNamespace(project="toy", name="first", view=run.path, stages=nodes, frozen=0,
                           targets=[f"{s['directory']}/manifest.json" for s in run.stages])
    made.freeze = lambda: setattr(made, "frozen", made.frozen + 1)
    monkeypatch.setattr(cli, "_plan", lambda overrides: made)
    return made


def snakemake(monkeypatch, code: int, makes: str | None = None) -> list:
    """Stands in for the snakemake process: exits with `code` after making one manifest."""
    calls = []

    def started(command, env, check):
        calls.append((command, env))
        if makes:
            with open(makes, "w") as file:
                json.dump({"seconds": 1.0}, file)
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(cli.subprocess, "run", started)
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
    assert calls[0][1][cli.SUMMARY_FOLLOWS] == "1"
    assert calls[0][1]["PYTHONPATH"].split(":")[0] == str(cli.HOME)
    snakemake(monkeypatch, 1, plan.targets[-1])
    assert cli.main(["run", "--", "--forceall"]) == 1
    assert capsys.readouterr().out == ""
    snakemake(monkeypatch, 0, plan.targets[-1])
    assert cli.main(["run", "--", "--forceall"]) == 0
    assert "8 of 8 stages complete" in capsys.readouterr().out


def test_a_mistake_is_one_message_and_exit_code_2(capsys):
    assert cli.main(["run", "algorithm.optimzer.lr=1"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "unknown key 'algorithm.optimzer.lr'. Did you mean 'algorithm.optimizer.lr'?" in shown.err
    assert "Traceback" not in shown.err


def test_help_is_quick_because_it_imports_nothing_heavy():
    code = "import sys; from pipeline import cli; cli.parser(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=cli.HOME)
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
    assert "  scores: run, stage, model, taskset, metric, value" in shown.err


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
    assert "#   rft: explorer step = 6 tasks x 4 rollouts = 24 experiences" in out
    assert "#   rft: trainer step = 48 experiences" in out
    assert "#   rft: 10 trainer steps need 20 explorer steps" in out
    import yaml

    assert yaml.safe_load(out)["buffer"]["batch_size"] == 6


def test_config_explain_a_setting(capsys):
    assert cli.main(["config", "explain", "algorithm.optimizer.lr", "algorithm.optimizer.lr=0.5"]) == 0
    lines = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert {"type float", "bounds >= 0", "default 1e-06", "value now 0.5", "in stage sft 0.001"} <= lines


def test_config_explain_a_prefix_a_group_and_a_misspelling(capsys):
    cli.main(["config", "explain", "algorithm.optimizer"])
    assert "algorithm.optimizer.weight_decay" in capsys.readouterr().out
    cli.main(["config", "explain", "recipe"])
    assert "countdown" in capsys.readouterr().out
    assert cli.main(["config", "explain", "weight_decay"]) == 2
    assert "Did you mean 'algorithm.optimizer.weight_decay'" in capsys.readouterr().err


def test_stages_are_written_only_when_asked(tmp_path, capsys):
    root = f"checkpoint_root_dir={tmp_path}"
    assert cli.main(["stages", root]) == 0
    assert "rft  (rft)" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    assert cli.main(["stages", root, "--write"]) == 0
    assert len(list(tmp_path.glob("store/*/stage.json"))) == 8
    assert cli.main(["status", root]) == 0
    assert capsys.readouterr().out.count("missing") == 8
