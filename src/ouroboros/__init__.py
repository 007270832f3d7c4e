"""Ouroboros from Python: runs and their tables, checks, runs, rewards (docs/sql.md)."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

    from ouroboros.pipeline.check.report import Report

__all__ = ["Reward", "Tables", "check", "reward", "run", "runs", "tables"]


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


def runs(root: str | Path = ".") -> list[str]:
    """Returns the names of runs and sweeps, `project/name`, the one launched last first.

    root: where `runs/` and `store/` are (checkpoint_root_dir).
    """
    from ouroboros.pipeline.results.sweep_view import known

    return [shown.run for shown in known(Path(root))]


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


def run(recipe: str | None = None, *overrides: str, snakemake: tuple[str, ...] = ()) -> str:
    """Makes every stage that is not complete, as `ouro run` does, and returns the name of the run, `project/name`.

    snakemake: arguments for it. Raises ConfigError for problems of the recipe, StageError when a stage fails; what
    failed, its log and the command to continue are printed. Blocks until the end; Ctrl-C (or the notebook's interrupt)
    stops it, and the same call continues it.
    """
    from ouroboros.commands.run import invoke
    from ouroboros.pipeline.check.judge import compose
    from ouroboros.pipeline.store.errors import StageError

    words = _words(recipe, overrides)
    code = invoke.run(words, list(snakemake), multirun=False, verbose=False, update_hub=False)
    if code:
        raise StageError(f"the run ended with exit code {code}; the lines above say why.")
    config = compose(words)
    return f"{config.project}/{config.name}"


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


def _words(recipe: str | None, overrides: tuple[str, ...]) -> list[str]:
    return [*([f"recipe={recipe}"] if recipe else []), *overrides]
