"""conf/algorithm: every type names parts that exist, with arguments that they have."""

import pytest
import yaml

from operators.advantage import ADVANTAGES
from operators.aggregation import AGGREGATIONS
from operators.arguments import arguments
from operators.entropy import ENTROPY_LOSSES
from operators.kl import KL_ESTIMATORS
from operators.loss import AVERAGED_BY_KIND, NATURAL_AGGREGATION, PAIRED, POLICY_LOSSES
from operators.sampling import SAMPLE_STRATEGIES
from pipeline.compose import CONF

FILES = sorted((CONF / "algorithm").glob("*.yaml"))
TABLES = {"advantage_fn": ADVANTAGES, "policy_loss_fn": POLICY_LOSSES, "entropy_loss_fn": ENTROPY_LOSSES,
          "sample_strategy": SAMPLE_STRATEGIES, "kl_penalty_fn": KL_ESTIMATORS, "kl_loss_fn": KL_ESTIMATORS}
KEYS = {"algorithm_type", "repeat_times", "loss_agg_mode", *TABLES, *(f"{key}_args" for key in TABLES)}
# by the guide; without rollouts there is nothing to compare
WITHOUT_ROLLOUTS = ("sft", "cpt", "dpo", "ipo", "kto")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_algorithm_names_parts_that_exist(path):
    parts = yaml.safe_load(path.read_text())
    assert set(parts) == KEYS
    assert parts["algorithm_type"] == path.stem
    for key, table in TABLES.items():
        name, given = parts[key], parts[f"{key}_args"]
        if key == "advantage_fn" and path.stem in WITHOUT_ROLLOUTS:
            assert name is None
        else:
            arguments(table[name], given, key)
    assert parts["loss_agg_mode"] in AGGREGATIONS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_parts_of_an_algorithm_fit_together(path):
    parts = yaml.safe_load(path.read_text())
    natural = NATURAL_AGGREGATION.get(parts["policy_loss_fn"], "token-mean")
    assert parts["loss_agg_mode"] == ("seq-mean-token-sum-norm" if path.stem == "dr_grpo" else natural)
    assert (parts["policy_loss_fn"] in PAIRED) == (path.stem in ("dpo", "ipo", "kto"))
    assert (parts["policy_loss_fn"] in AVERAGED_BY_KIND) == (parts["sample_strategy"] == "mix")
    assert parts["repeat_times"] > 1 or path.stem in ("ppo", "remax", *WITHOUT_ROLLOUTS)


def test_the_types_of_the_guide_and_those_that_peers_have_are_there():
    assert {path.stem for path in FILES} >= {
        "sft", "cpt", "dpo", "ppo", "grpo", "dapo", "reinforce", "reinforceplusplus", "rloo", "remax", "opmd", "asymre",
        "topr", "cispo", "gspo", "sapo", "mix", "mix_chord", "raft", "sppo", "rec", "multi_step_grpo", "gigpo",
        "on_policy_distill", "jsd", "dr_grpo", "gspo_token", "kto", "ipo", "m2po", "decoupled_ppo"}
