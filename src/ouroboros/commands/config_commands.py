"""`ouro config`, `ouro stages` and `ouro import`: what is known of a configuration before it runs."""

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import click

from ouroboros.pipeline.store.errors import ConfigError, masked


def words(name: str, metavar: str, complete: Callable | None = None):
    """A click argument that takes any number of words, as a list. complete: as click's shell_complete."""
    return click.argument(name, nargs=-1, metavar=metavar, callback=lambda *given: list(given[-1]),
                          shell_complete=complete)


class _Path(click.Path):
    """A path; `~` is the home directory, as a shell leaves it in --root=~/runs."""

    def convert(self, value, param, context):
        if value == "":
            self.fail("needed a path, found none.", param, context)
        return Path(os.path.expanduser(super().convert(value, param, context)))  # `~x` of no user is a name


def names(context: click.Context, _, begun: str) -> list[str]:
    """Completes the name of a run or sweep below --root."""
    from ouroboros.pipeline.results.sweep_view import known

    names = [one.run for one in known(context.params.get("root") or Path())]
    return [name for whole in names for name in (whole, whole.partition("/")[2]) if name.startswith(begun)]


def _overrides(context: click.Context, _, begun: str) -> list[str]:
    """Completes `key=` with groups of conf/ and keys of settings, and `recipe=NAME` and others with what is there."""
    from ouroboros.pipeline.compose.conf_files import groups
    from ouroboros.pipeline.settings.schema import defaults
    from ouroboros.pipeline.settings.setting import leaves

    known, before = groups(), context.params.get("overrides") or []
    if before[-1:] == ["="]:  # bash splits words at =
        return [name for group in before[-2:-1] for name in known.get(group, ()) if name.startswith(begun)]
    group, equals, name = begun.partition("=")
    if equals:
        return [f"{group}={one}" for one in known.get(group, ()) if one.startswith(name)]
    keys = dict.fromkeys((*known, *(key for key, _ in leaves(defaults()))))
    return [f"{key}=" for key in keys if key.startswith(begun)]


def names_or_keys(*given) -> list[str]:
    """Completes what names a run or sets a key."""
    return names(*given) + _overrides(*given)


def recipes(context: click.Context, argument, begun: str) -> list[str]:
    """Completes the name of a recipe."""
    return [word.partition("=")[2] for word in _overrides(context, argument, f"recipe={begun}")]


PATH = _Path()
RUN = click.argument("name", required=False, metavar="[RUN]", shell_complete=names)
OVERRIDES = words("overrides", "[key=value]...", _overrides)
HERE = click.option("--root", type=PATH, default=Path(), metavar="DIR",
                    help="directory that holds runs/ and store/ (checkpoint_root_dir); default: here")


@click.group()
def config():
    """Check, show, explain or compare configurations."""


@click.command()
@OVERRIDES
@click.option("--no-data", is_flag=True, help="read no samples of the data files, and import no code of yours (faster)")
@click.option("--no-call", is_flag=True,
              help="call no reward function of yours (for 3 seconds each; a judge may cost money), start no MCP server "
                   "and ask no judge's server")
@click.option("--elsewhere", is_flag=True,
              help="the run is for another machine: what is not on this one is listed, and no problem")
@click.option("--probe", is_flag=True, help="before, make a few steps of each stage that trains, to tell their times")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text",
              help="json: every problem by its parts (key, found, needed, do, stages, file, line)")
def check(overrides, no_data, no_call, elsewhere, probe, form):
    """List everything that is wrong, or the plan in numbers.

    Judges the settings, the data and the fit to the machine.
    """
    from ouroboros.pipeline.check.preflight import report_on
    from ouroboros.pipeline.compose.compose import TITLE

    if probe:
        from ouroboros.commands.run.probe import probe as make_steps

        make_steps(overrides)
    report = report_on(overrides, elsewhere, not no_data, not no_call)
    if form == "text" and not report.run:
        raise ConfigError.of(TITLE, report.problems)
    print(report.text() if form == "text" else report.as_json())
    return 2 if report.problems else 0


@click.command()
@OVERRIDES
def show(overrides):
    """Print the composed configuration as YAML, secrets masked."""
    from ouroboros.pipeline.check import explain
    from ouroboros.pipeline.check.judge import compose

    print(masked(explain.show(compose(overrides))))


@click.command()
@click.argument("key")
@OVERRIDES
def explain(key, overrides):
    """Explain a setting, or list those below a prefix.

    Shows type, meaning, bounds, default, value and where that comes from, of algorithm.optimizer.lr or trainer, say.
    """
    from ouroboros.commands.bridges.page import of_verl
    from ouroboros.pipeline.check import explain
    from ouroboros.pipeline.check.judge import judged
    from ouroboros.pipeline.compose.compose import TITLE

    composed, problems = judged(overrides)
    print(masked(explain.explain(composed, key, overrides, not problems, of_verl)), flush=True)
    if problems:  # what is wrong may be the very thing that is asked for
        raise ConfigError.of(TITLE, problems)


@click.command()
@click.argument("a", shell_complete=names)
@click.argument("b", shell_complete=names)
@HERE
def diff(a, b, root):
    """Show in which settings and stages two runs differ.

    A and B are each a run (project/name or name), or overrides in quotes.
    """
    from ouroboros.pipeline.results.difference import difference_lines, sides

    print(masked("\n".join(difference_lines(*sides(root, a, b)))))


@click.command()
def schema():
    """Print the JSON schema of recipes, for editors."""
    import json

    from ouroboros.pipeline.settings.editor_schema import editor_schema

    print(json.dumps(editor_schema(), indent=1, ensure_ascii=False))


@click.command()
def reference():
    """Print every setting, with bounds and meaning, as Markdown."""
    from ouroboros.pipeline.check import explain

    print(explain.reference(), end="")


@click.command()
@OVERRIDES
@click.option("--write", is_flag=True, help="write stage.json and the run's view; runs nothing")
def stages(overrides, write):
    """List the stages of a configuration and their commands."""
    from ouroboros.commands.run.planning import make_checked_plan

    plan = make_checked_plan(overrides)
    if write:
        plan.freeze()
    for stage in plan.stages:
        print(f"{stage.name}  ({stage.kind})\n  directory  {stage.directory}")
        for role, directory in stage.inputs.items():
            print(f"  input      {role} = {directory}")
        for directory in stage.waits:
            print(f"  waits for  {directory}")
        print(f"  command    {shlex.join([sys.executable, '-m', stage.kind.module, stage.directory])}")
    if not write:
        print("\n`ouro stages --write` makes the directories, so that the commands can be typed.")


@click.command("import")
@click.argument("kind", type=click.Choice(["trinity", "verl", "keys"]), metavar="trinity|verl|keys")
@click.argument("file", required=False)
@click.option("--name", help="of the recipe: conf/recipe/NAME.yaml; default: the name of the run")
@click.option("--output", metavar="FILE", help="another place for the recipe")
@click.option("--stdout", is_flag=True, help="print the recipe, write no file")
@click.option("--force", is_flag=True, help="replace a recipe that says something else")
def import_(kind, file, **recipe):
    """Translate a configuration of Trinity-RFT or veRL.

    Writes conf/recipe/NAME.yaml. Every key is accounted for. FILE may be - for the standard input.

    \b
    ouro import trinity FILE    a YAML file of Trinity-RFT
    ouro import verl FILE       a launch script, overrides or YAML file of veRL
    ouro import keys            every key of both, and what it is here, as a Markdown page
    """
    from ouroboros.commands.bridges import command

    if (file is None) != (kind == "keys"):
        raise click.UsageError("needed: ouro import trinity FILE, ouro import verl FILE, or ouro import keys")
    if kind == "keys":
        return command.import_keys()
    work = command.import_trinity if kind == "trinity" else command.import_verl
    return work(file, SimpleNamespace(**recipe))


for each in (check, show, explain, diff, reference, schema):
    config.add_command(each)
