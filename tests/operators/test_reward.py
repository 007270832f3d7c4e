import json
from fractions import Fraction

import pytest

from ouroboros.operators import reward
from ouroboros.pipeline.store.errors import ConfigError, DataError
from tests.golden.messages import refuses

TRUTH = '{"numbers": [3, 5, 7], "target": 9}'


@pytest.mark.parametrize(("text", "value", "literals"), [
    ("7+5-3", 9, [7, 5, 3]),
    ("10-2-3", 5, [10, 2, 3]),  # left to right
    ("2+3*4", 14, [2, 3, 4]), ("(2+3)*4", 20, [2, 3, 4]), ("8/4/2", 1, [8, 4, 2]),
    ("1/3*3", 1, [1, 3, 3]),  # exact, no rounding
    ("7/2", Fraction(7, 2), [7, 2]), (" - ( 3 - 5 ) ", 2, [3, 5]), ("-3+5", 2, [3, 5]), ("2--3", 5, [2, 3]),
    ("1/0", None, [1, 0]), ("5/(3-3)+1", None, [5, 3, 3, 1])])
def test_arithmetic(text, value, literals):
    assert reward.parse_arithmetic(text) == (value, literals)


@pytest.mark.parametrize("text", [
    "", " ", "7+", "+", "*3", "7 5", "7+5)", "(7+5", "()", "7**2", "7//2", "2^3", "3.5", "7+5=12", "x+1",
    "__import__('os')", "7+5-3 is it", "\u0663+1", "1" * 257, "(" * 40 + "1" + ")" * 40, "-" * 40 + "1"])
def test_what_is_no_arithmetic(text):
    with pytest.raises(reward.NotAnExpression):
        reward.parse_arithmetic(text)


@pytest.mark.parametrize(("response", "earned"), [
    ("7+5-3", 1.0), (" 5 - 3 + 7 ", 1.0), ("(7+5)-3", 1.0), ("<think>3+5?</think><answer>7+5-3</answer>", 1.0),
    ("<answer>1</answer> no: <answer>7-3+5</answer>", 1.0),
    ("7+5+3", 0.1),  # 15
    ("9", 0.1),  # right value, numbers not used
    ("7+5-3+3-3", 0.1),  # 3 used three times
    ("7+2", 0.1),  # a number that was not given
    ("7/(5-5)", 0.1),  # division by zero is a wrong value
    ("7+5-", 0.0), ("the answer is 7+5-3", 0.0),
    ("<think><answer>7+5-3</answer></think>", 0.0),  # a thought is no answer
    ("<think>3+5? <answer>7+5-3</answer>", 0.0),
    ("3+5?</think>7+5-3", 1.0),  # the prompt began the thought
    ("", 0.0), ("9" * 5000, 0.0)])
def test_countdown_reward(response, earned):
    components = reward.countdown_reward(response, TRUTH)
    assert set(components) == {"accuracy", "format_score"}
    assert sum(components.values()) == earned
    assert components["accuracy"] == float(earned == 1)


def test_countdown_reward_divides_takes_a_tolerance_and_may_have_no_prize_for_form():
    assert reward.countdown_reward("1/3", '{"numbers": [1, 3], "target": 0.333333}')["accuracy"] == 1
    assert reward.countdown_reward("1/3", '{"numbers": [1, 3], "target": 0.3333}')["accuracy"] == 0
    assert reward.countdown_reward("8*3/(5-1)", '{"numbers": [1, 3, 5, 8], "target": 6}')["accuracy"] == 1
    assert sum(reward.countdown_reward("7+5+3", TRUTH, format_score=0.0).values()) == 0


@pytest.mark.parametrize("answer", [
    "", "42", "null", '["numbers", "target"]', '{"numbers": [3, 5', '{"numbers": [3]}', '{"target": 3}',
    '{"numbers": [], "target": 3}', '{"numbers": "3 5", "target": 3}', '{"numbers": [3, "5"], "target": 3}',
    '{"numbers": [true], "target": 3}', '{"numbers": [3], "target": "3"}', '{"numbers": [3], "target": NaN}',
    '{"numbers": [3], "target": Infinity}', '{"numbers": [3], "target": ' + "9" * 5000 + "}", "[" * 100_000])
def test_malformed_countdown_truth_is_an_error_not_a_wrong_answer(answer):
    with refuses(DataError, "JSON"):
        reward.countdown_reward("7+5-3", answer)


@pytest.mark.parametrize(("response", "answer", "accuracy"), [
    ("48/2 = 24, and 48 + 24 = 72", "48/2 = <<48/2=24>>24\n#### 72", 1), ("so it is 71.", "#### 72", 0),
    ("#### 1,234", "#### 1234", 1), ("She pays $1,234.50", "#### 1234.5", 1),
    ("\\boxed{72} of 100", "#### 72", 1),  # the box wins over the last number
    ("first \\boxed{1}, then \\boxed{72}", "72", 1), ("\\boxed{\\frac{1}{2}}", "0.5", 1),
    ("\\boxed{x^2+1}", "\\boxed{1+x^2}", 1), ("\\boxed{x^2-1}", "\\boxed{1+x^2}", 0), ("1/2", "0.5", 1),
    ("it is -5", "#### -5", 1), ("it is -5", "#### 5", 0), ("I do not know", "#### 5", 0), ("", "#### 5", 0),
    ("9" * 5000, "#### 5", 0), ("\\boxed{unclosed", "#### 5", 0), ("1/0", "#### 5", 0)])
def test_accuracy_reward(response, answer, accuracy):
    assert reward.accuracy_reward(response, answer) == {"accuracy": float(accuracy)}


@pytest.mark.parametrize("answer", ["", "   ", "some steps\n####", "####", "\\boxed{}", r"It is \boxed{\frac{1}{2}"])
def test_truth_without_an_answer(answer):
    with refuses(DataError, "holds no answer"):
        reward.accuracy_reward("42", answer)


@pytest.mark.parametrize(("response", "score"), [
    ("<think>a</think><answer>b</answer>", 0.1), ("<think>\na\n</think>\n<answer>\nb\n</answer>\n", 0.1),
    ("<answer>b</answer>", -0.1), ("<think>a</think><answer>b</answer> and more", -0.1),
    ("<think>a</think><think>a</think><answer>b</answer>", -0.1), ("", -0.1)])
def test_format_reward(response, score):
    assert reward.format_reward(response, "anything") == {"format_score": score}


@pytest.mark.parametrize(("response", "stated"), [
    ("<answer>4</answer><confidence>0.8</confidence>", 0.8), ("<confidence> 75 % </confidence>", 0.75),
    ("<confidence>.2</confidence> no: <confidence>1</confidence>", 1.0), ("<confidence>7</confidence>", 1.0),
    ("I am sure", 0.5), ("<confidence>-1</confidence>", 0.5), ("<confidence>high</confidence>", 0.5)])
def test_the_confidence_that_is_stated_last(response, stated):
    assert reward.confidence_reward(response, "4") == {"confidence": stated}
    assert reward.confidence_reward(response.replace("confidence", "sure"), "4", tag="sure") == {"confidence": stated}


def test_rewards_by_name_and_by_dotted_path():
    assert reward.load_reward("countdown_reward") is reward.countdown_reward
    assert reward.load_reward("ouroboros.operators.reward:format_reward") is reward.format_reward


@pytest.mark.parametrize(("name", "message"), [
    ("countdown_rewrad", "'countdown_reward'"), ("no_such_module_here:reward", "no_such_module_here"),
    ("ouroboros.operators.reward:no_such_reward", "no_such_reward"),
    ("ouroboros.operators.reward:REWARDS", "is a dict")])
def test_unknown_rewards(name, message):
    with refuses(ConfigError, message):
        reward.load_reward(name)


@pytest.mark.parametrize(("match", "ideal", "response", "solved"), [
    ("Match", ["C"], "C, as 3 > 2", 1), ("Match", ["C"], "It is C", 0), ("Match", ["C"], "<answer> C </answer>", 1),
    ("Match", ["no", "No"], "No.", 1), ("Includes", ["17"], "x is 17.", 1), ("Includes", ["Paris"], "paris", 0),
    ("FuzzyMatch", ["The Nile!"], "it is the nile", 1), ("FuzzyMatch", ["a b c"], "b", 1),
    ("FuzzyMatch", ["Nile"], "the", 0)])
def test_an_eval_is_solved_by_the_rule_of_its_set(match, ideal, response, solved):
    assert reward.evals_reward(response, json.dumps({"match": match, "ideal": ideal})) == {"accuracy": solved}


def test_letters_of_an_eval_may_be_of_either_case():
    truth = '{"match": "Includes", "ideal": ["Paris"], "ignore_case": true}'
    assert reward.evals_reward("PARIS", truth) == {"accuracy": 1}


@pytest.mark.parametrize("truth", ["Paris", '{"ideal": ["Paris"]}', '{"match": "Model", "ideal": ["Paris"]}'])
def test_a_truth_that_is_no_eval_is_named(truth):
    with refuses(DataError, "FuzzyMatch"):
        reward.evals_reward("Paris", truth)


def test_calls_behind_a_thought_are_compared():
    truth = {"functions": [{"name": "area", "parameters": {
        "properties": {"base": {"type": "float"}, "unit": {"type": "string"}}, "required": ["base"]}}],
        "calls": [{"area": {"base": [2.5], "unit": ["cm", ""]}}]}
    reply = '<think>area(base=1)</think><tool_call>{"name": "area", "arguments": {"base": 2.5}}</tool_call>'
    assert reward.calls_reward(reply, json.dumps(truth)) == {"accuracy": 1}
    assert reward.calls_reward("area", json.dumps(truth)) == {"accuracy": 0}
    assert reward.calls_reward("[]", json.dumps(truth | {"calls": []})) == {"accuracy": 1}
    assert reward.calls_reward("none", json.dumps(truth | {"calls": []})) == {"accuracy": 0}
    with refuses(DataError, "functions"):
        reward.calls_reward("", '{"calls": []}')
