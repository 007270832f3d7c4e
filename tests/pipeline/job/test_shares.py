"""How the processes of a stage share a machine."""

from types import SimpleNamespace

import pytest

from ouroboros.pipeline.job import devices, shares
from ouroboros.pipeline.job.shares import answering_environment, deal_cores, share_cores, share_gpus
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.kinds import KINDS, MODES
from ouroboros.pipeline.store.errors import ConfigError
from tests.golden.messages import refuses

EIGHT = list("abcdefgh")


def settings(mode="both", engines=1, each=1, auxiliary=(), at_most=None, taught=None):
    """each: GPUs of an engine. auxiliary: engine_num of every auxiliary model; taught: whether one is a teacher."""
    return SimpleNamespace(
        mode=mode, of_mode=MODES[mode], own_teacher=taught, cluster=SimpleNamespace(gpu_per_node=at_most, node_num=1),
        explorer=SimpleNamespace(
            rollout_model=SimpleNamespace(engine_type="vllm", engine_num=engines, tensor_parallel_size=each),
            auxiliary_models=[SimpleNamespace(engine_num=n, tensor_parallel_size=1, model_path="judge")
                              for n in auxiliary]))


@pytest.mark.parametrize(("given", "ranks", "expected"), [
    (settings(), 1, ("b", "a")), (settings(each=2), 2, ("cd", "ab")),
    (settings(engines=3, each=2), 2, ("cdefgh", "ab")),
    (settings(engines=2, auxiliary=[2]), 4, ("efgh", "abcd")),  # the PPO example of the guide: 2 + 2 + 4
    (settings("colocate"), 2, ("a", "ab")), (settings("colocate", engines=4), 2, ("abcd", "ab")),
    (settings("colocate", engines=2, auxiliary=[1, 2]), 1, ("abc", "a")),
    (settings(engines=2, auxiliary=[1], taught=True), 2, ("cde", "abcde")),  # the trainer starts its teacher, on e
    (settings("colocate", auxiliary=[2], taught=True), 1, ("ab", "ab"))])
def test_side_by_side_no_gpu_has_two_owners_and_colocated_they_share(given, ranks, expected):
    assert share_gpus(EIGHT, given, ranks) == tuple(map(list, expected))


def test_too_few_gpus_are_counted_before_anything_starts():
    with refuses(ConfigError, "mode=both", "9 GPUs", "(2 x 2", "4 for trainer.ranks", "found 8", "mode=colocate"):
        share_gpus(EIGHT, settings(engines=2, each=2, auxiliary=[1]), 4)
    with refuses(ConfigError, "mode=colocate", "2 GPUs", "found 1"):
        share_gpus(["0"], settings("colocate", each=2), 1)


def test_auxiliary_models_come_behind_the_engines_or_begin_with_them():
    assert shares.auxiliary_gpus(settings(engines=2, each=2, auxiliary=[1]), 0) == range(4, 5)
    assert shares.auxiliary_gpus(settings("colocate", engines=2, each=2, auxiliary=[1]), 0) == range(1)


def test_who_answers_alone_sees_the_first_gpus_and_no_more(monkeypatch):
    monkeypatch.setattr(devices, "torch_has_cuda", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7")
    assert answering_environment(settings(engines=2)) == {"CUDA_VISIBLE_DEVICES": "5,6"}
    with refuses(ConfigError, "mode=both", "2 GPUs", "found 1"):
        answering_environment(settings(auxiliary=[1], at_most=1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert answering_environment(settings()) == {}


def test_cores_are_split_when_both_compute_at_once():
    assert share_cores([0, 1, 2], overlap=True, gpu=False, engines=1) == ([0], [1, 2])
    assert share_cores([0, 1, 2], overlap=True, gpu=False, engines=2) == ([0, 1], [2])
    assert share_cores([0, 1, 2], overlap=True, gpu=False, engines=4) == ([0, 1], [2])  # one is the trainer's
    assert share_cores([0, 1, 2], overlap=False, gpu=False, engines=2) == ([0, 1, 2], [0, 1, 2])
    assert share_cores([0], overlap=True, gpu=False, engines=1) == ([0], [0])


def test_engines_have_cores_of_their_own_as_long_as_there_are_enough():
    assert deal_cores([0, 1], 2) == [[0], [1]]
    assert deal_cores([3, 4, 5, 6, 7], 2) == [[3, 5, 7], [4, 6]]
    assert deal_cores([3, 4], 3) == [[3], [4], [3]]


def test_a_stage_without_an_engine_knows_its_models_to_ask_and_no_engine():
    model = {"engine_num": 2, "tensor_parallel_size": 3}
    given = Config.partial({"mode": "score", "explorer": {"auxiliary_models": [model]}})
    assert shares.held_gpus(KINDS["scored"], given) == 6
    assert shares.held_gpus(KINDS["tasks"], given) == 0
