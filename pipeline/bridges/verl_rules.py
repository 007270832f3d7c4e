"""What veRL says by several keys at once: batches, GPUs, lengths, the run.

Where the guide "Align configuration with veRL" and its own examples disagree, a rule chooses, and says what and why.
"""

import re

from pipeline.bridges import verl_async
from pipeline.bridges.translation import SETTINGS, Translation, directory_name
from pipeline.bridges.verl_source import ACTOR, ROLLOUT, Verl

MONITORS = ("wandb", "mlflow", "tensorboard")
_ROWS = "a micro-batch is a token budget here (trainer.max_token_len_per_gpu), rows x the longest sequence:"
EVALUATED = ("buffer", "explorer_input", "eval_tasksets")
GPUS = "trainer.n_gpus_per_node"
SHARDED = "veRL splits the model over the GPUs, too"


def batches(verl: Verl) -> None:
    """Three numbers of veRL: tasks of a step, tasks of an optimizer step, responses of a task."""
    step, mini, n = "data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ROLLOUT}.n"
    tasks, per_update, repeats = verl.whole(step, 1024), verl.whole(mini, 256), verl.whole(n, 1)
    verl.say(n, "algorithm.repeat_times", verl.value(n, 1), default=True)
    if tasks is not None and per_update is not None and per_update > tasks and not verl_async.is_stream(verl):
        verl.made.chosen.append(f"buffer.batch_size={tasks}: ppo_mini_batch_size={per_update} is more than "
                                f"data.train_batch_size={tasks}, which veRL refuses; one optimizer step takes all.")
        per_update = tasks
    verl.say(mini, "buffer.batch_size", verl.value(mini, 256) if per_update is None else per_update, default=True)
    if verl_async.is_stream(verl):
        verl_async.schedule(verl)
    else:
        _sync_interval(verl, step, mini, tasks, per_update)
    if repeats and per_update:
        verl.choose("buffer.train_batch_size", per_update * repeats, f"{mini}={per_update} x {n}={repeats}",
                    of=(mini, n))
    else:
        verl.made.chosen.append("buffer.train_batch_size is not set, so an optimizer step takes what an explorer step "
                                f"makes, as veRL's does: {verl.doubt(n if per_update else mini)}.")
    verl.choose("synchronizer.sync_style", "fixed", "the schedule of veRL")
    if verl_async.is_separate(verl):
        verl_async.offset(verl)
        return
    verl.choose("synchronizer.sync_offset", 0, "rollouts of the newest weights, as in veRL")
    verl.made.chosen.append("synchronizer.sync_offset=0: veRL makes rollouts with the weights that it has just trained."
                            " The guide's text asks for 0 too; its two examples have 1, which is one step off-policy.")


def _sync_interval(verl: Verl, step: str, mini: str, tasks: int | None, per_update: int | None) -> None:
    """Optimizer steps of one step of veRL, from tasks of the two; none where one of them is not known."""
    to = "synchronizer.sync_interval"
    if tasks is None or per_update is None:
        lacking = step if tasks is None else mini
        verl.made.chosen.append(f"{to} is not set: it is {step} / ppo_mini_batch_size, and {verl.doubt(lacking)}. "
                                "Whatever counts veRL's steps is to be multiplied by it.")
        if step in verl.unknown:
            verl.say(step, to, None)
        else:
            verl.leave(step, f"{to} cannot be said: {verl.doubt(lacking)}.")
        return
    verl.interval = tasks // per_update
    if tasks % per_update:
        verl.made.chosen.append(f"{to}={verl.interval}: {step}={tasks} is no multiple of ppo_mini_batch_size="
                                f"{per_update}; rollouts are made for {verl.interval * per_update} tasks before each "
                                f"sync instead of {tasks}.")
    verl.say(step, to, verl.interval, f"={tasks} / {mini}={per_update}"
             if verl.value(step, None) in (None, verl.interval) else f" / {mini}={per_update}", default=True)


def gpus(verl: Verl) -> None:
    """veRL's engine and trainer share all GPUs in turns; so do ours in mode=colocate."""
    of_engine = f"{ROLLOUT}.tensor_model_parallel_size"
    each = verl.whole(GPUS, 8)
    if verl_async.is_separate(verl):
        nodes(verl, None)
        verl_async.gpus(verl, each, _machines(verl))
        return
    split = verl.whole(of_engine, min(2, each or 2))  # veRL's 2 do not start on one GPU
    verl.say(of_engine, "explorer.rollout_model.tensor_parallel_size", verl.value(of_engine, split), default=True)
    verl.choose("mode", "colocate", "veRL's hybrid engine: rollout and training take turns on the same GPUs")
    nodes(verl, each)
    verl.choose("trainer.zero_stage", 3, SHARDED)
    if each is None:
        if "${" in str(verl.value(GPUS)):
            verl.choose("trainer.ranks", "${cluster.gpu_per_node}", "all GPUs")
        verl.made.chosen.append("trainer.ranks and explorer.rollout_model.engine_num follow from the number of GPUs: "
                                f"{verl.doubt(GPUS)}.")
        return
    engines = max(1, each // 4 // (split or 1))
    verl.choose("trainer.ranks", each, "all GPUs, one process each", of=(GPUS,))
    batch = verl.made.entries.get(("buffer", "train_batch_size"))
    rows = f" {batch.value} experiences need not divide by {each}: micro-batches are token budgets." if batch else ""
    verl.made.chosen.append(
        f"mode=colocate, trainer.ranks={each}: veRL trains on all {each} GPUs and generates on the same ones in turns. "
        "The guide splits them instead, and its trainer gets what the engines leave; with sync_offset=0 one side would "
        f"idle while the other works.{rows}")
    if split is None:
        verl.made.chosen.append("explorer.rollout_model.engine_num follows from the GPUs of an engine: "
                                f"{verl.doubt(of_engine)}.")
        return
    verl.choose("explorer.rollout_model.engine_num", engines, "a quarter of the GPUs, as in the guide's examples",
                of=(GPUS, of_engine))
    verl.made.chosen.append(
        f"explorer.rollout_model.engine_num={engines}: veRL runs {_count(max(each // split, 1))}, the guide's examples "
        "have a quarter of the GPUs for them.")


def _machines(verl: Verl) -> int:
    """1 where the engine and the trainer, each with GPUs of its own, need no more machines; 2 where one may."""
    many = max(verl.whole("trainer.nnodes", 1) or 2, verl.whole("rollout.nnodes", 1) or 2)
    verl.leave("rollout.nnodes", "a run takes one machine: cluster.node_num is 1.", idle=many == 1)
    return many


def _count(engines: int) -> str:
    return f"{engines} engine{'s' if engines > 1 else ''}"


def nodes(verl: Verl, each: int | None) -> None:
    """One machine is what a run takes; more, or an unknown number, are told."""
    key, number = "trainer.nnodes", verl.whole("trainer.nnodes", 1)
    if number == 1 or (key not in verl.values and key not in verl.unknown):
        verl.say(key, "cluster.node_num", 1)
        return
    asked = f"{key}={number}" if number else verl.doubt(key)
    verl.leave(key, "a run takes one machine: cluster.node_num is 1.")
    of_all = f", {each} GPUs instead of {each * number}" if each and number else ""
    verl.made.chosen.append(f"cluster.node_num=1: a run takes one machine{of_all}, and {asked}. A step takes longer, "
                            "and a model that needs several machines does not fit (ouro config check estimates it).")


def lengths(verl: Verl) -> None:
    """Prompt, response, and the tokens of a micro-batch: by veRL's budget, or by its rows of greatest length."""
    prompt, response = verl.whole("data.max_prompt_length", 512), verl.whole("data.max_response_length", 512)
    key, rows = f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    to, longest = "trainer.max_token_len_per_gpu", (prompt or 0) + (response or 0)
    if doubtful := next((k for k, v in (("data.max_prompt_length", prompt), ("data.max_response_length", response))
                         if v is None), None):
        verl.say(key, to, verl.value(key))
        verl.leave(rows, f"{_ROWS} the longest sequence is not known: {verl.doubt(doubtful)}.")
        return
    if verl.value(f"{ROLLOUT}.max_model_len") is not None:
        longest = max(longest, verl.whole(f"{ROLLOUT}.max_model_len", 1) or 0)
    budget, micro = verl.whole(key, 16384), verl.whole(rows, 0)
    if key not in verl.values and key not in verl.unknown and micro:
        verl.say(rows, to, micro * longest, f" x {longest} tokens, the longest sequence")
        verl.made.chosen.append(f"{to}={micro * longest}: a micro-batch is a token budget here; {rows}={micro} rows of "
                                f"the greatest length, {longest} tokens. It changes memory, not the result.")
    elif budget is not None and budget < longest:
        verl.say(key, to, longest, ", raised to the longest sequence", default=True)
        verl.made.chosen.append(f"{to}={longest}: a sequence is not cut, so the budget holds the longest one.")
    else:
        verl.say(key, to, verl.value(key))


def run(verl: Verl) -> None:
    """Names, places, intervals, the length of the run, the monitor."""
    names(verl, "verl_examples", "checkpoints")
    for key, to in (("trainer.save_freq", "trainer.save_interval"), ("trainer.test_freq", "explorer.eval_interval")):
        interval(verl, key, to)
    for key, to in (("trainer.total_training_steps", "buffer.total_steps"),
                    (f"{ACTOR}.optim.lr_warmup_steps", "algorithm.optimizer.lr_warmup_steps"),
                    ("trainer.critic_warmup", "trainer.critic_warmup")):
        in_optimizer_steps(verl, key, to)
    if verl_async.is_stream(verl):
        verl_async.length(verl)
    kept(verl, "trainer.max_actor_ckpt_to_keep")
    monitor(verl)


def names(verl: Verl, project: str, root: str) -> None:
    """Project, name and place of the run. project, root: what this program of veRL has by default."""
    verl.say("trainer.project_name", "project", directory_name(verl.value("trainer.project_name", project)),
             default=True)
    if "trainer.experiment_name" in verl.values:
        verl.say("trainer.experiment_name", "name", directory_name(verl.value("trainer.experiment_name")))
    else:
        verl.choose("name", directory_name(verl.made.source.rpartition(".")[0] or "verl"), "the name of the source")
        verl.fold("trainer.experiment_name", "name")
    project, name = verl.value("trainer.project_name"), verl.value("trainer.experiment_name")
    place = verl.value("trainer.default_local_dir", f"./{root}")
    if isinstance(place, str):
        place = place.removesuffix("/").removesuffix(f"/{project}/{name}").replace("~/", "${oc.env:HOME}/", 1)
    verl.say("trainer.default_local_dir", "checkpoint_root_dir", place, ", above project and name", default=True)


def interval(verl: Verl, key: str, to: str) -> None:
    """The guide hands these two on as they are, and its examples have their values: they win."""
    value = verl.value(key)
    if isinstance(value, int) and value <= 0:
        verl.leave(key, "never, there; here the last step is saved always, and those between serve a resumed run."
                   if key == "trainer.save_freq" else
                   "never, there; here the model that a stage ends with is evaluated.", idle=True)
    elif to == "explorer.eval_interval" and not any(p[:3] == EVALUATED for p in verl.made.entries):
        verl.leave(key, "there is no evaluation set.")
    elif key in verl.values:
        verl.say(key, to, value, f", as in the guide; as often as veRL: x {verl.interval}"
                 if (verl.interval or 1) > 1 else "")
        if (verl.interval or 1) > 1 and isinstance(value, int):
            verl.made.chosen.append(f"{to}={value}: the guide's own value, in optimizer steps. {key} counts steps of "
                                    f"veRL, each of {verl.interval} optimizer steps: for as often as there write "
                                    f"{value * verl.interval}.")
    else:
        verl.say(key, to, value)


def in_optimizer_steps(verl: Verl, key: str, to: str) -> None:
    """veRL counts its own steps, each of several optimizer steps, where we count optimizer steps."""
    value = verl.value(key)
    if key in verl.unknown:
        verl.say(key, to, None)
    elif key == "trainer.critic_warmup" and verl.algorithm_type != "ppo" and value != 0:
        verl.leave(key, verl.no_critic())
    elif value == 0 and key == "trainer.critic_warmup":
        verl.say(key, to, 0)
    elif not isinstance(value, int) or value <= 0 or verl.interval is None:
        is_off = value in (None, -1, 0)
        verl.leave(key, "off there too." if is_off else f"needed a number of steps above 0, found {value}."
                   if verl.interval else "counts veRL's steps, and how many optimizer steps one has is not known: "
                   f"multiply it by data.train_batch_size / ppo_mini_batch_size, and set {to}.", idle=is_off)
    else:
        verl.say(key, to, value * verl.interval, "" if verl.interval == 1 else f" x {verl.interval} optimizer steps")
        if verl.interval > 1:
            verl.made.chosen.append(f"{to}={value * verl.interval}: {key}={value} counts steps of veRL, each of "
                                    f"{verl.interval} optimizer steps; here optimizer steps are counted.")


def kept(verl: Verl, key: str) -> None:
    """Checkpoints that are kept: all of them by veRL's default, and wherever the number is not above 0."""
    number = verl.value(key)
    number = None if isinstance(number, int) and number <= 0 else number
    verl.say(key, "trainer.max_checkpoints_to_keep", number, " (all are kept)" if number is None else "", default=True)


def monitor(verl: Verl) -> None:
    key = "trainer.logger"
    value = verl.value(key, ["console"])
    loggers = [str(v) for v in (value if isinstance(value, list) else [value])]
    known = [name for name in loggers if name in MONITORS]
    unknown = [name for name in loggers if name not in (*MONITORS, "console", "None")]
    listed = "" if key in verl.values and not isinstance(value, list) else f"={', '.join(loggers)}"
    verl.say(key, "monitor.monitor_type", known[0] if known else "none", listed, default=True)
    if len(known) > 1 or unknown:
        verl.made.chosen.append(f"monitor.monitor_type={known[0] if known else 'none'}: one monitor at a time, of "
                                f"{', '.join(MONITORS)}; asked for {', '.join(loggers)}. The terminal shows every step "
                                "anyway.")


def defaults(verl: Verl) -> None:
    """Lines for what the script leaves to veRL's defaults, where ours differ."""
    for key, to, value in (("data.max_prompt_length", "model.max_prompt_tokens", 512),
                           ("data.max_response_length", "model.max_response_tokens", 512),
                           ("trainer.total_epochs", "buffer.total_epochs", 30),
                           (f"{ROLLOUT}.gpu_memory_utilization", "explorer.rollout_model.gpu_memory_utilization", 0.5),
                           ("trainer.val_before_train", "explorer.eval_on_startup", True)):
        ends = ("trainer.total_training_steps", verl_async.TASKS)
        ended_otherwise = to == "buffer.total_epochs" and any(k in verl.values or k in verl.unknown for k in ends)
        if key not in verl.values and not ended_otherwise:
            verl.say(key, to, value, default=True)


def decode_numbers(made: Translation) -> None:
    """A number that the environment holds must be read as one: its text alone would not be."""
    for path, entry in list(made.entries.items()):
        item = SETTINGS.get(".".join("*" if isinstance(part, int) else part for part in path))
        other = ("str", "Any", "dict", "list")
        is_number = item is not None and not any(word in str(item.annotation) for word in other)
        if is_number and isinstance(entry.value, str) and re.fullmatch(r"\$\{oc\.env:[\w,./-]+\}", entry.value):
            made.entries[path] = type(entry)(f"${{oc.decode:{entry.value}}}", entry.comment)
