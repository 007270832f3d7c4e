"""Selects earlier groups of rollouts to replay in a batch, by priority, as a function of the tables.

Earlier draws limit later ones (use counts, cool-down). They are not stored: a resumed stage recomputes the draws of all
earlier steps from columns that never change. The reader also cuts step t + 1 while step t still trains, before its rows
are in `trained`.
"""

from collections.abc import Callable

import pyarrow as pa

DRAWN = pa.schema([("group_id", pa.string()), ("explored", pa.int32()), ("use_count", pa.int32()),
                   ("priority", pa.float64())])
NOTHING = DRAWN.empty_table()


class Replay:
    """The replay of one stage. A group may be drawn from the step after its first training step on."""

    def __init__(self, session, settings, priority: str, groups: int, fresh: Callable[[int], str],
                 oldest: Callable[[int], float]):
        """settings: section replay_buffer. priority: expression in SQL (operators/priority.py). groups: number
        of groups to replay per batch.

        fresh: step -> query of its new usable rows: group_id, step, position, weights_version. oldest: step -> the
        oldest weights version whose rollouts it may train on.
        """
        self.session, self.priority, self.groups = session, priority, groups
        self.cooldown, self.fresh, self.oldest = settings.reuse_cooldown_time, fresh, oldest
        self.session.execute("""CREATE TABLE replayed (group_id VARCHAR PRIMARY KEY, explored INTEGER, position BIGINT,
                                weights_version INTEGER, use_count INTEGER, last_used INTEGER)""")
        self.step, self.drawn = 0, NOTHING

    def draw(self, step: int) -> pa.Table:
        """The groups that `step` replays, best first: columns DRAWN; use_count: number of earlier batches.

        The rollouts of all steps up to this one must exist.
        """
        if step < self.step:
            self.session.execute("DELETE FROM replayed")
            self.step = 0
        while self.step < step:
            self.step += 1
            self.drawn = self._draw()
        return self.drawn

    def _draw(self) -> pa.Table:
        drawn = self.session.sql(f"""
            SELECT group_id, explored, use_count, priority
            FROM (SELECT *, {self.priority} AS priority FROM replayed
                  WHERE last_used <= {self.step - self.cooldown} AND weights_version >= {self.oldest(self.step)!r})
            WHERE priority IS NOT NULL ORDER BY priority DESC, position LIMIT {self.groups}""").to_arrow_table()
        drawn = drawn.cast(DRAWN)
        self.session.register("drawn", drawn)
        self.session.execute(f"""
            UPDATE replayed SET use_count = use_count + 1, last_used = {self.step}
            WHERE group_id IN (SELECT group_id FROM drawn)""")
        self.session.execute(f"""
            INSERT INTO replayed
            SELECT group_id, min(step), min(position), min(weights_version), 1, {self.step}
            FROM ({self.fresh(self.step)}) GROUP BY group_id
            ON CONFLICT DO UPDATE SET use_count = use_count + 1, last_used = {self.step},
                weights_version = least(weights_version, excluded.weights_version)""")  # one that two steps share
        return drawn
