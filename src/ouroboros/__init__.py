"""Ouroboros from Python: training, runs and their tables, checks, rewards (docs/python.md)."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import click
    import duckdb
    import pandas as pd

    from ouroboros.pipeline.check.report import Report

__all__ = ["Reward", "Run", "Tables", "check", "compare", "evaluate", "export", "init", "replay", "reward", "run",
           "runs", "serve", "tables", "train"]


def __dir__() -> list[str]:
    return [*__all__]  # without the packages that are imported meanwhile


class Tables(Mapping):
    """The tables of one run, or of all points of a sweep, by name: raw, tasks, experience, steps, scores and others.

    A value is a relation of DuckDB: `.df()`, `.pl()` and `.arrow()` read it, `.filter("step > 10")` narrows it first.
    Columns `run` and, for data, `stage` come first; docs/sql.md describes the others. The session is read-only.
    """

    def __init__(self, session: "duckdb.DuckDBPyConnection", names: tuple[str, ...]):
        self._session, self._names = session, names

    def __getitem__(self, name: str) -> "duckdb.DuckDBPyRelation":
        if name not in self._names:
            raise KeyError(name)
        return self._session.view(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def sql(self, question: str) -> "duckdb.DuckDBPyRelation":
        """Returns the answer to one SELECT. Raises QueryError for anything else."""
        from ouroboros.pipeline.results.query import relation

        return relation(self._session, question)


class Reward(float):
    """The reward of a response: the sum of its components, which are numbers by name."""

    components: dict[str, float]

    def __new__(cls, components: Mapping[str, float]):
        made = super().__new__(cls, sum(components.values()))
        made.components = dict(components)
        return made

    def __reduce__(self):  # a float's own copies the number alone: pickle and deepcopy
        return Reward, (self.components,)


class Run(str):
    """A run or sweep: the text `project/name`, which every function and command takes, with what it has made.

    root: the directory that holds runs/ and store/.
    """

    root: Path

    def __new__(cls, name: str, root: str | Path = "."):
        made = super().__new__(cls, name)
        made.root = Path(root)
        return made

    def __reduce__(self):
        return Run, (str(self), self.root)

    @property
    def tables(self) -> Tables:
        """All tables, as they are now."""
        return tables(self, self.root)

    def table(self, name: str) -> "duckdb.DuckDBPyRelation":
        """Returns one of them: `.df()` is a data frame. Raises KeyError for another name."""
        return self.tables[name]

    @property
    def scores(self) -> "duckdb.DuckDBPyRelation":
        """What the evaluations measured: model, step, set, metric, value, ends of its 95% interval. `table("scores")`
        has all columns."""
        return self.table("scores").project("model, step, taskset, metric, value, low, high")

    def policy(self, step: int | None = None, stage: str | None = None) -> Path:
        """Returns a Hugging Face directory of the weights after a trainer step, by default the last that is kept.

        It is made below runs/, and verified, when it is first asked for. Raises DataError for a step that is not kept.
        """
        from ouroboros.pipeline.results import policies

        shown = policies.single(self._shown())
        chosen = policies.choose_stage(shown, stage)
        return policies.directory(shown, chosen, step)

    def report(self) -> Path:
        """Returns the page of the run. Raises StageError while there is none."""
        from ouroboros.commands.result_commands import written_report

        return written_report(self._shown())

    def export(self, out: str | Path, stage: str | None = None, push: str | None = None) -> Path:
        """Writes the trained model with a model card to a new directory, as `ouro export`, and returns it."""
        from ouroboros.pipeline.results import model_export

        for line in model_export.export(self._shown(), Path(out), stage, push):
            print(line)
        return Path(out)

    def _shown(self):
        from ouroboros.pipeline.results import sweep_view

        return sweep_view.find(self.root, self)


def train(model: str | os.PathLike | Mapping[str, Any], data: Any,
          reward: str | Callable | Sequence[str | Callable] | None = None,
          algorithm: str | Mapping[str, Any] = "grpo", *, steps: int | None = None, eval_data: Any = None,
          sft_data: Any = None, tools: str | Callable | Sequence[str | Callable] | None = None,
          workflow: str | Callable | None = None, prompt_key: str | None = None, response_key: str | None = None,
          **settings: Any) -> Run:
    """Trains a model on rows, as `ouro run` of the recipe conf/recipe/NAME.yaml that this writes, and returns the run.

    model: a directory, an id of the hub, a GGUF file, or the section `model`. data, eval_data, sft_data: a list of
    dicts, a table (pandas, pyarrow, polars), a datasets.Dataset, a path or an id of the hub; the last two are
    evaluated, and imitated before. reward: functions as of docs/own-rewards.md, or their names; needed unless answers
    are numbers or formulas. algorithm: a name, or the section. steps: of the optimizer; by default the passes over the
    rows that init chooses. tools, workflow: functions, as of docs/tools.md and docs/workflows.md. prompt_key,
    response_key: columns of data, where their names do not tell. settings: any others, by name (`seed=2`,
    `trainer={"save_interval": 10}`) or dotted (`**{"algorithm.optimizer.lr": 1e-5}`); they take precedence.

    Raises ConfigError and DataError for what cannot be run, before a stage starts. Blocks as `run` does; the same call
    continues, and does nothing once all is made.
    """
    from ouroboros.commands.training import write_recipe

    return run(write_recipe(model, data, reward, algorithm, steps, eval_data, sft_data, tools, workflow, prompt_key,
                            response_key, settings))


def runs(root: str | Path = ".") -> list[Run]:
    """Returns the runs and sweeps, `project/name`, the one launched last first.

    root: where `runs/` and `store/` are (checkpoint_root_dir).
    """
    from ouroboros.pipeline.results.sweep_view import known

    return [Run(shown.run, root) for shown in known(Path(root))]


def tables(name: str | None = None, root: str | Path = ".") -> Tables:
    """Returns the tables of a run or sweep; without a name, of the one launched last.

    name: as in `ouro sql`: NAME, PROJECT/NAME or a directory under runs/. Raises DataError when there is none.
    """
    from ouroboros.pipeline.results import query, sweep_view
    from ouroboros.pipeline.store.tables import LOCATIONS

    views = sweep_view.runs_of(sweep_view.find(Path(root), name))
    return Tables(query.session(views), tuple(LOCATIONS))


def check(recipe: str | None = None, *overrides: str, data: bool = True, call: bool = True) -> "Report":
    """Returns what `ouro config check` finds: `problems`, `warnings`, `unjudged`, `facts`; `.text()` is its page.

    recipe: a name in conf/recipe/ or a file; None: the default one. overrides: `key=value` each. data: whether to read
    a sample of the data files, sizes of models, and the user's code. call: whether to call reward functions and servers
    too.
    """
    from ouroboros.pipeline.check.preflight import report_on

    return report_on(_words(recipe, overrides), data=data, call=call)


def run(recipe: str | None = None, *overrides: str, snakemake: tuple[str, ...] = ()) -> Run:
    """Makes every stage that is not complete, as `ouro run` does, and returns the run.

    snakemake: arguments for it. Raises ConfigError for problems of the recipe, StageError when a stage fails; what
    failed, its log and the command to continue are printed. Blocks until the end; Ctrl-C (or the notebook's interrupt)
    stops it, and the same call continues it.
    """
    from ouroboros.commands.run import invoke
    from ouroboros.pipeline.store.errors import StageError

    code, made = invoke.run(_words(recipe, overrides), list(snakemake), multirun=False, verbose=False, update_hub=False)
    if code:
        raise StageError(f"the run ended with exit code {code}; the lines above say why.")
    return Run(f"{made.project}/{made.name}", made.view.parents[2])


def init(directory: str | Path, *, template: str | None = None, data: str | Path | None = None,
         model: str | Path | None = None, **keys: str) -> Path:
    """Writes a project directory, as `ouro init`, and returns it. keys: columns of the data, prompt_key and others."""
    from ouroboros.commands.cli import init

    columns = dict.fromkeys(("prompt_key", "response_key", "chosen_key", "rejected_key")) | keys
    _call(init, directory=Path(directory), name=None, template=template, data=data and str(data),
          model=model and str(model), **columns)
    return Path(directory)


def evaluate(name: str, steps: Sequence[int], root: str | Path = ".") -> Run:
    """Evaluates the weights that a run had after these trainer steps, as `ouro evaluate`; the table is `scores`."""
    from ouroboros.commands.store_commands import evaluate

    _call(evaluate, name=name, root=Path(root), steps=",".join(map(str, steps)), profile=None)
    return Run(name, root)


def compare(*names: str, metric: str | None = None, root: str | Path = ".") -> "pd.DataFrame":
    """Returns a row for each run, the best first: what differs between them, and their scores, as `ouro compare`.

    names: of runs or sweeps; without any, the points of the latest sweep, else all runs. metric: by default accuracy.
    """
    import pandas as pd

    from ouroboros.commands.result_commands import to_compare
    from ouroboros.pipeline.results.compare import answer, compared, metric_of

    shown = to_compare(Path(root), names)
    found = answer(compared(shown, chosen := metric or metric_of(shown)), chosen)
    return pd.DataFrame(found.rows, columns=found.columns)


def replay(name: str, *overrides: str, step: int | None = None, stage: str | None = None,
           root: str | Path = ".") -> "pd.DataFrame":
    """Applies other algorithms to a stored train batch, as `ouro replay`; returns a row for each, with advantages, loss
    and gradient. overrides: `algorithm=NAME` or `algorithm.KEY=VALUE` each. Raises StageError where the numbers of the
    run itself are not found again.
    """
    import pandas as pd

    from ouroboros.pipeline.results import counterfactual, policies, sweep_view
    from ouroboros.pipeline.store.errors import StageError

    shown = policies.single(sweep_view.find(Path(root), name))
    chosen = counterfactual.choose_stage(shown, stage)
    found = counterfactual.ask(counterfactual.prepare(shown, chosen, step, [*overrides]))
    if not counterfactual.is_faithful(found["proof"]):
        raise StageError("\n".join(counterfactual.proof_lines(found["proof"])))
    return pd.DataFrame.from_dict(found["rows"], orient="index")


def serve(model: str, *overrides: str, stage: str | None = None, engine: str | None = None, host: str = "127.0.0.1",
          port: int = 8000, token_env: str | None = None, record: str | Path | None = None,
          root: str | Path = ".") -> None:
    """Answers clients of OpenAI and Anthropic with a model, or that of a run, as `ouro serve`, until interrupted."""
    from ouroboros.commands.agent_commands import serve

    _call(serve, model=model, overrides=[*overrides], root=Path(root), stage=stage, engine=engine, token=False,
          token_env=token_env, without_feedback="keep", host=host, port=port, record=record and Path(record),
          per_step=32, wait=3600.0)


def export(name: str, out: str | Path, stage: str | None = None, push: str | None = None,
           root: str | Path = ".") -> Path:
    """Writes the trained model of a run with a model card to a new directory, as `ouro export`, and returns it."""
    return Run(name, root).export(out, stage, push)


def reward(name: str, **arguments: Any) -> Callable[[str, str], Reward]:
    """Returns a reward function by its name in a recipe, as a function of (response, answer), both texts.

    name: `accuracy_reward`, `countdown_reward`, `format_reward` or the user's `module:function`, of the current
    directory too. arguments: reward_fn_args. Raises ConfigError for an unknown name or argument. The function raises
    DataError where a row of a run would have failed: a malformed answer (ground truth), an exception, no number; and
    where the function has a parameter `completion_ids`, ids of sampled tokens, which texts do not have.
    """
    from ouroboros.workflows.rewards import of_texts

    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    rewarded = of_texts(name, arguments)
    return lambda response, answer: Reward(rewarded(response, answer))


def _call(command: "click.Command", **given: Any) -> None:
    """Calls what a command of `ouro` calls. Raises StageError where the command would exit with another code than 0."""
    import click

    from ouroboros.pipeline.store.errors import ConfigError, StageError

    assert command.callback
    try:
        code = command.callback(**given)
    except click.UsageError as error:
        raise ConfigError(error.message) from error
    if code:
        raise StageError(f"it ended with exit code {code}; the lines above say why.")


def _words(recipe: str | None, overrides: tuple[str, ...]) -> list[str]:
    return [*([f"recipe={recipe}"] if recipe else []), *overrides]
