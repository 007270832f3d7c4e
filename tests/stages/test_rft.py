"""How explorer and trainer share a machine."""

from types import SimpleNamespace

import pytest

from pipeline.errors import ConfigError
from stages.rft import share_cores, share_gpus


def settings(mode="both", ranks=1, engine=1):
    return SimpleNamespace(
        mode=mode, trainer=SimpleNamespace(ranks=ranks),
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


def test_cores_are_split_when_both_compute_at_once():
    assert share_cores([0, 1, 2], overlap=True, gpu=False) == ([0], [1, 2])
    assert share_cores([0, 1, 2], overlap=False, gpu=False) == ([0, 1, 2], [0, 1, 2])
    assert share_cores([0], overlap=True, gpu=False) == ([0], [0])
