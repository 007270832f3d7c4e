"""A stage typed by hand makes what it makes under Snakemake, whatever number of threads either shell has set."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.store import files
from tests.toy.conftest import REPOSITORY, copy_upstream, plan_in, snakemake, stage_of

pytestmark = pytest.mark.slow

# transformers, for its log-probs follow the number of threads; sync_offset 2 gives explorer and trainer half the cores
SHORT = ("explorer=transformers", "buffer.total_steps=3", "trainer.save_interval=3", "monitor=none")


def test_the_weights_are_those_of_snakemake(finished, tmp_path):
    _, plan, _ = finished
    stages = {}
    for place in ("snakemake", "hand"):
        again = plan_in(tmp_path / place, *SHORT)
        again.freeze()
        copy_upstream(plan, again, ("tasks", "curate", "model", "sft"))
        stages[place] = stage_of(again, "rft")
    done = snakemake(tmp_path / "snakemake", stages["snakemake"].manifest, overrides=SHORT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    bare = {name: value for name, value in os.environ.items() if not name.endswith("_THREADS")}
    subprocess.run([sys.executable, "-m", "stages.rft", stages["hand"].directory], cwd=REPOSITORY, env=bare, check=True)
    there, here = (files.read_json(Path(stage.manifest)) for stage in stages.values())
    assert here["weights_hash"] == there["weights_hash"]
    assert here["threads"] == there["threads"]
