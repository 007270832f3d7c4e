"""Several engines in processes of their own: the same answers as one, and no failure that hangs."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ouroboros.pipeline.job.shares import deal
from ouroboros.pipeline.store.errors import ConfigError, StageError
from ouroboros.stages.learner.engine import policy
from ouroboros.workflows.engines import open as open_module
from ouroboros.workflows.engines.engine_pool import EnginePool
from ouroboros.workflows.engines.open import begin_engines, engines_per_gpu, open_engine, with_cache
from ouroboros.workflows.protocol.engine import INTERRUPTED, Request
from ouroboros.workflows.protocol.prompts import load_tokenizer
from tests.golden.messages import refuses

EOS = 1


def ask(prompt, seed, tokens=8):
    return Request(prompt, tokens, 1.0, 1.0, -1, seed)


@pytest.mark.parametrize(("costs", "parts", "expected"), [
    ([5, 5, 5, 5], 2, [[0, 1], [2, 3]]),
    ([5, 5, 5], 2, [[0], [1, 2]]),  # the middle of the second is the middle of all: it goes to the later half
    ([90, 10, 10, 10], 2, [[0], [1, 2, 3]]),  # halves meet at 60: 45 | 95, 105, 115
    ([10, 10, 10, 90], 2, [[0, 1, 2], [3]]),  # 5, 15, 25 | 75
    ([1, 1, 98], 3, [[0, 1], [2], []]),  # thirds meet at 33 and 67: 0.5, 1.5 | 51 |
    ([7], 3, [[], [0], []]), ([], 2, [[], []]), ([3, 3, 3, 3, 3, 3], 3, [[0, 1], [2, 3], [4, 5]])])
def test_requests_are_cut_into_runs_of_about_the_same_cost(costs, parts, expected):
    assert [list(range(len(costs)))[part] for part in deal(costs, parts)] == expected


@pytest.fixture(scope="module")
def two(tiny_model, tmp_path_factory):
    """A pool of two transformers engines on the tiny model, shared: it takes seconds to start."""
    from tests.configs import TINY, overridden

    config, logs = overridden(*TINY, "explorer.rollout_model.engine_num=2"), tmp_path_factory.mktemp("logs")
    pool = open_engine(tiny_model, config, [load_tokenizer(tiny_model).eos_token_id], logs=logs)
    yield pool
    pool.close()


@pytest.fixture
def one(tiny_model, tiny_settings):
    return open_engine(tiny_model, tiny_settings(), [load_tokenizer(tiny_model).eos_token_id])


def test_two_engines_answer_like_one(one, two):
    requests = [ask([10 + i, 20, 30][: 1 + i % 3], seed=i, tokens=4 + 4 * (i % 2)) for i in range(9)]
    assert isinstance(two, EnginePool)
    assert not isinstance(one, EnginePool)
    assert two.version == one.version
    alone, together = one.generate(requests), two.generate(requests)
    assert [r.tokens for r in together] == [r.tokens for r in alone]
    assert [r.finish_reason for r in together] == [r.finish_reason for r in alone]
    for a, b in zip(alone, together, strict=True):
        assert b.logprobs == pytest.approx(a.logprobs, abs=1e-5)
    assert two.generate([]) == []
    assert [r.tokens for r in two.generate(requests[:1])] == [alone[0].tokens]  # one of them has nothing to do
    sequences = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
    for a, b in zip(one.score(sequences), two.score(sequences), strict=True):
        assert b == pytest.approx(a, abs=1e-5)


def test_new_weights_reach_every_engine(one, two, tmp_path):
    probe, old, new = [5, 6, 7, 8], tmp_path / "old", tmp_path / "new"
    (before,) = one.probe(probe)
    for directory, factor in ((old, 1.0), (new, 0.5)):
        directory.mkdir()
        policy.export({n: value * factor for n, value in one.model.named_parameters()}, one.model, directory)
    one.load_weights(new)
    (after,) = one.probe(probe)
    assert after != pytest.approx(before, abs=1e-3)
    two.sleep()
    two.wake()
    two.load_weights(new)
    assert [pytest.approx(after, abs=1e-5)] * 2 == two.probe(probe)
    two.load_weights(old)
    assert [pytest.approx(before, abs=1e-5)] * 2 == two.probe(probe)


def test_requests_join_and_leave_while_others_are_computed(one, two):
    """Two attempts of two turns: the second turns follow as the first ones are answered, one of them is cancelled."""
    first = [ask([10, 20], 1), ask([11, 21], 2), ask([12, 22], 3, tokens=40)]
    alone = one.generate(first)
    numbers = two.submit(first)
    found = {}
    while numbers[0] not in found:
        found |= two.advance()
        assert two.pressure() is None  # these engines know none; what they answer is no reply
    later = Request([10, 20, *found[numbers[0]].tokens], 8, 1.0, 1.0, -1, 9, follows=numbers[0])
    (late, cancelled) = two.submit([later, ask([13], 5, tokens=60)])
    assert late % 2 == numbers[0] % 2  # where its prefix is cached
    two.cancel([cancelled])
    while not {*numbers, late} <= found.keys():
        found |= two.advance()
    assert [found[number].tokens for number in numbers] == [reply.tokens for reply in alone]
    assert found[late].tokens == one.generate([later])[0].tokens
    assert cancelled not in found
    assert two.score([[5, 6, 7]]) == [pytest.approx(one.score([[5, 6, 7]])[0], abs=1e-5)]  # no late reply in between


def test_every_request_of_a_pool_has_a_reply_when_it_is_interrupted(one, two):
    """Complete, or not begun: these engines answer whole batches. Both may then be asked something else."""
    requests = [ask([10 + i % 60, 20], seed=i, tokens=4) for i in range(200)]
    numbers = two.submit(requests)
    (dropped, *kept) = numbers
    two.cancel([dropped])
    found = two.interrupt()
    assert sorted(found) == sorted(kept)
    complete = [i for i, number in enumerate(numbers) if number in found and found[number].finish_reason != INTERRUPTED]
    assert all(found[number].tokens == [] for number in kept if found[number].finish_reason == INTERRUPTED)
    assert [found[numbers[i]].tokens for i in complete] == [
        reply.tokens for reply in one.generate([requests[i] for i in complete])]
    assert two.score([[5, 6, 7]]) == [pytest.approx(one.score([[5, 6, 7]])[0], abs=1e-5)]
    assert two.interrupt() == {}


@pytest.mark.wide
def test_two_vllm_engines_answer_like_one(one, tiny_model, tiny_settings, tmp_path):
    policy.export({n: value * 0.5 for n, value in one.model.named_parameters()}, one.model, tmp_path)
    one.load_weights(tmp_path)
    requests = [ask([10 + i % 5, 20, 30][: 1 + i % 3], seed=i, tokens=4 + i % 9) for i in range(24)]
    answers, probes = [], []
    for number in (1, 2):
        config = tiny_settings("explorer.rollout_model.engine_type=vllm", "explorer.runner_concurrency=auto",
                               f"explorer.rollout_model.engine_num={number}")
        pool = EnginePool(tiny_model, config, [load_tokenizer(tiny_model).eos_token_id], False, tmp_path)
        answers.append(pool.generate(requests))
        numbers, found = pool.submit(requests), {}
        assert pool.pressure() is None  # it asks, and does not wait
        while len(found) < len(numbers):
            found |= pool.advance()
        assert 0 <= pool.pressure().usage <= 1
        assert pool.pressure().preemptions == 0
        probes += pool.probe([5, 6, 7, 8])
        pool.load_weights(tmp_path)
        assert pool.probe([5, 6, 7, 8]) == [pytest.approx(one.score([[5, 6, 7, 8]])[0], abs=1e-4)] * number
        pool.close()
    assert [r.tokens for r in answers[1]] == [r.tokens for r in answers[0]]
    for a, b in zip(*answers, strict=True):
        assert b.logprobs == pytest.approx(a.logprobs, abs=1e-5)
    assert len(probes) == 3
    assert probes[1:] == [pytest.approx(probes[0], abs=1e-5)] * 2


@pytest.mark.parametrize(("chosen", "gpus", "expected"), [
    ((), ["0"], 2),  # 2 copies of 1 GiB are less than a fifth of 0.9 of 80 GiB
    (("gpu_memory_utilization=0.1",), ["0"], 1),  # 2 GiB of 8
    (("tensor_parallel_size=2",), ["0", "1"], 1), (("engines_per_gpu=3",), ["0"], 3),
    (("engines_per_gpu=1",), ["0"], 1),
    (("engines_per_gpu=3",), [], 1), (("engine_type=transformers", "engines_per_gpu=2"), ["0"], 1)])
def test_two_engines_of_a_small_model_share_a_gpu(monkeypatch, settings, tmp_path, chosen, gpus, expected):
    config = settings("explorer.rollout_model.engine_type=vllm", *(f"explorer.rollout_model.{one}" for one in chosen))
    config.cluster.gpu_memory_gib = 80.0
    monkeypatch.setattr("ouroboros.workflows.engines.open.visible_gpus", lambda _: gpus)
    monkeypatch.setattr("ouroboros.pipeline.job.devices.visible_gpus", lambda _: gpus)
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.truncate(2**30)
    assert engines_per_gpu(config, tmp_path) == expected


def test_engines_that_share_gpus_have_a_part_each(monkeypatch, settings, tmp_path):
    config = settings("explorer.rollout_model.engine_type=scripted", "explorer.rollout_model.engine_num=2",
                      "explorer.rollout_model.gpu_memory_utilization=0.8", "explorer.rollout_model.max_num_seqs=9")
    config.explorer.rollout_model.extra_engine_args = {"script": {}, "default": [9, EOS]}
    monkeypatch.setattr("ouroboros.workflows.engines.engine_pool.visible_gpus", lambda _: ["3", "4"])
    sent, send = [], EnginePool._send
    monkeypatch.setattr(EnginePool, "_send", lambda pool, member, message: (
        sent.append(message), send(pool, member, message))[1])
    pool = EnginePool(None, config, [EOS], False, tmp_path, shared_by=2)
    (part,) = {(one.engines_per_gpu, one.gpu_memory_utilization, one.max_num_seqs) for one in (
        given[1].explorer.rollout_model for method, given in sent if method == "open")}
    assert part == (2, 0.4, 5)
    visible = [Path(f"/proc/{member.process.pid}/environ").read_bytes().split(b"\0") for member in pool._members]
    assert [one for names in visible for one in names if one.startswith(b"CUDA_VISIBLE")] == [
        b"CUDA_VISIBLE_DEVICES=3"] * 2 + [b"CUDA_VISIBLE_DEVICES=4"] * 2
    assert len(pool.generate([ask([5], seed) for seed in range(8)])) == 8
    pool.close()


def _scripted(settings, number=2, script=()):
    config = settings("explorer.rollout_model.engine_type=scripted", f"explorer.rollout_model.engine_num={number}")
    config.explorer.rollout_model.extra_engine_args = {"script": dict(script), "default": [9, EOS]}
    return config


def test_processes_that_were_begun_are_those_that_are_opened(monkeypatch, settings, tmp_path):
    config = _scripted(settings)
    with begin_engines(tmp_path, config, tmp_path) as begun:
        monkeypatch.setattr(open_module, "engines_per_gpu", None)  # they are counted once
        pool = open_engine(tmp_path, config, [EOS], logs=tmp_path, begun=begun)
    pids = [member.process.pid for member in begun]
    assert [member.process.pid for member in pool._members] == pids
    assert [reply.tokens for reply in pool.generate([ask([5], seed) for seed in range(4)])] == [[9, EOS]] * 4
    pool.close()
    assert all(map(is_gone, pids))


def test_an_error_before_they_are_opened_ends_processes_that_were_begun(settings, tmp_path):
    with pytest.raises(KeyError), begin_engines(tmp_path, _scripted(settings), tmp_path) as begun:
        raise KeyError
    assert len(begun) == 2
    assert all(is_gone(member.process.pid) for member in begun)
    with begin_engines(tmp_path, _scripted(settings, 1), tmp_path) as none:
        assert not none  # one is opened in this process


@pytest.mark.parametrize(("number", "weights", "parts", "given", "expected"), [
    (10, 1, 1, {}, 7 << 30), (10, 6, 1, {}, 2 << 30),  # 10 GiB each, 2 of them for activations
    (2, 6, 1, {}, 39 << 30),  # 50 GiB each, 5 of them for activations
    (2, 6, 2, {}, 42 << 30),  # 3 for weights, of which each of two GPUs holds half
    (10, 1, 1, {"enable_prefix_caching": False}, 7 << 30), (1, 1, 1, {}, None), ("auto", 1, 1, {}, None)])
def test_an_engine_that_shares_its_gpu_leaves_memory_to_activations(
        monkeypatch, settings, tmp_path, number, weights, parts, given, expected):
    config = _sharing(monkeypatch, settings, tmp_path, number, weights)
    config.explorer.rollout_model.tensor_parallel_size = parts
    config.explorer.rollout_model.extra_engine_args = given
    found = with_cache(config, tmp_path).explorer.rollout_model.extra_engine_args
    assert found == given | ({"kv_cache_memory_bytes": expected} if expected else {})


@pytest.mark.parametrize(("number", "cache", "part"), [("auto", 1024, 0.01), (2, 1024, 0.01), (1, 200 << 10, 1.0)])
def test_a_cache_of_a_given_size_is_what_the_engine_takes(monkeypatch, settings, tmp_path, number, cache, part):
    """gpu_memory_utilization is the cache's part, 1 of 100 GiB, or the given share if that is less."""
    config = _sharing(monkeypatch, settings, tmp_path, number, 1)
    config.explorer.rollout_model.kv_cache_mib = cache
    found = with_cache(config, tmp_path).explorer.rollout_model
    assert found.gpu_memory_utilization == pytest.approx(part)
    assert found.extra_engine_args == {"kv_cache_memory_bytes": cache << 20}


def test_a_gpu_too_small_for_its_engines_is_refused(monkeypatch, settings, tmp_path):
    config = _sharing(monkeypatch, settings, tmp_path, 10, 9)
    with refuses(ConfigError, "gpu_memory_utilization", "10.0 GiB"):
        with_cache(config, tmp_path)


def _sharing(monkeypatch, settings, model: Path, number, weights: int):
    """Returns the settings of one of `number` engines on a GPU of 100 GiB. weights: size of the model's file in GiB."""
    config = settings("explorer.rollout_model.engine_type=vllm", f"explorer.rollout_model.engines_per_gpu={number}")
    config.explorer.rollout_model.gpu_memory_utilization = 1 / number if number != "auto" else 1.0
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(total_memory=100 << 30))
    with open(model / "model.safetensors", "wb") as file:
        file.truncate(weights << 30)
    return config


@pytest.fixture
def scripted(settings, tmp_path):
    """scripted(script): a pool of two engines that know no model, started in a moment."""
    opened = []

    def make(script=()):
        opened.append(EnginePool(None, _scripted(settings, script=script), [EOS], False, tmp_path))
        return opened[-1]

    yield make
    for pool in opened:
        pool._end()


def processes(pool):
    return [member.process.pid for member in pool._members]


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_each_engine_has_a_core_and_a_log_of_its_own(scripted, tmp_path, monkeypatch):
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    pool = scripted()
    used = [os.sched_getaffinity(pid) for pid in processes(pool)]
    if len(os.sched_getaffinity(0)) > 1:
        assert used[0].isdisjoint(used[1])
    for pid, own in zip(processes(pool), used, strict=True):
        variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
        assert {f"MKL_NUM_THREADS={len(own)}", f"OMP_NUM_THREADS={len(own)}"} <= {*variables}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine_0.log", "engine_1.log"]
    pool.close()
    assert all(map(is_gone, processes(pool)))


def test_more_requests_and_replies_than_a_pipe_holds(scripted):
    pool = scripted()
    numbers, found = [], {}
    for _ in range(8):  # 8 MB, while the engines answer
        numbers += pool.submit([ask([5] * 1000, seed) for seed in range(200)])
    while len(found) < len(numbers):
        found |= pool.advance()
    assert found.keys() == {*numbers}


def test_later_requests_go_to_the_engine_with_the_least_to_do(scripted):
    pool = scripted()
    for pid in processes(pool):
        os.kill(pid, signal.SIGSTOP)
    first = pool.submit([ask([5], 0, tokens=100), ask([6], 1, tokens=100)])
    later = pool.submit([ask([7], 2, tokens=50), ask([8], 3, tokens=10), ask([9], 4, tokens=10)])
    assert [number % 2 for number in first] == [0, 1]
    assert [number % 2 for number in later] == [0, 1, 1]
    assert pool.advance(0.0) == {}
    for pid in processes(pool):
        os.kill(pid, signal.SIGCONT)


def test_an_engine_killed_while_it_answers_ends_the_call_in_seconds(scripted, tmp_path):
    pool = scripted()
    first, second = processes(pool)
    os.kill(second, signal.SIGSTOP)  # it answers no more
    threading.Timer(0.3, os.kill, (second, signal.SIGKILL)).start()
    begin = time.monotonic()
    with refuses(StageError, f"process {second}) died", "engine_1", "SIGKILL") as caught:
        pool.generate([ask([5], 0), ask([6], 1)])
    assert time.monotonic() - begin < 5
    assert str(tmp_path / "engine_1.log") in str(caught.value)
    assert is_gone(first)


def test_an_engine_that_died_between_two_calls_is_named_at_the_next(scripted):
    pool = scripted()
    os.kill(processes(pool)[0], signal.SIGKILL)
    time.sleep(0.2)
    with refuses(StageError, "engine_0", "SIGKILL"):
        pool.load_weights(None)


def test_what_an_engine_raises_is_told_with_its_log_and_ends_the_others(scripted, tmp_path):
    pool = scripted({"6": 3})  # 3 cannot be cut to max_tokens
    with refuses(StageError, "engine_1", "TypeError: 'int'"):
        pool.generate([ask([5], 0), ask([6], 1)])
    assert "Traceback" in (tmp_path / "engine_1.log").read_text()
    assert all(map(is_gone, processes(pool)))


def test_a_mistake_of_the_user_stays_one(settings, tmp_path):
    config = settings("explorer.rollout_model.engine_type=scriptd", "explorer.rollout_model.engine_num=2")
    with pytest.raises(ConfigError) as caught:  # of either engine
        EnginePool(None, config, [EOS], False, tmp_path)
    assert "mean 'scripted'" in str(caught.value).partition("engine_")[2]


def test_an_engine_that_failed_before_it_is_asked_says_why(scripted):
    pool = scripted()
    pool._send(pool._members[0], ("pressure", ()))  # whose answer comes before that
    pool._send(pool._members[0], ("load", ()))  # no such method
    pool._members[0].process.wait(5)
    with pytest.raises(StageError, match="load"):
        pool._send(pool._members[0], ("close", ()))


def test_an_engine_that_nobody_asks_any_more_ends(scripted):
    pool = scripted()
    for member in pool._members:
        member.questions.close()
        assert member.process.wait(5) == 0


ORPHANS = """
import os, signal, sys
from pathlib import Path
from ouroboros.pipeline.settings.config import Config
from tests.configs import overridden
from ouroboros.workflows.engines.engine_pool import EnginePool
model = "explorer.rollout_model"
config = overridden(f"{model}.engine_type=scripted", f"{model}.engine_num=2")
pool = EnginePool(None, config, [1], False, Path(sys.argv[1]))
print(*[member.process.pid for member in pool._members], flush=True)
for member in pool._members:
    os.kill(member.process.pid, signal.SIGSTOP)  # as if it computed: it hears of nothing
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_engines_die_with_the_process_that_asks_them_even_when_they_are_busy(tmp_path):
    done = subprocess.run([sys.executable, "-c", ORPHANS, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 5
    while not all(map(has_ended, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(map(has_ended, pids))


def has_ended(pid):
    """Gone, or only waiting for a parent to ask how it ended."""
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "\nState:\tZ" in status.read_text()
