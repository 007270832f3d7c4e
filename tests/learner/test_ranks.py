"""Reference, critic, correction, pairs, expert rows: the same whatever the ZeRO stage, ranks and micro-batches."""

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from ouroboros.pipeline.store import files
from tests.learner.ranks import KINDS, every_kind, rows
from tests.learner.test_budget import assert_nothing_is_left
from tests.toy.conftest import REPOSITORY

SPLIT = "trainer.ulysses_sequence_parallel_size=2"
WAYS = [
    pytest.param(2, ("trainer.zero_stage=3", "trainer.max_token_len_per_gpu=64"), marks=pytest.mark.slow),
    pytest.param(2, ("trainer.max_token_len_per_gpu=64",), marks=pytest.mark.wide),
    pytest.param(2, (SPLIT,), marks=pytest.mark.slow),
    pytest.param(4, (SPLIT, "trainer.zero_stage=3", "trainer.max_token_len_per_gpu=32"), marks=pytest.mark.wide),
    pytest.param(3, ("trainer.zero_stage=2",), marks=pytest.mark.wide),
    pytest.param(2, ("trainer.zero_stage=3",), marks=pytest.mark.wide),
]


def trained(model, out, ranks: int, settings: Sequence[str], module: str = "tests.learner.ranks") -> dict:
    command = [sys.executable, "-m", module, str(model), str(out), *settings]
    started = [subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, env=os.environ | {
        "OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)})
        for rank in range(ranks)]
    for process in started:
        _, errors = process.communicate()
        assert process.returncode == 0, errors[-4000:]
    return files.read_json(out)


ADAPTER = ("model.lora_configs=[{path: null, lora_rank: 4, lora_alpha: 8, target_modules: all-linear, "
           "exclude_modules: []}]")


def assert_same(found: dict, alone: dict) -> None:
    for kind in KINDS:
        for name in ("losses", "norms"):
            assert found[kind][name] == pytest.approx(alone[kind][name], rel=1e-3, abs=1e-5), (kind, name)
        for ours, theirs in zip(found[kind]["statistics"], alone[kind]["statistics"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4), kind
        for name in ("reference", "scores", "values"):
            for ours, theirs in zip(found[kind][name], alone[kind][name], strict=True):
                assert ours == pytest.approx(theirs, abs=2e-3), (kind, name)
        for ours, theirs in zip(found[kind]["reference"], alone[kind]["reference"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-5), kind


@pytest.fixture(scope="module")
def alone(tiny_model, process, tmp_path_factory) -> dict:
    """What one rank sees."""
    out = tmp_path_factory.mktemp("ranks") / "alone.json"
    files.write_json(out, every_kind(tiny_model, process))
    return files.read_json(out)


@pytest.mark.parametrize(("ranks", "settings"), WAYS)
def test_two_steps_see_and_learn_the_same(alone, tiny_model, tmp_path, ranks, settings):
    for kind in KINDS:
        assert [len(values) for values in alone[kind]["scores"]] == [sum(row.mask) for row in rows()]
        assert abs(alone[kind]["losses"][0] - alone[kind]["losses"][-1]) > 1e-3  # something was learnt
    found = trained(tiny_model, tmp_path / "seen.json", ranks, settings)
    assert_same(found, alone)
    assert len(found["refused"]) == 2  # policy and critic, on all ranks together
    if ranks == 2 and SPLIT not in settings:  # both repeat the step when one runs out of memory
        both = found["exhausted"]
        assert both["backward"]["budgets"] == both["nowhere"]["budgets"] == [40, 40]
        assert_nothing_is_left(both["backward"], both["nowhere"])
        assert found["resumed"][0] == found["resumed"][1]


@pytest.mark.adapters
def test_so_do_two_steps_with_an_adapter(tiny_model, tmp_path):
    alone = trained(tiny_model, tmp_path / "alone.json", 1, (ADAPTER,))
    assert_same(trained(tiny_model, tmp_path / "seen.json", 2, (ADAPTER, "trainer.zero_stage=3")), alone)
    assert alone["dpo"]["losses"][0] != alone["dpo"]["losses"][-1]
