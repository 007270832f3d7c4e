"""Advantages by component of the reward, by hand."""

import pytest

from ouroboros.operators.advantages import components, token
from ouroboros.operators.advantages.rlcr import Rlcr
from ouroboros.pipeline.store.errors import DataError
from tests.factories import advantage_batch, called
from tests.golden.messages import refuses

reinforceplusplus_baseline = called(token.ReinforceplusplusBaseline)
gdpo = called(components.Gdpo)


def batch(components, groups="gggg", masks=None):
    return advantage_batch(group_id=list(groups), action_mask=masks or [[1]] * len(groups),
                           reward_components=[list(one.items()) for one in components])


def found(*given, **arguments):
    return gdpo(batch(*given), **arguments)["advantage"].to_pylist()


CASES = [{"right": 1.0, "form": 0.0}, {"right": 0.0, "form": 1.0}, *[{"right": 0.0, "form": 0.0}] * 2]


def test_gdpo_compares_each_component_by_its_weight():
    """right and form: +-, std 1/2: 1.5 and -0.5 each. Sums 1, 1, -1, -1; over tokens std sqrt(4 / 3): +-0.866025."""
    assert found(CASES) == [pytest.approx([x], abs=1e-5) for x in (0.866025, 0.866025, -0.866025, -0.866025)]
    # Weights 1 and 1/2: 1.5 - 0.25, 0.75 - 0.5, -0.75 twice; the mean is 0, std sqrt((25 + 1 + 9 + 9) / 16 / 3).
    made = found(CASES, gdpo_reward_keys=["right", "form"], gdpo_reward_weights=[1.0, 0.5])
    assert made == [pytest.approx([x / 0.957427], abs=1e-5) for x in (1.25, 0.25, -0.75, -0.75)]
    assert found(CASES, gdpo_reward_keys=["form"])[0] == pytest.approx([-0.5], abs=1e-5)
    # +-1/2, undivided in the group, then over std 0.707107 + 1
    plain = found([{"a": 1.0}, {"a": 0.0}], "gg", norm_adv_by_std_in_grpo=False, level="sequence", epsilon=1.0)
    assert plain == [pytest.approx([x], abs=1e-6) for x in (0.292893, -0.292893)]


def test_gdpo_whitens_over_tokens_or_responses():
    """Two groups of two, +-0.707107 each; the first row has 3 tokens, so over tokens the mean is x / 3."""
    given = [{"r": 1.0}, {"r": 0.0}] * 2
    tokens, responses = (gdpo(batch(given, "aabb", [[1, 1, 1], [1], [1], [1]]), level=level)["advantage"].to_pylist()
                         for level in ("token", "sequence"))
    assert responses[1:] == [pytest.approx([x], abs=1e-5) for x in (-0.866025, 0.866025, -0.866025)]
    assert tokens[0][0] - tokens[1][0] == pytest.approx(2 / 1.032796, abs=1e-5)  # x is +-1 times 0.707107


def test_gdpo_needs_every_component_in_every_row():
    with pytest.raises(DataError):
        found([{"a": 1.0}, {"b": 1.0}], "gg")
    assert found([{"a": 1.0, "b": 0.1}, {"a": 0.0, "b": 0.1}, {"a": 0.0, "b": 0.1}], "ggg", [[1], [1], [0]])[2] == [0]


def test_reinforceplusplus_baseline_whitens_what_the_group_leaves():
    """1 0 | 4: less the mean 1/2 and, alone, 4. Tokens 1/2 -1/2 -1/2 4 4: mean 1.5, var (1 + 4 + 4 + 2 * 6.25) / 4."""
    given = advantage_batch(group_id=list("aab"), reward=[1.0, 0.0, 4.0], action_mask=[[1], [1, 0, 1], [1, 1]])
    made = reinforceplusplus_baseline(given)["advantage"].to_pylist()
    std = (21.5 / 4) ** 0.5
    assert made == [pytest.approx([-1 / std]), pytest.approx([-2 / std, 0, -2 / std]), pytest.approx([2.5 / std] * 2)]


def calibrated(*pairs, groups=None, **arguments):
    rows = [{"accuracy": right, "confidence": stated, "form": 9.0} for right, stated in pairs]
    return called(Rlcr)(batch(rows, groups or "g" * len(rows)), **arguments)["advantage"].to_pylist()


def test_rlcr_scores_what_the_model_says_of_itself():
    """1 - (1 - 0.5)^2 = 0.75 and 0 - 0.5^2 = -0.25: std sqrt(1/2), +-0.707107. Unsure and wrong beats sure."""
    assert calibrated((1.0, 0.5), (0.0, 0.5)) == pytest.approx([0.707107, -0.707107], abs=1e-5)
    assert calibrated((0.0, 0.0), (0.0, 1.0)) == pytest.approx([0.707107, -0.707107], abs=1e-5)
    assert calibrated((0.0, 0.0), (0.0, 1.0), brier_weight=0.0) == [0.0, 0.0]
    assert calibrated((1.0, 1.0), (1.0, 0.0), (0.0, 0.0)) == pytest.approx([1.154699, -0.577350, -0.577350], abs=1e-5)


@pytest.mark.parametrize("components", [{"accuracy": 1.0}, {"accuracy": 1.0, "confidence": 1.5},
                                        {"accuracy": -1.0, "confidence": 0.5}])
def test_rlcr_needs_both_components_from_0_to_1(components):
    with refuses(DataError, "row e0", "confidence" if components["accuracy"] > 0 else "accuracy"):
        Rlcr()(batch([components], "g"))
    with pytest.raises(ValueError, match="brier_weight"):
        Rlcr(brier_weight=1.5)
