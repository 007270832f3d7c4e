"""What a stage asks of the cores and the host memory of the machine that it runs on."""

import pytest
from pydantic import ValidationError

from ouroboros.pipeline.check import engine
from ouroboros.pipeline.check import machine as checks
from ouroboros.pipeline.job.devices import Gpus
from ouroboros.pipeline.settings.arguments.judging import JudgeReward
from tests.configs import changed

CPU, ONE = Gpus(0, None, False), Gpus(1, 80.0, True)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Two cores, 24 GiB, no SLURM."""
    monkeypatch.setattr(checks, "cores", lambda: [0, 1])
    monkeypatch.setattr(checks.os, "sysconf", {"SC_PHYS_PAGES": 24 << 18, "SC_PAGE_SIZE": 4096}.get)
    monkeypatch.setattr(checks.shutil, "which", lambda name: None)


def keys(config, gpus=CPU):
    return [problem.key for problem in checks.unfit_host(config, gpus)]


def rft(**settings):
    return changed({"algorithm.repeat_times": 8, "explorer.rollout_model.engine_type": "transformers"} | settings)


@pytest.mark.parametrize(("key", "value", "gpus", "fits"), [
    ("trainer.ranks", 8, CPU, True), ("trainer.ranks", 9, CPU, False), ("trainer.ranks", 64, ONE, True),
    ("explorer.rollout_model.engine_num", 64, CPU, False), ("buffer.batch_size", 3_097_000, CPU, True),
    ("buffer.batch_size", 3_098_000, CPU, False), ("buffer.batch_size", 100_000_000, ONE, False)])
def test_more_processes_than_four_a_core_or_a_step_that_memory_cannot_hold(key, value, gpus, fits):
    """24 GiB / (8 * 1,040 bytes) = 3,097,425 tasks. Where there are GPUs each process has one."""
    assert keys(rft(**{key: value}), gpus) == ([] if fits else [key])


def test_what_tokens_are_sampled_among_takes_host_memory_until_replies_end():
    """2 * 4 bytes, the set's own top_k of 1,024, 256 sequences, replies of 12,288: 24 GiB; the step has 512 rollouts.
    Of a step of 128 half of it; without truncation nothing."""
    own = "buffer.explorer_input.taskset.rollout_args.top_k"
    long = {own: 1024, "model.top_k": 4, "model.max_response_tokens": 12_288, "buffer.batch_size": 64,
            "explorer.rollout_model.max_num_seqs": 256}
    assert keys(rft(**long)) == []
    assert keys(rft(**long | {"model.max_response_tokens": 12_289})) == [own]
    assert keys(rft(**long | {"model.max_response_tokens": 24_576, "buffer.batch_size": 16})) == []
    assert keys(rft(**{"model.max_response_tokens": 10**6})) == []


def test_where_slurm_may_start_it_elsewhere_nothing_is_known(monkeypatch):
    monkeypatch.setattr(checks.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert keys(rft(**{"trainer.ranks": 64, "buffer.batch_size": 10**8})) == []


JUDGED = {"buffer.explorer_input.default_reward_fn_type": "judge_reward"}
ARGUMENTS = {"judge_url": "http://127.0.0.1:8000/v1", "judge_model": "m"}


def test_a_key_of_a_server_that_neither_the_recipe_nor_the_environment_sets(monkeypatch):
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    key = "buffer.explorer_input.taskset.reward_fn_args"
    given = {**JUDGED, key: ARGUMENTS | {"judge_key_env": "JUDGE_KEY"}}
    (problem,) = checks.unfit_host(rft(**given), CPU)
    assert (problem.key, problem.found) == (f"{key}.judge_key_env", "JUDGE_KEY")
    assert keys(rft(**given, **{"explorer.env_vars": {"JUDGE_KEY": "x"}})) == []
    monkeypatch.setenv("JUDGE_KEY", "x")
    assert keys(rft(**given)) == []


@pytest.mark.parametrize(("name", "value"), [
    ("judge_url", "banana"), ("judge_url", "localhost:8000/v1"), ("judge_url", "ftp://x/v1"),
    ("judge_url", "http://user:secret@x/v1"), ("judge_url", ""), ("judge_url", "http://*"),
    ("judge_url", "http://x:0/v1"), ("judge_url", "http://256.0.0.1/v1"), ("judge_url", "http://[::g]"),
    ("judge_model", ""), ("judge_model", " "), ("judge_key_env", "sk-12345"), ("judge_key_env", "")])
def test_an_address_or_a_variable_that_is_none(name, value):
    with pytest.raises(ValidationError) as error:
        JudgeReward(**{**ARGUMENTS, name: value})
    assert {one["loc"][0] for one in error.value.errors()} >= {name}


def test_flash_attn_has_to_import(monkeypatch, tmp_path):
    (tmp_path / "flash_attn.py").write_text("raise ImportError('undefined symbol: _ZN3c10')")
    asked = rft(**{"trainer.attention": "flash_attn"})
    assert keys(asked) == keys(asked, ONE) == ["trainer.attention"]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    engine._unusable.cache_clear()
    (problem,) = checks.unfit_host(asked, ONE)
    assert "_ZN3c10" in problem.needed
    (tmp_path / "flash_attn.py").write_text("")
    engine._unusable.cache_clear()
    assert keys(asked, ONE) == []
