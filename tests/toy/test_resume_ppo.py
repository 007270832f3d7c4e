"""PPO with every part, killed and started again: policy, critic and coefficients end as if it had never been killed."""

import signal
import time
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from pipeline.check.judge import compose
from pipeline.plan.plan import make_plan
from pipeline.store import checkpoints, files, records, tables
from tests.toy.conftest import SMALL, copy_upstream, stage_of
from tests.toy.test_resume import start, wait_until

pytestmark = pytest.mark.slow

PPO = [
    "stages=[{stage_name: rft}]", "algorithm.algorithm_type=ppo", "trainer.critic_warmup=1",
    "trainer.critic.optimizer.lr=1e-3", "algorithm.optimizer.lr_warmup_steps=0", "algorithm.bypass_old_logprobs=false",
    "algorithm.kl_loss_fn=k3", "algorithm.kl_loss_fn_args={adaptive: true, target_kl: 0.001, horizon: 100}",
    "algorithm.kl_penalty_fn=k1", "algorithm.kl_penalty_fn_args={adaptive: true, target_kl: 0.001, horizon: 100}",
    "explorer.rollout_model.engine_type=transformers", "synchronizer.sync_interval=1",
]
TIMES = ("seconds", "peak_memory_gib")


def plan(root: Path):
    made = make_plan(compose([f"checkpoint_root_dir={root}", *(o for o in SMALL if not o.startswith("stages.")), *PPO]))
    made.freeze()
    return made


def made_of(directory: Path) -> dict:
    """All that must be the same: tables but for times, coefficients, and the critic's exact state."""
    last = checkpoints.checkpoint_directory(directory, 6)
    read = {}
    for name in ("steps", "trained", "reference"):
        paths = [tables.step_file(directory, name, step) for step in tables.steps_present(directory, name)]
        read[name] = pa.concat_tables(tables.read(path, records.TABLES[name]) for path in paths).to_pylist()
    for row in read["steps"]:
        for column in [c for c in row if c.endswith(TIMES)]:
            del row[column]
    state = torch.load(last / "critic" / "state" / "mp_rank_00_model_states.pt", weights_only=False)["module"]
    return read | {"coefficients": files.read_json(last / files.MANIFEST)["kl_coef"],
                   "critic": {name: value.tolist() for name, value in state.items()}}


def test_killed_twice_policy_critic_and_coefficients_are_the_same(finished, tmp_path):
    whole, cut = plan(tmp_path / "whole"), plan(tmp_path / "cut")
    for one in (whole, cut):
        copy_upstream(finished[1], one, ("tasks", "curate", "model"))
    assert start(stage_of(whole, "rft")).wait(timeout=400) == 0
    directory = Path(stage_of(cut, "rft").directory)
    for step in (3, 5):  # a step after the checkpoints of 2 and 4
        process = start(stage_of(cut, "rft"))
        wait_until(tables.step_file(directory, "steps", step).exists, 300, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(1.0)
    assert start(stage_of(cut, "rft")).wait(timeout=400) == 0
    found, expected = made_of(directory), made_of(Path(stage_of(whole, "rft").directory))
    assert [row["lr"] > 0 for row in expected["steps"]] == [False, *[True] * 5]  # 1: the critic alone
    assert expected["steps"][4]["grad_norm"] > 0  # by the second kill there was something to learn from
    assert len({row["kl_loss_coef"] for row in expected["steps"]}) > 3  # they moved
    for name in expected:
        assert found[name] == expected[name], name
    weights = [files.read_json(Path(stage_of(p, "rft").manifest))["weights_hash"] for p in (whole, cut)]
    assert weights[0] == weights[1]
