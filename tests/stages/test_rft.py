"""How explorer and trainer share a machine."""

from types import SimpleNamespace

import pytest

from pipeline.errors import ConfigError
from stages import rft
from stages.rft import share_cores, share_gpus, visible_gpus


def settings(mode="both", ranks=1, engine=1, at_most=None):
    return SimpleNamespace(
        mode=mode, trainer=SimpleNamespace(ranks=ranks), cluster=SimpleNamespace(gpu_per_node=at_most),
        explorer=SimpleNamespace(rollout_model=SimpleNamespace(tensor_parallel_size=engine)))


@pytest.mark.parametrize(("given", "expected"), [
    (settings(ranks=2, engine=2), (["c", "d"], ["a", "b"])), (settings(), (["b"], ["a"])),
    (settings("colocate", ranks=2, engine=1), (["a"], ["a", "b"]))])
def test_side_by_side_no_gpu_has_two_owners_and_colocated_they_share(given, expected):
    assert share_gpus(["a", "b", "c", "d"], given) == expected


def test_too_few_gpus_are_counted_before_anything_starts():
    with pytest.raises(ConfigError, match=r"mode=both needs 5 GPUs \(4 for .*1 for .*found 4. Set mode=colocate"):
        share_gpus(["0", "1", "2", "3"], settings(ranks=4))
    with pytest.raises(ConfigError, match="mode=colocate needs 2 GPUs"):
        share_gpus(["0"], settings("colocate", engine=2))


@pytest.mark.parametrize(("named", "at_most", "expected"), [
    ("2,5,GPU-7", None, ["2", "5", "GPU-7"]), ("2,5", 1, ["2"]), ("", None, []), ("0,1", 0, [])])
def test_gpus_are_those_the_scheduler_gave(monkeypatch, named, at_most, expected):
    monkeypatch.setattr(rft, "torch_has_cuda", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus(settings(at_most=at_most)) == expected


def test_a_cpu_build_of_torch_has_no_gpu_whatever_the_machine_has(monkeypatch):
    monkeypatch.setattr(rft, "torch_has_cuda", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert visible_gpus(settings()) == []


def test_cores_are_split_when_both_compute_at_once():
    assert share_cores([0, 1, 2], overlap=True, gpu=False) == ([0], [1, 2])
    assert share_cores([0, 1, 2], overlap=False, gpu=False) == ([0, 1, 2], [0, 1, 2])
    assert share_cores([0], overlap=True, gpu=False) == ([0], [0])
