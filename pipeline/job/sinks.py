"""The monitors: MLflow, TensorBoard, Weights & Biases, Trackio. The only module that imports their clients.

A sink has open(), write(rows), write_rollouts(rows, step) and close(failed); Tracker (tracking.py) calls it from one
thread. It may raise anything: the tracker offers the same rows again.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.settings.monitors import MONITORS
from ouroboros.pipeline.settings.secrets import mask
from ouroboros.pipeline.store import files

LARGEST_BATCH = 1000  # MLflow's limit for log_batch: metrics; 100 for parameters and tags
LONGEST_KEY, LONGEST_NAME = 250, 128  # characters: MLflow's metrics and parameters; projects of Weights & Biases
KIND = "mlflow.experimentKind"  # tag by which MLflow chooses the view; the default is the GenAI view

Row = tuple[str, float, int, int]  # metric, value, step, unix milliseconds


def stage_settings(context: Context) -> dict[str, str]:
    """Returns the stage's settings as flat `section.key` -> text, secrets masked, without the monitor's own; and under
    `ouroboros` which run and stage they are of, and where it lies."""
    spec = files.read_json(context.directory / "stage.json")["config"]
    names = {"ouroboros": {"run": context.run, "stage": context.id, "directory": str(context.directory)}}
    return dict(_flat({k: v for k, v in mask(spec).items() if k != "monitor"} | names))


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
            experiment = found.experiment_id if found else self._new_experiment(project)
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

    def _new_experiment(self, project: str) -> str:
        """Creates it, with its artifacts next to a local database: the default is the current directory."""
        local = self.uri.startswith("sqlite:///")
        place = Path(self.uri.removeprefix("sqlite:///")).with_name("mlartifacts").as_uri() if local else None
        return self.client.create_experiment(project, artifact_location=place)

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

    def write_rollouts(self, rows: list[dict], step: int) -> None:
        """Writes the rows as an artifact of the step. (`log_table` reads its file again and makes numbers of texts.)"""
        table = {"columns": [*rows[0]], "data": [[*row.values()] for row in rows]}
        self.client.log_dict(self.run_id, table, f"rollouts/{step:06}.json")

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
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.writer = Writer(str(self.directory))
        self.texts = EventFileWriter(str(self.directory), filename_suffix=".rollouts")

    def write(self, rows: list[Row]) -> None:
        for name, value, step, when in rows:
            self.writer.add_scalar(name, value, step, wall_time=when / 1000)
        self.writer.flush()

    def write_rollouts(self, rows: list[dict], step: int) -> None:
        """Writes a Markdown text for each row, as the plugin `text` reads it."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        texts = ["\n\n".join(f"**{name}**: {value}" for name, value in row.items()) for row in rows]
        value = Summary.Value(tag="rollouts", metadata=create_summary_metadata("rollouts", ""),
                              tensor=make_tensor_proto(texts))
        self.texts.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=[value])))
        self.texts.flush()

    def close(self, failed: bool) -> None:
        self.writer.close()
        self.texts.close()


class Wandb:
    """Group = the pipeline's name; one run per stage, resumed by its id (stage name and hash)."""

    def __init__(self, context: Context):
        self.context = context
        self.project, self.group = (shortened(part, part, LONGEST_NAME) for part in context.run.split("/", 1))

    def open(self) -> None:
        import wandb as client

        self.client, base_url = client, self.context.config.monitor.monitor_args.get("base_url")
        self.run = client.init(
            project=self.project, group=self.group, name=self.context.name, id=self.context.id, resume="allow",
            dir=str(self.context.directory), config=stage_settings(self.context),
            settings=client.Settings(silent=True, **({"base_url": base_url} if base_url else {})),
        )
        self.run.define_metric("*", step_metric="step")

    def write(self, rows: list[Row]) -> None:
        by_step: dict[int, dict[str, float]] = {}
        for name, value, step, _ in rows:
            by_step.setdefault(step, {})[name] = value
        for step in sorted(by_step):
            self.log(by_step[step], step)

    def log(self, values: dict, step: int) -> None:
        """Logs values of a step, which may lie before the last one: the client's own counter only ascends."""
        self.run.log({"step": step} | values)

    def write_rollouts(self, rows: list[dict], step: int) -> None:
        """Logs them as the client's table `rollouts`."""
        table = self.client.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        self.log({"rollouts": table}, step)

    def close(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


class Trackio(Wandb):
    """Trackio has the calls of Weights & Biases, and resumes a run by its name."""

    def open(self) -> None:
        import trackio as client

        self.client, given = client, self.context.config.monitor.monitor_args
        places = {name: given[name] for name in MONITORS["trackio"][2] if name in given}
        self.run = client.init(project=self.project, group=self.group, name=self.context.id, resume="allow",
                               config=stage_settings(self.context), embed=False, auto_log_gpu=False,
                               auto_log_cpu=False, **places)

    def log(self, values: dict, step: int) -> None:
        self.run.log(values, step=step)

    def write_rollouts(self, rows: list[dict], step: int) -> None:
        import pandas

        self.log({"rollouts": self.client.Table(dataframe=pandas.DataFrame(rows))}, step)

    def close(self, failed: bool) -> None:
        self.run.finish()


SINKS = {"mlflow": Mlflow, "tensorboard": Tensorboard, "wandb": Wandb, "trackio": Trackio}
