"""The commands of `ouro` about what a run has stored: view, studio, note, verify, fetch, gc, weights and others;
`ouro env`: environments of other packages, each with a lock (docs/environments.md)."""

import click

from ouroboros.commands.config_commands import HERE, PATH, RUN, recipes


@click.command()
@RUN
@HERE
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="default: 0, a free one")
@click.option("--open", "browse", is_flag=True, help="open it in a browser")
@click.option("--export", "out", type=PATH, metavar="DIR", help="write the page of the run to a new directory, to be "
                                                                "opened from disk: all curves, a sample of rollouts")
def view(name, root, port, browse, out):
    """Show runs in a browser: stages live, curves, evaluations, every rollout, SQL.

    A page that only this machine can open, at the address that is printed; from another one, with
    `ssh -L PORT:localhost:PORT`. Ctrl-C ends it. RUN is what it begins with; default: the latest.
    """
    from ouroboros.commands.web import app, export

    if out is not None:
        print(export.write(root, name, out))
    else:
        app.serve(root, port, _opening(browse), name)


@click.command()
@click.argument("file", required=False, metavar="[RECIPE]", shell_complete=recipes)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="default: 0, a free one")
@click.option("--open", "browse", is_flag=True, help="open it in a browser")
def studio(file, port, browse):
    """Write recipes in a browser: every setting explained, checked while it is typed; start runs.

    A page that only this machine can open, at the address that is printed. RECIPE is the name of one that is shipped,
    or a .yaml file below this directory; recipes are saved in conf/recipe/ or here. Ctrl-C ends it, and no run.
    """
    from ouroboros.commands.web import studio

    studio.serve(port, _opening(browse), file)


@click.command()
@RUN
@HERE
@click.option("--tag", "tags", multiple=True, metavar="WORD", help="add a tag")
@click.option("--untag", "removed", multiple=True, metavar="WORD", help="remove a tag")
@click.option("--text", metavar="NOTE", help="in place of the note; '' for none")
def note(name, root, tags, removed, text):
    """Show the tags and the note of a run, or change them; the table of runs in `ouro view` has both.

    RUN is project/name or name; default: the latest.
    """
    from ouroboros.pipeline.results import notes, sweep_view

    run = sweep_view.find(root, name)
    if tags or removed or text is not None:
        notes.change(run, tags, removed, text)
    kept = notes.read(run)
    print(f"{run.run}: {' '.join(kept['tags']) or 'no tags'}", *filter(None, [kept["note"]]), sep="\n")


def _opening(browse: bool):
    """Returns what prints the address of a page, and opens it in a browser."""
    import threading
    import webbrowser

    def browser(address: str) -> None:
        if not webbrowser.open(address):
            click.echo("ouro: no browser was found here; open the address by hand.", err=True)

    def opened(address: str) -> None:
        print(address, flush=True)
        if browse:  # a browser of the terminal ends when it is closed
            threading.Thread(target=browser, args=(address,), daemon=True).start()

    return opened


@click.command()
@RUN
@HERE
def verify(name, root):
    """Compare every file of a run or sweep with what was written.

    Also checks that the rows of its tables belong together. RUN is project/name or name; default: the latest. Exits
    with 1 when something is damaged.
    """
    from ouroboros.pipeline.results import sweep_view, verification

    found = verification.verify(sweep_view.find(root, name))
    print(verification.report(found))
    return int(any(verdict.problems for verdict in found))


@click.command()
@click.argument("package", metavar="PACKAGE")
def fetch(package):
    """Install a package of tasks next to the project, in .packages/: chosen versions, with their hashes.

    PACKAGE is the first word of a path such as reasoning-gym://gsm_symbolic (docs/tasks.md).
    """
    from ouroboros.pipeline.store import packages

    print(packages.fetch(package))


@click.command()
@HERE
@click.option("--delete", is_flag=True, help="delete what is listed")
def gc(root, delete):
    """List what no run needs in store/ and images/, and its size; with --delete, delete it.

    Stages of no run, checkpoints before the last one of a complete stage, images of Harbor tasks that no stage built,
    and what killed processes left. What a running stage holds is not listed.
    """
    from ouroboros.pipeline.results import unreferenced

    found = unreferenced.find(root)
    if delete:
        found = unreferenced.remove(found)
    print(unreferenced.report(found, delete))


@click.command()
@RUN
@HERE
@click.option("--step", type=int, help="trainer step; without it: list the steps whose weights are kept")
@click.option("--out", type=PATH, metavar="DIR", help="a new directory for the model")
@click.option("--stage", metavar="NAME", help="default: the last training stage")
def weights(name, root, step, out, stage):
    """Make a Hugging Face directory of the weights that a training stage had after a step.

    Rebuilt from the checkpoint of the step, or from the published version and those that it changes, and compared
    with their hashes. Without --step, lists what is kept and its size.
    """
    from ouroboros.pipeline.job.policies import rebuild
    from ouroboros.pipeline.results import policies, sweep_view

    chosen = policies.choose_stage(policies.single(sweep_view.find(root, name)), stage)
    if step is None and out is not None:
        raise click.UsageError("--out needs --step N; `ouro weights` without either lists the steps.")
    if step is None:
        print(policies.table(chosen))
        return
    if out is None:
        raise click.UsageError("--step needs --out DIR, a new directory for the model.")
    print(f"{out}: weights {rebuild(chosen.directory, step, out)} of stage {chosen.name} after step {step}")


@click.command()
@RUN
@HERE
@click.option("--out", type=PATH, metavar="DIR", required=True, help="a new directory")
@click.option("--stage", metavar="NAME", help="default: the last training stage, once it is complete")
@click.option("--push", metavar="ORG/NAME", help="upload it to the Hugging Face hub, to a private repository if new")
def export(name, root, out, stage, push):
    """Write the trained model of a run, with a model card, to a directory for transformers and vLLM.

    The card has data, rewards, scores with intervals, and hashes. A LoRA is merged. Weights of other steps: ouro
    weights.
    """
    from ouroboros.pipeline.results import model_export, sweep_view

    for line in model_export.export(sweep_view.find(root, name), out, stage, push):
        print(line, flush=True)


@click.command()
@RUN
@HERE
@click.option("--steps", required=True, metavar="N,N,…", help="trainer steps whose weights are kept (ouro weights)")
@click.option("--profile", type=click.Choice(["slurm"]), help="submit stages as jobs of SLURM (cluster.slurm.*)")
def evaluate(name, root, steps, profile):
    """Evaluate the weights that the stages of a run had after chosen steps.

    Runs the configuration of the run again with mode=bench explorer.bench_steps=[N,…]: ordinary stages, of which what
    was scored before is not scored again.
    """
    from ouroboros.commands.run import invoke
    from ouroboros.pipeline.compose.axes import key_of
    from ouroboros.pipeline.results import policies, sweep_view

    try:
        numbers = [int(one) for one in steps.split(",")]
    except ValueError as error:
        raise click.UsageError(f"--steps {steps}: needed trainer steps, such as 0,50,100.") from error
    asked = ["mode=bench", f"explorer.bench_steps={numbers}".replace(" ", "")]
    keys = {key_of(one) for one in asked}  # of an evaluation before this one
    words = [one for one in policies.words_of(sweep_view.find(root, name)) if key_of(one) not in keys]
    return invoke.run([*words, *asked], [], multirun=False, verbose=False, update_hub=False, profile=profile)[0]


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
