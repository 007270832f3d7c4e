"""Translates veRL keys that depend on each other: batches, GPUs, lengths, the run.

Where the guide "Align configuration with veRL" and its own examples disagree, a rule chooses and reports why.
"""

import re

from pipeline.bridges import verl_async
from pipeline.bridges.tables import keys, said, table
from pipeline.bridges.translation import SETTINGS, Translation, directory_name
from pipeline.bridges.verl_source import ACTOR, ROLLOUT, Verl

MONITORS = ("wandb", "mlflow", "tensorboard")
STEP, GENERATED = "data.train_batch_size", "data.gen_batch_size"
MINI, N = f"{ACTOR}.ppo_mini_batch_size", f"{ROLLOUT}.n"
GPUS, OF_ENGINE = "trainer.n_gpus_per_node", f"{ROLLOUT}.tensor_model_parallel_size"
BUDGET, LONGEST = f"{ACTOR}.ppo_max_token_len_per_gpu", ("data.max_prompt_length", "data.max_response_length")
ROWS = f"{ACTOR}.ppo_micro_batch_size_per_gpu"


def batches(verl: Verl) -> None:
    """Translates veRL's three numbers: tasks of a step, tasks of an optimizer step, responses of a task."""
    streams = verl_async.is_stream(verl)
    step = STEP if streams or GENERATED in verl.done else _of_a_step(verl)
    tasks, mini, repeats = verl.whole(step, 1024), verl.whole(MINI, 256), verl.whole(N, 1)
    verl.say(N, "algorithm.repeat_times", verl.value(N, 1), default=True)
    if tasks is not None and mini is not None and mini > tasks and not streams:
        verl.made.note("mini_batch_over_batch", step=step, tasks=tasks, mini=mini)
        mini = tasks
    verl.say(MINI, "buffer.batch_size", verl.value(MINI, 256) if mini is None else mini, default=True)
    if streams:
        verl_async.schedule(verl)
    else:
        _sync_interval(verl, step, tasks, mini)
    if repeats and mini:
        verl.choose("buffer.train_batch_size", mini * repeats, f"{MINI}={mini} x {N}={repeats}", of=(MINI, N))
    else:
        verl.made.note("no_train_batch", doubt=verl.doubt(N if mini else MINI))
    verl.choose("synchronizer.sync_style", "fixed", "the schedule of veRL")
    if verl_async.is_separate(verl):
        verl_async.offset(verl)
    else:
        verl.choose("synchronizer.sync_offset", 0, "rollouts of the newest weights, as in veRL")
        verl.made.note("sync_offset")


def _of_a_step(verl: Verl) -> str:
    """Returns the key for tasks per step: the loader's if it is set; the other is accounted for."""
    written = verl.unknown[GENERATED][0].value if GENERATED in verl.unknown else verl.value(GENERATED)
    step = STEP if written is None or STEP in str(written) else GENERATED
    verl.leave(GENERATED if step == STEP else STEP, said("generated_batch"), idle=True)
    return step


def _sync_interval(verl: Verl, step: str, tasks: int | None, mini: int | None) -> None:
    """Returns the optimizer steps of one veRL step, from the tasks of both; None if one is unknown."""
    to, lacking = "synchronizer.sync_interval", step if tasks is None else MINI
    if tasks is None or mini is None:
        verl.made.note("no_interval", step=step, doubt=verl.doubt(lacking))
        if step in verl.unknown:
            verl.say(step, to, None)
        else:
            verl.leave(step, f"{to} cannot be said: {verl.doubt(lacking)}.")
        return
    verl.interval = tasks // mini
    if tasks % mini:
        verl.made.note("interval_of_part", interval=verl.interval, step=step, tasks=tasks, mini=mini,
                       made=verl.interval * mini)
    is_said = verl.value(step, None) not in (None, verl.interval)
    verl.say(step, to, verl.interval, f" / {MINI}={mini}" if is_said else f"={tasks} / {MINI}={mini}", default=True)


# ---------------------------------------------------------------------------------------------------------------- GPUs


def gpus(verl: Verl) -> None:
    """Translates GPUs: veRL's engine and trainer share all of them in turns, like ours in mode=colocate."""
    each = verl.whole(GPUS, 8)
    if verl_async.is_separate(verl):
        nodes(verl, None)
        verl_async.gpus(verl, each)
        return
    split = verl.whole(OF_ENGINE, min(2, each or 2))  # veRL's default 2 does not start on one GPU
    verl.say(OF_ENGINE, "explorer.rollout_model.tensor_parallel_size", verl.value(OF_ENGINE, split), default=True)
    verl.choose("mode", "colocate", "veRL's hybrid engine: rollout and training take turns on the same GPUs")
    nodes(verl, each)
    verl.choose("trainer.zero_stage", 3, said("sharded"))
    if each is None:
        if "${" in str(verl.value(GPUS)):
            verl.choose("trainer.ranks", "${cluster.gpu_per_node}", "all GPUs")
        verl.made.note("no_gpus", doubt=verl.doubt(GPUS))
        return
    verl.choose("trainer.ranks", each, "all GPUs, one process each", of=(GPUS,))
    batch = verl.made.entries.get(("buffer", "train_batch_size"))
    verl.made.note("colocate", each=each, rows=said("need_not_divide", rows=batch.value, each=each) if batch else "")
    if split is None:
        verl.made.note("no_engines", doubt=verl.doubt(OF_ENGINE))
        return
    engines, theirs = max(1, each // 4 // split), max(each // split, 1)
    verl.choose("explorer.rollout_model.engine_num", engines, "a quarter of the GPUs, as in the guide's examples",
                of=(GPUS, OF_ENGINE))
    verl.made.note("engines", engines=engines, theirs=f"{theirs} engine{'s' if theirs > 1 else ''}")


def nodes(verl: Verl, each: int | None) -> None:
    """Notes that a run uses one machine if the source has more, or an unknown number."""
    key, number = "trainer.nnodes", verl.whole("trainer.nnodes", 1)
    if number == 1 or (key not in verl.values and key not in verl.unknown):
        verl.say(key, "cluster.node_num", 1)
        return
    verl.leave(key, "a run takes one machine: cluster.node_num is 1.")
    verl.made.note("one_machine", instead=f", {each} GPUs instead of {each * number}" if each and number else "",
                   asked=f"{key}={number}" if number else verl.doubt(key))


def lengths(verl: Verl) -> None:
    """Translates prompt and response lengths, and micro-batch tokens: veRL's budget, or its rows of maximum length."""
    limits, to = [verl.whole(key, 512) for key in LONGEST], "trainer.max_token_len_per_gpu"
    if None in limits:
        verl.say(BUDGET, to, verl.value(BUDGET))
        verl.leave(ROWS, said("rows_of_unknown_length", doubt=verl.doubt(LONGEST[limits.index(None)])))
        return
    longest, model_len = sum(limits), f"{ROLLOUT}.max_model_len"
    if verl.value(model_len) is not None:
        longest = max(longest, verl.whole(model_len, 1) or 0)
    budget, rows = verl.whole(BUDGET, 16384), verl.whole(ROWS, 0)
    if BUDGET not in verl.values and BUDGET not in verl.unknown and rows:
        verl.say(ROWS, to, rows * longest, f" x {longest} tokens, the longest sequence")
        verl.made.note("budget_of_rows", tokens=rows * longest, key=ROWS, rows=rows, longest=longest)
    elif budget is not None and budget < longest:
        verl.say(BUDGET, to, longest, ", raised to the longest sequence", default=True)
        verl.made.note("budget_raised", longest=longest)
    else:
        verl.say(BUDGET, to, verl.value(BUDGET))


# ------------------------------------------------------------------------------------------------------------- the run


def run(verl: Verl) -> None:
    """Translates names, directories, intervals, the length of the run, the monitor."""
    if verl.is_on("trainer.val_only"):
        verl.made.ask("val_only")
    names(verl, "verl_examples")
    for key, to in table("verl")["intervals"].items():
        interval(verl, key, to)
    for key, to in table("verl")["optimizer_steps"].items():
        in_optimizer_steps(verl, key, to)
    if verl_async.is_stream(verl):
        verl_async.length(verl)
    kept(verl, "trainer.max_actor_ckpt_to_keep")
    monitor(verl)


def names(verl: Verl, project: str) -> None:
    """Translates project, name and directory of the run. project: default of this veRL program."""
    given, name = verl.value("trainer.project_name", project), verl.value("trainer.experiment_name")
    verl.say("trainer.project_name", "project", directory_name(given), default=True)
    verl.say("trainer.experiment_name", "name", directory_name(name))
    if "trainer.experiment_name" not in verl.values:
        verl.choose("name", directory_name(verl.made.source.rpartition(".")[0] or "verl"), "the name of the source")
    place = verl.value("trainer.default_local_dir", "./checkpoints")
    if isinstance(place, str):
        place = place.removesuffix("/").removesuffix(f"/{verl.value('trainer.project_name')}/{name}")
        place = place.replace("~/", "${oc.env:HOME}/", 1)
    verl.say("trainer.default_local_dir", "checkpoint_root_dir", place, ", above project and name", default=True)


def interval(verl: Verl, key: str, to: str) -> None:
    """Translates two intervals: the guide passes them on unchanged, as in its examples, which take precedence."""
    value, steps = verl.value(key), verl.interval or 1
    if isinstance(value, int) and value <= 0:
        verl.leave(key, said("never_saved" if to == "trainer.save_interval" else "never_evaluated"), idle=True)
    elif to == "explorer.eval_interval" and not verl.made.below("buffer", "explorer_input", "eval_tasksets"):
        verl.leave(key, "there is no evaluation set.")
    else:
        verl.say(key, to, value, f", as in the guide; as often as veRL: x {verl.interval}" if steps > 1 else "")
        if steps > 1 and isinstance(value, int):
            verl.made.note("guides_interval", to=to, value=value, key=key, steps=steps, times=value * steps)


def in_optimizer_steps(verl: Verl, key: str, to: str) -> None:
    """Converts veRL's steps, of several optimizer steps each, to optimizer steps."""
    value, warmup = verl.value(key), key == "trainer.critic_warmup"
    if key in verl.unknown or (warmup and value == 0):
        verl.say(key, to, value)
    elif warmup and verl.algorithm_type != "ppo":
        verl.leave(key, verl.no_critic())
    elif key in verl.values and key == "trainer.total_training_steps" and value in (0, -1) and verl.interval:
        verl.say(key, to, verl.interval, ": veRL ends after its first step")
    elif value in (None, -1, 0):
        verl.leave(key, "off there too.", idle=True)
    elif not isinstance(value, int) or value <= 0 or verl.interval is None:
        verl.leave(key, f"needed a number of steps above 0, found {value}." if verl.interval else
                   said("steps_of_unknown_length", to=to))
    else:
        steps = value * verl.interval
        verl.say(key, to, steps, "" if verl.interval == 1 else f" x {verl.interval} optimizer steps")
        if verl.interval > 1:
            verl.made.note("optimizer_steps", to=to, steps=steps, key=key, value=value, each=verl.interval)


def kept(verl: Verl, key: str) -> None:
    """Translates the number of checkpoints to keep: all by veRL's default, and if it is not above 0."""
    number = verl.value(key)
    number = None if isinstance(number, int) and number <= 0 else number
    verl.say(key, "trainer.max_checkpoints_to_keep", number, " (all are kept)" if number is None else "", default=True)


def monitor(verl: Verl) -> None:
    """Selects the first of its loggers that we support."""
    key = "trainer.logger"
    value = verl.value(key, ["console"])
    loggers = [str(v) for v in (value if isinstance(value, list) else [value])]
    known = [*(name for name in loggers if name in MONITORS), "none"]
    listed = "" if key in verl.values and not isinstance(value, list) else f"={', '.join(loggers)}"
    verl.say(key, "monitor.monitor_type", known[0], listed, default=True)
    if len(known) > 2 or set(loggers) - {*MONITORS, "console", "None"}:
        verl.made.note("one_monitor", known=known[0], monitors=", ".join(MONITORS), loggers=", ".join(loggers))


def defaults(verl: Verl, name: str, section: str) -> None:
    """Writes program defaults that the source does not set, where ours differ. name: of the table with them."""
    for key, value in table(name)[section].items():
        if not any(k in verl.values or k in verl.unknown for k in (key, *table(name)["instead"].get(key, ()))):
            verl.say(key, keys(name)[key].to, value, default=True)


def decode_numbers(made: Translation) -> None:
    """Marks numeric environment values to be parsed: as text they would be invalid."""
    for path, entry in list(made.entries.items()):
        item = SETTINGS.get(".".join("*" if isinstance(part, int) else part for part in path))
        other = ("str", "Any", "dict", "list")
        is_number = item is not None and not any(word in str(item.annotation) for word in other)
        if is_number and isinstance(entry.value, str) and re.fullmatch(r"\$\{oc\.env:[\w,./-]+\}", entry.value):
            made.entries[path] = type(entry)(f"${{oc.decode:{entry.value}}}", entry.comment)
