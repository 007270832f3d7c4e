"""Commands of `ouro` that ask what stages hold: sql, doctor, report, compare, replay."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ouroboros.commands.config_commands import HERE, PATH, RUN, names, names_or_keys, words
from ouroboros.commands.process_commands import name_and_overrides
from ouroboros.pipeline.store.errors import DataError, QueryError, StageError

if TYPE_CHECKING:
    from ouroboros.pipeline.results.sweep_view import SweepView
    from ouroboros.pipeline.results.view import View

FORMAT = click.option("--format", "form", type=click.Choice(["table", "csv", "json"]), default="table",
                      help="default: table, which cuts long cells; csv and json write whole cells")
RUNS = words("runs", "[RUN]...", names)


class _Sql(click.Command):
    def parse_args(self, context, args):
        """Accepts a question that begins with a comment: no option has a blank or line break in its name."""
        return super().parse_args(context, [f" {a}" if a[:1] == "-" and a.partition("=")[0].split()[1:] else a
                                            for a in args])


@click.command(cls=_Sql)
@click.argument("question")
@RUNS
@HERE
@click.option("--all", "every", is_flag=True, help="all runs; the column `run` tells them apart")
@FORMAT
@click.option("--out", type=PATH, metavar="FILE", help="write the answer to FILE.parquet or FILE.csv")
@click.option("--with", "joined", multiple=True, metavar="name=FILE",
              help="a view over a parquet, csv, json or jsonl file of yours, to join with")
@click.option("--timeout", type=click.IntRange(1, 1_000_000), default=600, metavar="SECONDS",
              help="end a question that runs longer; default: 600")
def sql(question, runs, root, every, form, out, joined, timeout):
    """Ask the tables of runs or sweeps one read-only question.

    QUESTION is SQL over images, pictures, shown, raw, tasks, rejected, experience, curated, selection, profile,
    rollouts, calls, tool_calls, feedback, trained, reference, teacher, steps, samples, sample_shown, scores. RUN is
    project/name or name; default: the latest.
    """
    from ouroboros.pipeline.results import query, sweep_view
    from ouroboros.pipeline.results.view import views
    from ouroboros.pipeline.store.files import is_complete

    named = [] if every else [sweep_view.find(root, name) for name in runs or [None]]
    shown = views(root) if every else [run for one in named for run in sweep_view.runs_of(one)]
    if wrong := [word for word in joined if not all(word.partition("=")[::2])]:
        raise QueryError(f"--with {wrong[0]}: needed name=FILE, such as --with labels=labels.csv")
    tables = {name: Path(os.path.expanduser(file)) for name, _, file in (word.partition("=") for word in joined)}
    session = query.session(shown, tables)
    query.require_read_only(session, question)
    with query.time_limit(session, timeout):
        text = (f"{query.export(session, question, out)} rows written to {out}" if out else
                query.show(query.ask(session, question), form))
    for one in shown:
        if missing := [s.name for s in one.stages if not is_complete(s.directory)]:
            print(f"ouro: {one.run} is not complete; its tables lack what is still to come of {', '.join(missing)}",
                  file=sys.stderr)
    if text:
        print(text)


@click.command()
@RUN
@HERE
@FORMAT
@click.option("--onset", metavar="SQL", help="the rows that may have taught a behaviour, such as "
              "\"response ilike '%as an ai%'\": those with a positive advantage up to its onset")
def doctor(name, root, form, onset):
    """Look for what goes wrong in a run, also while it runs: rewards, replies, learning, machine.

    Each finding has its evidence, the settings to change, and its question for `ouro sql`; csv and json have what was
    found healthy too. RUN is project/name or name; default: the latest. Exits with 1 when something was found.
    """
    from ouroboros.pipeline.results import doctor, policies, query, sweep_view

    run = policies.single(sweep_view.find(root, name))
    if onset is not None:
        print(query.show(doctor.onset(query.session([run]), onset), form))
        return 0
    verdicts = doctor.of_run(run)
    print(doctor.text(verdicts, run) if form == "table" else query.show(doctor.answer(verdicts), form))
    return int(any(verdict.word == doctor.FOUND for verdict in verdicts))


@click.command()
@RUNS
@HERE
@click.option("--open", "browse", is_flag=True, help="open it in a browser")
def report(runs, root, browse):
    """Print where the report of a run or sweep is.

    RUN is project/name or name; default: the latest. The report of a sweep compares its points.
    """
    import webbrowser

    from ouroboros.pipeline.results import sweep_view

    for name in runs or [None]:
        print(page := written_report(sweep_view.find(root, name)))
        if browse and not webbrowser.open(page.resolve().as_uri()):
            print("ouro: no browser was found here; open the file by hand.", file=sys.stderr)


def written_report(shown: "View | SweepView") -> Path:
    """Returns the page of a run or sweep. Raises StageError while there is none."""
    if not shown.report.exists():
        raise StageError(f"{shown.run} has no report yet ({shown.report} does not exist). `ouro status {shown.run}` "
                         "shows how far it is; `ouro run` with the same overrides completes it.")
    return shown.report


@click.command()
@words("names", "[RUN | SWEEP]...", names)
@HERE
@click.option("--metric", metavar="NAME", help="default: sampled_accuracy, or sampled_reward without accuracies")
@FORMAT
def compare(names, root, metric, form):
    """Compare runs or the points of a sweep by their scores.

    Shows what differs between them, the best first, and of named ones how much better each is than the first named,
    where both answered the same tasks. Default: the points of the latest sweep; without sweeps, all runs.
    """
    from ouroboros.pipeline.results import query, sweep_view
    from ouroboros.pipeline.results.compare import answer, compared, metric_of, paired, rounded
    from ouroboros.pipeline.results.compare_page import write
    from ouroboros.pipeline.store.files import near

    shown = to_compare(root, names)
    rows = compared(shown, metric := metric or metric_of(shown))
    found = answer(rows, metric)
    print(query.show(rounded(found) if form == "table" else found, form))
    if names and form == "table":
        for line in paired([run for one in shown for run in sweep_view.runs_of(one)], metric):
            print(line)
    if len(shown) == 1 and isinstance(shown[0], sweep_view.SweepView):
        write(shown[0], rows, metric)
        print(f"picture: {near(shown[0].report)}", file=sys.stderr)


def to_compare(root: Path, names: Sequence[str]) -> "list[View | SweepView]":
    """Returns the named runs and sweeps, by default the latest sweep, else all runs. Raises DataError without any."""
    from ouroboros.pipeline.results import sweep_view

    known = [] if names else sweep_view.known(root)
    sweeps = [one for one in known if isinstance(one, sweep_view.SweepView)]
    shown = [sweep_view.find(root, name) for name in names] or sweeps[:1] or known
    if twice := [one.run for one in shown if [other.run for other in shown].count(one.run) > 1]:
        raise DataError(f"{twice[0]} is named twice, and trainings of one name are one run; needed different ones.")
    if not shown:
        raise DataError(f"no run below {root / 'runs'}. Start some with `ouro run`, or a sweep with `ouro run -m`.")
    return shown


@click.command()
@HERE
@FORMAT
def tree(root, form):
    """Show runs and what branches from them (`ouro run from=RUN@STEP`): steps, scores and what each changed."""
    from ouroboros.pipeline.results import query, tree
    from ouroboros.pipeline.results.compare import rounded
    from ouroboros.pipeline.results.view import views

    found = tree.tree(views(root))
    print(query.show(rounded(found) if form == "table" else found, form))


@click.command()
@words("given", "[RUN | algorithm=NAME | algorithm.KEY=VALUE]...", names_or_keys)
@HERE
@click.option("--step", type=int, help="trainer step; default: the last one whose weights are there")
@click.option("--stage", metavar="NAME", help="default: the last that trains on rollouts")
@FORMAT
def replay(given, root, step, stage, form):
    """Apply other algorithms to a stored train batch.

    Shows advantages, loss and gradient under each, and runs no rollout. A key may have several values, as in a sweep.
    """
    from ouroboros.pipeline.results import counterfactual, policies, sweep_view

    name, overrides = name_and_overrides(root, given)
    shown = policies.single(sweep_view.find(root, *name))
    chosen = counterfactual.choose_stage(shown, stage)
    request = counterfactual.prepare(shown, chosen, step, overrides)
    print(f"stage {chosen.name}: trainer step {request['step']} is computed again, in a process that loads the model "
          "first", file=sys.stderr, flush=True)
    found = counterfactual.ask(request)
    title = f"{shown.run}, stage {chosen.name}, trainer step {request['step']}"
    print("\n".join([title, *counterfactual.proof_lines(found["proof"]), ""]),
          file=sys.stdout if form == "table" else sys.stderr)
    print(counterfactual.table(found["rows"], form))
    return 0 if counterfactual.is_faithful(found["proof"]) else 1


@click.group()
def reward():
    """Try a corrected reward on the responses that a run has stored."""


@reward.command()
@words("given", "[RUN | RECIPE.yaml | key=value]...", names_or_keys)
@HERE
@click.option("--stage", metavar="NAME", help="default: the last that has rollouts")
@click.option("--json", "as_json", is_flag=True, help="everything, as JSON")
def diff(given, root, stage, as_json):
    """Reward the stored responses of a run again, without a model, and show what differs.

    By the reward functions of its configuration as they are now; by those of a recipe, or of overrides, if there are
    any. RUN is project/name or name; default: the latest. A run that is then started with the same words takes the
    steps up to the first with another reward.
    """
    from ouroboros.pipeline.compose.axes import word_of
    from ouroboros.pipeline.results import policies, reward_diff, sweep_view

    recipes = [word for word in given if word.endswith((".yaml", ".yml")) and "=" not in word]
    names, overrides = name_and_overrides(root, [word for word in given if word not in recipes])
    shown = policies.single(sweep_view.find(root, *names))
    chosen = reward_diff.choose(shown, stage)
    print(f"stage {chosen.name}: its responses are rewarded again", file=sys.stderr, flush=True)
    found = reward_diff.diff(shown, chosen, [*(word_of("recipe", one) for one in recipes), *overrides])
    print(reward_diff.as_json(found) if as_json else reward_diff.text(found))
