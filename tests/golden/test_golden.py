"""Refactoring changes nothing that a configuration means: plans, settings of stages, problems of broken ones; and what
messages say is on one page."""

import pytest

from ouroboros.pipeline.store.errors import ConfigError
from tests.golden import golden, messages

PLANS, BROKEN = golden.read("plans"), golden.read("broken")


@pytest.mark.parametrize("name", PLANS)
def test_a_configuration_means_what_it_meant(name):
    assert golden.plan_of(PLANS[name]["overrides"], name in golden.WHOLE) == PLANS[name]


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_a_broken_configuration_has_the_problems_it_had(number):
    assert golden.problems_of(BROKEN[number]["overrides"]) == BROKEN[number]["problems"]


def test_every_shipped_recipe_and_sixty_broken_configurations_are_golden():
    assert {f"recipe={name}" for name in golden.shipped()} <= {*PLANS, *(f"recipe={name}" for name in golden.WHOLE)}
    assert len(BROKEN) >= 60
    assert all(problem["key"] for one in BROKEN for problem in one["problems"])


@pytest.fixture
def record(monkeypatch):
    """Of a page with one message of one test, which runs."""
    made = messages.Record()
    made.page = {"a.py::test_b[1]": ["seed: no"]}
    made.begin("a.py::test_b[1]")
    monkeypatch.setattr(messages, "RECORD", made)
    return made


def test_a_message_is_held_by_the_page_and_names_what_the_test_asserts(record):
    with messages.refuses(ConfigError, "seed"):
        raise ConfigError("seed: no")
    record.end()
    for error, name in (ConfigError("seed: yes"), "seed"), (ConfigError("seed: no"), "lr"), (KeyError("seed"), "seed"):
        record.begin("a.py::test_b[1]")
        with pytest.raises((AssertionError, KeyError)), messages.refuses(ConfigError, name):
            raise error


def test_lines_that_name_something_are_held_by_the_page(record):
    messages.wording("else\nseed: no\n", "seed")
    for said, name in (("seed: no\nno", "no"), ("", "")):
        record.begin("a.py::test_b[1]")
        with pytest.raises(AssertionError):
            messages.wording(said, name)


def test_a_message_that_does_not_come_any_more_is_missed(record):
    with pytest.raises(AssertionError):
        record.end()
    record.writes = True
    record.end()


def test_the_page_is_read_as_it_was_written(monkeypatch, tmp_path):
    monkeypatch.setattr(messages, "PAGE", tmp_path / "page.md")
    page = {"a.py::test_b[- `x`]": ["- one\n  two", "# three"], "a.py::test_b[2]": ["# three"], "a.py::test_c": ["`"],
            "a.py::test_b[3]": ["# three"], "b.py::test_a": ["## four"]}
    messages.write(page)
    assert messages.read() == page
    assert (tmp_path / "page.md").read_text().count("# three") == 2


def test_tests_that_are_gone_leave_the_page(record):
    """Of a function that ran, parameters that did not are gone; of one that did not run nothing is known."""
    file = "tests/golden/test_golden.py::"
    here, other = f"{file}test_a_configuration_means_what_it_meant", f"{file}test_the_page_is_read_as_it_was_written"
    record.page |= {f"{here}[old]": ["x"], f"{here}[1]": ["y"], other: ["z"]}
    record.ran(f"{here}[1]", None)
    record.ran(f"{here}[2]", ["new"])
    assert record.there() == {f"{here}[1]": ["y"], f"{here}[2]": ["new"], other: ["z"]}
    record.chosen = True  # TESTS=…[1]
    assert record.there() == {f"{here}[old]": ["x"], f"{here}[1]": ["y"], f"{here}[2]": ["new"], other: ["z"]}


def test_the_page_has_no_path_of_a_machine_and_no_test_that_is_gone(tmp_path):
    assert messages.steady(f"{tmp_path}/a.py:7 \n\n of sft-0123abcd, localhost:43211") == (
        "TMP/a.py:LINE\n of sft-HASH, localhost:PORT")
    page = messages.read()
    assert [test for test in page if not messages.is_there(test)] == []
    assert page == {test: [*map(messages.steady, told)] for test, told in page.items()}
