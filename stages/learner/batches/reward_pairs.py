"""Train batches of a reward model: whole conversations, as explorers hand them to it, and pairs that are held out."""

from itertools import islice
from pathlib import Path

from ouroboros.operators.curation import hash_share
from ouroboros.operators.statistics import mean_interval
from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.progress import PAIRED
from ouroboros.pipeline.settings.config import longest_sequence
from ouroboros.pipeline.settings.data import SHOWN
from ouroboros.pipeline.store import files, records, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.learner.batches.data_set import rejected_rows
from ouroboros.stages.learner.batches.preferences import RESPONSES, Preferences
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.scorer import Scorer


class RewardPairs(Preferences):
    """Pairs as rows of one action token: a conversation up to its last token that is not padding, and a token behind it
    that is never read. held: those of held-out prompts, by prompt. padding: id of the token."""

    def tokenized(self, context: Context, model: Path, tasks: list[records.Task]) -> list[Row]:
        """Pairs with a conversation over the limit are left out. Raises DataError when none is left to train on."""
        from ouroboros.workflows.demonstrations import whole_pairs
        from ouroboros.workflows.protocol.prompts import load_tokenizer
        from ouroboros.workflows.reward_model import padding_or_end

        limits, shown = context.config.model, context.config.buffer.trainer_input.experience_buffer
        tokenizer = load_tokenizer(model, limits)
        self.padding = padding_or_end(model, tokenizer, limits.trust_remote_code)
        made = whole_pairs(tokenizer, tasks, context.config, self.padding)
        self.rejected = rejected_rows(context, tasks, made, shown.name)
        self.held: dict[str, list[Row]] = {}
        rows: list[Row] = []
        for task, both in zip(tasks, made, strict=True):
            if isinstance(both, str) or max(map(len, both)) >= longest_sequence(limits):
                continue
            prompt = files.hash_json([task.context, task.question, task.messages])
            # not the hash by which curation splits: it would hold out what is already left out
            is_held = hash_share(f"held out {prompt}") < shown.held_out_ratio
            into = self.held.setdefault(prompt, []) if is_held else rows
            into += _rows(task, both)
        if not rows:
            raise DataError("no pair is left to train on: each has a conversation longer than model.max_prompt_tokens "
                            f"+ model.max_response_tokens, or is held out ({SHOWN}.held_out_ratio="
                            f"{shown.held_out_ratio}).")
        context.log.info("%d pairs of %d prompts are held out (%s.held_out_ratio)",
                         sum(map(len, self.held.values())) // 2, len(self.held), SHOWN)
        return rows

    def score_held_out(self, context: Context, scorer: Scorer, step: int) -> None:
        """Writes the scores of the step: how often the chosen response of a held-out pair is scored higher. Collective.

        Pairs of one prompt are one observation, as responses to one task are; equal scores are half right.
        """
        if not self.held:
            return
        found = iter(scorer.scores([row for rows in self.held.values() for row in rows]))
        right = [[0.5 if a == b else float(a > b) for a, b in islice(zip(found, found, strict=False), len(rows) // 2)]
                 for rows in self.held.values()]
        shares = mean_interval([sum(one) / len(one) for one in right])
        if scorer.process.rank == 0:
            name = context.config.buffer.trainer_input.experience_buffer.name
            score = records.Score(context.id, context.id, step, name, PAIRED, *shares, len(right), 1, 0,
                                  sum(map(len, right)), 0)
            tables.write(tables.step_file(context.directory, "scores", step), records.Score, [score])


def _rows(task: records.Task, both: tuple[list[int], list[int]]) -> list[Row]:
    """The rows of a pair, chosen first; what both begin with is their prompt."""
    shared = next((place for place, (a, b) in enumerate(zip(*both, strict=False)) if a != b), min(map(len, both)))
    return [Row(f"{task.task_id}/{task.row}/{which}", [*tokens, tokens[-1]], max(shared, 1),
                [0] * (len(tokens) - max(shared, 1)) + [1], {"margin": task.margin or 0.0})
            for which, tokens in zip(RESPONSES, both, strict=True)]
