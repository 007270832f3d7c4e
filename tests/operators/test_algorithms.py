"""conf/algorithm: every type names parts that exist, with arguments that they have."""

import pytest
import yaml

from ouroboros.operators.aggregation import AGGREGATIONS
from ouroboros.operators.entropy import ENTROPY_LOSSES
from ouroboros.operators.kl import KL_ESTIMATORS
from ouroboros.operators.sampling import SAMPLE_STRATEGIES
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.settings import declared
from ouroboros.pipeline.settings.algorithms import COMPARE, DATA, MIXED_LOSSES, OF_PAIRS, PAIRS, meant, ours
from ouroboros.pipeline.settings.declared import ADVANTAGES, POLICY_LOSSES
from ouroboros.pipeline.store.files import CONF

FILES = sorted(path for path in (CONF / "algorithm").glob("*.yaml") if path.stem in ours())
TABLES = {"advantage_fn": ADVANTAGES, "policy_loss_fn": POLICY_LOSSES, "entropy_loss_fn": ENTROPY_LOSSES,
          "sample_strategy": SAMPLE_STRATEGIES, "kl_penalty_fn": KL_ESTIMATORS, "kl_loss_fn": KL_ESTIMATORS}
NEEDED = {"algorithm_type", "repeat_times", "kl_loss_fn", "kl_penalty_fn", "entropy_loss_fn"}
KEYS = {*NEEDED, "loss_agg_mode", "max_resample_rounds", "greedy_baseline", "rollout_correction", *TABLES,
        *(f"{key}_args" for key in TABLES)}
FROM_FILES = tuple(DATA)  # without rollouts there is nothing to compare


def parts(path):
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_algorithm_names_parts_that_exist(path):
    found = parts(path)
    assert found["algorithm_type"] == path.stem
    assert set(found) <= KEYS
    if DATA.get(path.stem, PAIRS) == PAIRS:
        assert set(found) >= NEEDED | {"policy_loss_fn"}
        assert ("advantage_fn" in found) == (path.stem not in FROM_FILES)
    for key in TABLES:
        if key in found:
            declared.TABLES[key][found[key]].bind(found[key], found.get(f"{key}_args", {}), key)
    assert found.get("loss_agg_mode", "token-mean") in AGGREGATIONS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_parts_of_an_algorithm_fit_together(path):
    """The aggregation is left to the loss, so that another loss brings its own, but where it is the algorithm."""
    found = parts(path)
    loss = found.get("policy_loss_fn")
    assert found.get("loss_agg_mode") == {"dr_grpo": "seq-mean-token-sum-norm",
                                          "grpo_original": "seq-mean-token-mean"}.get(path.stem)
    assert (loss in OF_PAIRS) == (path.stem in OF_PAIRS)
    assert (loss in MIXED_LOSSES) == (found.get("sample_strategy") == "mix")
    assert found["repeat_times"] > 1 or found.get("advantage_fn") not in COMPARE


def test_algorithms_for_rows_of_any_policy_say_that_these_take_no_weight():
    said = {path.stem: found["rollout_correction"] for path in FILES if "rollout_correction" in (found := parts(path))}
    assert said == {name: {"level": "none"} for name in ("asymre", "opmd", "rec")}


def test_losses_of_mixed_batches_are_those_that_ask_who_gave_a_row():
    assert set(MIXED_LOSSES) == {name for name, f in POLICY_LOSSES.items() if "is_expert" in f.columns}


def test_advantages_that_compare_are_all_but_these():
    assert {*ADVANTAGES} - {*COMPARE} == {"jsd", "on_policy_distill", "ppo", "rae", "reinforce",
                                          "reinforceplusplus", "remax"}


def test_another_spelling_of_a_name_has_a_file_that_says_nothing_else():
    """The paper writes GSPO-token."""
    others = [path for path in (CONF / "algorithm").glob("*.yaml") if path.stem not in ours()]
    assert [(path.stem, parts(path)) for path in others] == [("gspo-token", {"algorithm_type": "gspo_token"})]
    assert (meant("gspo-token"), meant("gspo"), meant("no_such")) == ("gspo_token", "gspo", "no_such")
    assert compose(["algorithm=gspo-token"]) == compose(["algorithm=gspo_token"])
    for key in ("algorithm.algorithm_type", "stages.rft.algorithm.algorithm_type"):
        assert compose([f"{key}=gspo-token"]) == compose([f"{key}=gspo_token"])
