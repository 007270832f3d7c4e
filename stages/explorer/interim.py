"""Evaluations between the steps of an explorer, by the weights that it has loaded (explorer.eval_interval)."""

import time

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.schedule import reaches
from ouroboros.pipeline.store import files, tables, versions
from ouroboros.workflows.evaluation import Subject, evaluate, read_sets
from ouroboros.workflows.protocol.engine import Engine
from ouroboros.workflows.rewards import Rewards


class InterimEvaluation:
    """The evaluation sets of a stage, read at start so that an empty set fails early. Disabled when
    `explorer.eval_interval` is null, and in a stage without a trainer, whose weights never change."""

    def __init__(self, context: Context, engine: Engine, tokenizer, rewards: Rewards):
        self.context, self.engine, self.tokenizer = context, engine, tokenizer
        alone = context.config.mode == "explore"
        self.interval = None if alone else context.config.explorer.eval_interval
        self.sets = read_sets(context, tokenizer, rewards) if self.interval else []

    def of_version(self, version: int, before: int) -> float:
        """Evaluates the engine's weights if due with this version, and not done before a resume; returns the seconds it
        took. before: the version of the explorer step before."""
        if not self.interval or not reaches(version, before, self.interval):
            return 0.0
        if tables.step_file(self.context.directory, "scores", version).exists():
            return 0.0
        begin = time.perf_counter()
        weights = files.read_json(versions.version_directory(self.context.directory, version) / files.MANIFEST)["hash"]
        evaluate(self.context, self.engine, self.tokenizer, self.sets, Subject(self.context.id, version, weights))
        return time.perf_counter() - begin
