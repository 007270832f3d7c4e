"""What the sub-commands of `ouro` do, all but `run` (pipeline/run/invoke.py). Each takes the parsed command line."""

import shlex
import sys
from pathlib import Path

from pipeline.store import files
from pipeline.store.errors import OuroError, masked


def status(arguments) -> int:
    """The stages of a run: state, seconds, directory, and the last step of those that train; the points of a sweep."""
    from pipeline.results import sweep_view, view
    from pipeline.run.planning import make_checked_plan

    overrides = [w for w in arguments.words if "=" in w and not sweep_view.is_known(arguments.root, w)]
    names = [w for w in arguments.words if w not in overrides]
    if (overrides and names) or len(names) > 1:
        raise OuroError("`ouro status` takes the name of one run, or overrides (key=value), not both.")
    if overrides and arguments.root != Path():
        raise OuroError("`ouro status` with overrides looks where they say: write checkpoint_root_dir=DIR for --root.")
    shown = view.of_plan(make_checked_plan(overrides)) if overrides else sweep_view.find(arguments.root, *names)
    print(sweep_view.status(shown) if isinstance(shown, sweep_view.SweepView) else _status(shown))
    return 0


def _status(shown) -> str:
    from pipeline.results import view
    from pipeline.results.query import Answer, as_table

    states = [view.state(s) for s in shown.stages]
    rows = [(s.name, s.state, "" if s.seconds is None else f"{s.seconds:.1f}", files.near(s.directory))
            for s in states]
    table = as_table(Answer(["stage", "state", "seconds", "directory"], rows)).rsplit("\n", 1)[0]
    latest = [f"{s.name}: {line}" for s in states for line in filter(None, (s.latest, s.warning, s.problem))]
    return "\n".join([shown.run, table, *latest])


def sql(arguments) -> int:
    """One read-only question to the tables of the latest run or sweep, of the named ones, or of all."""
    from pipeline.results import query, sweep_view, view
    from pipeline.store.errors import QueryError
    from pipeline.store.files import is_complete

    if arguments.all:
        runs = view.views(arguments.root)
    else:
        named = [sweep_view.find(arguments.root, name) for name in arguments.runs or [None]]
        runs = [run for one in named for run in sweep_view.runs_of(one)]
    if wrong := [word for word in arguments.joined if not all(word.partition("=")[::2])]:
        raise QueryError(f"--with {wrong[0]}: needed name=FILE, such as --with labels=labels.csv")
    joined = (word.partition("=") for word in arguments.joined)
    session = query.session(runs, {name: Path(file).expanduser() for name, _, file in joined})
    query.require_read_only(session, arguments.question)
    if arguments.out:
        text = f"{query.export(session, arguments.question, arguments.out)} rows written to {arguments.out}"
    else:
        text = query.show(query.ask(session, arguments.question), arguments.format)
    for shown in runs:
        if missing := [s.name for s in shown.stages if not is_complete(s.directory)]:
            print(f"ouro: {shown.run} is not complete; its tables lack what is still to come of {', '.join(missing)}",
                  file=sys.stderr)
    if text:
        print(text)
    return 0


def report(arguments) -> int:
    """Where the report of a run (or of several) is; that of a sweep compares its points."""
    import webbrowser

    from pipeline.results import sweep_view
    from pipeline.store.errors import StageError

    for name in arguments.runs or [None]:
        shown = sweep_view.find(arguments.root, name)
        if not shown.report.exists():
            raise StageError(f"{shown.run} has no report yet ({shown.report} does not exist). `ouro status "
                             f"{shown.run}` shows how far it is; `ouro run` with the same overrides completes it.")
        print(shown.report)
        if arguments.open and not webbrowser.open(shown.report.resolve().as_uri()):
            print("ouro: no browser was found here; open the file by hand.", file=sys.stderr)
    return 0


def config_check(arguments) -> int:
    """Everything that is wrong with a configuration, its data and its fit to the machine; then the plan in numbers."""
    from pipeline.check import incomplete, preflight
    from pipeline.check.judge import judged, warnings
    from pipeline.compose.compose import TITLE
    from pipeline.store.errors import ConfigError

    config, problems = judged(arguments.overrides)
    if problems:
        more = incomplete.beside(config, problems, arguments.elsewhere, not arguments.no_data)
        raise ConfigError.of(TITLE, [*problems, *more])
    report = preflight.check(config, arguments.elsewhere, data=not arguments.no_data, code=not arguments.no_data,
                             call=not (arguments.no_data or arguments.no_call or arguments.elsewhere),
                             ask=not arguments.no_data)
    report.add("", warnings(arguments.overrides), "warnings")
    if arguments.no_data:
        report.add("", ["rows of data files, Data-Juicer operators, code of yours: --no-data leaves them out."],
                   "unjudged")
    print(preflight.text(report))
    return 2 if report.problems else 0


def config_show(arguments) -> int:
    """The composed configuration as YAML, secrets masked, with the numbers that follow from it."""
    from pipeline.check import explain
    from pipeline.check.judge import compose

    print(masked(explain.show(compose(arguments.overrides))))
    return 0


def config_reference(arguments) -> int:
    """Every setting with type, default, bounds and meaning, as a Markdown page."""
    from pipeline.check import explain

    print(explain.reference(), end="")
    return 0


def config_explain(arguments) -> int:
    """Type, meaning, bounds, default, value of a setting and where it comes from, or the settings below a prefix."""
    from pipeline.check import explain
    from pipeline.check.judge import judged
    from pipeline.compose.compose import TITLE
    from pipeline.store.errors import ConfigError

    config, problems = judged(arguments.overrides)
    print(masked(explain.explain(config, arguments.key, arguments.overrides, not problems, arguments.elsewhere)),
          flush=True)
    if problems:  # what is wrong may be the very thing that is asked for
        raise ConfigError.of(TITLE, problems)
    return 0


def stages(arguments) -> int:
    """The stages that a configuration means, in order, and how to run each by hand."""
    from pipeline.run.planning import make_checked_plan

    plan = make_checked_plan(arguments.overrides)
    if arguments.write:
        plan.freeze()
    for stage in plan.stages:
        print(f"{stage.name}  ({stage.kind})\n  directory  {stage.directory}")
        for role, directory in stage.inputs.items():
            print(f"  input      {role} = {directory}")
        for directory in stage.waits:
            print(f"  waits for  {directory}")
        print(f"  command    {shlex.join([sys.executable, '-m', f'stages.{stage.kind}', stage.directory])}")
    if not arguments.write:
        print("\n`ouro stages --write` makes the directories, so that the commands can be typed.")
    return 0
