"""What several tests share: settings of the default recipe, stage contexts, one tiny model, a finished run."""

import gc
import logging
import os
import signal
from pathlib import Path

import pytest
from tabulate import tabulate

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.ending import SIGNALS
from ouroboros.pipeline.store.secret_names import secret_variables
from tests.configs import TINY, overridden
from tests.fake_run import FakeRun, whole
from tests.golden.messages import RECORD, write

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test with ids has a hub of its own (tests/hub.py)
gc.set_threshold(200_000, 20, 20)  # torch's hundred thousands of objects stay: walking them took a tenth of the time

ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
         "MASTER_PORT": "0"}
TABLES = ("kill", "branches", "adapters", "wide", "slurm")  # marks whose make targets print a table


def pytest_configure(config):
    """Gives each worker that runs stages its own cores: two stages with one thread each beat threads that wait."""
    RECORD.writes = config.option.golden
    RECORD.chosen = bool(config.option.keyword) or any("[" in arg for arg in config.args)
    worker = getattr(config, "workerinput", None)
    if worker and not config.option.markexpr.startswith("not "):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[int(worker["workerid"][2:])::worker["workercount"]] or cores)


def pytest_addoption(parser):
    parser.addoption("--golden", action="store_true", help="write tests/golden/messages.md again")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Says which test is told what, from its fixtures on."""
    RECORD.begin(item.nodeid)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """Fails a test that passed without all its messages on the golden page."""
    result = yield
    RECORD.end()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
    """Gives a report the test's messages: it comes from another process where several run tests."""
    report = yield
    if call.when == "call":
        report.told = RECORD.told
    return report


def pytest_runtest_logreport(report):
    """Keeps what a test that passed was told, for the golden page."""
    if RECORD.writes and report.when == "call":
        RECORD.ran(report.nodeid, report.told if report.passed else None)


def pytest_sessionfinish(session):
    """Writes the golden page again where that is asked for, without the tests of files that are gone."""
    if RECORD.writes and not hasattr(session.config, "workerinput"):
        write(RECORD.there())


def pytest_ignore_collect(collection_path, config):
    """Skips files without the one mark that is asked for: importing all takes each worker a quarter of a minute."""
    mark = config.option.markexpr
    if mark.isidentifier() and collection_path.name.startswith("test_") and collection_path.suffix == ".py":
        marked = f"/{mark}/" in str(collection_path) or f"mark.{mark}" in collection_path.read_text(encoding="utf-8")
        return None if marked else True
    return None


def pytest_terminal_summary(terminalreporter, config):
    """Prints what was run, the result and the seconds, fixtures included, for `make test-kill` and the like."""
    if config.option.markexpr not in TABLES or config.option.collectonly:
        return
    seconds, results, measured = {}, {}, {}
    for result in ("passed", "failed", "error", ""):  # "": set-up and tear-down
        for report in terminalreporter.stats.get(result, []):
            seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration
            results[report.nodeid] = result or results.get(report.nodeid, "")
            measured |= dict(report.user_properties)
    rows = [(name.partition("::")[2], results[name], round(seconds[name])) for name in seconds]
    terminalreporter.write_line("\n" + tabulate(rows, ["what", "result", "seconds"]))
    right = sum(result == "passed" for result in results.values())
    terminalreporter.write_line("\n".join([f"{right} of {len(rows)} right", *map(": ".join, measured.items())]))


@pytest.fixture
def run(tmp_path):
    return whole(tmp_path)


@pytest.fixture
def warmed_up(tmp_path):
    """A run whose data and SFT stages are complete; the others have not begun."""
    fake = FakeRun(tmp_path).data().sft()
    fake.view()
    return fake


@pytest.fixture(autouse=True)
def _secrets_of_this_test():
    """A process reads its secret variables once; a test sets its own."""
    secret_variables.cache_clear()


@pytest.fixture
def settings():
    """settings("key=value", ...): the default recipe with overrides, by attribute."""
    return overridden


@pytest.fixture(scope="session")
def process():
    """A process group of one, of which a process has one, for tests that train with real DeepSpeed."""
    import torch

    from ouroboros.stages.learner.engine.process import Process

    with pytest.MonkeyPatch.context() as patch:
        for name, value in ALONE.items():
            patch.setenv(name, value)
        started = Process.start(1)
        yield started
        if torch.distributed.is_initialized():  # a vLLM engine in the same process ends all groups when it is closed
            started.stop()


@pytest.fixture(autouse=True)
def _group_of_this_test(request):
    """Begins a new group where one is gone: a vLLM engine in the same process ends all of them when it is closed."""
    if "process" not in request.fixturenames:
        return
    request.getfixturevalue("process")
    import torch

    if not torch.distributed.is_initialized():
        import deepspeed
        from deepspeed.utils import groups

        from ouroboros.stages.learner.engine.process import Process

        groups._release_process_group_references()
        deepspeed.comm.comm.cdb = None
        Process.start(1)


@pytest.fixture
def context_of(settings):
    """context_of(directory, "key=value", ..., role=directory): a stage at work that was started by nobody."""

    def make(directory: Path, *overrides: str, **inputs: Path) -> Context:
        directory.mkdir(parents=True, exist_ok=True)
        log = logging.getLogger("tests")
        return Context("toy/one", "rft", "0123abcd", directory, settings(*overrides), inputs, log)

    return make


@pytest.fixture
def environment_kept():
    """Undoes what a stage in this process does to its environment variables, CPU cores and signals."""
    cores, variables = os.sched_getaffinity(0), dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    os.sched_setaffinity(0, cores)
    os.environ.clear()
    os.environ.update(variables)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A random Qwen2 model with its character tokenizer, made by the stage `model`."""
    import torch

    from ouroboros.stages.model import work

    torch.set_num_threads(1)  # two threads that wait for each other are slower when the machine is busy
    directory = tmp_path_factory.mktemp("store") / "model-tiny"
    directory.mkdir()
    work(Context("toy/one", "model", "tiny", directory, overridden(*TINY), {}, logging.getLogger("tests")))
    return directory


@pytest.fixture(scope="session")
def seeing_model(tmp_path_factory) -> Path:
    """A random Idefics 3 with the tokens of images, made by the stage `model`."""
    from ouroboros.stages.model import work

    directory = tmp_path_factory.mktemp("store") / "model-seeing"
    directory.mkdir()
    config = overridden(*TINY, "model.init.image_size=32", "model.max_prompt_tokens=64")
    work(Context("toy/one", "model", "seeing", directory, config, {}, logging.getLogger("tests")))
    return directory


@pytest.fixture
def tiny_settings(settings):
    """The settings that go with `tiny_model`."""
    return lambda *overrides: settings(*TINY, *overrides)
