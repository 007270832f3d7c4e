"""What a stage asks of the cores and the host memory of the machine that it runs on."""

import pytest

from pipeline.check import host_rules
from pipeline.job.devices import Gpus
from tests.configs import changed

CPU, ONE = Gpus(0, None, False), Gpus(1, 80.0, True)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Two cores, 24 GiB, no SLURM."""
    monkeypatch.setattr(host_rules, "cores", lambda: [0, 1])
    monkeypatch.setattr(host_rules.os, "sysconf", {"SC_PHYS_PAGES": 24 << 18, "SC_PAGE_SIZE": 4096}.get)
    monkeypatch.setattr(host_rules.shutil, "which", lambda name: None)


def keys(config, gpus=CPU):
    return [problem.key for problem in host_rules.problems(config, gpus)]


def rft(**settings):
    return changed({"algorithm.repeat_times": 8, "explorer.rollout_model.engine_type": "transformers"} | settings)


def test_more_processes_than_four_a_core():
    assert keys(rft(**{"trainer.ranks": 8})) == []
    assert keys(rft(**{"trainer.ranks": 9})) == ["trainer.ranks"]
    assert keys(rft(**{"explorer.rollout_model.engine_num": 64})) == ["explorer.rollout_model.engine_num"]
    assert keys(rft(**{"trainer.ranks": 64}), ONE) == []  # there each has a GPU


def test_a_step_that_memory_cannot_hold():
    """24 GiB / (8 * 1,040 bytes) = 3,097,425 tasks."""
    assert keys(rft(**{"buffer.batch_size": 3_097_000})) == []
    assert keys(rft(**{"buffer.batch_size": 3_098_000})) == ["buffer.batch_size"]
    assert keys(rft(**{"buffer.batch_size": 100_000_000}), ONE) == ["buffer.batch_size"]


def test_where_slurm_may_start_it_elsewhere_nothing_is_known(monkeypatch):
    monkeypatch.setattr(host_rules.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert keys(rft(**{"trainer.ranks": 64, "buffer.batch_size": 10**8})) == []
