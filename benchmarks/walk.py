"""Traces one setting, `algorithm.optimizer.lr`, through our files from YAML to an optimizer step, and counts the files
that calls pass through on the way of an override.

Composes a recipe of a tiny model, prepares the inputs of its sft stage, and trains one step in this process, with a
profiler that inspects the variables of each of our frames at exit, to a depth of one. Prints the files in the order in
which they held the value, and the number of frames. Half a minute, most of it imports.

A journey is the order in which the calls of a command enter files, at any depth: a function is counted once for each
file that calls it, a call within a file is none. A stay is one file until the next, a climb a stay in a room of a
higher layer than the one before, a return a stay in a file that was left before.
"""

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from tabulate import tabulate

from benchmarks import house
from ouroboros.pipeline.store.files import PACKAGE

OURS = f"{PACKAGE}/"
RATE = 0.00123456789  # a learning rate that no other setting equals by chance
RECIPE = f"""# @package _global_
model:
  init: {{enable: true, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 1, num_key_value_heads: 1}}
  max_prompt_tokens: 24
  max_response_tokens: 12
data_processor:
  task_pipeline:
    generator: countdown
    generator_args: {{tasks: 40, demonstrations: 40, dirt: 0.0}}
    config_path: conf/data_juicer/countdown.yaml
buffer: {{batch_size: 8, total_steps: 1}}
algorithm: {{algorithm_type: sft, optimizer: {{lr: {RATE}, lr_scheduler_type: constant, lr_warmup_steps: 0}}}}
stages: [{{stage_name: sft}}]
"""
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def walk(root: Path) -> Counter:
    """Frames per file that held the learning rate. root: an empty directory."""
    from ouroboros.commands.run.planning import make_checked_plan
    from ouroboros.pipeline.job.context import open_stage, our_environment
    from ouroboros.stages.learn import Trainer

    (root / "walk.yaml").write_text(RECIPE)
    found: Counter = Counter()
    with watched(found):
        plan = make_checked_plan([f"recipe={root / 'walk.yaml'}", f"checkpoint_root_dir={root}"])
        plan.freeze()
    trained = next(stage for stage in plan.stages if stage.name == "sft")
    for stage in plan.stages[: plan.stages.index(trained)]:
        subprocess.run([sys.executable, "-m", f"ouroboros.stages.{stage.kind}", stage.directory], check=True,
                       env=our_environment(), capture_output=True)
    os.environ |= ALONE
    with watched(found):
        Trainer(open_stage(Path(trained.directory), terminal=False)).run()
    return found


@contextlib.contextmanager
def watched(found: Counter) -> Iterator[None]:
    """Counts, by file, our frames that exit with RATE in a variable, directly or one level deep."""
    def look(frame, event: str, _) -> None:
        if event == "return" and frame.f_code.co_filename.startswith(OURS):
            held = list(frame.f_locals.values())
            if any(type(v) is float and v == RATE for value in held for v in (value, *_inside(value))):
                found[str(Path(frame.f_code.co_filename).relative_to(PACKAGE))] += 1

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _inside(value) -> list:
    """The items of a collection, or the attributes of an object."""
    if isinstance(value, list | tuple):
        return list(value)
    return list((value if isinstance(value, dict) else getattr(value, "__dict__", {})).values())


class Journey(NamedTuple):
    """What a command's calls pass through."""

    stays: int
    files: int
    climbs: int
    returns: int


# by the command that the override of a learning rate is given to
BEFORE = {"composing": Journey(90, 33, 21, 57), "ouro run": Journey(251, 72, 78, 179)}  # at d2d563f


def journeys() -> dict[str, Journey]:
    """The journeys of an override in composing, and in `ouro run` in an empty directory until Snakemake starts."""
    from ouroboros.commands.run import invoke
    from ouroboros.pipeline.check import judge

    class Started(Exception):
        """Snakemake would start now."""

    def run() -> None:
        with mock.patch.object(invoke, "start", side_effect=Started), contextlib.suppress(Started):
            invoke.run(words, [], False, False, False)

    words = [f"algorithm.optimizer.lr={RATE}"]
    found = {}
    for name, command in (("composing", partial(judge.judged, words)), ("ouro run", run)):
        with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
            command()  # imports and caches first
            found[name] = journey(command)
    return found


def journey(command: Callable[[], object]) -> Journey:
    """The journey of the calls that a command makes in its own thread."""
    entered: list[str] = []
    calls = set()

    def look(frame, event: str, _) -> None:
        place = frame.f_code.co_filename
        if event != "call" or not place.startswith(OURS):
            return
        caller = frame.f_back
        while caller and not caller.f_code.co_filename.startswith(OURS):
            caller = caller.f_back
        came = caller and caller.f_code.co_filename
        if came != place and (came, frame.f_code) not in calls:
            calls.add((came, frame.f_code))
            entered.append(place)

    sys.setprofile(look)
    try:
        command()
    finally:
        sys.setprofile(None)
    return count(entered, house.layers())


def count(entered: list[str], layer_of: dict[str, int]) -> Journey:
    """The journey through these files, one after the other."""
    stays = [place for at, place in enumerate(entered) if not at or entered[at - 1] != place]
    layers = [house.layer(house.module(place), layer_of) for place in stays]
    files = set(stays)
    return Journey(len(stays), len(files), sum(b < a for a, b in itertools.pairwise(layers)), len(stays) - len(files))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        counted = walk(Path(place))
    print(tabulate(counted.items(), ["file that held algorithm.optimizer.lr", "frames"]))
    print(f"{len(counted)} files\n")
    print(tabulate([(name, when, *one) for name, now in journeys().items()
                    for when, one in (("at d2d563f", BEFORE[name]), ("now", now))],
                   ["journey of an override", "", *Journey._fields]))
