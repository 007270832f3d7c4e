"""GPUs of a machine, pretended: stages that run side by side hold different ones, and wait where there are too few."""

import errno
import fcntl
import logging
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from ouroboros.pipeline.job import claims, devices
from ouroboros.pipeline.job.claims import claimed
from ouroboros.pipeline.settings.kinds import KINDS
from ouroboros.pipeline.store.errors import StageError
from tests.golden.messages import refuses, wording

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
    with claimed(KINDS["train"], settings(1), str(tmp_path), LOG):
        assert taken(monkeypatch) == "2"
        with claimed(KINDS["train"], settings(2), str(tmp_path), LOG):
            assert taken(monkeypatch) == "3,5"
    for kind, at_most in (("offline", None), ("train", 2)):
        with claimed(KINDS[kind], settings(2, at_most=at_most), str(tmp_path), LOG):
            assert taken(monkeypatch) == "2,3"


def test_a_stage_waits_until_enough_are_free(tmp_path, monkeypatch, caplog):
    seen, started = [], threading.Event()

    def other():
        started.set()
        with claimed(KINDS["train"], settings(3), str(tmp_path), LOG):
            seen.append(os.environ["CUDA_VISIBLE_DEVICES"])

    with caplog.at_level("INFO"), claimed(KINDS["train"], settings(2), str(tmp_path), LOG):
        taken(monkeypatch)
        thread = threading.Thread(target=other)
        thread.start()
        assert started.wait(5)
        thread.join(0.3)
        assert seen == []
    thread.join(5)
    assert seen == ["2,5,7"] or seen == ["2,3,5"]  # it kept 5 and 7 while it waited
    wording(caplog.text, "1 of", "3 GPUs")


def test_jobs_of_slurm_do_not_wait_for_each_others_numbers(tmp_path, monkeypatch):
    """Each job sees its own GPUs from 0, or here 2, on: the same number is another device."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    with claimed(KINDS["train"], settings(4), str(tmp_path), LOG):
        monkeypatch.setenv("SLURM_JOB_ID", "2")
        with claimed(KINDS["train"], settings(4), str(tmp_path), LOG):
            assert taken(monkeypatch) == "2,3,5,7"


@pytest.mark.parametrize(("kind", "ranks"), [("tasks", 1), ("train", 5)])
def test_a_stage_without_gpus_or_with_more_than_there_are_claims_none(kind, ranks, tmp_path):
    with claimed(KINDS[kind], settings(ranks), str(tmp_path), LOG):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3,5,7"
        assert not (tmp_path / "gpus").exists()


class Waits(Exception):
    """Raised in place of waiting."""


@pytest.fixture
def impatient(monkeypatch):
    def wait(seconds):
        raise Waits

    monkeypatch.setattr(claims, "time", SimpleNamespace(sleep=wait))  # a child that is waited for may sleep


@pytest.mark.parametrize("named", ["2, 3", " 2,3 ", "3,2", "GPU-aa,GPU-bb", "2,GPU-bb11"])
def test_whatever_a_gpu_is_called_two_stages_do_not_hold_it(named, tmp_path, monkeypatch, impatient):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 2, GPU-aa11\necho 3, GPU-bb11\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    with claimed(KINDS["train"], settings(2), str(tmp_path), LOG):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        with pytest.raises(Waits), claimed(KINDS["train"], settings(1), str(tmp_path), LOG):
            pass


def test_a_gpu_that_is_named_twice_is_one_and_nobody_waits_for_a_second(tmp_path, monkeypatch, impatient):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,2")
    with claimed(KINDS["train"], settings(2), str(tmp_path), LOG):
        assert not (tmp_path / "gpus").exists()  # too few, as the stage will say


def test_machines_of_one_name_do_not_wait_for_each_other(tmp_path, monkeypatch, impatient):
    monkeypatch.setattr(claims, "BOOT", tmp_path / "boot_id")
    monkeypatch.setattr(claims.platform, "node", lambda: "trainer")
    claims.BOOT.write_text("one\n")
    with claimed(KINDS["train"], settings(4), str(tmp_path), LOG):
        claims.BOOT.write_text("two\n")
        with claimed(KINDS["train"], settings(4), str(tmp_path), LOG):
            assert taken(monkeypatch) == "2,3,5,7"
        claims.BOOT.write_text("one\n")
        monkeypatch.setattr(claims.platform, "node", lambda: "another container there")
        with pytest.raises(Waits), claimed(KINDS["train"], settings(1), str(tmp_path), LOG):
            pass


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (refuses(StageError, "No", "available", "checkpoint_root_dir"),
          claimed(KINDS["train"], settings(1), str(tmp_path), LOG)):
        pass


HOLD = """
import logging, sys, time
from types import SimpleNamespace as Nest
from ouroboros.pipeline.job import claims, devices
from ouroboros.pipeline.settings.kinds import KINDS
devices.torch_has_cuda = lambda: True
settings = Nest(cluster=Nest(gpu_per_node=None), trainer=Nest(ranks=4))
with claims.claimed(KINDS["train"], settings, sys.argv[1], logging.getLogger()):
    print("held", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_stage_held_is_free(tmp_path, monkeypatch):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        told = []
        log = SimpleNamespace(info=lambda text, *words: (told.append(text % words), holder.kill()))  # SIGKILL
        with claimed(KINDS["train"], settings(4), str(tmp_path), log):
            assert taken(monkeypatch) == "2,3,5,7"
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    wording([told], "4 of", "4 GPUs")
