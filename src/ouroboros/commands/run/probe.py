"""`ouro config check --probe`: a few steps of each stage that trains, by which the check tells how long a run takes.

They are a run of the same recipe in CHECKPOINT_ROOT_DIR/probe/HOST, where pipeline/check/times.py looks as well: an
equal probe is complete and starts nothing. Its optimizer states are not kept.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from threading import Event, Thread

from ouroboros.commands.run import invoke
from ouroboros.pipeline.check import times
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose.axes import key_of
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.store import checkpoints, files

STEPS = 3  # the first compiles, and is not measured
SECONDS = 120.0  # that a stage may take from its first step on; then the probe stops, and what is there counts


def probe(overrides: list[str]) -> None:
    """Makes the steps. Raises ConfigError for a recipe that cannot be run."""
    config = compose(overrides)
    place = times.probed(config.checkpoint_root_dir)
    trained = [name for name, one in Recipe.of(config).settings.items() if one.kind.trains]
    short = {"checkpoint_root_dir": place, "name": "probe", "buffer.explorer_input.eval_tasksets": [],
             **{f"stages.{name}.buffer.total_steps": STEPS for name in trained},
             **{f"stages.{name}.algorithm.optimizer.lr_warmup_steps": 0 for name in trained}}
    words = [word for word in overrides if key_of(word) not in short] + [f"{key}={one}" for key, one in short.items()]
    with _at_most(place / "store"), redirect_stdout(sys.stderr):
        invoke.run(words, [], multirun=False, verbose=False, update_hub=False)
    for stage in (place / "store").glob("*"):
        for step in checkpoints.complete_checkpoints(stage) if files.is_complete(stage) else ():
            files.remove_tree(checkpoints.checkpoint_directory(stage, step))


@contextmanager
def _at_most(store: Path) -> Iterator[None]:
    """Interrupts this process, as Ctrl-C does, when an incomplete stage made its first step SECONDS ago."""
    ended = Event()

    def watch() -> None:
        while not ended.wait(1.0):
            for steps in store.glob("*/steps"):
                made = [one.stat().st_mtime for one in steps.glob("*.parquet")]
                if made and time.time() - min(made) > SECONDS and not files.is_complete(steps.parent):
                    os.kill(os.getpid(), signal.SIGINT)
                    return

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
