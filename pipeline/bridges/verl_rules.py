"""What veRL says by several keys at once: batches, GPUs, lengths, the run.

Where the guide "Align configuration with veRL" and its own examples disagree, a rule chooses, and says what and why.
"""

import re

from pipeline.bridges.translation import SETTINGS, Translation, directory_name
from pipeline.bridges.verl_source import ACTOR, ROLLOUT, Verl

MONITORS = ("wandb", "mlflow", "tensorboard")


def batches(verl: Verl) -> None:
    """Three numbers of veRL: tasks of a step, tasks of an optimizer step, responses of a task."""
    step, mini, n = "data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ROLLOUT}.n"
    tasks, per_update, repeats = verl.whole(step, 1024), verl.whole(mini, 256), verl.whole(n, 1)
    verl.say(n, "algorithm.repeat_times", verl.value(n, 1), default=True)
    if tasks is None or per_update is None:
        verl.say(mini, "buffer.batch_size", verl.value(mini, 256), default=True)
        verl.leave(step, "not known before the script runs: set synchronizer.sync_interval = data.train_batch_size / "
                         "ppo_mini_batch_size.")
        return
    if per_update > tasks:
        verl.made.chosen.append(f"buffer.batch_size={tasks}: ppo_mini_batch_size={per_update} is more than "
                                f"data.train_batch_size={tasks}, which veRL refuses; one optimizer step takes all.")
        per_update = tasks
    verl.interval = tasks // per_update
    if tasks % per_update:
        verl.made.chosen.append(f"synchronizer.sync_interval={verl.interval}: data.train_batch_size={tasks} is no "
                                f"multiple of ppo_mini_batch_size={per_update}; rollouts are made for "
                                f"{verl.interval * per_update} tasks before each sync instead of {tasks}.")
    verl.say(mini, "buffer.batch_size", per_update, default=True)
    verl.say(step, "synchronizer.sync_interval", verl.interval, f"={tasks} / {mini}={per_update}"
             if verl.value(step, None) in (None, verl.interval) else f" / {mini}={per_update}", default=True)
    if repeats:
        verl.choose("buffer.train_batch_size", per_update * repeats, f"{mini}={per_update} x {n}={repeats}")
    verl.choose("synchronizer.sync_style", "fixed", "the schedule of veRL")
    verl.choose("synchronizer.sync_offset", 0, "rollouts of the newest weights, as in veRL")
    verl.made.chosen.append("synchronizer.sync_offset=0: veRL makes rollouts with the weights that it has just trained."
                            " The guide's text asks for 0 too; its two examples have 1, which is one step off-policy.")


def gpus(verl: Verl) -> None:
    """veRL's engine and trainer share all GPUs in turns; so do ours in mode=colocate."""
    nodes, each = verl.whole("trainer.nnodes", 1), verl.whole("trainer.n_gpus_per_node", 8)
    split = verl.whole(f"{ROLLOUT}.tensor_model_parallel_size", 2)
    verl.choose("mode", "colocate", "veRL's hybrid engine: rollout and training take turns on the same GPUs")
    if nodes is None or each is None:
        verl.choose("trainer.ranks", "${cluster.gpu_per_node}", "all GPUs")
        return
    here = each * min(nodes, SETTINGS["cluster.node_num"].metadata["le"] or nodes)
    engines = max(1, here // 4 // (split or 1))
    verl.choose("trainer.ranks", here, "all GPUs, one process each")
    verl.choose("trainer.zero_stage", 3, "veRL's FSDP shards parameters, gradients and optimizer states")
    verl.choose("explorer.rollout_model.engine_num", engines, "a quarter of the GPUs, as in the guide's examples")
    batch = verl.made.entries.get(("buffer", "train_batch_size"))
    rows = f" {batch.value} experiences need not divide by {here}: micro-batches are token budgets." if batch else ""
    if here < each * nodes:
        verl.made.chosen.append(f"trainer.ranks={here}: a run takes one machine at most, so {here} of the "
                                f"{each * nodes} GPUs.")
    verl.made.chosen.append(
        f"mode=colocate, trainer.ranks={here}: veRL trains on all {here} GPUs and generates on the same ones in turns. "
        "The guide splits them instead, and its trainer gets what the engines leave; with sync_offset=0 one side would "
        f"idle while the other works.{rows}")
    verl.made.chosen.append(
        f"explorer.rollout_model.engine_num={engines}: veRL runs {max(here // (split or 1), 1)} engines, the guide's "
        "examples have a quarter of the GPUs for them.")


def lengths(verl: Verl) -> None:
    """Prompt, response, and the tokens of a micro-batch: by veRL's budget, or by its rows of greatest length."""
    prompt, response = verl.whole("data.max_prompt_length", 512), verl.whole("data.max_response_length", 512)
    key, rows = f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    to, longest = "trainer.max_token_len_per_gpu", (prompt or 0) + (response or 0)
    if verl.value(f"{ROLLOUT}.max_model_len") is not None:
        longest = max(longest, verl.whole(f"{ROLLOUT}.max_model_len", 1) or 0)
    budget, micro = verl.whole(key, 16384), verl.whole(rows, 0)
    if key not in verl.values and micro and longest:
        verl.say(rows, to, micro * longest, f" x {longest} tokens, the longest sequence")
        verl.made.chosen.append(f"{to}={micro * longest}: a micro-batch is a token budget here; {rows}={micro} rows of "
                                f"the greatest length, {longest} tokens. It changes memory, not the result.")
    elif budget is not None and budget < longest:
        verl.say(key, to, longest, ", raised to the longest sequence", default=True)
        verl.made.chosen.append(f"{to}={longest}: a sequence is not cut, so the budget holds the longest one.")
    elif key in verl.values:
        verl.say(key, to, verl.value(key))


def run(verl: Verl) -> None:
    """Names, places, intervals, the length of the run, the monitor."""
    project = "trainer.project_name"
    verl.say(project, "project", directory_name(verl.value(project, "verl_examples")), default=True)
    if "trainer.experiment_name" in verl.values:
        verl.say("trainer.experiment_name", "name", directory_name(verl.value("trainer.experiment_name")))
    else:
        verl.choose("name", directory_name(verl.made.source.rpartition(".")[0] or "verl"), "the name of the source")
    project, name = verl.value("trainer.project_name"), verl.value("trainer.experiment_name")
    root = verl.value("trainer.default_local_dir", "./checkpoints")
    if isinstance(root, str):
        root = root.removesuffix("/").removesuffix(f"/{project}/{name}").replace("~/", "${oc.env:HOME}/", 1)
    verl.say("trainer.default_local_dir", "checkpoint_root_dir", root, ", above project and name", default=True)
    for key, to in (("trainer.save_freq", "trainer.save_interval"), ("trainer.test_freq", "explorer.eval_interval")):
        _interval(verl, key, to)
    for key, to in (("trainer.total_training_steps", "buffer.total_steps"),
                    (f"{ACTOR}.optim.lr_warmup_steps", "algorithm.optimizer.lr_warmup_steps")):
        _in_optimizer_steps(verl, key, to)
    _monitor(verl)


def _interval(verl: Verl, key: str, to: str) -> None:
    value = verl.value(key)
    if isinstance(value, int) and value <= 0:
        verl.leave(key, "never, there; here the last step is saved always, and those between serve a resumed run."
                   if key == "trainer.save_freq" else
                   "never, there; here the model that a stage ends with is evaluated.")
    elif key in verl.values:
        verl.say(key, to, value)
        if (verl.interval or 1) > 1:
            verl.made.chosen.append(f"{to}={value}: as in the guide, although {key} counts steps of veRL, each of "
                                    f"{verl.interval} optimizer steps; {value} x {verl.interval} would be as often.")


def _in_optimizer_steps(verl: Verl, key: str, to: str) -> None:
    """veRL counts its own steps, each of several optimizer steps, where we count optimizer steps."""
    value = verl.value(key)
    if not isinstance(value, int) or value <= 0 or verl.interval is None:
        verl.leave(key, "off there too." if value in (None, -1, 0) else "counts veRL's steps: multiply it by "
                   "data.train_batch_size / ppo_mini_batch_size, and set " + to + ".")
        return
    steps = value * verl.interval
    verl.say(key, to, steps, "" if verl.interval == 1 else f" x {verl.interval} optimizer steps")
    if verl.interval > 1:
        verl.made.chosen.append(f"{to}={steps}: {key}={value} counts steps of veRL, each of {verl.interval} optimizer "
                                "steps; here optimizer steps are counted.")


def _monitor(verl: Verl) -> None:
    key = "trainer.logger"
    value = verl.value(key, ["console"])
    loggers = [str(v) for v in (value if isinstance(value, list) else [value])]
    known = [name for name in loggers if name in MONITORS]
    unknown = [name for name in loggers if name not in (*MONITORS, "console", "None")]
    verl.say(key, "monitor.monitor_type", known[0] if known else "none", f"={', '.join(loggers)}", default=True)
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
        ended_otherwise = to == "buffer.total_epochs" and "trainer.total_training_steps" in verl.values
        if key not in verl.values and not ended_otherwise:
            verl.say(key, to, value, default=True)


def decode_numbers(made: Translation) -> None:
    """A number that the environment holds must be read as one: its text alone would not be."""
    for path, entry in list(made.entries.items()):
        item = SETTINGS.get(".".join("*" if isinstance(part, int) else part for part in path))
        is_number = item is not None and not any(word in str(item.type) for word in ("str", "Any", "dict", "list"))
        if is_number and isinstance(entry.value, str) and re.fullmatch(r"\$\{oc\.env:[\w,./-]+\}", entry.value):
            made.entries[path] = type(entry)(f"${{oc.decode:{entry.value}}}", entry.comment)
