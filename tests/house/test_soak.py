"""Growth over a long run, by numbers worked out: 2 in 100 steps, of 112 or 114 in the middle."""

import psutil
import pytest

from benchmarks import soak
from benchmarks.soak import growth


@pytest.mark.parametrize(("values", "grown"), [
    ([100 + step / 50 for step in range(0, 1001, 100)], 2 / 112),
    ([900, 102, 104, 106, 108, 110, 500, 114, 116, 118, 120], 2 / 114),  # while caches fill, and one peak
    ([5] * 11, 0), ([0] * 11, 0)])
def test_growth_per_hundred_steps_is_a_robust_slope(values, grown):
    assert growth([*range(0, 1001, 100)], values) == pytest.approx(grown)


def test_a_look_counts_its_own_gpus_and_no_file_of_steps_or_checkpoints(tmp_path, monkeypatch):
    for path in ("trainer.log", "steps/step=000001.parquet", "checkpoints/step=000001/state", "checkpoints/.x/state"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    memory = {"0": 100.0, "1": 5000.0, "2": 11.0}  # a neighbour works on GPU 1
    monkeypatch.setattr(soak.devices, "visible_gpus", lambda at_most: ["0", "2"])
    monkeypatch.setattr(soak.subprocess, "check_output", lambda asked, text: "\n".join(
        f"{memory[one]}" for one in asked[1].removeprefix("--id=").split(",")))
    found = soak.look(tmp_path, psutil.Process())
    assert (found["files beyond steps and checkpoints"], found["GPUs: MiB"]) == (1, 111.0)
