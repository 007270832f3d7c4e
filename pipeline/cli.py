"""The command `ouro`: run a recipe, see how it goes, ask its tables, read its report.

    ouro run algorithm.optimizer.lr=4e-4        the default recipe with one setting changed
    ouro run recipe=countdown -- -n             words after -- go to snakemake
    ouro run -m algorithm.optimizer.lr=1e-6,3e-6 seed=1,2      a sweep: every combination; then `ouro compare`
    ouro sql "select model, metric, value, low, high from scores"
"""

import argparse
import os
import shlex
import sys
from pathlib import Path

from pipeline import commands, replay_command, sweep_commands
from pipeline.bridges import command as bridges
from pipeline.init.command import add_options, init
from pipeline.run.invoke import INTERRUPTED, run
from pipeline.store.errors import OuroError


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code; a user's mistake is one message and exit code 2."""
    words = sys.argv[1:] if argv is None else list(argv)
    own, snakemake = split_at_dashes(words)
    try:
        _refuse_shell(words)
        arguments = parse(own)
        arguments.snakemake = snakemake
        _refuse_dashes(arguments)
        return arguments.work(arguments)
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (OuroError, OSError) as error:
        from pipeline.store.errors import message

        print(message(error), file=sys.stderr)
        return getattr(error, "exit_code", 2)
    except KeyboardInterrupt:
        print("\nouro: interrupted", file=sys.stderr)
        return INTERRUPTED


class _Version(argparse.Action):
    """`--version`: that of the distribution and, in a checkout, the commit; asked for only when it is wanted."""

    def __call__(self, parser, *_):
        from importlib.metadata import version

        from pipeline.job.context import commit

        at = commit()
        print(f"ouro {version('ouroboros-rft')}{'' if at == 'unknown' else f' (commit {at})'}")
        parser.exit()


def split_at_dashes(words: list[str]) -> tuple[list[str], list[str]]:
    """The words before the first `--`, and those after it."""
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _refuse_shell(words: list[str]) -> None:
    """Raises for what no command can work with: a current directory that is gone, a word that is no UTF-8."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise OuroError("the current directory was deleted. Go to one that exists (cd).") from error
    for word in words:
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise OuroError(f"{word!a} is no valid UTF-8. Give the file or the name another name.")


def _refuse_dashes(arguments) -> None:
    """Raises for words after `--` that nobody would read, or that would replace the overrides."""
    words = arguments.snakemake
    if words and arguments.work is not run:
        raise OuroError(f"words after -- go to snakemake, which only `ouro run` starts: {shlex.join(words)}. Write "
                        "them before --, or leave them out.")
    if any(w in ("-C", "--config") or w.startswith("--config=") for w in words):
        raise OuroError("snakemake's --config is how `ouro run` hands the overrides over. Write them before --: "
                        "ouro run seed=2 -- -n")


def parser() -> argparse.ArgumentParser:
    """The command line; every sub-command binds its function as `work`."""
    plain = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(prog="ouro", description=__doc__, formatter_class=plain)
    top.add_argument("--version", action=_Version, nargs=0, help="show the version, and the commit in a checkout")
    listed = top.add_subparsers(required=True, metavar="COMMAND", title="commands")

    def command(name: str, work, group=listed, **more):
        made = group.add_parser(name, help=_first_line(work), description=work.__doc__, **more)
        made.set_defaults(work=work, several="overrides")
        return made

    add_options(command("init", init))
    _overrides(it := command("run", run, epilog="Words after -- go to snakemake: ouro run recipe=countdown -- -n"))
    it.add_argument("-v", "--verbose", action="store_true", help="show all that snakemake and the stages print")
    it.add_argument("-m", "--multirun", action="store_true", help="a sweep: values such as lr=1e-6,3e-6 are points")
    it.add_argument("--update-hub", action="store_true",
                    help="take the newest commits of the Hugging Face hub's repositories that the run names, not those "
                         "that it has kept")
    _root(it := command("status", commands.status), several="words")
    it.add_argument("words", nargs="*", metavar="RUN | key=value",
                    help="project/name or name of a run or sweep (default: the latest), or the overrides of one")
    _root(it := command("sql", commands.sql), several="runs")
    it.add_argument("question", help="SQL over raw, tasks, rejected, experience, rollouts, trained, "
                                            "reference, teacher, steps, samples, scores")
    it.add_argument("runs", nargs="*", metavar="RUN", help="project/name or name; default: the latest")
    it.add_argument("--all", action="store_true", help="all runs; the column `run` tells them apart")
    it.add_argument("--format", choices=("table", "csv", "json"), default="table")
    it.add_argument("--out", type=_at_home, metavar="FILE", help="write the answer to FILE.parquet or FILE.csv")
    it.add_argument("--with", dest="joined", action="append", default=[], metavar="name=FILE",
                    help="a view over a parquet, csv, json or jsonl file of yours, to join with")
    _root(it := command("report", commands.report), several="runs")
    it.add_argument("runs", nargs="*", metavar="RUN", help="project/name or name; default: the latest")
    it.add_argument("--open", action="store_true", help="open it in a browser")
    _root(it := command("compare", sweep_commands.compare), several="runs")
    it.add_argument("runs", nargs="*", metavar="RUN | SWEEP", help="project/name or name; default: the latest sweep")
    it.add_argument("--metric", help="default: sampled_accuracy, or sampled_reward where no run has an accuracy")
    it.add_argument("--format", choices=("table", "csv", "json"), default="table")
    _root(it := command("replay", replay_command.replay), several="words")
    it.add_argument("words", nargs="*", metavar="RUN | algorithm=NAME | algorithm.KEY=VALUE",
                    help="a run (default: the latest), and alternatives, with several values as in a sweep")
    it.add_argument("--step", type=int, help="trainer step; default: the last one whose weights are there")
    it.add_argument("--stage", help="default: the last that trains on rollouts")
    it.add_argument("--format", choices=("table", "csv", "json"), default="table")
    _config(command, listed)
    _bridges(command, listed)
    _overrides(it := command("stages", commands.stages))
    it.add_argument("--write", action="store_true", help="write stage.json and the run's view; runs nothing")
    return top


def _config(command, listed) -> None:
    inner = listed.add_parser("config", help="the configuration: check, show, explain, diff, reference").add_subparsers(
        required=True, metavar="check|show|explain|diff|reference")
    _judging(command("check", commands.config_check, inner))
    _sides(command("diff", sweep_commands.config_diff, inner))
    _overrides(command("show", commands.config_show, inner))
    it = command("explain", commands.config_explain, inner)
    it.set_defaults(elsewhere=bridges.of_verl)
    it.add_argument("key", help="e.g. algorithm.optimizer.lr, or trainer")
    _overrides(it)
    command("reference", commands.config_reference, inner)


def _bridges(command, listed) -> None:
    inner = listed.add_parser("import", help="a configuration of Trinity-RFT, or a script of veRL, as a recipe")
    inner = inner.add_subparsers(required=True, metavar="trinity|verl|keys")
    for name, work, what in (("trinity", bridges.import_trinity, "its YAML file"),
                             ("verl", bridges.import_verl, "its launch script, overrides, or YAML file")):
        it = command(name, work, inner)
        it.add_argument("file", metavar="FILE", help=f"{what}; - is the standard input")
        it.add_argument("--name", help="of the recipe: conf/recipe/NAME.yaml; default: the name of the run")
        it.add_argument("--output", metavar="FILE", help="another place for the recipe")
        it.add_argument("--stdout", action="store_true", help="print the recipe, write no file")
        it.add_argument("--force", action="store_true", help="replace a recipe that says something else")
    command("keys", bridges.import_keys, inner)


def parse(words: list[str]) -> argparse.Namespace:
    """Parsed arguments. Names and overrides may stand behind options too, which argparse alone does not allow."""
    top = parser()
    arguments, behind = top.parse_known_args(words)
    unknown = [word for word in behind if word.startswith("-")]
    if unknown:
        hint = ". Arguments for snakemake come after --" if arguments.work is run else ""
        top.error(f"unknown option {' '.join(unknown)}{hint}")
    if behind and not hasattr(arguments, arguments.several):
        top.error(f"needed nothing more, found {' '.join(behind)}")
    setattr(arguments, arguments.several, [*getattr(arguments, arguments.several, []), *behind])
    return arguments


def _first_line(work) -> str:
    line = work.__doc__.splitlines()[0].rstrip(".")
    return line[0].lower() + line[1:]


def _overrides(command) -> None:
    command.add_argument("overrides", nargs="*", metavar="key=value",
                         help="Hydra overrides, e.g. seed=2 recipe=countdown")


def _judging(command) -> None:
    _overrides(command)
    command.add_argument("--no-data", action="store_true",
                         help="read no samples of the data files, and import no code of yours (faster)")
    command.add_argument("--no-call", action="store_true",
                         help="call no reward function of yours (one call each, for a judge that costs money)")
    command.add_argument("--elsewhere", action="store_true",
                         help="the run is for another machine: what is not on this one is listed, and no problem")


def _sides(command) -> None:
    _root(command, several="nothing")
    for side in ("a", "b"):
        command.add_argument(side, metavar=side.upper(), help="a run (project/name or name), or overrides in quotes")


def _at_home(path: str) -> Path:
    return Path(path).expanduser()


def _root(command, several: str) -> None:
    command.set_defaults(several=several)
    command.add_argument("--root", type=_at_home, default=Path(), metavar="DIR",
                         help="directory that holds runs/ and store/ (checkpoint_root_dir); default: here")


if __name__ == "__main__":
    sys.exit(main())
