"""Published weights as full files and deltas: what is written, what a reader gets back, and what damage does."""

from functools import partial

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ouroboros.pipeline.store import checkpoints, files, tensor_files, versions
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.pipeline.store.tensor_files import Stored
from ouroboros.pipeline.store.versions import Held
from tests.golden.messages import refuses

PROBE = {"tokens": [1, 2], "logprobs": [-0.5]}


def stored(values, dtype=np.float32):
    array = np.ascontiguousarray(np.array(values, dtype))
    return Stored({"float32": "F32", "float16": "F16"}[array.dtype.name], array.shape, array.reshape(-1).view(np.uint8))


def weights(number):
    """Two of six elements of `a` change from one version to the next; `b` never does."""
    a = np.arange(6, dtype=np.float16)
    a[[1, 4]] += number
    return {"a": stored(a.reshape(2, 3), np.float16), "b": stored([1.5, 2.5])}


def full(number, directory, found=None):
    new = found or weights(number)
    tensor_files.write(directory / checkpoints.WEIGHTS, new)
    hashes = tensor_files.hashes_of(new)
    return {"hash": versions.root(new, hashes), "tensors": hashes, "base": None}


def delta(stage, number, directory):
    old, new = weights(number - 1), weights(number)
    base = files.read_json(versions.version_directory(stage, number - 1) / files.MANIFEST)["hash"]
    versions.write_delta(directory / versions.DELTA, new, versions.changes(old, new))
    hashes = tensor_files.hashes_of(new)
    return {"hash": versions.root(new, hashes), "tensors": hashes, "base": [number - 1, base]}


@pytest.fixture
def stage(tmp_path):
    """Versions 0 (full), 1, 2, 3 (deltas), 4 (full), 5 (delta)."""
    for number in range(6):
        write = partial(full, number) if number in (0, 4) else partial(delta, tmp_path, number)
        versions.publish(tmp_path, number, write, PROBE)
    return tmp_path


def place(stage, number):
    return versions.version_directory(stage, number)


def held(stage, *numbers, allocate=None):
    """The weights after these versions were taken one after the other."""
    found = Held(allocate)
    for number in numbers:
        found.update(place(stage, number))
        found.verify()
    return {name: tensor.data.tobytes() for name, tensor in found.tensors.items()}


def expected(number):
    return {name: tensor.data.tobytes() for name, tensor in weights(number).items()}


def test_a_file_is_read_by_the_library_and_one_of_the_library_here(tmp_path):
    tensor_files.write(tmp_path / "ours", weights(1))
    assert load_file(tmp_path / "ours")["a"].tolist() == [[0, 2, 2], [3, 5, 5]]
    save_file({"a": np.arange(3, dtype=np.float32), "empty": np.zeros((0, 2), np.float16)}, tmp_path / "theirs")
    for allocate in (None, lambda size: np.empty(size, np.uint8)):
        found = tensor_files.read(tmp_path / "theirs", allocate)
        assert found["a"].data.view(np.float32).tolist() == [0.0, 1.0, 2.0]
        assert (found["empty"].shape, found["empty"].data.nbytes) == ((0, 2), 0)


def test_a_file_larger_than_a_part_is_written_and_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "CHUNK", 64)
    many = {"x": stored(np.arange(1000, dtype=np.float32)), "y": stored([7.0])}
    tensor_files.write(tmp_path / "f", many)
    assert load_file(tmp_path / "f")["x"].tolist() == list(range(1000))
    found = tensor_files.read(tmp_path / "f", lambda size: np.zeros(size, np.uint8))
    assert found["x"].data.view(np.float32).tolist() == list(range(1000))


@pytest.mark.parametrize("content", [b"", b"\x02\0\0\0\0\0\0\0{}x", b"\xff" * 9, b"\x04\0\0\0\0\0\0\0[1]x"])
def test_what_is_no_such_file_is_named(tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    with refuses(ModelError, tmp_path / 'f'):
        tensor_files.read(tmp_path / "f")
    with refuses(ModelError, "missing"):
        tensor_files.read(tmp_path / "g")


def test_tied_tensors_are_one_and_have_the_same_hash():
    one = stored([1.0, 2.0])
    assert tensor_files.hashes_of({"head": one, "embedding": one, "other": stored([1.0, 2.0])}).keys() == {
        "head", "embedding", "other"}
    assert set(tensor_files.distinct({"head": one, "embedding": one}).values()) == {"head"}


def test_a_delta_holds_the_positions_and_values_that_changed(stage):
    found = load_file(place(stage, 1) / versions.DELTA)
    assert {name: values.tolist() for name, values in found.items()} == {"a:index": [1, 4], "a:value": [2, 5]}
    assert not (place(stage, 1) / checkpoints.WEIGHTS).exists()
    assert versions.delta_bytes(weights(1), versions.changes(weights(0), weights(1))) == 2 * (4 + 2)
    manifest = files.read_json(place(stage, 1) / files.MANIFEST)
    assert versions.hash_of(weights(1)) == manifest["hash"]
    steps = versions.chain(place(stage, 3), place(stage, 1).resolve(), manifest)
    assert [files.read_json(one / files.MANIFEST)["version"] for one, _ in steps] == [2, 3]


def test_a_version_in_which_no_weight_changed_is_read_as_the_one_before(stage):
    def unchanged(directory):
        versions.write_delta(directory / versions.DELTA, weights(5), {})
        return files.read_json(place(stage, 5) / files.MANIFEST) | {
            "base": [5, files.read_json(place(stage, 5) / files.MANIFEST)["hash"]]}

    versions.publish(stage, 6, unchanged, PROBE)
    assert held(stage, 4, 6) == held(stage, 6) == expected(5)


def test_changes_are_of_bits_and_found_across_parts(monkeypatch):
    monkeypatch.setattr(versions, "CHUNK", 8)  # two elements
    old, new = stored([0.0, 1.0, np.nan, 3.0, 4.0]), stored([-0.0, 1.0, np.nan, 3.0, 5.0])
    assert versions.changes({"x": old}, {"x": new})["x"].tolist() == [0, 4]
    assert versions.changes({"x": old}, {"x": old}) == {}


def test_the_hash_does_not_depend_on_the_form(stage, tmp_path):
    versions.publish(tmp_path / "other", 3, partial(full, 3), PROBE)
    manifests = [files.read_json(place(one, 3) / files.MANIFEST) for one in (stage, tmp_path / "other")]
    assert manifests[0]["hash"] == manifests[1]["hash"] != files.read_json(place(stage, 2) / files.MANIFEST)["hash"]


@pytest.mark.parametrize("allocate", [None, lambda size: np.empty(size, np.uint8)])
@pytest.mark.parametrize("numbers", [(0,), (3,), (0, 1, 2), (1, 3), (2, 2), (3, 5), (5, 3), (0, 4, 5)])
def test_a_reader_gets_the_weights_of_any_version_whatever_it_held(stage, numbers, allocate):
    before = (place(stage, 0) / checkpoints.WEIGHTS).read_bytes()
    assert held(stage, *numbers, allocate=allocate) == expected(numbers[-1])
    assert (place(stage, 0) / checkpoints.WEIGHTS).read_bytes() == before


def other_weights(stage):
    other = {name: stored(np.zeros(tensor.shape), np.float16 if name == "a" else np.float32)
             for name, tensor in weights(0).items()}
    versions.publish(stage, 0, partial(full, 0, found=other), PROBE)


@pytest.mark.parametrize(("damage", "number", "named"), [
    (lambda stage: files.remove_tree(place(stage, 0)), 3, ("version=000000", "version=000001")),
    (lambda stage: (place(stage, 2) / versions.DELTA).unlink(), 3, ("version=000002/delta.safetensors",)),
    (other_weights, 1, ("000001", "version=000000")),  # with the same number
    (lambda stage: save_file({"a:index": np.array([99], np.int32), "a:value": np.zeros(1, np.float16)},
                             place(stage, 1) / versions.DELTA), 1, ("version=000001/delta.safetensors",))])
def test_what_a_delta_needs_and_does_not_fit_is_named(stage, damage, number, named):
    damage(stage)
    with refuses(ModelError, *named):
        held(stage, number)
    assert held(stage, 5) == expected(5)


@pytest.mark.parametrize(("number", "name"), [(0, checkpoints.WEIGHTS), (2, versions.DELTA)])
def test_a_flipped_bit_is_found_before_the_weights_are_used(stage, number, name):
    content = bytearray((place(stage, number) / name).read_bytes())
    content[-1] ^= 1
    (place(stage, number) / name).write_bytes(content)
    with refuses(ModelError, "tensor"):
        held(stage, number)
    assert "has the hash" in versions.damage(place(stage, number))
    found = Held()
    found.update(place(stage, 5))
    del found.tensors["b"]
    with pytest.raises(ModelError, match="tensor b "):
        found.verify()
    assert versions.damage(place(stage, 5)) is None


def test_a_version_of_an_older_release_has_the_hash_of_its_file(tmp_path):
    versions.publish(tmp_path, 7, lambda directory: tensor_files.write(directory / checkpoints.WEIGHTS, weights(7)),
                     PROBE)
    manifest = files.read_json(place(tmp_path, 7) / files.MANIFEST)
    assert manifest["hash"] == files.hash_file(place(tmp_path, 7) / checkpoints.WEIGHTS)
    assert held(tmp_path, 7) == expected(7)
    with open(place(tmp_path, 7) / checkpoints.WEIGHTS, "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    with refuses(ModelError, "version=000007"):
        held(tmp_path, 7)


@pytest.mark.parametrize(("version", "keep", "based", "left"), [
    (5, "last", False, [4, 5]), (6, "last", True, [4, 5]), (6, "last", False, []), (4, "last", True, [4, 5]),
    (3, "last", False, [0, 1, 2, 3, 4, 5]), (6, "anchors", False, [0, 4]), (5, "anchors", True, [0, 4, 5]),
    (6, "all", False, [0, 1, 2, 3, 4, 5])])
def test_versions_that_later_ones_need_are_kept(stage, version, keep, based, left):
    versions.forget_before(stage, version, keep, based)
    assert versions.numbers(stage) == left


def test_a_version_that_is_published_meanwhile_stays(stage, monkeypatch):
    found = versions.needed

    def published_meanwhile(*given):
        kept = found(*given)
        versions.publish(stage, 6, lambda directory: tensor_files.write(directory / checkpoints.WEIGHTS, weights(6)),
                         PROBE)
        return kept

    monkeypatch.setattr(versions, "needed", published_meanwhile)
    versions.forget_before(stage, 4, "last", based=False)
    assert versions.numbers(stage) == [4, 5, 6]


def test_a_version_that_could_not_be_written_is_not_there(tmp_path):
    with pytest.raises(ZeroDivisionError):
        versions.publish(tmp_path, 1, lambda directory: 1 / 0, PROBE)
    assert list((tmp_path / "weights").iterdir()) == []


def test_a_manifest_names_version_probe_and_every_tensor(stage):
    manifest = files.read_json(place(stage, 5) / files.MANIFEST)
    assert manifest.keys() == {"version", "probe", "hash", "tensors", "base"}
    assert (manifest["version"], manifest["probe"], manifest["base"][0]) == (5, PROBE, 4)
    assert manifest["tensors"].keys() == {"a", "b"}
