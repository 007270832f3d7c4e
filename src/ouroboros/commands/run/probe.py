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
from ouroboros.pipeline.compose.axes import key_of, word_of
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.settings.kinds import KINDS
from ouroboros.pipeline.store import checkpoints, files

STEPS = 3  # the first compiles, and is not measured
SECONDS = 120.0  # that a stage may take from its first step on; then the probe stops, and what is there counts


def probe(overrides: list[str]) -> None:
    """Makes the steps. Raises ConfigError for a recipe that cannot be run."""
    config = compose(overrides)
    place = times.probed(config.checkpoint_root_dir)
    kinds = Recipe.of(config).kinds
    if not (trained := [name for name, kind in kinds.items() if kind.trains]):
        return
    at = {name: f"stages.{name}." if config.stages else "" for name in kinds}
    listed = [f"stages.{one['stage_name']}." for one in config.stages]
    short = ["name=probe", word_of("checkpoint_root_dir", place),
             *(f"{one}explorer.eval_interval=null" for one in ("", *listed)),
             *(f"{at[name]}buffer.total_steps={STEPS}" for name, kind in kinds.items() if kind.trains or kind.explores),
             *(f"{at[name]}algorithm.optimizer.lr_warmup_steps=0" for name in trained)]
    words = [word for word in overrides if key_of(word) not in map(key_of, short)] + short
    with _at_most(place / "store"), redirect_stdout(sys.stderr):
        # the targets: no evaluation, bench or report is made
        invoke.run(words, trained, multirun=False, verbose=False, update_hub=False)
    for stage in (place / "store").glob("*"):
        for step in checkpoints.complete_checkpoints(stage) if files.is_complete(stage) else ():
            files.remove_tree(checkpoints.checkpoint_directory(stage, step))


@contextmanager
def _at_most(store: Path) -> Iterator[None]:
    """Interrupts this process, as Ctrl-C does, when an incomplete stage made its first step SECONDS ago; steps of an
    earlier probe, which was stopped, do not count. A job in the background of a shell ignores SIGINT otherwise."""
    ended, begin, before = Event(), time.time(), signal.signal(signal.SIGINT, signal.default_int_handler)

    def watch() -> None:
        while not ended.wait(1.0):
            for spec in store.glob("*/stage.json"):
                steps = (spec.parent / KINDS[files.read_json(spec)["kind"]].steps).glob("*.parquet")
                made = [at for one in steps if (at := one.stat().st_mtime) >= begin]
                if made and time.time() - min(made) > SECONDS and not files.is_complete(spec.parent):
                    os.kill(os.getpid(), signal.SIGINT)
                    return

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
