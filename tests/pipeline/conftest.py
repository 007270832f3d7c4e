"""A finished run, as tests of several commands need it."""

import pytest

from tests.fake_run import FakeRun


@pytest.fixture
def run(tmp_path):
    fake = FakeRun(tmp_path).whole()
    fake.view()
    return fake
