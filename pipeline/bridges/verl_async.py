"""veRL's trainers with separate GPUs for generation and training: one step off policy, and fully asynchronous.

`rollout.*` sets the GPUs and length of generation, `async_training.*` the weight synchronization. Here an explorer step
generates what an optimizer step consumes, `ppo_mini_batch_size` tasks.
"""

from fractions import Fraction

from pipeline.bridges.tables import said
from pipeline.bridges.verl_source import ACTOR, ROLLOUT, Verl

TRAIN, GENERATE = "trainer.n_gpus_per_node", "rollout.n_gpus_per_node"
SYNC, FETCHED = "async_training.trigger_parameter_sync_step", "async_training.require_batches"
STALE, TASKS = "async_training.staleness_threshold", "rollout.total_rollout_steps"
MINI, OF_ENGINE = f"{ACTOR}.ppo_mini_batch_size", f"{ROLLOUT}.tensor_model_parallel_size"
LARGEST = 1024  # GPUs of a machine that a source may name
AHEAD = 100.0  # limit of a staleness threshold


def is_separate(verl: Verl) -> bool:
    """Returns whether engine and trainer have separate GPUs."""
    return is_stream(verl) or GENERATE in verl.values or GENERATE in verl.unknown


def is_stream(verl: Verl) -> bool:
    """Returns whether it is the fully asynchronous trainer, which has no whole-batch steps."""
    return SYNC in verl.values or SYNC in verl.unknown


def schedule(verl: Verl) -> None:
    """Translates `async_training` to sync_interval and sync_offset, in steps of `ppo_mini_batch_size` tasks."""
    every, batches = verl.whole(SYNC, 4), verl.whole(FETCHED, 1)
    for key in ("data.train_batch_size", "data.gen_batch_size"):
        if key not in verl.done:
            verl.leave(key, said("stream"), idle=True)
    if every is None or batches is None:
        verl.say(SYNC, "synchronizer.sync_interval", None)
        verl.made.note("no_sync", doubt=verl.doubt(SYNC if every is None else FETCHED))
        return
    verl.interval = every * batches
    verl.say(SYNC, "synchronizer.sync_interval", verl.interval, f" x {FETCHED}={batches}")
    verl.fold(FETCHED, "synchronizer.sync_interval")
    verl.leave("async_training.partial_rollout", said("whole_responses"))


def offset(verl: Verl) -> None:
    """Returns the lead of generation: a step of veRL, or the share of an interval that may be stale."""
    to, share = "synchronizer.sync_offset", verl.value(STALE, 0.1)
    if not is_stream(verl):
        verl.choose(to, verl.interval or 1, "one step of veRL ahead, in explorer steps")
        verl.made.note("one_step_ahead", steps=verl.interval or 1)
    elif verl.interval and isinstance(share, (int, float)) and not isinstance(share, bool) and 0 <= share <= AHEAD:
        ahead = int(Fraction(str(share)) * verl.interval)  # decimal, because 0.29 * 100 is less than 29 in floats
        verl.say(STALE, to, ahead, f" x sync_interval={verl.interval}", default=True)
    else:
        verl.say(STALE, to, None)


def gpus(verl: Verl, train: int | None) -> None:
    """Divides one machine's GPUs between engine and trainer as in the source. train: the trainer's on a machine.

    If engine and trainer may have a machine each, one machine is divided in the same proportion.
    """
    machines = max(verl.whole(key, 1) or 2 for key in ("trainer.nnodes", "rollout.nnodes"))
    verl.leave("rollout.nnodes", "a run takes one machine: cluster.node_num is 1.", idle=machines == 1)
    generate, split = verl.whole(GENERATE, 8), verl.whole(OF_ENGINE, 2)
    verl.choose("mode", "both", "engine and trainer have GPUs of their own")
    verl.say(OF_ENGINE, "explorer.rollout_model.tensor_parallel_size", verl.value(OF_ENGINE, split), default=True)
    verl.choose("trainer.zero_stage", 3, said("sharded"))
    if train is None or generate is None or split is None or max(train, generate) > LARGEST:
        lacking = next((k for k, n in ((TRAIN, train), (GENERATE, generate), (OF_ENGINE, split)) if n is None), TRAIN)
        for key in (TRAIN, GENERATE):
            verl.leave(key, f"says nothing alone: {verl.doubt(lacking)}.")
        verl.made.note("no_division", doubt=verl.doubt(lacking))
        return
    total = train + generate if machines == 1 else max(train, generate)
    engines = max(1, (generate if machines == 1 else total * generate // (train + generate)) // split)
    ranks = train if machines == 1 else max(1, total - engines * split)
    verl.say(TRAIN, "cluster.gpu_per_node", total, f" and {GENERATE}={generate}", default=True)
    verl.say(GENERATE, "explorer.rollout_model.engine_num", engines, f" GPUs / {split} of an engine", default=True)
    verl.choose("trainer.ranks", ranks, "the GPUs that the engines leave", of=(TRAIN,))
    verl.made.note("division", ranks=ranks, engines=engines, total=total,
                   machines="" if machines == 1 else ", whose machines for both are one here")


def length(verl: Verl) -> None:
    """Translates the total of generated tasks to optimizer steps, and the evaluation interval."""
    tasks, mini, every = verl.whole(TASKS, None), verl.whole(MINI, 256), verl.whole("rollout.test_freq", None)
    if tasks and mini and tasks >= mini:
        verl.say(TASKS, "buffer.total_steps", tasks // mini, f" / {MINI}={mini}")
    else:
        verl.leave(TASKS, said("too_few_tasks", mini=mini))
    for key in ("rollout.total_epochs", "trainer.total_epochs"):
        verl.leave(key, f"{TASKS} says where it ends.", idle=TASKS in verl.values)
    if every and verl.interval:
        verl.say("rollout.test_freq", "explorer.eval_interval", every * verl.interval,
                 f" hand-overs x {verl.interval} optimizer steps")
    else:
        verl.leave("rollout.test_freq", said("never_evaluated"), idle="rollout.test_freq" not in verl.unknown)
