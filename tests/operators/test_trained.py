"""The table of all algorithms in docs/algorithms.md: the one that was measured, and of all of them."""

from benchmarks.algorithms import FAMILIES, page
from benchmarks.measurement import RESULTS
from pipeline.store import files
from pipeline.store.files import CONF

ALIASES = {"gspo-token"}  # of gspo_token
NOT_YET = {"gkd", "simpo", "orpo", "reward_model"}  # newer than the measurement


def test_the_page_shows_what_was_measured():
    assert page() in (CONF.parent / "docs/algorithms.md").read_text(encoding="utf-8")


def test_every_algorithm_was_trained():
    measured = [row[0] for rows in files.read_json(RESULTS / "algorithms.json")["result"].values() for row in rows]
    assert sorted(measured) == sorted({path.stem for path in (CONF / "algorithm").glob("*.yaml")} - ALIASES - NOT_YET)
    assert measured == [one for family in FAMILIES.values() for one in family.types if one not in NOT_YET]
