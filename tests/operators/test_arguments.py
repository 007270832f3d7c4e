"""Arguments of named functions: ours by their models, the user's by their signature; and the columns that one needs."""

import functools

import pytest

from ouroboros.operators.arguments import arguments
from ouroboros.operators.choice import chosen_loss
from ouroboros.pipeline.settings.arguments.users import needed_columns
from ouroboros.pipeline.store.errors import ConfigError
from tests.golden.messages import refuses


def function(first, second=2, third="x"):
    """Has two arguments with defaults."""


def test_given_arguments_go_over_the_defaults_key_by_key():
    assert arguments("policy_loss_fn", "mine:function", function, {"third": "y"}, "key") == {"second": 2, "third": "y"}
    assert chosen_loss("sapo", {"tau_neg": 2}).model_dump() == {"tau_pos": 1.0, "tau_neg": 2.0}


@pytest.mark.parametrize("name", ["secnd", "first"])  # first has no default: it is not the user's to give
def test_an_unknown_argument_is_answered_with_those_there_are(name):
    with refuses(ConfigError, "some.key: 'mine:function'", f"'{name}'"):
        arguments("policy_loss_fn", "mine:function", function, {name: 1}, "some.key")


def test_a_function_without_arguments_says_so():
    with refuses(ConfigError, "It has: none"):
        arguments("advantage_fn", "mine:f", lambda first: first, {"epsilon": 1}, "algorithm.advantage_fn_args")


def test_everything_that_is_wrong_is_refused_with_its_key():
    with pytest.raises(ConfigError) as refused:
        chosen_loss("sapo", {"tau_neg": 0, "tau_pos": "1", "tau": 1})
    for words in ("_args: 'sapo' has no argument 'tau'.", "_args.tau_neg=0: needed", "_args.tau_pos: needed a number"):
        assert words in str(refused.value)


def test_the_columns_that_a_function_needs_are_its_parameters_without_a_default():
    assert needed_columns(function) == ("first",)
    assert needed_columns(functools.partial(function, third="y")) == ("first",)
