"""A game of two: a hand of Kuhn poker with the policy in both seats (recipe kuhn, docs/players.md)."""

from ouroboros.operators.worlds.kuhn import ROLES, winnings
from ouroboros.workflows.protocol.trajectory import Attempt, Trajectory


def kuhn(prompt: list[int], task) -> Attempt:
    """One hand. task: a TaskAtHand whose truth is the deal. A reply that begins with the player's card and b bets or
    calls, any other checks or folds."""
    turns, history = [], ""
    while (won := winnings(task.answer, history)) is None:
        seat = len(history) % 2
        card = task.answer[seat]
        asked = task.prompt([{"role": "user", "content": history + card}])
        reply = yield asked
        turns.append(Trajectory(asked, reply.tokens, reply.logprobs, [1] * len(reply.tokens), reply.finish_reason,
                                role=ROLES[seat]))
        history += "b" if task.text(reply.tokens).startswith(card + "b") else "p"
    for role, reward in zip(ROLES, (won, -won), strict=True):
        next(turn for turn in reversed(turns) if turn.role == role).reward = reward
    return turns
