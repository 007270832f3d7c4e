"""Reward functions: `f(response, answer, **arguments) -> components`, whose sum is the reward.

Response and answer are texts. A component named `accuracy` is 1 when the task is solved and 0 when not. A response is a
model's output and is never evaluated as code. A malformed truth (`answer`) is a DataError: the row failed, which is not
the same as a wrong answer.
"""

import json
import math
import re
import string
from collections.abc import Callable, Mapping
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache

from ouroboros.operators.answers import LONGEST_ANSWER, compared, marked, spoken, tidy, truth_answer, verdict
from ouroboros.operators.calls import calls_in, solves
from ouroboros.operators.formula_worker import DIFFERENT, EQUAL, LIMIT, UNREADABLE
from ouroboros.operators.prose import unmarked
from ouroboros.pipeline.settings.arguments.answers import (
    AccuracyReward,
    ConfidenceReward,
    CountdownReward,
    FormatReward,
)
from ouroboros.pipeline.store.errors import ConfigError, DataError, pick
from ouroboros.pipeline.store.user_errors import load_dotted

ACCURACY, CONFIDENCE = AccuracyReward(), ConfidenceReward()
COUNTDOWN, FORMAT = CountdownReward(), FormatReward()

LONGEST_EXPRESSION = 256  # characters
DEEPEST_NESTING = 32  # depth of parentheses and signs
TOLERANCE = Fraction(1, 100_000)

# ------------------------------------------------------------------------------------------------------- arithmetic


class NotAnExpression(ValueError):
    """The text is not an arithmetic expression within the bounds."""


def parse_arithmetic(text: str) -> tuple[Fraction | None, list[int]]:
    """Value and whole-number literals, in order, of an expression of + - * / ( ) and unary signs.

    The value is exact; None for a division by zero. Raises NotAnExpression when the text does not parse, is longer than
    LONGEST_EXPRESSION or nests deeper than DEEPEST_NESTING. Recursive descent:
    sum := product (('+' | '-') product)*;  product := atom (('*' | '/') atom)*;  atom := number | '(' sum ')' | ±atom.
    """
    if len(text) > LONGEST_EXPRESSION:
        raise NotAnExpression(f"longer than {LONGEST_EXPRESSION} characters")
    if not re.fullmatch(r"(?:[0-9]+|[-+*/()]|\s)+", text):
        raise NotAnExpression("holds something else than digits, + - * / and parentheses")
    parser = _Parser(re.findall(r"[0-9]+|[-+*/()]", text))
    value = parser.sum(0)
    if parser.next is not None:
        raise NotAnExpression(f"'{parser.next}' after a complete expression")
    return value, parser.literals


class _Parser:
    """Position in a list of tokens, and the literals read so far."""

    def __init__(self, tokens: list[str]):
        self.tokens, self.position, self.literals = tokens, 0, []

    @property
    def next(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def take(self) -> str | None:
        token = self.next
        self.position += 1
        return token

    def sum(self, depth: int) -> int | Fraction | None:
        value = self.product(depth)
        while self.next in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            right = self.product(depth)
            value = None if value is None or right is None else value + sign * right
        return value

    def product(self, depth: int) -> int | Fraction | None:
        value = self.atom(depth)
        while self.next in ("*", "/"):
            divides = self.take() == "/"
            right = self.atom(depth)
            if value is None or right is None or (divides and right == 0):
                value = None
            else:
                value = Fraction(value) / right if divides else value * right
        return value

    def atom(self, depth: int) -> int | Fraction | None:
        if depth > DEEPEST_NESTING:
            raise NotAnExpression(f"nests deeper than {DEEPEST_NESTING}")
        token = self.take()
        if token in ("+", "-"):
            value = self.atom(depth + 1)
            return value if token == "+" or value is None else -value
        if token == "(":
            value = self.sum(depth + 1)
            if self.take() != ")":
                raise NotAnExpression("a parenthesis is not closed")
            return value
        if token is None or not token.isdigit():
            raise NotAnExpression(f"a number is missing before '{token or 'the end'}'")
        self.literals.append(int(token))
        return self.literals[-1]


# -------------------------------------------------------------------------------------------------------- countdown


@lru_cache(4096)  # the repeats of a task share their truth
def parse_countdown(answer: str) -> tuple[tuple[int, ...], int | float]:
    """Numbers and target of a countdown truth such as `{"numbers": [3, 5, 7], "target": 9}`.

    Raises DataError with the reason for anything else.
    """
    needed = 'needed JSON such as {"numbers": [3, 5, 7], "target": 9}'
    try:
        truth = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise DataError(f"truth {answer[:80]!r} is not JSON ({error}); {needed}") from error
    if not isinstance(truth, dict):
        raise DataError(f"truth {answer[:80]!r} is no JSON object; {needed}")
    missing = [key for key in ("numbers", "target") if key not in truth]
    if missing:
        raise DataError(f"truth {answer[:80]!r} has no {' and no '.join(missing)}; {needed}")
    given, target = truth["numbers"], truth["target"]
    if not isinstance(given, list) or not given or any(type(n) is not int for n in given):
        raise DataError(f"truth {answer[:80]!r}: numbers is not a list of whole numbers; {needed}")
    if type(target) is not int and (type(target) is not float or not math.isfinite(target)):
        raise DataError(f"truth {answer[:80]!r}: target is not a finite number; {needed}")
    return tuple(given), target


def countdown_reward(response: str, answer: str, format_score=COUNTDOWN.format_score) -> dict[str, float]:
    """1 for an expression with each given number once that equals the target, format_score for others.

    0 for other text. The expression is the last <answer>…</answer> behind the thoughts of a response, or all that is
    behind them. Division by zero is a wrong value. format_score: reward of a wrong expression; 0 gives a binary reward.
    """
    solved = _solves(spoken(response), answer)
    return {"accuracy": float(solved or 0), "format_score": format_score if solved is False else 0.0}


@lru_cache(4096)  # responses within a group are often equal
def _solves(text: str, answer: str) -> bool | None:
    """Whether an expression solves a countdown task; None for a text that is not an expression."""
    given, target = parse_countdown(answer)
    try:
        value, literals = parse_arithmetic(text)
    except NotAnExpression:
        return None
    return sorted(literals) == sorted(given) and value is not None and abs(value - Fraction(target)) <= TOLERANCE


# ------------------------------------------------------------------------------------------------------ mathematics


class Judgement(dict):
    """Components of a reward; notes: the reason of a component, by its name. tokens: the part of their sum that
    single action tokens earned, one each; None: the response did as a whole. solved: an accuracy that is no part of
    the sum."""

    def __init__(self, components: Mapping[str, float], notes: Mapping[str, str] | None = None,
                 tokens: list[float] | None = None, solved: float | None = None):
        super().__init__(components)
        self.notes, self.tokens, self.solved = dict(notes or {}), tokens, solved


def accuracy_reward(response: str, answer: str, timeout_seconds=ACCURACY.timeout_seconds,
                    allow_unevaluated=ACCURACY.allow_unevaluated) -> Judgement:
    r"""1 when the response's final answer equals the truth's, else 0.

    Response: what follows its thoughts, in its last <answer>…</answer> where it has one: the last line that begins with
    `####` and goes on with no heading, else the last closed \boxed{…}, else the whole text where it is the truth letter
    for letter, else what follows the last `the answer is`, else its last number or formula. Numbers are compared
    exactly, words as words, formulas by math_verify. Where the truth is a number, an operation that is left to carry
    out (34 + 50) is no answer; allow_unevaluated: a marked one is. An answer that is beyond the bounds of
    operators/answers.py, or that needs more CPU time than timeout_seconds, or too much memory, is 0 with the note
    `limit`. Raises DataError when the truth holds no answer.
    """
    found, truth, evaluates = final_answers(response, answer, allow_unevaluated)
    how = verdict(found, truth, timeout_seconds, evaluates) if found else DIFFERENT
    if how == UNREADABLE:
        raise DataError(f"truth {truth[:80]!r} is nothing that math_verify can read; needed a number or LaTeX.")
    return Judgement({"accuracy": float(how == EQUAL)}, {"accuracy": LIMIT} if how == LIMIT else None)


def final_answers(response: str, answer: str, allow_unevaluated: bool) -> tuple[str, str, bool]:
    """The answers of a response and of its truth, and whether the first may leave an operation to carry out."""
    truth, text = truth_answer(answer), spoken(response)
    if not truth:
        raise DataError(f"truth {answer[:80]!r} holds no answer; needed '#### 42', '\\boxed{{42}}' or '42'.")
    if (found := marked(text, truth)) is not None:
        return found, truth, allow_unevaluated
    is_same = text.strip() == truth or (len(text) <= LONGEST_ANSWER and tidy(text) == tidy(truth))
    return truth if is_same else unmarked(text, truth), truth, allow_unevaluated and "<answer>" in response.casefold()


def unmatched(truth: str) -> str | None:
    """Why accuracy_reward can give 1 to no answer to this truth, or None."""
    try:
        if accuracy_reward(f"\\boxed{{{truth_answer(truth)}}}", truth)["accuracy"]:
            return None
    except DataError as error:
        return str(error).rstrip(".")
    return ("the answer \\boxed{truth} itself is worth 0, so none can be right; needed a number, words or LaTeX whose "
            "braces are closed")


def _begin(response: str, answer: str, timeout_seconds=ACCURACY.timeout_seconds,
           allow_unevaluated=ACCURACY.allow_unevaluated) -> None:
    """Begins a comparison, so that those of a step are made at the same time."""
    with suppress(DataError):
        found, truth, evaluates = final_answers(response, answer, allow_unevaluated)
        compared(found, truth, timeout_seconds, evaluates)


accuracy_reward.begin_comparison = _begin  # workflows/attempts/user_reward.py calls it for all responses first
accuracy_reward.counts_opened = True  # a thought that the prompt begins is a thought of the response


def format_reward(response: str, answer: str, pattern=FORMAT.pattern, score=FORMAT.score) -> dict[str, float]:
    """+score if the whole response matches, else -score. Default: <think>…</think><answer>…</answer>.

    A tag with which the prompt ends (<think> in a generation prompt) is the beginning of the response.
    """
    return {"format_score": score if re.fullmatch(pattern, response, re.DOTALL) else -score}


format_reward.counts_opened = True  # workflows/protocol/outcomes.py puts the tag before the response


def confidence_reward(response: str, answer: str, tag=CONFIDENCE.tag) -> dict[str, float]:
    """The chance to be right that a response states last, `<confidence>0.8</confidence>` or `80%`, cut to 0 and 1; one
    that states none counts as 0.5, which tells nothing (Damani et al. 2025, arXiv:2507.16806)."""
    name = re.escape(tag)
    stated = re.findall(rf"<{name}>\s*(\d*\.?\d+)\s*(%?)\s*</{name}>", response, re.ASCII)
    value, percent = stated[-1] if stated else ("0.5", "")
    return {"confidence": min(float(value) / (100 if percent else 1), 1.0)}


# ------------------------------------------------------------------------------------------- texts and function calls


def evals_reward(response: str, answer: str) -> dict[str, float]:
    """1 where a reply is right by the rule of its set of OpenAI's evals, else 0.

    answer: JSON of `ideal`, texts of which one suffices, and `match`. Match: what is behind the thoughts of a response,
    or in its last <answer>, begins with one; Includes: it has one in it (ignore_case); FuzzyMatch: one is in the other,
    both without case, punctuation and articles.
    """
    try:
        truth = json.loads(answer)
        rule, ideal = MATCHES[truth["match"]], list(truth["ideal"])
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"truth {answer[:80]!r} has no match of {', '.join(MATCHES)} and no list ideal.") from error
    text = spoken(response).strip()
    if truth.get("ignore_case"):
        text, ideal = text.lower(), [one.lower() for one in ideal]
    return {"accuracy": float(any(rule(text, one) for one in ideal))}


def _is_alike(text: str, ideal: str) -> bool:
    one, other = (" ".join(re.sub(r"\b(a|an|the)\b", " ", side.lower().translate(
        str.maketrans("", "", string.punctuation))).split()) for side in (text, ideal))
    return one == other if not one or not other else one in other or other in one


MATCHES = {"Match": str.startswith, "Includes": str.__contains__, "FuzzyMatch": _is_alike}


def calls_reward(response: str, answer: str) -> dict[str, float]:
    """1 where a reply is the function calls that the truth allows, by the rules of the Berkeley Function-Calling
    Leaderboard (operators/calls.py), else 0."""
    calls = calls_in(spoken(response))
    return {"accuracy": float(solves(calls or [], answer) and calls is not None)}


def load_reward(name: str) -> Callable[..., dict[str, float]]:
    """The reward function with a name below, or the user's `module:function`.

    Raises ConfigError for an unknown name or a module that does not import.
    """
    if ":" not in name:
        return pick(REWARDS, name, "reward function (or give module:function)")
    function = load_dotted(name)
    if not callable(function):
        raise ConfigError(f"'{name}' is a {type(function).__name__}; needed a function of (response, answer).")
    return function


REWARDS = {
    "countdown_reward": countdown_reward,
    "accuracy_reward": accuracy_reward,
    "format_reward": format_reward,
    "confidence_reward": confidence_reward,
    "evals_reward": evals_reward,
    "calls_reward": calls_reward,
}
