"""Reference, critic, correction, pairs, expert rows: the same whatever the ZeRO stage, ranks and micro-batches."""

import os
import subprocess
import sys

import pytest

from pipeline.store import files
from tests.learner.ranks import KINDS, rows
from tests.toy.conftest import REPOSITORY

pytestmark = pytest.mark.slow

WAYS = {
    "two ranks, small micro-batches": (2, ("trainer.max_token_len_per_gpu=64",)),
    "three ranks, ZeRO 2": (3, ("trainer.zero_stage=2",)),
    "two ranks, ZeRO 3": (2, ("trainer.zero_stage=3",)),
}


def trained(model, out, ranks: int, settings: tuple[str, ...]) -> dict:
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    done = subprocess.run([sys.executable, *start, "-m", "tests.learner.ranks", str(model), str(out), *settings],
                          cwd=REPOSITORY, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return files.read_json(out)


ADAPTER = ("model.lora_configs=[{path: null, lora_rank: 4, lora_alpha: 8, target_modules: all-linear, "
           "exclude_modules: []}]")


def assert_same(found: dict, alone: dict, way: str) -> None:
    for kind in KINDS:
        for name in ("losses", "norms"):
            assert found[kind][name] == pytest.approx(alone[kind][name], rel=1e-3, abs=1e-5), (way, kind, name)
        for ours, theirs in zip(found[kind]["statistics"], alone[kind]["statistics"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4), (way, kind)
        for name in ("reference", "scores", "values"):
            for ours, theirs in zip(found[kind][name], alone[kind][name], strict=True):
                assert ours == pytest.approx(theirs, abs=2e-3), (way, kind, name)
        for ours, theirs in zip(found[kind]["reference"], alone[kind]["reference"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-5), (way, kind)


def test_two_steps_see_and_learn_the_same(tiny_model, tmp_path):
    alone = trained(tiny_model, tmp_path / "alone.json", 1, ())
    for kind in KINDS:
        assert [len(values) for values in alone[kind]["scores"]] == [sum(row.mask) for row in rows()]
        assert abs(alone[kind]["losses"][0] - alone[kind]["losses"][-1]) > 1e-3  # something was learnt
    for number, (way, (ranks, settings)) in enumerate(WAYS.items()):
        assert_same(trained(tiny_model, tmp_path / f"{number}.json", ranks, settings), alone, way)


def test_so_do_two_steps_with_an_adapter(tiny_model, tmp_path):
    alone = trained(tiny_model, tmp_path / "alone.json", 1, (ADAPTER,))
    found = trained(tiny_model, tmp_path / "two.json", 2, (ADAPTER, "trainer.zero_stage=3"))
    assert_same(found, alone, "an adapter, two ranks, ZeRO 3")
    assert alone["dpo"]["losses"][0] != alone["dpo"]["losses"][-1]
