"""`ouro status`, `ouro logs`, `ouro timeline` and `ouro stop`: how far a run is, its times and its processes, seen from
another terminal."""

import contextlib
import json
from pathlib import Path

import click

from ouroboros.commands.config_commands import HERE, RUN, names_or_keys, words
from ouroboros.pipeline.store.errors import OuroError

LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR"]


def name_and_overrides(root: Path, given: list[str]) -> tuple[list[str], list[str]]:
    """The name of at most one run, and overrides; `s-lr=1` may also name a sweep's point, and `name=x` alone a run."""
    from ouroboros.pipeline.results import sweep_view

    overrides = [word for word in given if "=" in word and not sweep_view.is_known(root, word)]
    if len(given) == 1 and given[0].startswith("name="):
        overrides = []
    names = [word for word in given if word not in overrides]
    if len(names) > 1:
        raise OuroError(f"needed the name of one run, found {', '.join(names)}.")
    return names, overrides


@click.command()
@words("given", "[RUN | key=value]...", names_or_keys)
@HERE
def status(given, root):
    """Show how far each stage of a run or point of a sweep is.

    RUN is project/name or name of a run or sweep, default: the latest; key=value are the overrides of one.
    """
    from ouroboros.commands.run.planning import make_checked_plan
    from ouroboros.pipeline.results import sweep_view, view

    name, overrides = name_and_overrides(root, given)
    if overrides and name:
        raise OuroError("`ouro status` takes the name of one run, or overrides (key=value), not both.")
    if overrides and root != Path():
        raise OuroError("`ouro status` with overrides looks where they say: write checkpoint_root_dir=DIR for --root.")
    shown = view.of_plan(make_checked_plan(overrides)) if overrides else sweep_view.find(root, *name)
    print(sweep_view.status(shown))


@click.command()
@RUN
@HERE
def stop(name, root):
    """Stop a run from another terminal, as Ctrl-C does in its own.

    Training stages save their last step first. RUN is project/name or name of a run or sweep, default: the latest.
    """
    from ouroboros.commands.run import stop
    from ouroboros.pipeline.results import sweep_view

    return stop.stop(sweep_view.find(root, name))


@click.command()
@RUN
@HERE
@click.option("--stage", metavar="NAME", help="default: all stages")
@click.option("--level", type=click.Choice(LEVELS, case_sensitive=False), default="DEBUG",
              help="the least severe level shown")
@click.option("-f", "--follow", is_flag=True, help="show new lines as they come, until Ctrl-C")
@click.option("--tail", type=click.IntRange(0, 1_000_000_000), metavar="N",
              help="only the last N records of what is there")
def logs(name, root, stage, level, follow, tail):
    """Show the logs of a run's stages, trainers and explorers as one, by time.

    RUN is project/name or name of a run or sweep, default: the latest.
    """
    from ouroboros.pipeline.results import logs, sweep_view

    with contextlib.suppress(KeyboardInterrupt):  # how --follow ends
        logs.show(logs.choose(sweep_view.find(root, name).stages, stage), level, tail, follow)


@click.command()
@RUN
@HERE
def timeline(name, root):
    """Print a run's times as a trace, JSON for ui.perfetto.dev and chrome://tracing.

    RUN is project/name or name of a run, default: the latest: ouro timeline mine > trace.json
    """
    from ouroboros.pipeline.results import policies, sweep_view, timeline

    print(json.dumps(timeline.trace(policies.single(sweep_view.find(root, name)))))
