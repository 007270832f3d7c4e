"""Sends metrics to MLflow, TensorBoard, Weights & Biases or nowhere; the only module that does.

    with open_tracker(context) as tracker:
        tracker.log({"actor/loss": 1.0}, step=3)

The tables are the record; a monitor is a mirror of them. So a monitor never slows or stops a stage: a thread opens it
(importing MLflow takes 2 s) and writes in batches, and failures are only logged.
"""

import hashlib
import json
import math
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.metrics import score_metrics
from ouroboros.pipeline.settings.monitors import MONITORS, check_monitor
from ouroboros.pipeline.settings.secrets import mask
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.records import Score

FLUSH_SECONDS = 3.0
LAST_FLUSH_SECONDS = 30.0  # how long the end of a stage waits for a slow monitor
LARGEST_BATCH = 1000  # MLflow's limit for log_batch: metrics; 100 for parameters and tags
LONGEST_KEY, LONGEST_NAME = 250, 128  # characters: MLflow's metrics and parameters; projects of Weights & Biases
KIND = "mlflow.experimentKind"  # tag by which MLflow chooses the view; the default is the GenAI view

Row = tuple[str, float, int, int]  # metric, value, step, unix milliseconds


# ---------------------------------------------------------------------------------------------------------- tracker


class NoTracker:
    """The tracker for monitor_type=none, and the interface of all trackers."""

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Records metrics of a step."""

    def log_scores(self, scores: Iterable[Score], step: int) -> None:
        """Records the scores of an evaluation. step: of the training that produced the model; 0 without one."""
        self.log(score_metrics(scores), step)

    def log_earlier(self, rows: Iterable[tuple[dict[str, float], int]]) -> None:
        """Records metrics of steps that an earlier launch made: those that it did not write, if the sink can tell."""

    def close(self, failed: bool) -> None:
        """Writes pending metrics. failed: whether the stage ended with an error."""


class Tracker(NoTracker):
    """Queues metrics without blocking; a background thread writes them to a sink in batches."""

    def __init__(self, sink, log):
        self.sink, self.log_to = sink, log
        self._pending: list[Row] = []
        self._earlier: Iterable[tuple[dict[str, float], int]] = ()
        self._guard, self._end = threading.Lock(), threading.Event()
        self._is_open, self._last_problem = False, ""
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Records metrics of a step without blocking. Values that are not finite are left out."""
        with self._guard:
            self._pending += self._rows(metrics, step)

    def log_earlier(self, rows: Iterable[tuple[dict[str, float], int]]) -> None:
        with self._guard:
            self._earlier = rows

    def _rows(self, metrics: dict[str, float], step: int) -> list[Row]:
        now = int(time.time() * 1000)
        return [(name, float(value), step, now) for name, value in metrics.items() if math.isfinite(value)]

    def _work(self) -> None:
        while not self._end.wait(FLUSH_SECONDS if self._is_open else 0):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        """Opens the sink if necessary and writes pending metrics; keeps them for the next time on failure."""
        try:
            if not self._is_open:
                self.sink.open()
                self._is_open = True
            with self._guard:
                earlier, self._earlier = self._earlier, ()
            if lacks := getattr(self.sink, "lacks", None):
                found = [row for metrics, step in earlier for row in self._rows(metrics, step) if lacks(row)]
                with self._guard:
                    self._pending = found + self._pending
            if rows := list(self._pending):
                for problem in self.sink.write(rows) or ():
                    self.log_to.warning("the monitor refuses one metric (%s); it is in the stage's tables", problem)
                with self._guard:
                    del self._pending[: len(rows)]
        except Exception as error:  # servers, networks and client libraries may raise anything: the stage continues
            self._warn_once(f"{type(error).__name__}: {error}")
            self._end.wait(FLUSH_SECONDS)

    def _warn_once(self, problem: str) -> None:
        if problem != self._last_problem:
            self._last_problem = problem
            self.log_to.warning("the monitor does not accept metrics (%s); they stay in the stage's tables and are "
                                "sent again later", problem)

    def close(self, failed: bool) -> None:
        """Writes the rest and closes the sink, waiting for at most LAST_FLUSH_SECONDS."""
        self._end.set()
        self._thread.join(LAST_FLUSH_SECONDS)
        if self._pending:
            self.log_to.warning("%d metrics never reached the monitor; they are in the stage's tables",
                                len(self._pending))
        if self._thread.is_alive() or not self._is_open:
            return
        try:
            self.sink.close(failed)
        except Exception as error:  # as in _flush
            self._warn_once(f"{type(error).__name__}: {error}")


@contextmanager
def open_tracker(context: Context) -> Iterator[NoTracker]:
    """Provides a stage's tracker for the block. Raises ConfigError when the monitor is missing or misconfigured.

    Open it in the process that logs, after any fork: it has a thread.
    """
    kind = context.config.monitor.monitor_type
    arguments = context.config.monitor.monitor_args
    check_monitor(kind, arguments)
    for name, variable in MONITORS[kind][3].items():  # the libraries read their secrets there
        if name in arguments:
            os.environ[variable] = str(arguments[name])
    tracker = NoTracker() if kind == "none" else Tracker(SINKS[kind](context), context.log)
    failed = True
    try:
        yield tracker
        failed = False
    finally:
        tracker.close(failed)


# ------------------------------------------------------------------------------------------------------------ sinks


def stage_settings(context: Context) -> dict[str, str]:
    """Returns the stage's settings as flat `section.key` -> text, secrets masked, without the monitor's own."""
    spec = files.read_json(context.directory / "stage.json")["config"]
    return dict(_flat({k: v for k, v in mask(spec).items() if k != "monitor"}))


def _flat(value: dict, prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _flat(inner, f"{prefix}{key}.")
        else:
            yield prefix + key, inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)


class Mlflow:
    """Experiment = project; one parent run per project/name; a stage is a nested run, resumed with the stage.

    Each metric is written once for a step: a resumed stage repeats steps that its earlier launch has reported.
    """

    def __init__(self, context: Context):
        self.context = context
        root = Path(context.config.checkpoint_root_dir).resolve()
        self.lock = root / "store" / ".tracking.lock"
        self.uri = context.config.monitor.monitor_args.get("uri") or f"sqlite:///{root / 'mlflow.db'}"

    def open(self) -> None:
        """Finds or creates the runs. Locked: other stages and the other process of this one do the same."""
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        from mlflow.tracking import MlflowClient

        project, name = self.context.run.split("/", 1)
        with files.locked(self.lock, lambda holder: None):
            self._create_database()
            self.client = MlflowClient(tracking_uri=self.uri)
            found = self.client.get_experiment_by_name(project)
            experiment = found.experiment_id if found else self.client.create_experiment(project)
            if KIND not in (found.tags if found else {}):
                self.client.set_experiment_tag(experiment, KIND, "custom_model_development")
            self.parent = self._find_or_make(experiment, name, {"ouro.run": self.context.run}).info.run_id
            run = self._find_or_make(experiment, self.context.name, {
                "ouro.stage": self.context.id, "mlflow.parentRunId": self.parent})
        self.run_id = run.info.run_id
        self._last = {metric.key: metric.step for metric in run.data.to_proto().metrics}  # steps ascend
        self._log_settings(run)
        for run_id in (self.parent, self.run_id):
            self.client.update_run(run_id, status="RUNNING")

    def _create_database(self) -> None:
        """Creates a local database under a temporary name: MLflow refuses one whose creation was interrupted."""
        from mlflow.tracking import MlflowClient

        path = Path(self.uri.removeprefix("sqlite:///"))
        if self.uri.startswith("sqlite:///"):
            files.remove_leftovers_of(path)
        if self.uri.startswith("sqlite:///") and not path.exists():
            files.write_atomic(path, lambda temporary: MlflowClient(f"sqlite:///{temporary}").search_experiments())

    def _find_or_make(self, experiment: str, name: str, tags: dict[str, str]):
        wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        found = self.client.search_runs([experiment], wanted, max_results=1)  # the newest
        return found[0] if found else self.client.create_run(experiment, run_name=name, tags=tags)

    def _log_settings(self, run) -> None:
        """Logs settings as parameters. MLflow's parameters are immutable: values changed on resume become tags."""
        from mlflow.entities import Param, RunTag

        now, before = {_key(k): v for k, v in stage_settings(self.context).items()}, run.data.params
        params = [Param(k, v[:6000]) for k, v in now.items() if k not in before]
        tags = [RunTag(_key(f"resumed.{k}"), v[:5000]) for k, v in now.items() if before.get(k, v[:6000]) != v[:6000]]
        for start in range(0, len(params), 100):
            self.client.log_batch(run.info.run_id, params=params[start : start + 100])
        self.client.log_batch(run.info.run_id, tags=tags[:100])

    def write(self, rows: list[Row]) -> list[str]:
        """Makes one call for up to LARGEST_BATCH metrics. Returns which names MLflow refuses: it refuses the batch."""
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException

        metrics = [Metric(_key(row[0]), row[1], row[3], row[2]) for row in rows if self.lacks(row)]
        batches, refused = [metrics[i : i + LARGEST_BATCH] for i in range(0, len(metrics), LARGEST_BATCH)], []
        while batches:
            batch = batches.pop(0)
            try:
                self.client.log_batch(self.run_id, metrics=batch)
            except MlflowException as error:
                if error.error_code != "INVALID_PARAMETER_VALUE":
                    raise
                names = {metric.key for metric in batch}
                batches += [[m for m in batch if m.key == name] for name in names if len(names) > 1]
                refused += [f"{name}: {error}" for name in names if len(names) == 1]
            else:
                self._last |= {metric.key: metric.step for metric in batch}
        return refused

    def lacks(self, row: Row) -> bool:
        """Whether the run has no value of this metric yet for this step or a later one."""
        return row[2] > self._last.get(_key(row[0]), -1)

    def close(self, failed: bool) -> None:
        """Sets the pipeline run's state to that of the stage that ended last."""
        for run_id in (self.run_id, self.parent):
            self.client.set_terminated(run_id, "FAILED" if failed else "FINISHED")


def _key(name: str) -> str:
    """Returns the name as MLflow takes it: pass@4 is pass_at_4; any other change leaves a digest, as names may meet."""
    wanted = name.replace("@", "_at_")
    parts = [part if part.strip(".") else f"_{part}" for part in re.sub(r"[^/\w.\- :]", "_", wanted).split("/")]
    return shortened(wanted, "/".join(parts), LONGEST_KEY)


def shortened(name: str, written: str, longest: int) -> str:
    """Returns a name as it can be written in at most `longest` characters, with a digest of it where it changed."""
    is_kept = written == name and len(name) <= longest
    return name if is_kept else f"{written[: longest - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


class Tensorboard:
    """Event files in the stage's directory: `tensorboard --logdir runs/<project>/<name>/stages`."""

    def __init__(self, context: Context):
        self.directory = context.directory / "tensorboard"

    def open(self) -> None:
        from tensorboard.summary import Writer

        self.writer = Writer(str(self.directory))

    def write(self, rows: list[Row]) -> None:
        for name, value, step, when in rows:
            self.writer.add_scalar(name, value, step, wall_time=when / 1000)
        self.writer.flush()

    def close(self, failed: bool) -> None:
        self.writer.close()


class Wandb:
    """Group = the pipeline's name; one run per stage, resumed by its id (stage name and hash)."""

    def __init__(self, context: Context):
        self.context = context

    def open(self) -> None:
        import wandb

        project, name = (shortened(part, part, LONGEST_NAME) for part in self.context.run.split("/", 1))
        base_url = self.context.config.monitor.monitor_args.get("base_url")
        self.run = wandb.init(
            project=project, group=name, name=self.context.name, id=self.context.id, resume="allow",
            dir=str(self.context.directory), config=stage_settings(self.context),
            settings=wandb.Settings(silent=True, **({"base_url": base_url} if base_url else {})),
        )

    def write(self, rows: list[Row]) -> None:
        by_step: dict[int, dict[str, float]] = {}
        for name, value, step, _ in rows:
            by_step.setdefault(step, {})[name] = value
        for step in sorted(by_step):
            self.run.log(by_step[step], step=step)

    def close(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


SINKS = {"mlflow": Mlflow, "tensorboard": Tensorboard, "wandb": Wandb}
