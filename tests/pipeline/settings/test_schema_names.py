"""Names of the guide that have another one here are named with it."""

import pytest

from tests.configs import refused


@pytest.mark.parametrize(("key", "theirs", "ours"), [
    ("default_reward_fn_type", "math_reward", "['accuracy_reward', 'format_reward']"),
    ("default_workflow_type", "math_workflow", "simple_workflow")])
def test_a_name_of_the_guide_has_ours(key, theirs, ours):
    assert f"Write {ours}." in refused(f"buffer.explorer_input.{key}={theirs}")
