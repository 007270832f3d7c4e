"""`ouro env`: environments of other packages, each with a lock (docs/environments.md)."""

import click

from ouroboros.commands.config_commands import HERE


@click.group()
def env():
    """Lock the packages of an environment, and install them below the store."""


@env.command()
@click.argument("name")
@click.argument("requirements", nargs=-1, required=True)
@HERE
def lock(name, requirements, root):
    """Write environments/NAME/requirements.lock, with hashes, and install it.

    REQUIREMENTS are uv's, such as verifiers==0.4.0 or ./my_package-0.1-py3-none-any.whl.
    """
    from ouroboros.pipeline.store import locked

    print(locked.lock(name, list(requirements)))
    print(locked.install(name, root, lambda holder: click.echo(f"waiting: {holder} installs it", err=True)))


@env.command()
@click.argument("name")
@HERE
def install(name, root):
    """Install environments/NAME/requirements.lock below the store, where it is not there yet."""
    from ouroboros.pipeline.store import locked

    print(locked.install(name, root, lambda holder: click.echo(f"waiting: {holder} installs it", err=True)))
