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
    assert "unknown key 'algorithm.optimzer.lr'. Did you mean 'algorithm.optimizer.lr'?" in shown.err
    assert "Traceback" not in shown.err


def test_help_is_quick_because_it_imports_nothing_heavy():
    code = "import sys; from pipeline import cli; cli.parser(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=invoke.HOME)
    heavy = {"torch", "hydra", "omegaconf", "duckdb", "mlflow", "pyarrow", "numpy", "snakemake"}
    assert not heavy & set(loaded.stdout.split())


def test_a_check_without_data_takes_its_time_in_seconds_of_cpu():
    """1.5 s on a core of its own (it takes 0.9 s); twice that where others share the machine's caches."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "pipeline.cli", "config", "check", "--no-data", "--elsewhere"],
                   capture_output=True, check=True, cwd=invoke.HOME)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2 * 1.5


def test_an_unknown_option_of_run_points_to_the_dashes(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["run", "-n"])
    assert "unknown option -n. Arguments for snakemake come after --" in capsys.readouterr().err


def test_nothing_more_where_nothing_more_is_needed(capsys):
    with pytest.raises(SystemExit):
        cli.main(["config", "reference", "seed=2"])
    assert "needed nothing more, found seed=2" in capsys.readouterr().err


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
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, "ouro 0.1.0 (commit 0123456789ab+dirty)\n")
