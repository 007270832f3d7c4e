"""The commands of `ouro` about files in the store: verify, gc."""

import click

from pipeline.config_commands import HERE, RUN


@click.command()
@RUN
@HERE
def verify(name, root):
    """Compare every file of a run or sweep with what was written.

    Also checks that the rows of its tables belong together. RUN is project/name or name; default: the latest. Exits
    with 1 when something is damaged.
    """
    from pipeline.results import sweep_view, verification

    found = verification.verify(sweep_view.find(root, name))
    print(verification.report(found))
    return int(any(verdict.problems for verdict in found))


@click.command()
@HERE
@click.option("--delete", is_flag=True, help="delete what is listed")
def gc(root, delete):
    """List what no run needs in store/, and its size; with --delete, delete it.

    Stages of no run, checkpoints before the last one of a complete stage, and what killed processes left. What a
    running stage holds is not listed.
    """
    from pipeline.results import unreferenced

    found = unreferenced.find(root)
    if delete:
        unreferenced.remove(found)
    print(unreferenced.report(found, delete))
