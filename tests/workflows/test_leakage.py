"""Which tasks are the same task, when an evaluation set is compared with training data."""

import json

from ouroboros.workflows.leakage import prompt_of


def same(one, other, question="Play this game."):
    return prompt_of([], question, answer=json.dumps(one)) == prompt_of([], question, answer=json.dumps(other))


def test_games_of_different_seeds_are_different_tasks():
    assert same({"game": "Hangman", "seed": 3}, {"game": "Hangman", "seed": 3})
    assert not same({"game": "Hangman", "seed": 3}, {"game": "Hangman", "seed": 4})


def test_a_task_of_an_environment_is_the_same_under_another_lock():
    assert same({"lock": "a", "config": {}, "task": {"idx": 1}}, {"lock": "b", "config": {"n": 2}, "task": {"idx": 1}})
    assert not same({"lock": "a", "config": {}, "task": {"idx": 1}}, {"lock": "a", "config": {}, "task": {"idx": 2}})


def test_other_tasks_are_the_same_whatever_their_answers():
    assert same(18, "#### 18", "How many eggs?")
