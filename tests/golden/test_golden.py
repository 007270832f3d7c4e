"""Refactoring changes nothing that a configuration means: plans, settings of stages, problems of broken ones."""

import pytest

from tests.golden import golden

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
