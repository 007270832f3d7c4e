"""Takes over experience for training without an explorer (mode=train): that of `ouro serve --record`, or of a stage of
another run that explored (mode=explore).

Reads the directory `buffer.trainer_input.experience_buffer.path`; its tables become those of this stage by hard links,
or copies where it is on another disk. What is recorded later is not part of the stage.
"""

from functools import partial
from pathlib import Path

import numpy as np

from ouroboros.pipeline.check.data import TAKEN, unfit_directory
from ouroboros.pipeline.job.context import Context, run_stage
from ouroboros.pipeline.settings.data import SHOWN
from ouroboros.pipeline.store import files, hashes, records, tables
from ouroboros.pipeline.store.digests import resolve
from ouroboros.pipeline.store.errors import DataError

BESIDE = ("shown", "calls", "tool_calls", "feedback", "curated")  # tables that not every step, or directory, has
TABLES = ("experience", "rollouts")  # the last one marks complete steps


def work(context: Context) -> None:
    source = resolve(context.config.buffer.trainer_input.experience_buffer.path)
    steps = tables.steps_present(source, "rollouts")  # once: whoever records may go on
    if why := unfit_directory(source, steps):
        raise DataError(f"{SHOWN}.path={source} {why} {TAKEN}")
    for name in (*BESIDE, *TABLES):
        for step in steps:
            path = tables.step_file(source, name, step)
            if name in TABLES or path.exists():
                _take(path, tables.step_file(context.directory, name, step), name)
    context.made |= {"explorer_steps": len(steps), "experiences": sum(
        len(tables.read(tables.step_file(source, "experience", step), records.Experience)) for step in steps)}


def _take(source: Path, target: Path, name: str) -> None:
    rows = tables.read(source, records.TABLES[name])  # raises DataError for a damaged file
    if name == "experience" and np.isnan(rows["rollout_logprobs"].combine_chunks().flatten().to_numpy()).any():
        raise DataError(f"{source} has rows of a server, whose tokens and log-probs are not known, so no ratio of them "
                        "can be computed. Train on the good ones as demonstrations (docs/serve.md).")
    hashes.write(target, partial(files.link, source))


if __name__ == "__main__":
    run_stage(work, __doc__)
