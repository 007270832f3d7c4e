"""The table of all algorithms in benchmarks/algorithms.md: the one that was measured, and of all of them."""

from benchmarks.algorithms import FAMILIES, page
from benchmarks.measurement import RESULTS
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.files import CONF

ALIASES = {"gspo-token"}  # of gspo_token
ELSEWHERE = {"reward_model"}  # by the recipe countdown_reward
UNMEASURED = {"clipb", "clipv", "cpo", "gpg", "luspo", "opo", "rae", "rlcr", "vespo"}  # tested by hand, no figure
MOST_USED = {"grpo", "ppo", "dapo", "rloo", "reinforceplusplus", "dr_grpo", "gspo", "cispo", "dpo", "sft"}


def test_the_page_shows_what_was_measured():
    assert page() in (CONF.parent / "benchmarks/algorithms.md").read_text(encoding="utf-8")


def test_every_algorithm_was_trained():
    rows = [row for rows in files.read_json(RESULTS / "algorithms.json")["result"].values() for row in rows]
    types = [one for family in FAMILIES.values() for one in family.types]
    there = {path.stem for path in (CONF / "algorithm").glob("*.yaml")}
    assert sorted(types) == sorted(there - ALIASES - ELSEWHERE - UNMEASURED)
    assert [(row[0], row[1]) for row in rows] == [
        (one, seed) for one in types for seed in ((1, 2, 3) if one in MOST_USED else (1,))]
