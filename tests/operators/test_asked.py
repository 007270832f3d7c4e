"""Operators that ask a server: it answers with scores, with 500, rubbish or nothing."""

import json
from functools import partial

import pytest
from starlette.responses import Response

from ouroboros.operators.experience import curate, prepare
from ouroboros.operators.juicer_recipes import inline_recipe
from ouroboros.pipeline.store.errors import ConfigError, StageError
from tests.recipes import run_recipe
from tests.servers import chat_app, serving

GOOD = {"linguistic_complexity": 2, "conceptual_depth": 4, "prior_knowledge": 4, "step_complexity": 3, "ambiguity": 2}
QUALITY = {"accuracy": 2, "grammar": 4, "informativeness": 4, "coherence": 2}


def scores(given, body=None):
    return f"Here it is: {json.dumps({'dimension_scores': given, 'flags': []})}"


def asking(address, name="llm_difficulty_score_filter", keys=("question", "answer"), **more):
    return {"name": name, "args": {
        "api_or_hf_model": "judge", "min_score": 0.0, "input_keys": list(keys), "field_names": list(keys), "try_num": 2,
        "model_params": {"base_url": f"{address}/v1", "api_key": "none", "max_retries": 0}, **more}}


def tasks(count):
    return [{"row": i, "question": f"task {i}?", "answer": "1", "solution": None} for i in range(count)]


def curated(address, count=20, **more):
    return run_recipe(tasks(count), inline_recipe([asking(address, **more)], []), 4)


def odd_one(wrong, body, headers):
    return wrong if "task 7?" in body["messages"][1]["content"] else scores(GOOD)


def test_scores_decide_about_a_task():
    """Mean (2 + 4 + 4 + 3 + 2) / 5 of 5: 0.6."""
    with serving(chat_app(lambda body, headers: scores(GOOD))) as address:
        assert curated(address, min_score=0.6) == (tasks(20), [])
        assert [one.scores["llm_difficulty_score"] for one in curated(address, 2, min_score=0.61)[1]] == [0.6, 0.6]


@pytest.mark.parametrize("wrong", [
    Response("down", 500), "no scores at all", "", Response("<html>"), Response("{}"), scores({}),
    scores({**GOOD, "ambiguity": "high"}), scores({**GOOD, "ambiguity": 40}), '{"dimension_scores": {"ambiguity": 3}}'])
def test_a_row_without_an_answer_is_dropped_with_the_reason_whatever_is_kept(wrong):
    with serving(chat_app(partial(odd_one, wrong))) as address:
        kept, dropped = curated(address)
    assert [row["row"] for row in kept] == [*range(7), *range(8, 20)]
    assert [(one.row, one.operator) for one in dropped] == [(7, "llm_difficulty_score_filter")]
    assert "llm_difficulty_score" not in dropped[0].scores


def test_more_than_a_tenth_is_an_error():
    with serving(chat_app(partial(odd_one, Response("down", 500)))) as address, pytest.raises(StageError):
        curated(address, count=9)


def test_a_column_that_is_not_there_is_not_asked_about():
    with serving(chat_app(lambda body, headers: scores(GOOD))) as address, pytest.raises(ConfigError):
        curated(address, count=1, input_keys=["query", "answer"])


def test_it_asks_again_before_it_gives_up():
    asked = []

    def second_time(body, headers):
        asked.append(body)
        return scores(GOOD) if len(asked) > 1 else Response("down", 500)

    with serving(chat_app(second_time)) as address:
        assert len(curated(address, count=1)[0]) == 1
    assert len(asked) == 2


def test_quality_of_a_response_shapes_its_reward():
    """The guide's example: (2 + 4 + 4 + 2) / 4 / 5 = 0.6 for one response, and 0.2 for the other: all 1."""
    def judge(body, headers):
        return scores(QUALITY if "fine" in body["messages"][1]["content"] else dict.fromkeys(QUALITY, 1))

    rows = [{"row": i, "prompt_text": "p", "response_text": text, "response": text, "group_id": "g", "reward": 1.0,
             "components": {}} for i, text in enumerate(("fine", "bad"))]
    with serving(chat_app(judge)) as address:
        found = curate(rows, prepare([
            {"name": "data_juicer", "args": {"operators": [
                asking(address, "llm_quality_score_filter", ("prompt_text", "response_text"))]}},
            {"name": "reward_shaping_mapper", "args": {"reward_shaping_configs": [
                {"stats_key": "llm_quality_score", "op_type": "ADD", "weight": 1.0}]}}]), compared=True)
    assert {row: round(one.reward, 9) for row, one in found.items()} == {0: 1.6, 1: 1.2}
    assert {row: one.scores for row, one in found.items()} == {0: {"llm_quality_score": pytest.approx(0.6)},
                                                               1: {"llm_quality_score": pytest.approx(0.2)}}
