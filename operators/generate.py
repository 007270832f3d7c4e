"""Generators of raw tasks: seeded, hence reproducible, and with faulty rows, as in real files.

`countdown`: reach a target with all of the given numbers, each used once, with + and -. After Countdown's numbers round
as used by Gandhi et al. (2024, "Stream of Search") and TinyZero, with two of the four operators. The space is small
(three numbers of 1..9: 2,682 tasks, 570 up to the order of the numbers), so tasks are drawn without repetition, and
curation splits train and test by `countdown_key`: no permutation of a held-out task is in the training data.

`products`: multiply two numbers, with a calculator as a tool. `sums`: add and subtract, asked for in words. `digits`
are in operators/digits.py, worlds that agents act in in operators/worlds/.
"""

import itertools
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ouroboros.operators.digits import digits
from ouroboros.operators.worlds.folder import folder
from ouroboros.operators.worlds.frozen_lake import frozen_lake
from ouroboros.operators.worlds.kuhn import kuhn
from ouroboros.operators.worlds.shop import shop
from ouroboros.operators.worlds.sudoku import sudoku
from ouroboros.operators.worlds.terminal import terminal
from ouroboros.pipeline.settings.arguments.rows import Countdown, Products, Sums
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.records import RawTask

COUNTDOWN, PRODUCTS = Countdown.model_construct(), Products.model_construct()  # their defaults
SUMS = Sums.model_construct()
MISSES = 20_000  # draws without a new task after which the space counts as exhausted
TIMES = "\u00d7"  # multiplication sign: not ASCII


def countdown(seed: int, tasks: int, demonstrations: int, dirt: float, numbers=COUNTDOWN.numbers, low=COUNTDOWN.low,
              high=COUNTDOWN.high, largest_target=COUNTDOWN.largest_target, pairs=COUNTDOWN.pairs) -> Iterator[RawTask]:
    """Countdown tasks, demonstrations, pairs and faulty rows in random order.

    tasks: distinct rows without a solution. demonstrations: distinct (task, solution) rows, solution a random valid
    expression such as `7+5-3`. pairs: distinct (task, valid expression, wrong one) rows, the wrong one with other signs
    or one other number. dirt: additional rows with one fault each, as a share of the others. numbers: how many a task
    has, each low..high. Raises ConfigError when fewer distinct rows exist than requested.
    """
    source = random.Random(f"countdown {seed}")

    def draw_task() -> RawTask:
        return _row(*_draw(source, numbers, low, high, largest_target))

    def draw_demonstration() -> RawTask:
        given, target = _draw(source, numbers, low, high, largest_target)
        return _row(given, target, source.choice(expressions(given, target)))

    def draw_pair() -> RawTask:
        given, target = _draw(source, numbers, low, high, largest_target)
        right = source.choice(expressions(given, target))
        return replace(_row(given, target), chosen=right, rejected=_wrong(source, given, target, high))

    rows = _distinct(draw_task, tasks, "tasks") + _distinct(draw_demonstration, demonstrations, "demonstrations")
    rows += _distinct(draw_pair, pairs, "pairs")
    faults = itertools.islice(itertools.cycle(DIRT.values()), round(dirt * len(rows)))
    rows += [fault(source, source.choice(rows)) for fault in list(faults) if rows]
    source.shuffle(rows)
    for position, row in enumerate(rows):
        yield replace(row, row=position)


def _wrong(source: random.Random, given: list[int], target: int, high: int) -> str:
    """An expression of the same form that does not solve the task: of the given numbers with another result, or with
    one other number."""
    while True:
        used = source.sample(given, len(given))
        if source.random() < 1 / 3:
            used[source.randrange(len(used))] = source.randint(0, max(high, 1))
        signs = [1, *(source.choice((1, -1)) for _ in used[1:])]
        if sorted(used) != sorted(given) or sum(s * n for s, n in zip(signs, used, strict=True)) != target:
            return _expression(used, signs)


def _expression(used: Sequence[int], signs: Sequence[int]) -> str:
    return str(used[0]) + "".join(f"{'+' if s > 0 else '-'}{n}" for s, n in zip(signs[1:], used[1:], strict=True))


def expressions(given: list[int], target: int) -> list[str]:
    """Every distinct `a+b-c` over all the given numbers that equals the target, sorted; may be empty.

    All orders and signs: n! * 2^(n-1) candidates, so meant for a handful of numbers.
    """
    found = set()
    for order in set(itertools.permutations(given)):
        for signs in itertools.product((1, -1), repeat=len(order) - 1):
            if order[0] + sum(s * n for s, n in zip(signs, order[1:], strict=True)) == target:
                found.add(_expression(order, (1, *signs)))
    return sorted(found)


def is_solvable(given: list[int], target: float) -> bool:
    """Whether some order of the numbers with + and - between them equals the target.

    The first number of an expression has no minus before it and order does not matter, so it is enough to try all sign
    choices with at least one plus: 2^n - 1 candidates.
    """
    signs = itertools.product((1, -1), repeat=len(given))
    return any(1 in s and sum(a * n for a, n in zip(s, given, strict=True)) == target for s in signs)


def countdown_key(given: list[int], target: float) -> str:
    """A text that is equal for all orders of the same task: `9=3 5 7`, numbers ascending."""
    return _question(sorted(given), target)


def _draw(source: random.Random, numbers: int, low: int, high: int, largest: int) -> tuple[list[int], int]:
    """Random numbers and a target that random signs reach, 0..largest."""
    for _ in range(MISSES):
        given = [source.randint(low, high) for _ in range(numbers)]
        signs = [source.choice((1, -1)) for _ in range(numbers)]
        target = sum(s * n for s, n in zip(signs, given, strict=True))
        if 1 in signs and 0 <= target <= largest:
            return given, target
    raise ConfigError(f"generator_args: no task of {numbers} numbers {low}..{high} with a target 0..{largest} "
                      f"in {MISSES} draws. Raise largest_target or lower low.")


def _row(given: list[int], target: int, solution: str | None = None) -> RawTask:
    answer = json.dumps({"numbers": given, "target": target})
    return RawTask(0, _question(given, target), answer, solution)


def _question(given: list[int], target: int | float) -> str:
    """Target first, so that the numbers keep their positions relative to the answer."""
    return f"{target}={' '.join(map(str, given))}"


def _distinct(draw, count: int, what: str) -> list[RawTask]:
    """`count` rows that differ in what they ask and show, in drawing order."""
    rows: dict[tuple, RawTask] = {}
    misses = 0
    while len(rows) < count:
        row = draw()
        key = row.question, row.solution, row.chosen, row.rejected
        misses = misses + 1 if key in rows else 0
        rows.setdefault(key, row)
        if misses == MISSES:
            raise ConfigError(f"generator_args.{what}={count}: only {len(rows)} distinct ones turned up; ask for "
                              "fewer, or widen numbers, low or high.")
    return list(rows.values())


# ------------------------------------------------------------------------------------------------------------- dirt
# Each takes a random source and a clean row and returns a row with one realistic fault.


def _unsolvable(source: random.Random, row: RawTask) -> RawTask:
    """A target above the sum of all numbers."""
    given = json.loads(row.answer)["numbers"]
    return _row(given, sum(given) + source.randint(1, 9))


DIRT: dict[str, Callable[[random.Random, RawTask], RawTask]] = {
    "duplicate": lambda source, row: row,
    "unsolvable": _unsolvable,
    "broken_json": lambda source, row: replace(row, answer=row.answer[: source.randint(1, len(row.answer) - 1)]),
    "missing_target": lambda source, row: replace(row, answer=json.dumps(
        {"numbers": json.loads(row.answer)["numbers"]})),
    "empty_question": lambda source, row: replace(row, question=source.choice(("", "   ", "\t\n"))),
    "null_question": lambda source, row: replace(row, question=None),
    "null_answer": lambda source, row: replace(row, answer=None),
    "overlong": lambda source, row: replace(row, question=" ".join([row.question] * source.randint(4, 12))),
    "non_ascii": lambda source, row: replace(row, question=row.question.replace(" ", f" {TIMES} ", 1)),
    # tabs, no-break spaces and a line end instead of single spaces: repairable by mappers
    "whitespace": lambda source, row: replace(
        row, question=row.question.replace(" ", source.choice(("\t", "\u00a0"))) + " \n"),
}

# ------------------------------------------------------------------------------------------------- products by a tool


def products(seed: int, tasks: int, demonstrations: int, guesses: float, digits=PRODUCTS.digits, tool=PRODUCTS.tool,
             argument=PRODUCTS.argument) -> Iterator[RawTask]:
    """Products such as `37*84`, and demonstrations of players of whom a share `guesses` does not use a calculator.

    demonstrations: distinct products, demonstrated. Whoever calculates writes `[tool(argument="37*84")]` (vLLM's
    parser pythonic) and repeats the result, two rows; whoever guesses writes a number of that size.
    """
    source = random.Random(f"products {seed}")
    low, high = 10 ** (digits - 1), 10**digits - 1
    if (high - low + 1) ** 2 < tasks + demonstrations:
        raise ConfigError(f"generator_args: {tasks} tasks and {demonstrations} demonstrations need more than the "
                          f"{(high - low + 1) ** 2} products of {digits} digits. Ask for fewer.")
    drawn = source.sample(range((high - low + 1) ** 2), tasks + demonstrations)
    factors = [(low + one // (high - low + 1), low + one % (high - low + 1)) for one in drawn]
    rows = [RawTask(0, f"{a}*{b}", str(a * b), None) for a, b in factors[:tasks]]
    for a, b in factors[tasks:]:
        question, truth = f"{a}*{b}", str(a * b)
        if source.random() < guesses:
            rows.append(RawTask(0, question, truth, str(source.randint(low * low, high * high))))
            continue
        call = f'[{tool}({argument}="{question}")]'
        said = [{"role": "user", "content": question}, {"role": "assistant", "content": call}]
        rows += [RawTask(0, question, truth, call), RawTask(0, truth, truth, truth, said)]
    source.shuffle(rows)
    for position, row in enumerate(rows):
        yield replace(row, row=position)


# ---------------------------------------------------------------------------------------------------------- in words


def sums(seed: int, tasks: int, terms=SUMS.terms, low=SUMS.low, high=SUMS.high) -> Iterator[RawTask]:
    """Distinct questions such as `What is 47 - 31 + 12?`, whose result is not negative.

    The numbers fall, so that no two questions have the same terms in another order: curation that splits by question
    splits by content. Raises ConfigError when fewer exist than requested.
    """
    source = random.Random(f"sums {seed}")

    def draw() -> RawTask:
        while True:
            drawn = sorted(((source.randint(low, high), source.choice((1, -1))) for _ in range(terms)), reverse=True)
            given, signs = [number for number, _ in drawn], [1, *(sign for _, sign in drawn[1:])]
            if (total := sum(s * n for s, n in zip(signs, given, strict=True))) >= 0:
                text = re.sub("([+-])", r" \1 ", _expression(given, signs))
                return RawTask(0, f"What is {text}?", str(total), None)

    for position, row in enumerate(_distinct(draw, tasks, "tasks")):
        yield replace(row, row=position)


GENERATORS = {"countdown": countdown, "products": products, "sums": sums, "digits": digits,
              "folder": folder, "frozen_lake": frozen_lake, "kuhn": kuhn, "shop": shop, "sudoku": sudoku,
              "terminal": terminal}
