"""GPUs of a machine, pretended: stages that run side by side hold different ones, and wait where there are too few."""

import logging
import os
import threading
from types import SimpleNamespace

import pytest

from pipeline import claims, devices
from pipeline.claims import claimed

LOG = logging.getLogger("test")


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Four GPUs, 2, 3, 5 and 7."""
    monkeypatch.setattr(devices, "torch_has_cuda", lambda: True)
    monkeypatch.setattr(claims, "POLL_SECONDS", 0.01)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,5,7")


def settings(ranks: int, at_most: int | None = None):
    return SimpleNamespace(cluster=SimpleNamespace(gpu_per_node=at_most), trainer=SimpleNamespace(ranks=ranks))


def taken(monkeypatch) -> str:
    """What the stage that has just claimed sees; the next one begins with all again."""
    seen = os.environ["CUDA_VISIBLE_DEVICES"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,5,7")
    return seen


def test_stages_side_by_side_hold_different_ones_and_what_one_gives_back_the_next_takes(tmp_path, monkeypatch):
    with claimed("train", settings(1), str(tmp_path), LOG):
        assert taken(monkeypatch) == "2"
        with claimed("train", settings(2), str(tmp_path), LOG):
            assert taken(monkeypatch) == "3,5"
    with claimed("offline", settings(2), str(tmp_path), LOG):
        assert taken(monkeypatch) == "2,3"


def test_a_stage_waits_until_enough_are_free(tmp_path, monkeypatch, caplog):
    seen, started = [], threading.Event()

    def other():
        started.set()
        with claimed("train", settings(3), str(tmp_path), LOG):
            seen.append(os.environ["CUDA_VISIBLE_DEVICES"])

    with caplog.at_level("INFO"), claimed("train", settings(2), str(tmp_path), LOG):
        taken(monkeypatch)
        thread = threading.Thread(target=other)
        thread.start()
        assert started.wait(5)
        thread.join(0.3)
        assert seen == []
    thread.join(5)
    assert seen == ["2,5,7"] or seen == ["2,3,5"]  # it kept 5 and 7 while it waited
    assert "waiting for 1 of 3 GPUs: other stages hold them" in caplog.text


def test_only_the_first_so_many_of_a_machine_are_given_out(tmp_path, monkeypatch):
    with claimed("train", settings(2, at_most=2), str(tmp_path), LOG):
        assert taken(monkeypatch) == "2,3"


def test_jobs_of_slurm_do_not_wait_for_each_others_numbers(tmp_path, monkeypatch):
    """Each job sees its own GPUs from 0, or here 2, on: the same number is another device."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    with claimed("train", settings(4), str(tmp_path), LOG):
        monkeypatch.setenv("SLURM_JOB_ID", "2")
        with claimed("train", settings(4), str(tmp_path), LOG):
            assert taken(monkeypatch) == "2,3,5,7"


@pytest.mark.parametrize(("kind", "ranks"), [("tasks", 1), ("train", 5)])
def test_a_stage_without_gpus_or_with_more_than_there_are_claims_none(kind, ranks, tmp_path):
    with claimed(kind, settings(ranks), str(tmp_path), LOG):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3,5,7"
        assert not (tmp_path / "gpus").exists()
