"""Rules for batches that are larger than the number of rows available to fill them.

An error where the rows are given or already explored; a warning where tasks would be sampled repeatedly.
"""


from ouroboros.pipeline.check.row_counts import most_rows
from ouroboros.pipeline.check.workload import workload
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.train_batch import given_batch, train_batch
from ouroboros.pipeline.store.errors import Problem


def unfillable_steps(recipe: Recipe) -> list[Problem]:
    """Lists optimizer steps that can never be filled."""
    found = {name: _short_of_given(settings) for name, settings in recipe.settings.items()
             if recipe.kinds[name].learns_from_given}
    for name, kind in recipe.kinds.items():
        if kind.is_offline and (source := recipe.explored(name)):
            found[name] = _short_of_explored(recipe.settings[name], recipe.settings[source], source)
    return [problem.of([name]) for name, problem in found.items() if problem]


def _short_of_given(settings: Config) -> Problem | None:
    (key, batch), rows = given_batch(settings.buffer), most_rows(settings, generated=True)
    if not rows or batch <= rows:  # stages without any are reported by other checks
        return None
    what = "pairs" if settings.algorithm.on_pairs else "demonstrations"
    return Problem(key, f"a step takes as many {what}, each once, and before curation there are at most {rows:,}: "
                   f"{batch - rows:,} short.", "Lower it.", found=f"{batch:,}")


def _short_of_explored(settings: Config, explored: Config, source: str) -> Problem | None:
    made, batch = workload(explored), settings.buffer.train_batch_size
    rows = None if made.explorer_steps is None else made.explorer_steps * made.explored
    if not batch or rows is None or batch <= rows:
        return None
    return Problem("buffer.train_batch_size", f"a step takes as many experiences, each once, and '{source}' explores "
                   f"at most {rows:,}: {batch - rows:,} short.", f"Lower it, or let {source} make more steps.",
                   found=f"{batch:,}")


def batch_notes(settings: Config) -> list[Problem]:
    """Returns the warning about a stage whose explorer steps or batches exceed its total number of tasks."""
    kind, buffer = settings.kind, settings.buffer
    tasks = most_rows(settings, generated=True) if kind.explores else None
    if not tasks:
        return []
    if buffer.batch_size > tasks:
        return [Problem("buffer.batch_size", f"there are at most {tasks:,} tasks, so every explorer step asks each of "
                        f"them {_readable(buffer.batch_size / tasks)} times, in as many groups.", "Lower it, or "
                        "give more tasks, if that is not meant.", found=f"{buffer.batch_size:,}")]
    fresh = train_batch(settings).fresh if kind.is_online else 0
    passes = fresh / (tasks * (settings.algorithm.repeat_times or 1))
    return [Problem("buffer.train_batch_size", f"one optimizer step takes the rollouts of {_readable(passes)} passes "
                    f"over all tasks (at most {tasks:,}).", "Lower it if that is not intended.",
                    found=f"{buffer.train_batch_size:,}")] if passes > 1 else []


def _readable(number: float) -> str:
    """Formats a number: `1.5`, `20`, `625,000`."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
