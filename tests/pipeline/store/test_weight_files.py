"""Weights of a model directory: what is not there, or not whole, is found from sizes and headers."""

import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ouroboros.pipeline.store.weights import weights_problem
from tests.golden.messages import wording
from tests.models import safetensors

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 358496\n"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
WIDTH = {"F32": 4, "I32": 4, "BOOL": 1, "U8": 1}  # bytes


def problem(directory: Path, vocabulary: int | None = 7) -> str | None:
    return weights_problem(str(directory), {"vocab_size": vocabulary}, "model.model_path")


def in_parts(directory: Path) -> Path:
    """Two tensors in two files: an embedding of 7 rows of 2, a norm of 2."""
    (directory / FIRST).write_bytes(safetensors({"model.embed_tokens.weight": [7, 2]}))
    (directory / SECOND).write_bytes(safetensors({"model.norm.weight": [2]}))
    (directory / INDEX).write_text(json.dumps({"weight_map": {
        "model.embed_tokens.weight": FIRST, "model.norm.weight": SECOND}}))
    return directory


def test_whole_weights_have_no_problem(tmp_path):
    assert problem(in_parts(tmp_path)) is None
    (tmp_path / "model.safetensors").write_bytes(safetensors({"model.embed_tokens.weight": [7, 2]}))
    assert problem(tmp_path) is None


@pytest.mark.parametrize(("content", "words"), [
    (b"", "0 bytes"), (b"\x80\x02abcdef" * 9, "not a whole"), (POINTER, "Git LFS"),
    # a header of 89 bytes for one tensor of 14 floats, so 8 + 89 + 56 = 153 bytes in all
    (safetensors({"model.embed_tokens.weight": [7, 2]})[:-1], "152 bytes"),
    (safetensors({"model.embed_tokens.weight": [7, 2]}) + b"0", "154 bytes"),
    (safetensors({"model.embed_tokens.weight": [7, 2]})[:50], "50 bytes"),
    (struct.pack("<Q", 2) + b"[]", "not a whole"), (struct.pack("<Q", 9) + b'{"a": {}}', "not a whole")])
def test_a_file_that_is_not_whole(tmp_path, content, words):
    (tmp_path / "model.safetensors").write_bytes(content)
    assert words in problem(tmp_path)


def test_parts_that_are_not_there(tmp_path):
    in_parts(tmp_path)
    (tmp_path / SECOND).unlink()
    wording(problem(tmp_path), "1 of", "2 files", INDEX, SECOND)
    (tmp_path / SECOND).symlink_to("/nowhere/at/all")
    assert SECOND in problem(tmp_path)


@pytest.mark.parametrize("outside", ["../model.safetensors", "a/../../model.safetensors", "/tmp/model.safetensors"])
def test_an_index_that_leaves_its_directory(tmp_path, outside):
    """Though the file is there: it would not count for the identity, and not travel with the model."""
    directory = tmp_path / "model"
    directory.mkdir()
    in_parts(directory)
    (directory / SECOND).rename(tmp_path / "model.safetensors")
    listed = outside.replace("/tmp", str(tmp_path))
    (directory / INDEX).write_text(json.dumps({"weight_map": {"model.embed_tokens.weight": FIRST,
                                                              "model.norm.weight": listed}}))
    wording(problem(directory), listed)


@pytest.mark.parametrize("index", ["", "{", "[]", "{}", '{"weight_map": 3}'])
def test_an_index_that_is_none(tmp_path, index):
    (tmp_path / INDEX).write_text(index)
    wording(problem(tmp_path), "readable")


def test_no_weights_at_all(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    wording(problem(tmp_path), "weights")


def test_a_pickle_of_torch_is_looked_at_from_outside(tmp_path):
    """transformers reads it too; a zip that was cut has lost the list of its contents."""
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
        archive.writestr("data.pkl", b"0" * 500)
    assert problem(tmp_path) is None
    whole = (tmp_path / "pytorch_model.bin").read_bytes()
    for content, words in ((whole[:300], "cut short"), (b"", "holds no weights"), (b"0" * 99, "holds no weights"),
                           (POINTER, "Git LFS")):
        (tmp_path / "pytorch_model.bin").write_bytes(content)
        assert words in problem(tmp_path)


def test_the_embedding_has_the_rows_of_the_vocabulary(tmp_path):
    in_parts(tmp_path)
    wording(problem(tmp_path, 9), "vocab_size=9", "have 7")
    assert problem(tmp_path, None) is None  # said within a nested section: not judged


@pytest.mark.parametrize(("said", "wrong"), [
    ({"hidden_size": 2, "num_hidden_layers": 2}, None), ({"num_hidden_layers": 1}, None),  # one more than is used
    ({"hidden_size": 4}, "hidden_size=4, and the weights have 2"),
    ({"hidden_size": 4, "word_embed_proj_dim": 2}, None),
    ({"num_hidden_layers": 9}, "num_hidden_layers=9, and the weights have 2")])
def test_weights_have_the_sizes_of_the_configuration(tmp_path, said, wrong):
    (tmp_path / "model.safetensors").write_bytes(safetensors({
        "model.embed_tokens.weight": [7, 2], "model.layers.0.norm.weight": [2], "model.layers.1.norm.weight": [2]}))
    found = weights_problem(str(tmp_path), said, "model.model_path")
    assert found is None if wrong is None else wrong in found


def test_an_adapter_beside_a_model_is_told(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(safetensors({"model.embed_tokens.weight": [7, 2]}))
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "x"}')
    assert weights_problem(str(tmp_path), {}, "model.model_path").key == "model.model_path"


@pytest.mark.parametrize(("dtype", "value"), [
    ("F32", np.nan), ("F32", np.inf), ("F32", -1e10), ("F64", 1e10), ("F16", -np.inf), ("F64", np.nan)])
def test_weights_that_are_no_numbers(tmp_path, dtype, value):
    from safetensors.numpy import save_file

    weights = {"model.embed_tokens.weight": np.ones((7, 2), {"F16": "f2", "F32": "f4", "F64": "f8"}[dtype]),
               "model.norm.weight": np.full(2, 60_000, "f2")}  # large, and finite
    save_file(weights, tmp_path / "model.safetensors")
    assert problem(tmp_path) is None
    weights["model.embed_tokens.weight"][6, 1] = value
    save_file(weights, tmp_path / "model.safetensors")
    assert "model.safetensors: model.embed_tokens.weight" in problem(tmp_path)


def test_a_bfloat16_that_is_infinite(tmp_path):
    """0x3F80 is 1.0 and 0x7F80 infinity: 14 of them, the last one changed."""
    text = json.dumps({"w": {"dtype": "BF16", "shape": [7, 2], "data_offsets": [0, 28]}}).encode()
    begin = struct.pack("<Q", len(text)) + text
    (tmp_path / "model.safetensors").write_bytes(begin + b"\x80\x3f" * 14)
    assert problem(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(begin + b"\x80\x3f" * 13 + b"\x80\x7f")
    assert problem(tmp_path)


@pytest.mark.parametrize("dtype", ["BOOL", "I32", "U8"])
def test_weights_of_whole_numbers_or_truth_values(tmp_path, dtype):
    """A buffer may have them, such as the mask of gpt2. Elements of one byte, or of four: the bytes stay 4."""
    def write(norm, mask):
        header = {"a.norm.weight": {"dtype": norm, "shape": [4 // WIDTH[norm]], "data_offsets": [0, 4]},
                  "a.attn.bias": {"dtype": mask, "shape": [4 // WIDTH[mask]], "data_offsets": [4, 8]}}
        text = json.dumps(header).encode()
        (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))

    write("F32", dtype)
    assert problem(tmp_path) is None
    write(dtype, "F32")
    assert f"norm.weight is {dtype}" in problem(tmp_path)


@pytest.mark.parametrize(("values", "is_wrong"), [([0.0, -0.0, 0.0], True), ([0.0, 0.0, 1e-9], False)])
def test_an_embedding_of_zeros_is_no_model(tmp_path, values, is_wrong):
    shapes = {"model.embed_tokens.weight": [3, 1], "model.norm.weight": [2]}
    whole = safetensors(shapes)
    at = len(whole) - 20  # 3 numbers of the embedding, 2 of the norm
    (tmp_path / "model.safetensors").write_bytes(whole[:at] + np.float32(values).tobytes() + whole[at + 12:])
    found = problem(tmp_path, vocabulary=3)
    assert (found is not None) == is_wrong
    assert found is None or (found.key == "model.model_path" and "embed_tokens" in found)
