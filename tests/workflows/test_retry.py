"""Attempts of several turns: what the retry workflow does, by hand, and what becomes of turns in the runner."""

from dataclasses import replace
from pathlib import Path

import pytest

from ouroboros.operators.reward import countdown_reward
from ouroboros.pipeline.store import records
from ouroboros.workflows.attempts.user_reward import Rule
from ouroboros.workflows.protocol.engine import Reply
from ouroboros.workflows.protocol.outcomes import add_rewards, decode
from ouroboros.workflows.protocol.trajectory import Trajectory
from ouroboros.workflows.retry import retry_workflow
from ouroboros.workflows.single_turn import load_workflow, simple_workflow
from ouroboros.workflows.task_at_hand import TaskAtHand, asks_task, bound
from tests.factories import row
from tests.golden.messages import refuses
from tests.workflows.test_runner import EOS, roll


class Characters:
    """A tokenizer of characters without a chat template; EOS is special."""

    chat_template = None

    def __call__(self, texts, add_special_tokens):
        return {"input_ids": [[ord(c) for c in text] for text in texts]}

    def decode(self, tokens, skip_special_tokens=False):
        return "".join(chr(t) for t in tokens if t != EOS)

    def batch_decode(self, lists, skip_special_tokens=False):
        return [self.decode(tokens) for tokens in lists]


TASK = row(records.Task, task_id="t", question="1 2 = 3:", answer='{"numbers": [1, 2], "target": 3}')


def rated(function=countdown_reward, **arguments):
    return [Rule(function, arguments, 0)]


@pytest.fixture
def at_hand(settings):
    def make(*overrides, rewards=None):
        config = settings("model.max_prompt_tokens=20", "model.max_response_tokens=6", "model.max_model_len=60",
                          *overrides)
        return TaskAtHand(TASK, rewards or rated(), Characters(), config)

    return make


def test_the_judge_of_a_task_gives_the_columns_of_its_record(settings):
    task = TaskAtHand(replace(TASK, columns='{"level": 3}'), rated(lambda response, answer, level: level), Characters(),
                      settings())
    assert task.judge(Reply([ord("1")], [-1.0], "stop")).components == {"reward": 3.0}


def play(task, *answers, **arguments):
    """The prompts that a retry asks, as text, and what it returns, when it is answered so."""
    attempt = retry_workflow([ord(c) for c in TASK.question], task, **arguments)
    asked, prompt = [], next(attempt)
    try:
        for answer in answers:
            asked.append("".join(map(chr, prompt)))
            tokens = [*map(ord, answer), EOS]
            prompt = attempt.send(Reply(tokens, [-0.5] * len(tokens), "stop"))
    except StopIteration as done:
        return asked, done.value
    raise AssertionError(f"it asks again: {prompt}")


def test_it_asks_again_until_it_is_solved(at_hand):
    """2-1 is an expression (0.1), 1+2 the solution (1.0 + 0): the second turn gains 0.9."""
    asked, turns = play(at_hand(), "2-1", "1+2", feedback="No.")
    assert asked == ["1 2 = 3:", "1 2 = 3:\n\n2-1\n\nNo."]
    assert [turn.reward for turn in turns] == pytest.approx([0.1, 0.9])
    assert ["".join(map(chr, turn.prompt_tokens)) for turn in turns] == asked
    assert [turn.response_tokens for turn in turns] == [[*map(ord, "2-1"), EOS], [*map(ord, "1+2"), EOS]]
    assert turns[0].state != turns[1].state
    assert turns[1].action_mask == [1, 1, 1, 1]


def test_solved_at_once_it_is_one_turn(at_hand):
    _, turns = play(at_hand(), "1+2")
    assert [turn.reward for turn in turns] == [1.0]


def test_it_ends_after_so_many_turns_and_without_feedback_asks_the_same(at_hand):
    asked, turns = play(at_hand(), "x", "2-1", "2*1", max_env_steps=3, feedback=None)
    assert asked == ["1 2 = 3:"] * 3
    assert [turn.reward for turn in turns] == pytest.approx([0.0, 0.1, 0.0])
    assert len({turn.state for turn in turns}) == 1


def test_it_ends_where_a_whole_response_no_longer_fits(at_hand):
    """8 characters of question, 3 of the answer, 3 of feedback and 2 x 2 of line ends: 18, and 6 of a response: 24."""
    assert len(play(at_hand("model.max_model_len=24"), "2-1", "1+2", feedback="No.")[1]) == 2
    assert len(play(at_hand("model.max_model_len=23"), "2-1", feedback="No.")[1]) == 1


def test_a_response_that_cannot_be_judged_ends_the_attempt_and_fails_it(at_hand):
    def broken(response, answer):
        raise TimeoutError("busy")

    _, turns = play(at_hand(rewards=rated(broken)), "2-1")
    assert [turn.reward for turn in turns] == [None]


def test_a_reward_that_does_not_say_what_is_solved_is_refused(at_hand):
    from ouroboros.pipeline.store.errors import DataError

    with refuses(DataError, "`accuracy` ", "solved"):
        play(at_hand(rewards=rated(lambda response, answer: {"score": 1.0})), "2-1")


def test_a_workflow_is_handed_the_task_if_it_asks_for_it(at_hand):
    assert asks_task(load_workflow("retry_workflow", {"max_env_steps": 2}))
    assert bound(simple_workflow, pytest.fail) is simple_workflow
    given = bound(load_workflow("retry_workflow", {"max_env_steps": 1}), at_hand)
    attempt = given([5])
    assert next(attempt) == [5]


def test_the_example_of_the_page_is_one_row_with_the_environments_words_masked(at_hand):
    """docs/workflows.md: the prompt, 1+2 and its end, `Are you sure?` (13 characters), 3 and its end."""
    page = (Path(__file__).parents[2] / "docs" / "workflows.md").read_text()
    names: dict = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    attempt = names["ask_twice"]([5, 6], at_hand())
    assert next(attempt) == [5, 6]
    first = [*map(ord, "1+2"), EOS]
    assert attempt.send(Reply(first, [-0.5] * 4, "stop")) == [5, 6, *first, *map(ord, "Are you sure?")]
    with pytest.raises(StopIteration) as done:
        attempt.send(Reply([ord("3"), EOS], [-0.25] * 2, "stop"))
    made = done.value.value
    assert made.action_mask == [1] * 4 + [0] * 13 + [1] * 2
    assert made.logprobs == [-0.5] * 4 + [0.0] * 13 + [-0.25] * 2
    assert made.response_tokens == [*first, *map(ord, "Are you sure?"), ord("3"), EOS]


def turn(tokens, **more):
    return Trajectory([5], tokens, [-1.0] * len(tokens), [1] * len(tokens), "stop", **more)


def returned(turns):
    def workflow(prompt):
        yield prompt
        return turns

    (outcome,) = roll(workflow, [[5]])
    return outcome


def test_every_turn_has_its_text_and_the_last_is_rewarded():
    outcome = returned([turn([65, EOS]), turn([66])])
    decode([outcome], Characters())
    assert [(number, text) for number, _, text in outcome.turns] == [(0, "A"), (1, "B")]
    assert (outcome.trajectory.response_tokens, outcome.response) == ([66], "B")
    add_rewards([outcome], [[]], ["B"], rated(lambda response, answer: {"accuracy": float(response == answer)}))
    assert outcome.reward == 1.0


def test_what_is_no_list_has_no_turns_and_a_list_of_one_has_one():
    assert [number for number, *_ in returned(turn([65])).turns] == [None]
    assert [number for number, *_ in returned([turn([65])]).turns] == [0]


@pytest.mark.parametrize(("turns", "reason"), [
    ([], "the workflow returned an empty list, needed at least one turn"),
    ([turn([65]), 7], "turn 1 of 2: the workflow returned int, needed a Trajectory"),
    ([turn([]), turn([65])], "turn 0 of 2: the workflow returned 0 response tokens"),
    ([turn([65] * 9)], "turn 0 of 1: the workflow returned 1 prompt and 9 response tokens"),
    ([turn([65], state=7)], "turn 0 of 1: the workflow returned a state that is int, needed a text or None"),
    ([turn([65], reward=float("nan"))], "turn 0 of 1: the workflow returned the reward nan of a turn"),
    (turn([65], reward="1"), "the workflow returned the reward '1' of a turn, needed a finite number")])
def test_one_bad_turn_fails_the_attempt_with_its_reason(turns, reason):
    outcome = returned(turns)
    assert outcome.status == "workflow_failed"
    assert outcome.reason.startswith(reason)
    assert outcome.trajectory is None
