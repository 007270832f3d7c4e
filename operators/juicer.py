"""The Data-Juicer wrapper: runs recipes and operators so that every dropped row has a reason.

A recipe is Data-Juicer's own YAML: `process:` lists operators with their arguments, `text_keys:` names the column that
they read (default `question`; an operator's own `text_key` takes precedence). Differences from its executor: it runs in
this process on batches of rows without Ray; a failing operator always fails the stage; nothing is ever installed at run
time; every filter computes its own statistics instead of reusing those of an earlier filter with the same name. Our own
operators, OURS in operators/curation.py, are registered in addition to Data-Juicer's.
"""

import contextlib
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ouroboros.operators import asked
from ouroboros.operators.curation import META, OURS, STATS, Dropped, Row
from ouroboros.operators.juicer_processes import OF_THE_USER, apart
from ouroboros.operators.juicer_recipes import items, text_key_of
from ouroboros.operators.juicer_whole import ALWAYS, Whole
from ouroboros.pipeline.store.errors import ConfigError, OuroError, StageError, nearest

BATCH = 1000  # rows passed to an operator at once
SHOWN = 100  # characters of a statistic in a reason
REQUIRED = ("question", "answer")


def build(recipe: dict, text_key: str = "question") -> list:
    """The operators of a recipe. text_key: column that they read where the recipe names none. Raises ConfigError."""
    return [_build(*item, text_key_of(recipe, text_key)) for item in items(recipe)]


def required(rows: Sequence[Row]) -> tuple[list[Row], list[Dropped]]:
    """The rows as operators take them, with the columns STATS and META; without question or answer one is dropped."""
    kept, dropped = [], []
    for row in rows:
        missing = [name for name in REQUIRED if row[name] is None]
        if missing:
            dropped.append(Dropped(row["row"], "required_columns", f"{' and '.join(missing)} is null"))
        else:
            kept.append({**row, STATS: {}, META: {}})
    return kept, dropped


def faults(recipe: dict, text_key: str = "question") -> list[str]:
    """Faults in a recipe's operators and arguments, one line each, without running any. text_key: as for `build`."""
    found, each = [], items(recipe)
    while True:
        try:
            name, arguments = next(each)
            found += wrong_kinds(name, type(_build(name, arguments, text_key_of(recipe, text_key))), arguments)
        except StopIteration:
            return found
        except ConfigError as error:
            found.append(str(error))


def _import_data_juicer():
    """Imports Data-Juicer without Ray and its run-time package installation; returns its base module."""
    os.environ.update(UV_OFFLINE="1", PIP_NO_INDEX="1")
    for name, attribute in (("tracer.ray_tracer", "RayTracer"), ("data.ray_dataset", "RayDataset")):
        module = types.ModuleType(f"data_juicer.core.{name}")
        setattr(module, attribute, type(attribute, (), {}))
        sys.modules.setdefault(module.__name__, module)
    from data_juicer.utils.lazy_loader import LazyLoader

    LazyLoader._install_package = classmethod(_refuse_install)
    import datasets
    from data_juicer.ops import base_op
    from loguru import logger

    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    datasets.disable_progress_bars()
    for name, make in OURS.items():
        if name not in base_op.OPERATORS.modules:
            base_op.OPERATORS.register_module(name, make(base_op))
    return base_op


def _refuse_install(cls, package: str, *_):
    raise ImportError(f"it needs the package '{package}', which is not installed")


def _build(name: str, arguments: dict, text_key: str):
    """One operator of a recipe."""
    known = _import_data_juicer().OPERATORS.modules
    if name not in known:
        raise ConfigError(f"unknown Data-Juicer operator '{name}'.{nearest(name, known)} "
                          f"{len(known)} are known; ours: {', '.join(OURS)}.")
    if name.startswith("ray_"):
        raise ConfigError(f"operator '{name}' runs on Ray, which is not here. Take the one without ray_, or "
                          "document_minhash_deduplicator.")
    accepted = _accepted(known[name])
    for argument in arguments:
        if argument not in accepted:
            raise ConfigError(f"operator '{name}' has no argument '{argument}'.{nearest(argument, accepted)}")
    from data_juicer.ops.load import load_ops

    try:
        operator = _telling(load_ops([{name: {"text_key": text_key, **arguments, **ALWAYS}}])[0])
    except Exception as error:  # a constructor may raise anything, due to its arguments or a missing package
        raise ConfigError(f"operator '{name}' cannot be made with {arguments} "
                          f"({type(error).__name__}: {error}).") from error
    if package := _absent_package(operator):
        raise ConfigError(f"operator '{name}' needs the package '{package}', which is not installed. Install it, or "
                          "take the operator out.")
    return operator


def _absent_package(operator) -> str | None:
    """The package that an operator, or a model that it prepares, loads once it runs, and which is not installed."""
    from data_juicer.utils import model_utils
    from data_juicer.utils.lazy_loader import LazyLoader

    models = [one.func.__name__.removeprefix("prepare_").removesuffix("_model") for one in vars(operator).values()
              if isinstance(one, partial)]
    used = [*vars(sys.modules[type(operator).__module__]).values(), *map(vars(model_utils).get, models)]
    return next((vars(one)["_package_name"] for one in used if type(one) is LazyLoader
                 and importlib.util.find_spec(vars(one)["_module_name"].partition(".")[0]) is None), None)


def _telling(operator):
    """The operator; one that asks a server's chat model with a model that tells errors (operators/asked.py)."""
    from data_juicer.utils.common_utils import nested_access
    from data_juicer.utils.model_utils import ChatAPIModel, get_model

    key = getattr(operator, "model_key", None)
    model = get_model(key) if getattr(getattr(key, "func", None), "__name__", "") == "prepare_api_model" else None
    if isinstance(model, ChatAPIModel):
        import httpx

        def post(body: dict[str, Any]) -> Any:
            answer = model._client.post(model.endpoint, body=body, cast_to=httpx.Response)
            return nested_access(answer.json(), model.response_path)

        operator.asked = asked.Model(post, model.model)
        operator.model_key = lambda device=None: operator.asked  # what Data-Juicer makes the model by
    return operator


def _accepted(kind: type) -> set[str]:
    """Argument names of an operator's constructor and its bases; others would be lost in **kwargs."""
    names = set(kind._BASE_PARAMS)
    for base in kind.__mro__:
        if "__init__" in vars(base):
            names |= set(inspect.signature(base.__init__).parameters)
    return names - {"self", "args", "kwargs"}


def run(operator, rows: list[Row], calls: int = 1) -> tuple[list[Row], list[Dropped]]:
    """Runs one operator of `build` over rows with the columns STATS and META; a failure is an error that names it.

    calls: rows for which an operator asks a server at once.
    """
    from data_juicer.ops import base_op

    kinds = ((base_op.Mapper, _map), (base_op.Filter, _filter), (base_op.Deduplicator | base_op.Selector, _judge))
    of_kind = next((function for kind, function in kinds if isinstance(operator, kind)), None)
    if of_kind is None:
        raise ConfigError(f"operator '{operator._name}' neither maps, filters, deduplicates nor selects rows; "
                          "groupers, aggregators and pipelines make other rows, not traceable to the input.")
    with named(operator, rows):
        if not rows:
            return [], []
        if hasattr(operator, "asked"):
            return _ask(of_kind, operator, rows, calls)
        if operator._name in OF_THE_USER:
            return apart(of_kind, operator, rows)
        return of_kind(operator, rows)


@contextlib.contextmanager
def named(operator, rows: Sequence[Row] = ()) -> Iterator[None]:
    """Names the operator in errors of what is called within. rows: those that it was given."""
    try:
        yield
    except OuroError as error:
        raise type(error)(f"operator '{operator._name}': {error}") from error
    except (Exception, SystemExit) as error:  # an operator may raise anything; no row may be lost
        columns = f" Columns it was given: {', '.join(_named(rows[0]))}." if rows else ""
        raise StageError(f"operator '{operator._name}' failed ({type(error).__name__}: {error}).{columns} Correct its "
                         "arguments in the recipe or take it out.") from error


def whole(operator) -> Whole | None:
    """What judges all rows at once; None of a mapper or filter, which judge each by itself."""
    from data_juicer.core.data import NestedDataset
    from data_juicer.ops import base_op
    from datasets import Dataset

    judges = isinstance(operator, base_op.Deduplicator | base_op.Selector)
    return Whole(operator, lambda table: NestedDataset(Dataset(table))) if judges else None


def _judge(operator, rows: list[Row]) -> tuple[list[Row], list[Dropped]]:
    """A deduplicator or a selector over all rows."""
    judging = whole(operator)
    read = judging.column(rows)
    return judging.apply(rows, judging.judge(lambda: iter([read]))[0])


def _ask(of_kind: Callable, operator, rows: list[Row], calls: int) -> tuple[list[Row], list[Dropped]]:
    """Runs an operator that asks a server, with so many rows at once."""
    if missing := set(getattr(operator, "input_keys", ())) - set(rows[0]):
        raise ConfigError(f"input_keys: no column {min(missing)}; there are {', '.join(_named(rows[0]))}.")
    kept, dropped = [], []
    found = asked.run(lambda row: of_kind(operator, [row]), operator.asked, rows, calls)
    for row, answer in zip(rows, found, strict=True):
        failed = [Dropped(row["row"], operator._name, answer, row[STATS])] if isinstance(answer, str) else []
        left, gone = ([], failed) if failed else answer
        kept += left
        dropped += gone
    return kept, dropped


def _named(row: Row) -> list[str]:
    return [name for name in row if name not in (STATS, META)]


def _columns(rows: list[Row]) -> dict[str, list]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _batches(rows: list[Row]):
    for begin in range(0, len(rows), BATCH):
        yield rows[begin : begin + BATCH]


def _map(operator, rows: list[Row]) -> tuple[list[Row], list[Dropped]]:
    """A mapper may change rows and drop some (with a reason in its dict `reasons`), not add any."""
    kept: list[Row] = []
    for batch in _batches(rows):
        if operator.is_batched_op():
            columns = operator.process(_columns(batch))
            kept += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        else:
            kept += [operator.process(dict(row)) for row in batch]
    numbers = [row["row"] for row in kept]
    if len(set(numbers)) < len(numbers):
        raise ConfigError("it makes several rows of one; a task stays one row. Take it out of the recipe")
    left_out = {row["row"] for row in rows} - set(numbers)
    reasons = getattr(operator, "reasons", {})
    return kept, [Dropped(n, operator._name, reasons.get(n, "left out by the mapper")) for n in sorted(left_out)]


def _filter(operator, rows: list[Row]) -> tuple[list[Row], list[Dropped]]:
    reads_stats = STATS in str(operator._op_cfg)
    kept, dropped = [], []
    for batch in _batches(rows):
        fresh = [{**row, STATS: dict(row[STATS]) if reads_stats else {}} for row in batch]
        if operator.is_batched_op():
            columns = operator.compute_stats(_columns(fresh))
            stats, verdicts = columns[STATS], list(operator.process(columns))
        else:
            done = [operator.compute_stats(row) for row in fresh]
            stats, verdicts = [row[STATS] for row in done], [operator.process(row) for row in done]
        for row, found, keep in zip(batch, stats, verdicts, strict=True):
            if keep:
                kept.append({**row, STATS: {**row[STATS], **found}})
            else:
                dropped.append(Dropped(row["row"], operator._name, _explain(operator, found), {**row[STATS], **found}))
    return kept, dropped


def _explain(operator, stats: dict) -> str:
    """A filter's statistics and what it keeps: `text_len=231, kept 5..64`."""
    saw = [f"{k}={round(v, 4) if isinstance(v, float) else v}" for k, v in stats.items()
           if not (isinstance(v, str) and len(v) > SHOWN)]
    names = [n for n in inspect.signature(type(operator).__init__).parameters if n.startswith(("min_", "max_"))]
    bounds = {name[:3]: getattr(operator, name, None) for name in names}
    if bounds and len(bounds) == len(names):
        low, high = bounds.get("min"), bounds.get("max")
        outside = "kept outside" if operator.reversed_range else "kept"
        high = None if high == sys.maxsize else high
        return ", ".join([*saw, f"{outside} {'' if low is None else low}..{'' if high is None else high}"])
    wanted = {k: v for k, v in operator._op_cfg[operator._name].items() if k not in (*ALWAYS, "text_key")}
    return ", ".join([*saw, *(f"{k}: {v}" for k, v in wanted.items())]) or "no statistics"


def wrong_kinds(name: str, kind: type, arguments: dict) -> list[str]:
    """Arguments of an operator whose values are not of the annotated types, one line each.

    Annotations that pydantic cannot read are left out.
    """
    from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

    found, hints = [], {}
    for base in reversed(kind.__mro__):
        if "__init__" in vars(base):
            hints |= {one.name: one.annotation for one in inspect.signature(base.__init__).parameters.values()}
    for argument, value in arguments.items():
        hint = hints.get(argument, inspect.Parameter.empty)
        try:
            if value is not None and hint is not inspect.Parameter.empty:
                TypeAdapter(hint).validate_python(value)
        except ValidationError as error:
            found.append(f"operator '{name}': {argument}={value!r}: {error.errors()[0]['msg'].lower()}.")
        except (PydanticSchemaGenerationError, NameError, TypeError):
            continue  # an annotation of no plain type
    return found
