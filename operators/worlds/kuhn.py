"""Kuhn poker (Kuhn 1950): its rules, the value of a strategy, and how much a best response wins from it.

Three cards, J < Q < K; two players get one each, put in 1, and may bet 1 more. A history has a letter for each move: b
bets or calls, p checks or folds. A strategy is the probability of b in each information set, a history and a card.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations, product

from ouroboros.pipeline.store.records import RawTask

CARDS, MOVES, ROLES = "JQK", "bp", ("first", "second")
DEALS = ["".join(cards) for cards in permutations(CARDS, 2)]
SETS = [[history + card for history in histories for card in CARDS] for histories in (("", "pb"), ("p", "b"))]
VALUE = -1 / 18  # of the game for the first player, with best play of both


def winnings(deal: str, history: str) -> int | None:
    """What the first player wins; None while the hand goes on."""
    if history in ("", "p", "b", "pb"):
        return None
    higher = 1 if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -1
    return {"pp": higher, "bp": 1, "pbp": -1}.get(history, 2 * higher)


def value(strategy: Mapping[str, float]) -> float:
    """What the first player wins on average when both play a strategy."""
    def play(deal: str, history: str) -> float:
        if (won := winnings(deal, history)) is not None:
            return won
        bets = strategy[history + deal[len(history) % 2]]
        return bets * play(deal, history + "b") + (1 - bets) * play(deal, history + "p")

    return sum(play(deal, "") for deal in DEALS) / len(DEALS)


def exploitability(strategy: Mapping[str, float]) -> float:
    """What a best response wins from a strategy, on average over both seats: 0 at an equilibrium, 11/24 against
    players who bet half of the time. The best of the 64 ways to play a seat without chance."""
    def best(seat: int, sign: int) -> float:
        return max(sign * value({**strategy, **dict(zip(SETS[seat], pure, strict=True))})
                   for pure in product((0.0, 1.0), repeat=len(SETS[seat])))

    return (best(0, 1) + best(1, -1)) / 2


def kuhn(seed: int) -> Iterator[RawTask]:
    """The six deals, and both moves in each of the twelve information sets as demonstrations: uniform play. A reply
    repeats the card, so that the warmup makes a model tell cards apart, which coins alone do not."""
    rows = [RawTask(0, deal, deal, None) for deal in DEALS]
    rows += [RawTask(0, known, known, known[-1] + move) for sets in SETS for known in sets for move in MOVES]
    yield from (replace(row, row=place) for place, row in enumerate(rows))
