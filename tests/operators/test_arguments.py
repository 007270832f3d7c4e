"""Arguments of named functions: the user's over the defaults, and the columns that a function asks for."""

import functools
import math

import pytest

from operators.arguments import arguments, check_choice, check_number, needed_columns
from pipeline.store.errors import ConfigError


def function(first, second=2, third="x"):
    """Has two arguments with defaults."""


def test_given_arguments_go_over_the_defaults_key_by_key():
    assert arguments(function, {"third": "y"}, "key") == {"second": 2, "third": "y"}


@pytest.mark.parametrize("name", ["secnd", "first"])  # first has no default: it is not the user's to give
def test_an_unknown_argument_is_answered_with_those_there_are(name):
    with pytest.raises(ConfigError, match=rf"some\.key: 'function' has no argument '{name}'.*It has: second, third"):
        arguments(function, {name: 1}, "some.key")


def test_a_function_without_arguments_says_so():
    with pytest.raises(ConfigError, match="It has: none"):
        arguments(lambda first: first, {"epsilon": 1}, "algorithm.advantage_fn_args")


def test_the_columns_that_a_function_needs_are_its_parameters_without_a_default():
    assert needed_columns(function) == ("first",)
    assert needed_columns(functools.partial(function, third="y")) == ("first",)

@pytest.mark.parametrize(("value", "bounds", "words"), [
    (0, {"above": 0}, r"a\.b=0: needed a finite number greater than 0\."),
    (1.5, {"least": 0, "most": 1}, r"needed a finite number at least 0 and at most 1\."),
    (math.nan, {}, "nan: needed a finite number"), (math.inf, {}, "needed a finite number"),
    ("1", {}, "'1': needed"), (True, {}, "True: needed"), (None, {"above": 0}, "None: needed"),
])
def test_a_number_out_of_bounds_is_refused_with_its_key(value, bounds, words):
    with pytest.raises(ConfigError, match=words):
        check_number("a.b", value, **bounds)
    check_number("a.b", 1, least=0, most=1)


def test_a_choice_is_one_of_the_list():
    with pytest.raises(ConfigError, match=r"a\.b='grop': needed one of 'group', 'batch'\. Did you mean 'group'\?"):
        check_choice("a.b", "grop", ("group", "batch"))
