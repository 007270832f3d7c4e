"""Several players in an attempt: each row has the role of its player, and each role a reward.

A role's reward is what the agent returned for it, or the sum of what its turns earned (Trajectory.reward). Where there
is only one for the whole attempt (a number, reward functions), every role has that: players who work together.
"""

import re
from collections.abc import Sequence

from ouroboros.pipeline.store.errors import StageError
from ouroboros.workflows.protocol.outcomes import Outcome
from ouroboros.workflows.protocol.trajectory import Trajectory

NAME = re.compile(r"[\w.-]{1,40}", re.ASCII)
SHARED, SOLVED = "reward", "accuracy"  # components that are of the whole attempt
KEY = "explorer.trained_roles"
NOT_PLAYED = "not_played"  # status of attempts that ended without a row of a trained role


def settle(outcome: Outcome) -> str | None:
    """Makes the rewards of roles the components of an attempt; returns why it cannot be rewarded, or None."""
    turns = _turns(outcome)
    roles = list(dict.fromkeys(turn.role for turn in turns))
    if roles == [None]:
        return None
    for role in roles:
        if not isinstance(role, str) or not NAME.fullmatch(role) or role in (SHARED, SOLVED):
            return (f"the attempt has a row of the role {role!r}; needed in each row, once one has a role, a name of "
                    f"at most 40 letters, digits, '_', '-' and '.', and neither {SHARED} nor {SOLVED}")
    given = outcome.components or _earned(turns)
    named = [name for name in given if name != SOLVED]
    if named not in ([], [SHARED]) and set(named) != set(roles):
        return (f"rewards are given to {', '.join(named) or 'no role'}, and the rows are of the roles "
                f"{', '.join(roles)}; needed one for each of these, or a number for all")
    outcome.components = given
    return None


def _turns(outcome: Outcome) -> list[Trajectory]:
    return [turn for _, turn, _ in outcome.turns if turn]


def _earned(turns: Sequence[Trajectory]) -> dict[str, float]:
    """What the turns of each role earned; empty where none did by itself."""
    found: dict[str, float] = {}
    for turn in turns:
        if turn.reward is not None:
            found[turn.role] = found.get(turn.role, 0.0) + turn.reward
    return found


def reward_of(outcome: Outcome, role: str | None) -> tuple[float | None, dict[str, float]]:
    """The reward of a row, and its components. role: of the row."""
    if role is None or outcome.reward is None or role not in outcome.components:
        return outcome.reward, outcome.components
    return outcome.components[role], {SHARED: outcome.components[role]}


def rewards_of(outcome: Outcome) -> frozenset[tuple[str | None, float | None]]:
    """Each role of an attempt, with its reward."""
    roles = {turn and turn.role for _, turn, _ in outcome.turns}
    return frozenset((role, reward_of(outcome, role)[0]) for role in roles)


def keep(outcomes: Sequence[Outcome], trained: Sequence[str], first: bool) -> None:
    """Leaves attempts the rows of the trained roles; one without any, which ended before their turn, is NOT_PLAYED.

    trained: empty: all are. first: of the stage. Raises StageError where no attempt of the first ones has a row of a
    role, and one has rows of a role that is not trained: the name is probably wrong. Later a policy may end all early.
    """
    done = [outcome for outcome in outcomes if outcome.status == "ok"]
    if not trained or not done:
        return
    found = {turn.role for outcome in done for turn in _turns(outcome)}
    missing = [role for role in trained if role not in found]
    if first and missing and not found <= {*trained}:
        raise StageError(f"{KEY} has {missing[0]}, and no attempt has a row of that role; their rows have "
                         f"{', '.join(sorted(map(str, found)))}. Name roles that the workflow gives its rows.")
    for outcome in done:
        kept = [(turn, text) for _, turn, text in outcome.turns if turn.role in trained]
        *outcome.earlier, (outcome.trajectory, outcome.response) = kept or [(None, "")]
        if not kept:
            outcome.earlier = None
            outcome.fail(NOT_PLAYED, f"the attempt ended without a row of the roles {', '.join(trained)} ({KEY})")
