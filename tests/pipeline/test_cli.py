"""The command line: words and mistakes, the status and the report of a run."""

import resource
import shlex
import subprocess
import sys

import pytest

from pipeline import cli
from pipeline.run import invoke


@pytest.mark.parametrize("words", [["report", "--", "nosuchrun"], ["status", "--", "seed=2"], ["sql", "x", "--", "y z"],
                                   ["stages", "--", "--write"], ["config", "show", "--", "seed=2"]])
def test_words_after_the_dashes_of_another_command_are_refused(words, capsys):
    assert cli.main(words) == 2
    assert f"only `ouro run` starts: {shlex.quote(words[-1])}. Write them before --" in capsys.readouterr().err


def test_a_place_where_nothing_can_be_made_is_refused(capsys):
    assert cli.main(["run", "checkpoint_root_dir=/dev/null/x"]) == 2
    assert "checkpoint_root_dir=/dev/null/x: /dev/null is no directory." in capsys.readouterr().err


def test_a_mistake_is_one_message_and_exit_code_2(capsys):
    assert cli.main(["run", "algorithm.optimzer.lr=1"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "algorithm.optimzer.lr: unknown key. Did you mean 'algorithm.optimizer.lr'?" in shown.err
    assert "Traceback" not in shown.err


def test_help_is_quick_because_it_imports_nothing_heavy():
    code = "import sys; from pipeline import cli; cli.main(['--help']); print(*sys.modules, file=sys.stderr)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=invoke.HOME)
    heavy = {"torch", "hydra", "omegaconf", "duckdb", "mlflow", "pyarrow", "numpy", "snakemake"}
    assert not heavy & set(loaded.stderr.split())


def test_a_check_without_data_takes_its_time_in_seconds_of_cpu():
    """1.5 s on a core of its own (it takes 0.9 s); twice that where others share the machine's caches."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "pipeline.cli", "config", "check", "--no-data", "--elsewhere"],
                   capture_output=True, check=True, cwd=invoke.HOME)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2 * 1.5


def test_an_unknown_option_of_run_points_to_the_dashes(capsys):
    assert cli.main(["run", "-n"]) == 2
    assert "Arguments for snakemake come after --" in capsys.readouterr().err


def test_nothing_more_where_nothing_more_is_needed(capsys):
    assert cli.main(["config", "reference", "seed=2"]) == 2
    assert "(seed=2)" in capsys.readouterr().err


def test_a_misspelt_command_names_the_nearest(capsys):
    assert cli.main(["stauts"]) == 2
    assert "'status'" in capsys.readouterr().err


def test_a_value_that_no_option_has_is_refused(capsys):
    assert cli.main(["sql", "SELECT 1", "--format", "xml"]) == 2
    assert "json" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["import", "keys", "x.yaml"], ["import", "verl"], ["import", "nemo", "x.yaml"]])
def test_an_import_takes_a_file_of_a_known_kind(words, capsys):
    assert cli.main(words) == 2
    assert "ouro import" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_asks_ouro(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    assert f"_OURO_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_commands_and_options_are_completed(capsys, monkeypatch):
    for typed, at, expected in (("ouro st", 1, {"status", "stages"}),
                                ("ouro config check --no-", 3, {"--no-data", "--no-call"})):
        for name, value in (("_OURO_COMPLETE", "bash_complete"), ("COMP_WORDS", typed), ("COMP_CWORD", str(at))):
            monkeypatch.setenv(name, value)
        assert cli.main([]) == 0
        assert {line.split(",")[1] for line in capsys.readouterr().out.splitlines()} == expected


def test_a_reader_that_leaves_ends_the_command_quietly():
    command = f"{shlex.quote(sys.executable)} -m pipeline.cli config reference | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, cwd=invoke.HOME)
    assert (done.returncode, done.stderr) == (141, "")


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


def test_the_version_has_the_commit_of_the_checkout(capsys, monkeypatch):
    monkeypatch.setattr("pipeline.job.context.commit", lambda: "0123456789ab+dirty")
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == "ouro 0.1.0 (commit 0123456789ab+dirty)\n"
