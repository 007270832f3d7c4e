"""A finished run, as tests of several commands need it."""

import pytest

from tests.fake_run import FakeRun


@pytest.fixture
def run(tmp_path):
    fake = FakeRun(tmp_path).whole()
    fake.view()
    return fake


@pytest.fixture
def warmed_up(tmp_path):
    """A run whose data and SFT stages are complete; the others have not begun."""
    fake = FakeRun(tmp_path)
    fake.data()
    fake.sft()
    fake.view()
    return fake
