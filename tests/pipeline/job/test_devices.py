"""Which GPUs a run may count on."""

import pytest

from ouroboros.pipeline.job import devices
from ouroboros.pipeline.job.devices import Gpus, needed_gpus, planned_gpus, visible_gpus
from ouroboros.pipeline.settings.config import Cluster
from ouroboros.pipeline.store.files import CONF


def cluster(per_node=None, gib=None, nodes=1):
    return Cluster.partial({"node_num": nodes, "gpu_per_node": per_node, "gpu_memory_gib": gib})


@pytest.fixture
def machine(monkeypatch):
    """machine("0,1", 80.0): a machine that shows these GPUs, of that memory."""

    def make(named: str, gib: float | None = None) -> None:
        monkeypatch.setattr(devices, "torch_has_cuda", lambda: True)
        monkeypatch.setattr(devices, "_smallest_memory", lambda: gib)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)

    return make


@pytest.mark.parametrize(("named", "at_most", "expected"), [
    ("2,5,GPU-7", None, ["2", "5", "GPU-7"]), ("2,5", 1, ["2"]), ("", None, []), ("0,1", 0, []),
    (" 0, 1 ", None, ["0", "1"]), ("0,0,1", None, ["0", "1"]), ("MIG-a/1/0", None, ["MIG-a/1/0"]),
    ("-1", None, []), ("0,-1,1", None, ["0"]), ("NoDevFiles", None, []), ("0,,1", None, ["0"])])
def test_gpus_are_those_the_scheduler_gave(machine, named, at_most, expected):
    machine(named)
    assert visible_gpus(at_most) == expected


def test_a_cpu_build_of_torch_has_no_gpu_whatever_the_machine_has(monkeypatch):
    monkeypatch.setattr(devices, "torch_has_cuda", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert visible_gpus(None) == []


@pytest.mark.parametrize(("named", "given", "expected"), [
    ("", cluster(), Gpus(0, None, False)),  # a CPU run
    ("0,1", cluster(), Gpus(2, 80.0, False)),
    ("0,1", cluster(gib=40.0), Gpus(2, 40.0, False)),
    ("0,1", cluster(1), Gpus(1, 80.0, True)),
    ("0,1", cluster(0), Gpus(0, None, True)),  # GPUs are there and not to be used
    ("", cluster(8, nodes=2), Gpus(16, None, True)),  # planned for elsewhere
    ("", cluster(8, 80.0), Gpus(8, 80.0, True)),
    ("", cluster(gib=80.0), Gpus(None, 80.0, True))])
def test_what_is_declared_counts_before_what_is_visible(machine, named, given, expected):
    machine(named, 80.0)
    assert planned_gpus(given) == expected


def test_the_smallest_gpu_counts(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 81920\necho 40960\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devices._smallest_memory() == 40.0
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    assert devices._smallest_memory() is None
    tool.unlink()
    assert devices._smallest_memory() is None


def test_two_names_of_a_gpu_are_one_gpu(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 0, GPU-aa11\necho 1, GPU-bb22\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devices.by_uuid(["1", "GPU-aa", "0", "MIG-c"]) == {"GPU-bb22": "1", "GPU-aa11": "GPU-aa", "MIG-c": "MIG-c"}
    tool.unlink()
    assert devices.by_uuid(["1", "0"]) == {"1": "1", "0": "0"}


def test_what_is_visible_here_says_nothing_about_another_machine(machine):
    machine("0,1", 80.0)
    assert planned_gpus(cluster(), here=False) == Gpus(None, None, True)
    assert planned_gpus(cluster(8), here=False) == Gpus(8, None, True)
    assert planned_gpus(cluster(0), here=False) == Gpus(0, None, True)


@pytest.mark.parametrize(("mode", "ranks", "engine", "needed"), [
    ("both", 4, 2, 6), ("colocate", 4, 2, 4), ("colocate", 1, 2, 2), ("both", 1, 1, 2)])
def test_side_by_side_gpus_add_up_and_taking_turns_they_do_not(mode, ranks, engine, needed):
    assert needed_gpus(mode, ranks, engine) == needed


@pytest.mark.parametrize(("rows", "kinds", "first"), [
    ([], 0, None), (["NVIDIA A100 MIG 1g.5gb, 580.1, [N/A]"], 0, None),
    (["NVIDIA T4, 580.1, 15360"], 1, "mode=colocate"),
    (["NVIDIA L4, 580.1, 23034"], 1, "recipe=gsm8k mode=colocate"),
    (2 * ["NVIDIA H200, 580.1, 143771"], 1, "recipe=gsm8k mode=both"),
    (["NVIDIA H200, 580.1, 143771", "NVIDIA T4, 580.1, 15360"], 2, "mode=colocate"),
    (8 * ["NVIDIA A100-SXM4-80GB, 580.1, 81920"], 1, "recipe=gsm8k_7b")])
def test_a_set_up_names_the_gpus_and_what_to_run_first(monkeypatch, rows, kinds, first):
    """The smallest memory decides; 23,034 MiB are 22.5 GiB."""
    monkeypatch.setattr(devices, "_asked", lambda columns: rows)
    *lines, last = devices.introduced() or [None]
    assert len(lines) == kinds
    assert first is None or last.endswith(f"ouro run {first}")
    assert all((CONF / "recipe" / f"{word.removeprefix('recipe=')}.yaml").exists()
               for word in (first or "").split() if word.startswith("recipe="))
