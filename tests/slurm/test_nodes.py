"""Stages over several nodes of one job: the same weights and rows as on one."""

import pytest

from ouroboros.pipeline.store import files
from tests.slurm.conftest import continued, finish, manifest, stage
from tests.toy.conftest import table

RANKS = ("stages.sft.trainer.ranks=2", "stages.sft.trainer.zero_stage=2", "stages.sft.buffer.total_steps=6")
ROLLOUT = ("stages.rft.trainer.ranks=2", "stages.rft.explorer.rollout_model.engine_num=2", "buffer.total_steps=2")


def run(root, *overrides):
    done = finish(root, *RANKS, *ROLLOUT, *overrides)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def on_one(cluster, upstream, tmp_path_factory):
    root = continued(upstream, tmp_path_factory.mktemp("one"))
    run(root)
    return root


@pytest.fixture(scope="module")
def on_two(cluster, upstream, tmp_path_factory):
    root = continued(upstream, tmp_path_factory.mktemp("two"))
    run(root, "stages.sft.cluster.node_num=2", "stages.rft.cluster.node_num=2")
    return root


@pytest.mark.parametrize("name", ["sft", "rft"])
def test_two_nodes_make_the_weights_of_one(on_one, on_two, name):
    assert stage(on_one, name).name == stage(on_two, name).name  # the number of nodes is in no identity
    assert manifest(on_two, name)["weights_hash"] == manifest(on_one, name)["weights_hash"]


def test_two_nodes_answer_like_one(on_one, on_two):
    rows = [[{key: value for key, value in row.items() if key != "unix_seconds"}
             for row in table(stage(root, "rft"), "experience")] for root in (on_one, on_two)]
    assert rows[0] == rows[1]


def test_several_nodes_without_slurm_are_refused(tmp_path):
    done = finish(tmp_path, "stages.sft.cluster.node_num=2", "stages.sft.trainer.ranks=2", options=())
    assert done.returncode == 2
    assert "--profile slurm" in done.stderr
    assert not list(tmp_path.glob(f"store/*/{files.MANIFEST}"))
