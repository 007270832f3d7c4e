"""`ouro logs` and `ouro stop`: the processes of a run, seen from another terminal."""

import contextlib

import click

from pipeline.config_commands import HERE

LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR"]
RUN = click.argument("name", required=False, metavar="[RUN]")


@click.command()
@RUN
@HERE
def stop(name, root):
    """Stop a run from another terminal, as Ctrl-C does in its own.

    Training stages save their last step first. RUN is project/name or name of a run or sweep, default: the latest.
    """
    from pipeline.results import sweep_view
    from pipeline.run import stop

    return stop.stop(sweep_view.find(root, name))


@click.command()
@RUN
@HERE
@click.option("--stage", metavar="NAME", help="default: all stages")
@click.option("--level", type=click.Choice(LEVELS, case_sensitive=False), default="DEBUG",
              help="the least severe level shown")
@click.option("-f", "--follow", is_flag=True, help="show new lines as they come, until Ctrl-C")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="only the last N records of what is there")
def logs(name, root, stage, level, follow, tail):
    """Show the logs of a run's stages, trainers and explorers as one, by time.

    RUN is project/name or name of a run or sweep, default: the latest.
    """
    from pipeline.results import logs, sweep_view

    with contextlib.suppress(KeyboardInterrupt):  # how --follow ends
        logs.show(logs.choose(sweep_view.find(root, name).stages, stage), level, tail, follow)
