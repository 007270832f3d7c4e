"""Tasks of fetched packages, as a run reads them."""

import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from ouroboros.pipeline.store import launch, packages


@cache
def rows(package: str, name: str, split: str = "all", **arguments: Any) -> list[dict]:
    """The tasks of a set; arguments: of its source_args."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tasks.jsonl"
        request = {"package": package, "name": name, "split": split, **arguments}
        subprocess.run(launch.command("ouroboros.operators.task_packages", json.dumps(request), str(path)), check=True,
                       env=packages.environment(packages.folder(package)))
        return [json.loads(line) for line in path.read_text().splitlines()]


EVERY = """
import json, sys, traceback
from ouroboros.operators.task_packages import tasks
import reasoning_gym
for name in reasoning_gym.factory.DATASETS:
    more = {"datasets": [{"name": one, "weight": 1, "config": {"max_numbers": 3}} for one in ("gcd", "lcm")]
            } if name == "composite" else {}
    print("\\n" + json.dumps([name, [*tasks("reasoning-gym", name, "all", %d, seed=5, **more)]]), flush=True)
"""


@cache
def of_every_generator(size: int) -> dict[str, list[dict]]:
    """As many tasks of each generator of reasoning-gym, by its name."""
    place = packages.folder("reasoning-gym")
    done = subprocess.run([sys.executable, "-P", "-c", EVERY % size], check=True, stdout=subprocess.PIPE, text=True,
                          env=packages.environment(place))
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
