"""A process group of one, for tests that train with real DeepSpeed."""

import pytest

from stages.learner.zero import Process

ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
         "MASTER_PORT": "0"}


@pytest.fixture(scope="session")
def process():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ALONE.items():
            patch.setenv(name, value)
        started = Process.start(1)
        yield started
        started.stop()
