"""The command line: words and mistakes, the status and the report of a run."""

import io
import os
import resource
import shlex
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from ouroboros.commands import cli
from ouroboros.commands.run import invoke
from tests.golden.messages import wording

DASHES = "only `ouro run` starts: {}. Write them before --"


@pytest.mark.parametrize(("words", "answer"), [
    ("report -- nosuchrun", DASHES.format("nosuchrun")), ("status -- seed=2", DASHES.format("seed=2")),
    ("sql x -- 'y z'", DASHES.format("'y z'")), ("stages -- --write", DASHES.format("--write")),
    ("config show -- seed=2", DASHES.format("seed=2")), ("run -n", "Arguments for snakemake come after --"),
    ("run algorithm.optimzer.lr=1", "algorithm.optimzer.lr: unknown key. Did you mean 'algorithm.optimizer.lr'?"),
    ("run checkpoint_root_dir=/dev/null/x", "checkpoint_root_dir=/dev/null/x: /dev/null is no directory."),
    ("config reference seed=2", "(seed=2)"), ("stauts", "'status'"), ("sql 'SELECT 1' --format xml", "json"),
    ("import keys x.yaml", "ouro import"), ("import verl", "ouro import"), ("import nemo x.yaml", "ouro import"),
    ("status first seed=2", "not both"), ("status seed=2 --root elsewhere", "checkpoint_root_dir=DIR")])
def test_a_mistake_is_one_message_and_exit_code_2(words, answer, capsys):
    assert cli.main(shlex.split(words)) == 2
    shown = capsys.readouterr()
    assert answer in shown.err
    assert (shown.out, "Traceback" in shown.err) == ("", False)


def test_output_that_cannot_be_written_ends_with_a_code_however_short_it_is(monkeypatch, capsys):
    """A full disk is a mistake, a reader that left is SIGPIPE, as for the shell's own commands."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main(["evaluate", "--help"]) == 2
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "w") as left:
        monkeypatch.setattr(sys, "stdout", left)
        assert cli.main(["evaluate", "--help"]) == 128 + signal.SIGPIPE


def test_a_terminal_without_unicode_shows_the_rest_as_escapes(monkeypatch, tmp_path):
    (tmp_path / "Ü.yaml").write_text("seed: 3")
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    cli.main(["import", "trinity", str(tmp_path / "Ü.yaml"), "--stdout"])
    assert b"\\xdc.yaml" in shown.getvalue()


def test_a_link_to_itself_is_one_message(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").symlink_to("conf")
    (tmp_path / "c.yaml").write_text("algorithm: {algorithm_type: grpo}")
    assert [cli.main(words) for words in (["import", "trinity", "c.yaml"], ["stages", "checkpoint_root_dir=conf"])] == [
        2, 2]
    assert "Traceback" not in capsys.readouterr().err


def test_help_is_quick_because_it_imports_nothing_heavy():
    code = "import sys; from ouroboros.commands import cli; cli.main(['--help']); print(*sys.modules, file=sys.stderr)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=invoke.HOME)
    heavy = {"torch", "hydra", "omegaconf", "duckdb", "mlflow", "pyarrow", "numpy", "snakemake"}
    assert not heavy & set(loaded.stderr.split())


def cpu_seconds(*words: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], capture_output=True, check=True, cwd=invoke.HOME)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_check_without_data_costs_little_more_than_its_libraries():
    """About 4 times the CPU time of importing them. A ratio, because the speed of a shared machine varies."""
    check = ("-m", "ouroboros", "config", "check", "--no-data", "--elsewhere")
    libraries = ("-c", "import hydra, pydantic, pyarrow")
    ratios = (cpu_seconds(*check) / cpu_seconds(*libraries) for _ in range(3))
    assert any(ratio < 8 for ratio in ratios)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_asks_ouro(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    assert f"_OURO_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_commands_and_options_are_completed(capsys, monkeypatch):
    for typed, at, expected in (("ouro sta", 1, {"status", "stages"}),
                                ("ouro config check --no-", 3, {"--no-data", "--no-call"})):
        for name, value in (("_OURO_COMPLETE", "bash_complete"), ("COMP_WORDS", typed), ("COMP_CWORD", str(at))):
            monkeypatch.setenv(name, value)
        assert cli.main([]) == 0
        assert {line.split(",")[1] for line in capsys.readouterr().out.splitlines()} == expected


def test_a_reader_that_leaves_ends_the_command_quietly():
    command = f"{shlex.quote(sys.executable)} -m ouroboros config reference | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, cwd=invoke.HOME)
    assert (done.returncode, done.stderr) == (141, "")


def test_status_shows_every_stage_and_why_one_failed(run, capsys):
    assert cli.main(["status", "first", "--root", str(run.root)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "toy/first"
    assert "report        waiting" in out
    wording(out, "4/4")
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
    monkeypatch.setattr("ouroboros.pipeline.job.context.commit", lambda: "0123456789ab+dirty")
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ouro {version('ouroboros-rft')} (commit 0123456789ab+dirty)\n"


def test_bash_completes_the_value_after_an_equals_sign():
    """Bash gives the = before the cursor for the word there."""
    script = (f'eval "$({shlex.quote(sys.executable)} -m ouroboros completion bash)"\n'
              'COMP_WORDS=(ouro run recipe =); COMP_CWORD=3; _ouro_completion ouro; echo "${COMPREPLY[*]}"')
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=invoke.HOME,
                          env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"})
    assert "countdown" in done.stdout.split()
    assert "algorithm=" not in done.stdout.split()


@pytest.mark.parametrize(("typed", "offered"), [
    ("ouro run algorithm.optimizer.lr_warmup_steps_", {"algorithm.optimizer.lr_warmup_steps_ratio="}),
    ("ouro run recipe=froz", {"recipe=frozen_lake"}), ("ouro run recipe = froz", {"frozen_lake"}),
    ("ouro run = x", set()), ("ouro config check synchronizer.keep", {"synchronizer.keep="}),
    ("ouro sql q to", {"toy/first"}), ("ouro verify to", {"toy/first"}), ("ouro verify fi", {"first"}),
    ("ouro export fi", {"first"}), ("ouro status fi", {"first"}), ("ouro status name", {"name="}),
    ("ouro replay to", {"toy/first"}), ("ouro serve fi", {"first"}), ("ouro config diff fi", {"first"}),
    ("ouro debug workflow froz", {"frozen_lake"})])
def test_keys_recipes_and_runs_are_completed(typed, offered, run, monkeypatch, capsys):
    words = typed.split()
    monkeypatch.chdir(run.root)
    monkeypatch.setenv("_OURO_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert cli.main([]) == 0
    assert {line.partition(",")[2] for line in capsys.readouterr().out.split()} == offered
