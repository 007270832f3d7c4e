"""The command `ouro`: run a recipe, see how it goes, ask its tables, read its report.

    ouro run algorithm.optimizer.lr=4e-4        the default recipe with one setting changed
    ouro run recipe=countdown -- -n             words after -- go to snakemake
    ouro sql "select model, metric, value, low, high from scores"
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from pipeline.errors import OuroError

HOME = Path(__file__).resolve().parent.parent  # where Snakefile and conf/ are
INTERRUPTED = 130  # 128 + SIGINT
SUMMARY_FOLLOWS = "OURO_SUMMARY_FOLLOWS"  # tells the Snakefile that `ouro run` prints the summary


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code; a user's mistake is one message and exit code 2."""
    words = sys.argv[1:] if argv is None else list(argv)
    own, snakemake = split_at_dashes(words)
    arguments = parse(own)
    arguments.snakemake = snakemake
    try:
        _refuse_dashes(arguments)
        return arguments.work(arguments)
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (OuroError, OSError) as error:
        from pipeline.launch import message

        print(message(error), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def split_at_dashes(words: list[str]) -> tuple[list[str], list[str]]:
    """The words before the first `--`, and those after it."""
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _refuse_dashes(arguments) -> None:
    """Raises for words after `--` that nobody would read, or that would replace the overrides."""
    words = arguments.snakemake
    if words and arguments.work is not run:
        raise OuroError(f"words after -- go to snakemake, which only `ouro run` starts: {shlex.join(words)}. Write "
                        "them before --, or leave them out.")
    if any(w in ("-C", "--config") or w.startswith("--config=") for w in words):
        raise OuroError("snakemake's --config is how `ouro run` hands the overrides over. Write them before --: "
                        "ouro run seed=2 -- -n")


# ------------------------------------------------------------------------------------------------------- commands


def run(arguments) -> int:
    """Makes every stage of the recipe that is not complete, by snakemake; then says what was learnt."""
    from pipeline import view

    plan = _plan(arguments.overrides)
    shown = view.of_plan(plan)
    if shown.complete and not arguments.snakemake:
        plan.freeze()  # the run's view may show another configuration
        print(f"nothing to do: all {len(plan.stages)} stages of {shown.run} are complete")
        print(view.summary(shown))
        return 0
    before = _made(plan)
    environment = os.environ | {SUMMARY_FOLLOWS: "1", "PYTHONPATH": _python_path()}
    code = _wait_for(snakemake_command(arguments.overrides, arguments.snakemake), environment)
    if code == 0 and _made(plan) != before:  # a dry run makes nothing
        print(view.summary(shown))
    if code not in (0, INTERRUPTED):
        print(view.what_failed(shown, code), file=sys.stderr)
    return code


def _wait_for(command: list[str], environment: dict[str, str]) -> int:
    """The exit code of a command, or INTERRUPTED. Ctrl-C reaches it from the terminal too: it ends its own jobs."""
    interrupts: list[int] = []
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.SIG_IGN:  # a handler, not SIG_IGN, which the command would inherit
        signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    try:
        code = subprocess.Popen(command, env=environment).wait()
    finally:
        signal.signal(signal.SIGINT, usual)
    return INTERRUPTED if interrupts else code


def snakemake_command(overrides: list[str], extra: list[str]) -> list[str]:
    """The snakemake command line. Overrides travel as a JSON list, which snakemake reads as YAML: any character passes.

    (Of a plain text snakemake would strip the quotes at its ends and read the rest as YAML.) An option stands behind
    --config, which takes every word up to the next one; of two --cores the last counts.
    """
    elsewhere = [] if Path.cwd() == HOME else ["--snakefile", str(HOME / "Snakefile"), "--directory", str(Path.cwd())]
    text = json.dumps(overrides, ensure_ascii=False)
    config = ["--config", f"overrides={text}"] if overrides else []
    return [sys.executable, "-m", "snakemake", *elsewhere, *config, "--cores", "all", *extra]


def _made(plan) -> dict[str, int]:
    """When each complete stage was made."""
    return {m: os.stat(m).st_mtime_ns for m in plan.targets if os.path.exists(m)}


def _python_path() -> str:
    """Our packages first: `workflows` is also the name of a package that others may have installed."""
    return os.pathsep.join([str(HOME), *filter(None, [os.environ.get("PYTHONPATH")])])


def _plan(overrides: list[str]):
    from pipeline.launch import make_checked_plan

    return make_checked_plan(overrides)


def status(arguments) -> int:
    """The stages of a run: state, seconds, directory, and the last step of those that train."""
    from pipeline import view
    from pipeline.query import Answer, as_table

    overrides = [w for w in arguments.words if "=" in w]
    names = [w for w in arguments.words if "=" not in w]
    if (overrides and names) or len(names) > 1:
        raise OuroError("`ouro status` takes the name of one run, or overrides (key=value), not both.")
    if overrides and arguments.root != Path():
        raise OuroError("`ouro status` with overrides looks where they say: write checkpoint_root_dir=DIR for --root.")
    shown = view.of_plan(_plan(overrides)) if overrides else view.find_view(arguments.root, *names)
    states = [view.state(s) for s in shown.stages]
    rows = [(s.name, s.state, "" if s.seconds is None else f"{s.seconds:.1f}", view.near(s.directory))
            for s in states]
    print(shown.run)
    print(as_table(Answer(["stage", "state", "seconds", "directory"], rows)).rsplit("\n", 1)[0])
    for s in states:
        for line in filter(None, (s.latest, s.problem)):
            print(f"{s.name}: {line}")
    return 0


def sql(arguments) -> int:
    """One question to the tables of the latest run, of the named runs, or of all."""
    from pipeline import query, view
    from pipeline.files import is_complete

    if arguments.all:
        runs = view.views(arguments.root)
    else:
        runs = [view.find_view(arguments.root, name) for name in arguments.runs or [None]]
    text = query.show(query.ask(query.session(runs), arguments.question), arguments.format)
    for shown in runs:
        if missing := [s.name for s in shown.stages if not is_complete(s.directory)]:
            print(f"ouro: {shown.run} is not complete; its tables lack what is still to come of {', '.join(missing)}",
                  file=sys.stderr)
    if text:
        print(text)
    return 0


def report(arguments) -> int:
    """Where the report of a run (or of several) is."""
    import webbrowser

    from pipeline import view
    from pipeline.errors import StageError

    for name in arguments.runs or [None]:
        shown = view.find_view(arguments.root, name)
        if not shown.report.exists():
            raise StageError(f"{shown.run} has no report yet ({shown.report} does not exist). `ouro status "
                             f"{shown.run}` shows how far it is; `ouro run` with the same overrides completes it.")
        print(shown.report)
        if arguments.open and not webbrowser.open(shown.report.resolve().as_uri()):
            print("ouro: no browser was found here; open the file by hand.", file=sys.stderr)
    return 0


def config_show(arguments) -> int:
    """The composed configuration as YAML, secrets masked, with the numbers that follow from it."""
    from pipeline import explain
    from pipeline.compose import compose

    print(explain.show(compose(arguments.overrides)))
    return 0


def config_reference(arguments) -> int:
    """Every setting with type, default, bounds and meaning, as a Markdown page."""
    from pipeline import explain

    print(explain.reference(), end="")
    return 0


def config_explain(arguments) -> int:
    """Type, meaning, bounds, default and present value of a setting, or the settings below a prefix."""
    from pipeline import explain
    from pipeline.compose import compose

    print(explain.explain(compose(arguments.overrides), arguments.key))
    return 0


def stages(arguments) -> int:
    """The stages that a configuration means, in order, and how to run each by hand."""
    plan = _plan(arguments.overrides)
    if arguments.write:
        plan.freeze()
    for stage in plan.stages:
        print(f"{stage.name}  ({stage.kind})\n  directory  {stage.directory}")
        for role, directory in stage.inputs.items():
            print(f"  input      {role} = {directory}")
        print(f"  command    {shlex.join([sys.executable, '-m', f'stages.{stage.kind}', stage.directory])}")
    if not arguments.write:
        print("\n`ouro stages --write` makes the directories, so that the commands can be typed.")
    return 0


# --------------------------------------------------------------------------------------------------- command line


def parser() -> argparse.ArgumentParser:
    """The command line; every sub-command binds its function as `work`."""
    plain = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(prog="ouro", description=__doc__, formatter_class=plain)
    commands = top.add_subparsers(required=True, metavar="COMMAND", title="commands")

    def command(name: str, work, group=commands, **more):
        made = group.add_parser(name, help=_first_line(work), description=work.__doc__, **more)
        made.set_defaults(work=work, several="overrides")
        return made

    _overrides(command("run", run, epilog="Words after -- go to snakemake: ouro run recipe=countdown -- -n"))
    _root(it := command("status", status), several="words")
    it.add_argument("words", nargs="*", metavar="RUN | key=value",
                    help="project/name or name of a run (default: the latest), or the overrides of one")
    _root(it := command("sql", sql), several="runs")
    it.add_argument("question", help="SQL over tasks, rejected, experience, trained, steps, rollouts, samples, scores")
    it.add_argument("runs", nargs="*", metavar="RUN", help="project/name or name; default: the latest")
    it.add_argument("--all", action="store_true", help="all runs; the column `run` tells them apart")
    it.add_argument("--format", choices=("table", "csv", "json"), default="table")
    _root(it := command("report", report), several="runs")
    it.add_argument("runs", nargs="*", metavar="RUN", help="project/name or name; default: the latest")
    it.add_argument("--open", action="store_true", help="open it in a browser")
    inner = commands.add_parser("config", help="the configuration: show, explain, reference").add_subparsers(
        required=True, metavar="show|explain|reference")
    _overrides(command("show", config_show, inner))
    it = command("explain", config_explain, inner)
    it.add_argument("key", help="e.g. algorithm.optimizer.lr, or trainer")
    _overrides(it)
    command("reference", config_reference, inner)
    _overrides(it := command("stages", stages))
    it.add_argument("--write", action="store_true", help="write stage.json and the run's view; runs nothing")
    return top


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


def _root(command, several: str) -> None:
    command.set_defaults(several=several)
    command.add_argument("--root", type=Path, default=Path(), metavar="DIR",
                         help="directory that holds runs/ and store/ (checkpoint_root_dir); default: here")


if __name__ == "__main__":
    sys.exit(main())
