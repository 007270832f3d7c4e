"""The size of a training stage in numbers: steps, experiences, tokens, checkpoints, disk. Runs nothing."""

import dataclasses
from dataclasses import dataclass

import pyarrow as pa

from ouroboros.pipeline.check.model_size import Size
from ouroboros.pipeline.check.report import size
from ouroboros.pipeline.check.sources import most_rows
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.job.schedule import rft_schedule
from ouroboros.pipeline.settings.algorithm import Algorithm
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import turns_of
from ouroboros.pipeline.settings.explorer import because_of_time, depends_on_time
from ouroboros.pipeline.settings.kinds import Kind
from ouroboros.pipeline.settings.train_batch import groups_of_step, rows_of_step, train_batch
from ouroboros.pipeline.settings.trainer import EXPLORER_DRIVEN, Trainer, is_driven, publishes_deltas
from ouroboros.pipeline.settings.truncation import most_kept
from ouroboros.pipeline.store import records

# Bytes on disk of one entry. Measured on zstd Parquet: log-probs shrink by less than a tenth, token ids by a third to
# half, a token's text takes about 2, and an action mask next to nothing.
ENTRY = {records.TOKENS: 3.0, records.FLOATS: 4.0, pa.list_(pa.int8()): 0.1}
OF_KEPT = 4.0  # an id of what a token was sampled among, at most
TEXT, FIXED = 2.0, 2.0  # a token as text; any other column, mostly equal in consecutive rows


@dataclass(frozen=True)
class Workload:
    """The size of a training stage. None: known only after curation, because the stage makes whole passes; if its files
    are on this machine, the steps are those of all rows, and `most` marks them as an upper bound.

    explored: rows of an explorer step available for batches; 0 without rollouts. trained: rows of an optimizer step.
    longest: tokens of the longest row. explorer_steps, trainer_steps: of the whole stage. versions: weights on disk at
    once. beside: upper bound on additional rows of an explorer step (replaced groups, greedy responses).
    """

    explored: int
    trained: int
    longest: int
    explorer_steps: int | None
    trainer_steps: int | None
    versions: int
    beside: int = 0
    most: bool = False

    @property
    def experiences(self) -> int | None:
        return None if self.explorer_steps is None else self.explorer_steps * (self.explored + self.beside)


def workload(config: Config) -> Workload:
    """Computes the size of a stage from its settings (as returned by `recipe.effective`).

    versions: the explorer deletes those older than its next step needs, and the trainer is at most 1 + sync_offset
    explorer steps ahead of that: the one in use, plus those published in between.
    """
    buffer, model, sync = config.buffer, config.model, config.synchronizer
    longest = model.longest
    kind = config.kind
    tasks = None if buffer.total_steps else most_rows(config)
    passes = buffer.total_epochs * tasks if tasks is not None else None
    if not (kind.trains or kind.explores):
        return Workload(0, 0, longest, 0, 0, 0)
    if kind.learns_from_given:
        unit = 2 if config.algorithm.on_pairs else 1
        batch = buffer.train_batch_size or buffer.batch_size
        steps = buffer.total_steps or _whole(passes, batch)
        return Workload(0, unit * batch, longest, 0, steps, 0, most=passes is not None)
    explored = rows_of_step(config)
    if not kind.trains:
        steps = buffer.total_steps or _whole(passes, buffer.batch_size)
        return Workload(explored, 0, longest, steps, 0, 0, _beside(config), passes is not None)
    if kind.is_offline:
        return Workload(0, buffer.train_batch_size or explored, longest, 0, buffer.total_steps, 0)
    schedule = rft_schedule(config, max(tasks or 1, 1))
    fresh = schedule.rows_per_trainer_step
    ahead = (1 + sync.sync_offset) * explored // fresh // sync.sync_interval
    if is_driven(config):  # about: without a bound, those of a second explorer step
        steps = 2 * explored // fresh if sync.max_staleness is None else sync.max_staleness + 1
        ahead = 2 if sync.sync_style == EXPLORER_DRIVEN else steps // sync.sync_interval
    known = buffer.total_steps or passes is not None
    return Workload(explored, fresh + schedule.other_rows, longest, schedule.explorer_steps if known else None,
                    schedule.total_steps if known else None, 1 + max(ahead, 1), _beside(config), passes is not None)


def _whole(rows: int | None, batch: int) -> int | None:
    """Returns the number of steps of this many rows, the incomplete last one dropped, as in the stages."""
    return None if rows is None else max(rows // batch, 1)


def _beside(config: Config) -> int:
    """Returns the upper bound on rows that an explorer step writes in addition to those for batches."""
    algorithm, asked = config.algorithm, config.buffer.batch_size
    rounds, greedy = algorithm.max_resample_rounds or 0, 1 if algorithm.greedy_baseline else 0
    taken = groups_of_step(config)
    return (taken * rounds + asked - taken) * algorithm.repeat_times + (asked + taken * rounds) * greedy


def row_bytes(prompt: int, response: int, kept: int = 0) -> float:
    """Returns the disk bytes of one experience with the columns training adds, at these lengths in tokens.

    kept: tokens that each was sampled among, where the column holds them.
    """
    columns = [f for record in (records.Experience, records.Trained) for f in dataclasses.fields(record)]
    total = 0.0
    for column in columns:
        length = prompt if column.name.startswith("prompt") else response
        if column.name == "kept_tokens":
            total += OF_KEPT * kept * response
        elif column.name in ("prompt", "response"):
            total += TEXT * length
        elif column.name != "weights_versions":  # null, or runs of equal numbers, which are compressed to nothing
            total += ENTRY[column.metadata["arrow"]] * length if column.metadata["arrow"] in ENTRY else FIXED
    return total


def most_turns(settings: Config) -> int:
    """Returns the same for all sets that a stage explores."""
    source = settings.buffer.explorer_input
    return max(turns_of(one, source, place) for place, one in source.train_places)


def held_sets(config: Config) -> float:
    """Returns the bytes of host memory for what the tokens of replies in progress were sampled among, page-locked
    with a GPU (workflows/engines/vllm_truncation.py): for each step until its requests end, all of the batch. The
    requests of an explorer step, at most max_num_seqs an engine, times the longest reply, times the largest top_k of a
    set; torch rounds page-locked memory up to a power of two."""
    settings = config.explorer.rollout_model
    requests = min(workload(config).explored, settings.engine_num * settings.max_num_seqs)
    return 2 * OF_KEPT * most_kept(config) * requests * config.model.max_response_tokens


@dataclass(frozen=True)
class Disk:
    """Upper bound on a stage's disk bytes. tables: None when the number of experiences is unknown.

    checkpoint: one of them; checkpoints: all at one time, None when all are kept and their number is unknown.
    base: what the stage `quantized` writes.
    """

    tables: float | None
    checkpoint: float
    checkpoints: float | None
    versions: float
    base: float = 0.0

    @property
    def total(self) -> float:
        """Returns the known total; checkpoints of unknown number count once."""
        of_checkpoints = self.checkpoint if self.checkpoints is None else self.checkpoints
        return (self.tables or 0) + of_checkpoints + self.versions + self.base

    def words(self) -> str:
        """Formats total and parts."""
        parts = [f"{size(self.checkpoint)} each checkpoint, of which all are kept" if self.checkpoints is None else
                 f"checkpoints {size(self.checkpoints)}"]
        parts += [f"weights on their way {size(self.versions)}"] if self.versions else []
        parts += [f"the base as its 4 bits have it {size(self.base)}"] if self.base else []
        if self.tables != 0:
            parts.append("tables: known once the tasks are curated" if self.tables is None else
                         f"tables {size(self.tables)}")
        bound = f"at {'least' if self.checkpoints is None else 'most'} {size(self.total)}"
        return f"{bound if self.tables is not None else f'without the tables {bound}'}: {', '.join(parts)}"


def disk(config: Config, size: Size, element: int) -> Disk:
    """Disk of a training stage. element: bytes of a weight.

    tables        experiences x the most turns of each x row_bytes at the longest lengths
    checkpoints   each: the model, c P; float32 masters and two moments, 12 P, or 6 P with adamw8bit; the same and
                  c P of a critic. With an adapter of A parameters: the model, c A, 12 A or 6 A. A reference that
                  moves: 4 P or 4 A. One more than are kept, while the newest is written
    versions      weights on their way to the explorer, each one model, its head spelt out, c (P + V h when tied), or
                  one adapter; and those that are kept
    """
    work, model = workload(config), config.model
    spelt_out = element * (size.parameters + (size.embedding if size.tied else 0))
    moves = config.trainer.reference_update.interval is not None
    state = (config.algorithm.optimizer.state_bytes + 4 * moves) * size.trained
    if config.algorithm.has_critic:
        state += (element + config.trainer.critic.optimizer.state_bytes) * size.critic
    version = element * size.trained if model.lora_configs else spelt_out
    checkpoint = element * size.parameters + state + (version if model.lora_configs else 0)
    kept = _checkpoints(config.trainer, work.trainer_steps)
    turns, response = most_turns(config), model.max_response_tokens
    prompt = model.max_prompt_tokens if turns == 1 else work.longest - response  # later turns include earlier ones
    row = row_bytes(prompt, response, most_kept(config))
    rows = None if work.experiences is None else work.experiences * turns * row
    return Disk(rows, checkpoint, None if kept is None else kept * checkpoint,
                _versions(config, work, element) * version,
                spelt_out if model.load_in_4bit and config.kind.trains else 0)


def _versions(config: Config, work: Workload, element: int) -> int:
    """Returns how many whole versions take the space of all that are on disk at one time. The deltas between two full
    ones are at most as large as one; where nearly all elements change, `auto` writes more full ones than counted here.
    """
    sync, deltas = config.synchronizer, publishes_deltas(config, "float32" if element == 4 else "bfloat16")
    needed = work.versions + (2 if deltas and work.versions else 0)  # the last full one, and its deltas
    if sync.keep == "last" or not work.versions or not work.trainer_steps:
        return needed
    made = work.trainer_steps // sync.sync_interval + 1
    full = -(-made // sync.anchor_interval) if deltas else made
    return needed + full * (2 if deltas and sync.keep == "all" else 1)


def _checkpoints(trainer: Trainer, steps: int | None) -> int | None:
    """Returns the most checkpoints at one time; None where all are kept and their number is unknown."""
    apart = 0 if trainer.keep_every is None else None if steps is None else steps // trainer.keep_every
    made = None if steps is None else -(-steps // trainer.save_interval) + (apart or 0)
    most = trainer.max_checkpoints_to_keep
    kept = None if most is None or apart is None else most + 1 + apart
    return min((number for number in (made, kept) if number is not None), default=None)


def counted(recipe: Recipe) -> dict[str, Config]:
    """Maps stages to settings; for an offline one with the steps that its passes over explored rows amount to,
    unless the explorer itself makes passes over tasks that are not curated yet."""
    found = {}
    for name, settings in recipe.settings.items():
        buffer, source = settings.buffer, recipe.explored[name]
        if recipe.kinds[name].is_offline and source and buffer.total_steps is None:
            theirs = workload(recipe.settings[source])
            if theirs.explorer_steps and not theirs.most:
                rows = buffer.total_epochs * theirs.explorer_steps * theirs.explored
                steps = _whole(rows, buffer.train_batch_size or theirs.explored)
                settings = settings.but("buffer.total_steps", steps)
        found[name] = settings
    return found


def described(config: Config) -> list[tuple[str, str]]:
    """Describes what a stage will do, as (word, sentence) pairs."""
    kind, explorer = config.kind, config.explorer
    if kind.evaluates:
        which = "the last checkpoint" if explorer.bench_on_latest_checkpoint else "every checkpoint that is kept"
        sets = len(config.buffer.explorer_input.eval_tasksets)
        return [(kind, f"{which} of the stages before it, on {sets} set(s)")]
    if kind.shown:
        return [kind.shown]
    work = workload(config)
    lines = [("explorer", _explorer(config, work))] if work.explored else []
    if kept := most_kept(config):
        lines.append(("kept tokens", f"what each token was sampled among is kept with its row: at most "
                                     f"{OF_KEPT * kept:,.0f} bytes a token (column kept_tokens); of replies in "
                                     f"progress in host memory, at most {size(held_sets(config))}"))
    if keys := depends_on_time(kind, config):
        lines.append(("repeated", f"rows may differ, {because_of_time(keys)}"))
    return [*lines, *_trainer(config, work, kind)] if kind.trains else lines


def _explorer(config: Config, work: Workload) -> str:
    most = "at most " if work.beside or work.most else ""
    total = "" if work.experiences is None else f"; {most}{work.experiences:,} experiences in all"
    steps = "" if work.explorer_steps is None else f"{'at most ' * work.most}{work.explorer_steps:,} steps; "
    asked, taken = config.buffer.batch_size, groups_of_step(config)
    first = f"the first {taken:,} complete of " if taken < asked else ""
    return (f"{steps}each {first}{asked:,} tasks x {config.algorithm.repeat_times} rollouts = "
            f"{work.explored:,} experiences{_besides(config.algorithm, work, asked - taken)}{total}")


def _besides(algorithm: Algorithm, work: Workload, late: int) -> str:
    """Describes what an explorer step requests in addition."""
    rounds = algorithm.max_resample_rounds
    parts = [f"{late:,} late group(s)" if late else "", f"at most {rounds} round(s) of fresh groups" if rounds else "",
             "a greedy response to each task" if algorithm.greedy_baseline else ""]
    return f", and {' and '.join(filter(None, parts))}: up to {work.beside:,} more" if work.beside else ""


def _trainer(config: Config, work: Workload, kind: Kind) -> list[tuple[str, str]]:
    settings, pairs = config.trainer, config.algorithm.on_pairs
    given = "pieces of text" if config.algorithm.data == "texts" else "demonstrations"
    passes = f"{config.buffer.total_epochs} pass(es) over the "
    rows, source = ("responses in pairs", "pairs") if pairs else (given, given)
    if kind.learns_from_rollouts:
        rows, source = "experiences", "tasks; steps are known once they are curated" if kind.explores else (
            "recorded experience, or that of the stage before it that explored")
    counted = f"{'at most ' * work.most}{work.trainer_steps or 0:,} optimizer steps"
    if work.most:
        counted += f" ({passes}rows of its files, before curation)"
    steps = counted if work.trainer_steps else passes + source
    return [
        ("trainer", f"{steps}; each of {work.trained:,} {rows}{_parts(config, kind)}, at most "
                    f"{work.trained * work.longest:,} tokens"),
        ("micro-batch", f"at most {settings.max_token_len_per_gpu:,} tokens on each of {settings.ranks} rank(s)"),
        ("checkpoints", f"every {settings.save_interval:,} optimizer steps and the last; "
                        f"{settings.max_checkpoints_to_keep or 'all'} kept"),
    ]


def _parts(config: Config, kind: Kind) -> str:
    """Formats the composition of an rft stage's batches, `(32 new, 16 again, 8 of an expert)`; empty if all are new."""
    if not kind.is_online:
        return ""
    batch = train_batch(config)
    parts = ((batch.replayed, "again"), (batch.experts, "of an expert"))
    others = [f"{count:,} {what}" for count, what in parts if count]
    return f" ({', '.join([f'{batch.fresh:,} new', *others])})" if others else ""
