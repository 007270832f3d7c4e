"""Exact-prefix merging: calls whose contexts extend each other become one row with a mask."""

from collections.abc import Sequence

from ouroboros.workflows.protocol.trajectory import Trajectory


def merged(turns: Sequence[Trajectory]) -> list[Trajectory]:
    """The rows of several turns: a turn joins the longest row of its role whose tokens its prompt begins with.

    The policy scores the same tokens and images in the same contexts as before: what was sampled has mask 1, what the
    environment added mask 0. Of several turns that extend a row, the first joins it; the others are separate rows.
    """
    rows: list[Trajectory] = []
    for turn in turns:
        place = max((place for place, row in enumerate(rows) if _extends(turn, row)),
                    key=lambda place: _length(rows[place]), default=None)
        if place is None:
            rows.append(turn)
        else:
            rows[place] = _joined(rows[place], turn)
    return rows


def _length(row: Trajectory) -> int:
    return len(row.prompt_tokens) + len(row.response_tokens)


def _extends(turn: Trajectory, row: Trajectory) -> bool:
    begin = len(row.prompt_tokens)
    return (turn.prompt_tokens[begin : _length(row)] == row.response_tokens
            and turn.prompt_tokens[:begin] == row.prompt_tokens and turn.role == row.role
            and (turn.pictures or ())[: len(row.pictures or ())] == (row.pictures or ()))


def _joined(row: Trajectory, turn: Trajectory) -> Trajectory:
    between = turn.prompt_tokens[_length(row) :]
    return Trajectory(
        row.prompt_tokens, [*row.response_tokens, *between, *turn.response_tokens],
        [*row.logprobs, *[0.0] * len(between), *turn.logprobs],
        [*row.action_mask, *[0] * len(between), *turn.action_mask], turn.finish_reason, role=row.role,
        pictures=turn.pictures)
