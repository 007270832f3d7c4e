"""Traces one setting, `algorithm.optimizer.lr`, through our files from YAML to an optimizer step.

Composes a recipe of a tiny model, prepares the inputs of its sft stage, and trains one step in this process, with a
profiler that inspects the variables of each of our frames at exit, to a depth of one. Prints the files in the order in
which they held the value, and the number of frames. Half a minute, most of it imports.
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tabulate import tabulate

from pipeline.store.files import HOME

OURS = tuple(f"{HOME / package}/" for package in ("pipeline", "operators", "workflows", "stages"))
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
    from pipeline.job.context import open_stage, our_environment
    from pipeline.run.planning import make_checked_plan
    from stages.learn import Trainer

    (root / "walk.yaml").write_text(RECIPE)
    found: Counter = Counter()
    with watched(found):
        plan = make_checked_plan([f"recipe={root / 'walk.yaml'}", f"checkpoint_root_dir={root}"])
        plan.freeze()
    trained = next(stage for stage in plan.stages if stage.name == "sft")
    for stage in plan.stages[: plan.stages.index(trained)]:
        subprocess.run([sys.executable, "-m", f"stages.{stage.kind}", stage.directory], check=True,
                       env=our_environment(), capture_output=True)
    os.environ |= ALONE
    with watched(found):
        Trainer(open_stage(Path(trained.directory), terminal=False)).run()
    return found


@contextmanager
def watched(found: Counter) -> Iterator[None]:
    """Counts, by file, our frames that exit with RATE in a variable, directly or one level deep."""
    def look(frame, event: str, _) -> None:
        if event == "return" and frame.f_code.co_filename.startswith(OURS):
            held = list(frame.f_locals.values())
            if any(type(v) is float and v == RATE for value in held for v in (value, *_inside(value))):
                found[str(Path(frame.f_code.co_filename).relative_to(HOME))] += 1

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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        counted = walk(Path(place))
    print(tabulate(counted.items(), ["file that held algorithm.optimizer.lr", "frames"]))
    print(f"{len(counted)} files")
