"""Operators on the attempts of a step, with rewards and verdicts worked out by hand."""

import pytest

from ouroboros.operators.experience import Verdict, curate, misfits, prepare
from ouroboros.pipeline.store.errors import ConfigError, DataError

SHORT, TWIN = {"name": "text_length_filter", "args": {"min_len": 1, "max_len": 5}}, {"name": "document_deduplicator"}


def attempts(*responses, rewards=None, groups=None, **columns):
    """Two attempts a group, each with reward 1, unless told otherwise."""
    return [{"row": i, "response": text, "prompt": "p", "group_id": (groups or "aabbccdd")[i],
             "reward": (rewards or [1.0] * len(responses))[i], "accuracy": 0.0,
             "components": {name: values[i] for name, values in columns.items()}}
            for i, text in enumerate(responses)]


def judge(rows, *operators, compared=False):
    return curate(rows, prepare(operators), compared)


def dropped(verdicts):
    return {row: one.operator for row, one in verdicts.items() if one.operator}


def shaping(*configs):
    return {"name": "reward_shaping_mapper", "args": {"reward_shaping_configs": list(configs)}}


def brief(rows, most=3):
    for row in rows:
        row["scores"]["length"] = len(row["response"])
        row["reward"] -= 0.5
        if len(row["response"]) > most:
            row["reason"] = f"longer than {most}"


def keeps_some(rows):
    return rows[:1]


def infinite(rows):
    rows[0]["reward"] = float("inf")


def ends(rows):
    raise SystemExit(3)


@pytest.mark.parametrize("given", [[{"name": "data_juicer", "args": {"operators": [SHORT, TWIN]}}], [SHORT, TWIN]])
def test_data_juicers_operators_judge_responses_and_leave_numbers(given):
    found = judge(attempts("one", "three!", "one", "four"), *given)
    assert found[0] == Verdict(1.0, {"text_len": 3.0})
    assert dropped(found) == {1: "text_length_filter", 2: "document_deduplicator"}
    assert (found[1].scores, found[1].reward) == ({"text_len": 6.0}, 1.0)


def test_a_recipe_names_trinitys_columns(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("text_keys: prompt\nprocess: [{text_length_filter: {min_len: 1, max_len: 5}}]")
    rows = attempts("far too long", "x")
    assert dropped(judge(rows, {"name": "data_juicer", "args": {"config_path": str(path)}})) == {}
    assert dropped(judge(rows, SHORT)) == {0: "text_length_filter"}


@pytest.mark.parametrize(("op", "weight", "reward"), [("ADD", 0.5, 4.0), ("SUB", 0.5, 0.0), ("MUL", 2.0, 16.0),
                                                      ("DIV", 0.25, 2.0)])
def test_the_reward_is_shaped_by_a_score(op, weight, reward):
    """Reward 2 and a text of 4 characters: 2 + 0.5 x 4, 2 - 2, 2 x 8, 2 / 1."""
    found = judge(attempts("four", rewards=[2.0]), SHORT, shaping({"stats_key": "text_len", "op_type": op,
                                                                   "weight": weight}))
    assert found[0].reward == reward


def test_shapes_follow_each_other_and_know_the_components_of_the_reward():
    """(1 + 0.5) x 2 for the first row; the second has no component `near` and is not comparable."""
    rows = attempts("a", "b", near=[0.5, None])
    rows[1]["components"] = {}
    found = judge(rows, shaping({"stats_key": "near"}, {"stats_key": "near", "op_type": "MUL", "weight": 4.0}))
    assert (found[0].reward, dropped(found)) == (3.0, {1: "reward_shaping_mapper"})


def test_a_divisor_of_0_drops_the_row_and_an_unknown_score_ends_the_step():
    found = judge(attempts("a", "b", near=[0.0, 2.0]), shaping({"stats_key": "near", "op_type": "DIV"}))
    assert (dropped(found), found[1].reward) == ({0: "reward_shaping_mapper"}, 0.5)
    with pytest.raises(DataError):
        judge(attempts("a"), shaping({"stats_key": "quality"}))


def test_what_is_left_alone_of_a_group_is_dropped_where_groups_compare():
    """Groups a (one twin), b (both long), c (both stay)."""
    rows = attempts("aa", "aaaaaa", "bbbbbb", "bbbbbbb", "cc", "ccc")
    alone, both = judge(rows, SHORT, compared=True), judge(rows, SHORT)
    assert dropped(alone) == {0: "group", **dict.fromkeys((1, 2, 3), "text_length_filter")}
    assert dropped(both) == dict.fromkeys((1, 2, 3), "text_length_filter")


def test_rewards_filter_attempts_and_groups():
    """Population std of (0, 1) is 0.5, of (1, 1) 0."""
    rows = attempts(*"uvwx", rewards=[0.0, 1.0, 1.0, 1.0])
    assert dropped(judge(rows, {"name": "reward_filter", "args": {"threshold": 0.5}})) == {0: "reward_filter"}
    by_std = {"name": "reward_std_filter", "args": {"threshold": 0.4}}
    assert dropped(judge(rows, by_std)) == {2: "reward_std_filter", 3: "reward_std_filter"}
    assert set(dropped(judge(rows, {**by_std, "args": {"threshold": 0.5}}))) == {0, 1, 2, 3}
    rates = judge(rows, {"name": "pass_rate_calculator"}, {"name": "invalid_reward_filter"})
    assert [rates[i].scores for i in range(4)] == [{"pass_rate": 0.5}] * 2 + [{"pass_rate": 1.0}] * 2


def test_an_operator_of_the_user_changes_its_rows_in_place():
    rows = attempts("ab", "abcdef")
    found = judge(rows, SHORT, {"name": "tests.operators.test_experience:brief", "args": {"most": 1}})
    assert found[0] == Verdict(1.0, {"text_len": 2.0, "length": 2.0}, "tests.operators.test_experience:brief",
                               "longer than 1")
    assert judge(rows, {"name": "tests.operators.test_experience:brief", "args": {"most": 9}})[1] == (
        Verdict(0.5, {"length": 6.0}))
    assert rows == attempts("ab", "abcdef")


def replaces(rows):
    rows[:] = [row | {"reward": 0.0} for row in rows]


def clears(rows):
    rows.clear()


def removes(rows):
    rows.remove(rows[0])


def adds(rows):
    rows.append(rows[0])


def edits(rows):
    rows[0]["response"] = "another"


def edits_a_component(rows):
    rows[0]["components"]["near"] = 1.0


def misspells(rows):
    rows[0]["reasons"] = "too long"


def forgets(rows):
    del rows[0]["scores"]


def decides(rows):
    rows[0]["reason"] = False


def sorts(rows):
    rows.sort(key=lambda row: -len(row["response"]))
    for rank, row in enumerate(rows):
        row["scores"]["rank"] = rank


def test_an_operator_of_the_user_may_look_at_its_rows_in_another_order():
    found = judge(attempts("a", "abc"), {"name": "tests.operators.test_experience:sorts"})
    assert [found[row].scores for row in (0, 1)] == [{"rank": 1.0}, {"rank": 0.0}]


@pytest.mark.parametrize("name", ["keeps_some", "infinite", "ends", "replaces", "clears", "removes", "adds", "edits",
                                  "edits_a_component", "misspells", "forgets", "decides"])
def test_what_an_operator_of_the_user_may_not_do(name):
    with pytest.raises(DataError) as error:
        judge(attempts("ab"), {"name": f"tests.operators.test_experience:{name}"})
    assert name in str(error.value) or name == "infinite"


@pytest.mark.parametrize("operator", [
    {"name": "text_lenght_filter"}, {"name": "text_length_filter", "args": {"longest": 5}},
    {"name": "tests.operators.test_experience:brief", "args": {"least": 5}}, {"name": "nowhere:none"},
    {"name": "reward_filter", "args": {"threshold": "high"}}])
def test_an_operator_that_is_not_there_or_takes_no_such_argument(operator):
    with pytest.raises(ConfigError):
        prepare([operator])


def test_code_that_no_identity_holds_is_not_for_experience():
    assert misfits({"process": [{"python_file_mapper": {"file_path": "x.py"}}]})
    assert misfits({"process": [{"text_length_filter": {"max_len": 5}}]}) == []


def test_quality_of_a_response_is_rewarded_by_name():
    """alnum_ratio 3/4 and special_char_ratio 1/4, turned around 3/4: 1 + 2 x 3/4; of a row without any nothing."""
    measured = [{"name": "alphanumeric_filter", "args": {"min_ratio": 0.1}},
                {"name": "special_characters_filter", "args": {"max_ratio": 0.9}}]
    found = judge(attempts("abc-", "abcd"), *measured, {"name": "quality_reward", "args": {"weight": 2.0}})
    assert [found[row].reward for row in (0, 1)] == [2.5, 3.0]
    assert found[0].scores["quality"] == 0.75
    with pytest.raises(DataError):
        judge(attempts("abc-", "abcd"), {"name": "quality_reward"})


def test_diversity_within_a_group_is_rewarded_by_name():
    """Cosines of word counts: a b with a c 1/2, with d 0, a c with d 0: 1 - 1/4, 1 - 1/4, 1. Equal ones 0; empty 0."""
    rows = attempts("a b", "A c", "d", "same", "same", "", "x", groups="aaabbcc")
    found = judge(rows, {"name": "diversity_reward", "args": {"weight": 4.0}})
    assert [found[row].reward for row in range(7)] == pytest.approx([4, 4, 5, 1, 1, 1, 5])
