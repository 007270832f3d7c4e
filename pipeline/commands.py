"""What the sub-commands of `ouro` do, all but `run` (pipeline/invoke.py): each takes the parsed command line."""

import shlex
import sys
from pathlib import Path

from pipeline.errors import OuroError


def status(arguments) -> int:
    """The stages of a run: state, seconds, directory, and the last step of those that train."""
    from pipeline import view
    from pipeline.launch import make_checked_plan
    from pipeline.query import Answer, as_table

    overrides = [w for w in arguments.words if "=" in w]
    names = [w for w in arguments.words if "=" not in w]
    if (overrides and names) or len(names) > 1:
        raise OuroError("`ouro status` takes the name of one run, or overrides (key=value), not both.")
    if overrides and arguments.root != Path():
        raise OuroError("`ouro status` with overrides looks where they say: write checkpoint_root_dir=DIR for --root.")
    shown = view.of_plan(make_checked_plan(overrides)) if overrides else view.find_view(arguments.root, *names)
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
    from pipeline.launch import make_checked_plan

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
