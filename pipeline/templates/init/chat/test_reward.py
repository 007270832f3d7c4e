import json

from reward import score

RULES = json.dumps({"begins": "Hello", "contains": "Ann", "longest": 11})


def test_a_reply_that_keeps_all_rules_is_solved():
    assert score("Hello Ann!", RULES) == {
        "accuracy": 1.0, "begins": 0.25, "keyword": 0.25, "ending": 0.25, "length": 0.25}


def test_each_rule_counts_by_itself():
    assert score("hello Ann", RULES) == {"accuracy": 0.0, "begins": 0.0, "keyword": 0.25, "ending": 0.0, "length": 0.25}
    assert score("Hello Ann, my old friend!", RULES)["length"] == 0.0


def test_an_empty_reply_keeps_none():
    assert sum(score("", RULES).values()) == 0.0
