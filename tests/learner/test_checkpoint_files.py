"""Checkpoint files of every ZeRO stage are read without running what they contain."""

import errno
import fcntl
import hashlib
import mmap
import os
import pickle
import resource
import time
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save_file

from ouroboros.pipeline.store import hashes, tensor_files
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.pipeline.store.tensor_files import CHUNK, Writer
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.engine import snapshot
from ouroboros.stages.learner.engine.snapshot import Part, copied, write_weights, written
from ouroboros.stages.learner.objective import Objective
from ouroboros.workflows.engines import host_weights
from tests.configs import TINY, overridden
from tests.golden.messages import refuses
from tests.learner.ranks import rows


def actor(tiny_model, process, stage, dtype="float32"):
    settings = overridden(*TINY, f"trainer.zero_stage={stage}", f"model.dtype={dtype}")
    return Actor(tiny_model, settings, process)


@pytest.mark.parametrize(("stage", "dtype", "element"), [
    (1, "float32", 0), (1, "bfloat16", 0), (2, "float32", 0), (2, "bfloat16", 0), (3, "float32", 0),
    (1, "float32", 4), (1, "bfloat16", 2)])  # the last two with weights by name, as before 2026-12
def test_weights_that_masters_round_to_are_in_no_state_and_come_back_bit_for_bit(
        tiny_model, process, tmp_path, stage, dtype, element):
    """Of P parameters float32 masters and two moments: 12 P bytes. The model is beside them, in model/."""
    made, loss = actor(tiny_model, process, stage, dtype), Objective(overridden(*TINY, "algorithm.algorithm_type=sft"))
    made.step(rows(), loss, 1e-2, 1)
    written(made.zero.save(tmp_path, weights=element > 0))
    assert (tmp_path / "state").exists() == (stage == 3 or element > 0)  # releases that need weights by name read this
    size = sum(path.stat().st_size for path in tmp_path.glob("*/*"))
    parameters = sum(p.numel() for p in made.full_state().values())
    assert size == pytest.approx((12 + element) * parameters, abs=40_000)  # names, numbers, settings
    other = actor(tiny_model, process, stage, dtype)
    other.zero.load(tmp_path)
    for _ in range(2):
        found, expected = other.full_state(), made.full_state()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert made.step(rows(), loss, 1e-2, 2).loss == other.step(rows(), loss, 1e-2, 2).loss


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_member_of_an_enumeration_is_read_as_early_releases_of_python_3_11_write_it(
        tiny_model, process, tmp_path, monkeypatch):
    """Those write getattr(ZeroStageEnum, "optimizer_states"), and no resume worked there."""
    from deepspeed.runtime.zero.config import ZeroStageEnum

    monkeypatch.setattr(ZeroStageEnum, "__reduce_ex__", lambda self, _: (getattr, (type(self), self._name_)))
    made = actor(tiny_model, process, 1)
    written(made.zero.save(tmp_path))
    assert any(b"getattr" in path.read_bytes() for path in (tmp_path / "masters").iterdir())
    actor(tiny_model, process, 1).zero.load(tmp_path)


class Attribute:
    """Is unpickled as the named attribute of another object."""

    def __init__(self, of, name):
        self.of, self.name = of, name

    def __reduce__(self):
        return getattr, (self.of, self.name)


@pytest.mark.parametrize("held", [lambda place: Attribute(torch.Tensor, "numpy"), Evil], ids=["attribute", "code"])
def test_code_in_a_checkpoint_is_not_run_and_other_attributes_are_not_read(tiny_model, process, tmp_path, held):
    made = actor(tiny_model, process, 1)
    written(made.zero.save(tmp_path))
    torch.save({"module": held(tmp_path / "ran")}, tmp_path / "masters" / "mp_rank_00_model_states.pt")
    with pytest.raises(pickle.UnpicklingError):
        made.zero.load(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("stage", "dtype"), [(1, "float32"), (2, "float32"), (3, "float32"), (1, "bfloat16")])
def test_a_copy_writes_the_bytes_of_the_state_when_it_was_taken(tiny_model, process, tmp_path, stage, dtype):
    made = actor(tiny_model, process, stage, dtype)
    for name in ("at once", "later"):
        (tmp_path / name / "model").mkdir(parents=True)
    written(made.save(tmp_path / "at once"))
    copies = copied(made.save(tmp_path / "later"))
    optimizer = made.zero.engine.optimizer
    masters = optimizer.fp32_partitioned_groups_flat if stage == 3 else optimizer.single_partition_of_fp32_groups
    with torch.no_grad():
        for tensor in (*made.zero.module.parameters(), *masters):
            tensor.zero_()
    written(copies)
    files = sorted(path.relative_to(tmp_path / "at once") for path in (tmp_path / "at once").rglob("*.*"))
    assert len(files) >= 3
    for path in files:
        assert (tmp_path / "later" / path).read_bytes() == (tmp_path / "at once" / path).read_bytes(), path


@pytest.fixture(params=[("past the page cache", 0), ("not set so", errno.EINVAL), ("not written so", errno.EINVAL),
                        ("not written so", errno.EOPNOTSUPP), ("not advised", errno.ENOSYS)], ids=str)
def cache(request, monkeypatch):
    """File systems that can write past the page cache, and that cannot: some refuse it at once, others each write."""
    controlled, written_at = fcntl.fcntl, os.pwrite

    def refusing(call, refused):
        def called(file, *rest):
            if refused(file, *rest):
                time.sleep(0.01)  # every thread reads the flag before the first one clears it
                raise OSError(request.param[1], "refused")
            return call(file, *rest)
        return called

    if request.param[0] == "not set so":
        monkeypatch.setattr(fcntl, "fcntl", refusing(controlled, lambda file, *rest: os.O_DIRECT in rest))
    elif request.param[0] == "not advised":
        monkeypatch.setattr(os, "posix_fadvise", refusing(os.posix_fadvise, lambda file, *rest: True))
    elif request.param[0] == "not written so":
        monkeypatch.setattr(os, "pwrite", refusing(
            written_at, lambda file, *rest: controlled(file, fcntl.F_GETFL) & os.O_DIRECT))


@pytest.mark.parametrize("size", [20 << 20, 7 * CHUNK + 4096 + 5, 0])
def test_files_of_torch_are_hashed_as_they_are_written(tmp_path, cache, size):
    state = {"large": torch.arange(size).to(torch.uint8), "view": torch.arange(6.0)[2:], "step": 7}
    with Writer(tmp_path / "a.pt") as file:
        torch.save(state, file)
    assert file.entry == hashes.hash_of(tmp_path / "a.pt")
    found = torch.load(tmp_path / "a.pt", weights_only=True)
    assert torch.equal(found["large"], state["large"])
    assert (found["view"].tolist(), found["step"]) == ([2.0, 3.0, 4.0, 5.0], 7)


def test_a_file_of_torch_that_cannot_be_written_raises_why(tmp_path):
    """torch ends the process where its file raises in the middle."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))  # Python ignores the signal
    try:
        with pytest.raises(OSError, match="too large"), Writer(tmp_path / "a.pt") as file:
            torch.save({"a": torch.zeros(4 << 20), "b": torch.zeros(9)}, file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("cached", [False, True])
def test_what_no_reader_needs_goes_past_the_page_cache_where_the_file_system_takes_it(tmp_path, monkeypatch, cached):
    """All whole chunks; what is less than a block at the end cannot."""
    written_at, calls = os.pwrite, []

    def pwrite(file, data, offset):
        done = written_at(file, data, offset)
        calls.append((offset, bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT)))
        return done

    try:
        probe = os.open(tmp_path / "probe", os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        written_at(probe, mmap.mmap(-1, CHUNK), 0)
        os.close(probe)
    except OSError as error:
        pytest.skip(f"{tmp_path}: {error}")
    advised = []
    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: advised.append(given[1]))
    with Writer(tmp_path / "a", cached=cached) as file:
        file.write(bytes(2 * CHUNK))
        _ = [call.result() for call in file._calls]  # so that the end does not take it from them
        file.write(bytes(5))
    assert sorted(calls) == [(0, not cached), (CHUNK, not cached), (2 * CHUNK, False)]
    assert sorted(advised) == ([] if cached else [0, CHUNK, 2 * CHUNK])


@pytest.mark.parametrize(("home", "name", "answer", "error"), [
    (os, "pwrite", Mock(return_value=0), OSError), (tensor_files, "mmap", Mock(side_effect=MemoryError), MemoryError)])
def test_a_file_that_takes_nothing_or_has_no_memory_for_its_chunks_is_closed(
        tmp_path, monkeypatch, home, name, answer, error):
    def writes():
        with Writer(tmp_path / "a") as file:
            file.write(b"some")

    before = {*os.listdir("/proc/self/fd")}
    monkeypatch.setattr(home, name, answer)
    with pytest.raises(error):
        writes()
    assert {*os.listdir("/proc/self/fd")} == before


@pytest.mark.parametrize("others", [2, 9])
def test_the_first_error_of_a_file_is_raised_at_its_end_and_its_descriptor_is_closed(tmp_path, monkeypatch, others):
    """The second of its chunks cannot be written, later ones for another reason; no call of write says so."""
    before, written_at = {*os.listdir("/proc/self/fd")}, os.pwrite

    def pwrite(file, data, offset):
        if offset:
            raise OSError(errno.ENOSPC if offset == CHUNK else errno.EIO, "cannot")
        return written_at(file, data, offset)

    def writes():
        with Writer(tmp_path / "a") as file:
            assert [file.write(bytes(CHUNK)) for _ in range(others)] == [CHUNK] * others

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match="cannot") as caught:
        writes()
    assert caught.value.errno == errno.ENOSPC
    assert {*os.listdir("/proc/self/fd")} == before


@pytest.mark.parametrize(("data", "raised"), [([1, 2], None), (b"some", KeyError("of the block"))])
def test_an_error_of_what_a_file_is_given_or_of_the_block_is_raised_at_its_end(tmp_path, data, raised):
    def writes():
        with Writer(tmp_path / "a") as file:
            assert file.write(data) == len(data)
            if raised:
                raise raised

    with pytest.raises(type(raised) if raised else TypeError):
        writes()


def test_a_file_of_exactly_some_chunks_is_whole(tmp_path, cache):
    data = os.urandom(4096) * (2 * CHUNK // 4096)
    with Writer(tmp_path / "a") as file:
        _ = [file.write(part) for part in (data[:5], data[5:CHUNK], data[CHUNK:])]
    assert (tmp_path / "a").read_bytes() == data


def test_a_file_of_weights_is_that_of_safetensors_and_its_hashes_are_known(tmp_path):
    weights = {"b.weight": torch.randn(300, 200), "a.weight": torch.randn(7, 3).bfloat16(), "é": torch.randn(5)[1:],
               "buffer": torch.arange(3), "scale": torch.tensor(2.0), "none": torch.empty(0, 2).half(),
               "mask": torch.tensor([True, False]), "turned": torch.randn(4, 6).T}
    path, (size, xxh3, sha256) = write_weights(weights, tmp_path / "ours")
    save_file({name: one.contiguous() for name, one in weights.items()}, tmp_path / "theirs", {"format": "pt"})
    assert path.read_bytes() == (tmp_path / "theirs").read_bytes()
    assert (size, xxh3) == hashes.hash_of(path)
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def test_tensors_of_several_types_are_in_the_order_of_safetensors_and_read_as_they_were(tmp_path):
    kinds = [getattr(torch, name) for name in (
        "bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float8_e5m2",
        "float8_e4m3fn", "float16", "bfloat16", "float32", "float64", "complex64")]
    weights = {f"{name} {at}": torch.arange(at, at + 3).to(kind)
               for name, order in (("b", kinds), ("a", kinds[::-1])) for at, kind in enumerate(order)}
    write_weights(weights, tmp_path / "ours")
    save_file(weights, tmp_path / "theirs", {"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    tensor_files.write(tmp_path / "published", snapshot.stored(weights))
    assert (tmp_path / "published").read_bytes() == (tmp_path / "theirs").read_bytes()
    for name, one in tensor_files.read(tmp_path / "ours").items():
        again = host_weights._tensor(one)
        assert again.dtype == weights[name].dtype
        assert torch.equal(again.view(torch.uint8), weights[name].view(torch.uint8))


def test_a_tensor_of_another_type_is_named(tmp_path):
    with refuses(ModelError, "odd.weight", "complex128", "float32"):
        write_weights({"a": torch.zeros(2), "odd.weight": torch.zeros(2, dtype=torch.complex128)}, tmp_path / "a")


@pytest.mark.parametrize(("change", "said"), [
    (lambda held: held["param_shapes"][0].popitem(), "norm.weight"),
    (lambda held: held["param_shapes"][0].move_to_end(next(iter(held["param_shapes"][0]))), "their order"),
    (lambda held: held["buffer_names"].append("rotary.frequency"), "rotary.frequency"),
    (lambda held: held["param_shapes"][0].update({"model.lm_head.other": torch.Size([3, 5])}), "[3, 5]")],
    ids=["fewer", "order", "buffer", "more"])
def test_a_state_of_other_weights_is_refused(tiny_model, process, tmp_path, change, said):
    """Masters have no names: with others of the same sum they would be taken for each other's."""
    made = actor(tiny_model, process, 1)
    written(made.zero.save(tmp_path))
    path = tmp_path / "masters" / "mp_rank_00_model_states.pt"
    held = torch.load(path, weights_only=False)
    change(held)
    torch.save(held, path)
    with refuses(ModelError, path, said):
        made.zero.load(tmp_path)


def test_views_of_one_storage_are_copied_once_and_stay_views():
    flat = torch.arange(6.0)
    parts = [Part({"a": flat[:2], "rest": (flat[2:].view(2, 2), 7)}, print), Part([flat], print)]
    first, second = (part.state for part in copied(parts))
    flat.zero_()
    assert first["rest"][0].tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert first["rest"][1] == 7
    assert first["a"].untyped_storage().data_ptr() == second[0].untyped_storage().data_ptr()


def test_without_memory_for_a_copy_there_is_none(monkeypatch):
    parts = [Part(torch.zeros(100), print)]  # 400 bytes, of which 1.25 times must be free
    for free, expected in ((499, True), (500, False)):
        monkeypatch.setattr(snapshot, "free_memory", lambda free=free: free)
        assert (copied(parts) is None) == expected


def test_free_memory_is_positive_and_less_than_all():
    assert 2**20 < snapshot.free_memory() < 2**50
