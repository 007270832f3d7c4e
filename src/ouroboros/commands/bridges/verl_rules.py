"""Facts that follow from several veRL keys: batches, GPUs, lengths, the run. The rows are in tables/verl_rows.yaml.

Where the guide "Align configuration with veRL" and its own examples disagree, a row chooses and reports why. The
trainers with separate GPUs for generation and training set these in `rollout.*`; the fully asynchronous one, which
reads a stream of tasks without whole-batch steps, sets weight synchronization in `async_training.*`. Here an explorer
step generates what an optimizer step consumes, `ppo_mini_batch_size` tasks.
"""

from fractions import Fraction

from ouroboros.commands.bridges.tables import said, table
from ouroboros.commands.bridges.translation import SETTINGS, directory_name
from ouroboros.commands.bridges.verl_data import REWARD_MODELS, listed
from ouroboros.commands.bridges.verl_objective import Facts
from ouroboros.commands.bridges.verl_source import ACTOR, ROLLOUT, Verl

MONITORS = ("wandb", "mlflow", "tensorboard", "trackio")
STEP, GENERATED = "data.train_batch_size", "data.gen_batch_size"
EPOCHS = f"{ACTOR}.ppo_epochs"
MINI, N = f"{ACTOR}.ppo_mini_batch_size", f"{ROLLOUT}.n"
GPUS, OF_ENGINE, NODES = "trainer.n_gpus_per_node", f"{ROLLOUT}.tensor_model_parallel_size", "trainer.nnodes"
BUDGET, LONGEST = f"{ACTOR}.ppo_max_token_len_per_gpu", ("data.max_prompt_length", "data.max_response_length")
GENERATE, SYNC, FETCHED = "rollout.n_gpus_per_node", *(f"async_training.{name}" for name in (
    "trigger_parameter_sync_step", "require_batches"))
LARGEST = 1024  # GPUs of a machine that a source may name
AHEAD = 100.0  # limit of a staleness threshold


def batches(verl: Verl, facts: Facts) -> Facts:
    """Returns tasks of a step, tasks of an optimizer step, responses of a task, and the steps between two syncs."""
    streams = SYNC in (*verl.values, *verl.unknown)
    written = verl.unknown[GENERATED][0].value if GENERATED in verl.unknown else verl.value(GENERATED)
    is_own = not streams and GENERATED not in verl.done and written is not None and STEP not in str(written)
    step = GENERATED if is_own else STEP
    tasks, asked, repeats = verl.whole(step, 1024), verl.whole(MINI, 256), verl.whole(N, 1)
    every, fetched = verl.whole(SYNC, 4), verl.whole(FETCHED, 1)
    is_over = not streams and None not in (tasks, asked) and asked > tasks
    mini = tasks if is_over else asked
    passes = not streams and None not in (tasks, mini, repeats) and (verl.whole(EPOCHS, 1) or 1) > 1
    part, mini = (mini, tasks) if passes else (None, mini)  # several passes are over all that a step generates
    if streams:
        verl.interval, lacking = every and fetched and every * fetched, FETCHED if every else SYNC
    else:
        verl.interval, lacking = tasks and mini and tasks // mini, MINI if tasks else step
    interval, share = verl.interval, verl.value("async_training.staleness_threshold", 0.1)
    is_share = isinstance(share, (int, float)) and not isinstance(share, bool) and 0 <= share <= AHEAD
    is_separate = streams or GENERATE in (*verl.values, *verl.unknown)
    # decimal, because 0.29 * 100 is less than 29 in floats
    ahead = int(Fraction(str(share)) * interval) if streams and interval and is_share else None
    return {"passes": passes, "has_parts": bool(passes and part < tasks), "part": passes and part * repeats,
            "streams": streams, "is_separate": is_separate, "schedule": "stream" if streams else "steps", "step": step,
            "is_step_unknown": step in verl.unknown, "tasks": tasks, "asked": asked, "mini": mini, "is_over": is_over,
            "batch": verl.value(MINI, 256) if mini is None else mini, "repeats": repeats, "fetched": fetched,
            "rows": repeats and mini and mini * repeats, "doubt_of_rows": verl.doubt(N if mini else MINI),
            "interval": interval, "has_interval": interval is not None, "doubt": verl.doubt(lacking),
            "is_part": bool(interval and not streams and tasks % mini), "made": interval and mini and interval * mini,
            "shown": "" if verl.value(step) not in (None, interval) else f"={tasks}", "steps": interval or 1,
            "is_ahead": bool(streams and interval and is_share), "ahead": ahead,
            "is_partial": bool(ahead and verl.is_on("async_training.partial_rollout"))}


def nodes(verl: Verl, facts: Facts) -> Facts:
    """Returns the GPUs of a machine, the number of machines, and whether a run can take them all."""
    each, number = verl.whole(GPUS, facts["gpus"]), verl.whole(NODES, 1)
    scores = any(verl.is_on(switch) for switch, _ in REWARD_MODELS)
    is_spread = not facts["is_separate"] and (number == 1 or bool(number and each and not scores))
    why_one = ("a model that scores runs on one machine" if scores else
               verl.doubt(GPUS) if number and not each else "" if number else verl.doubt(NODES))
    return {"each": each, "number": number, "is_one_machine": number == 1, "is_spread": is_spread, "why_one": why_one,
            "doubt": verl.doubt(GPUS), "machines": f"{NODES}={number}" if number else verl.doubt(NODES)}


def gpus(verl: Verl, facts: Facts) -> Facts:
    """Returns the GPUs of engine and trainer: veRL's share all of them in turns, like ours in mode=colocate."""
    each, rows = facts["each"], facts["rows"]
    split = verl.whole(OF_ENGINE, 2 if facts["is_separate"] else min(2, each or 2))  # 2 does not start on one GPU
    found = {"split": verl.value(OF_ENGINE, split), "of_engine": split}
    if facts["is_separate"]:
        return found | _divided(verl, each, split)
    machines = facts["number"] if facts["is_spread"] else 1
    ranks, engines = (each and each * machines), (max(each // split, 1) * machines if each and split else None)
    return found | {"ranks": ranks, "engines": engines, "is_shared": bool(each),
                    "is_split_too_far": bool(each and split and split > each),
                    "is_of_environment": each is None and "${" in str(verl.value(GPUS)),
                    "doubt_of_engine": verl.doubt(OF_ENGINE),
                    "divided": said("need_not_divide", rows=rows, each=ranks) if rows else ""}


def _divided(verl: Verl, train: int | None, split: int | None) -> Facts:
    """Returns one machine's GPUs, divided between engine and trainer as in the source.

    The machines of both are one set here, with as many ranks and engines on each; where that does not come out, one
    machine is divided in the same proportion.
    """
    numbers, generate = [verl.whole(key, 1) for key in (NODES, "rollout.nnodes")], verl.whole(GENERATE, 8)
    machines = max(number or 2 for number in numbers)
    found = {"is_one_machine": machines == 1, "is_divided": False, "is_together": False, "generate": generate,
             "why_one": "engines and ranks do not come out evenly on the machines of both",
             "machines": "" if machines == 1 else ", whose machines for both are one here"}
    if train is None or generate is None or split is None or max(train, generate) > LARGEST:
        lacking = next((k for k, n in ((GPUS, train), (GENERATE, generate), (OF_ENGINE, split)) if n is None), GPUS)
        return found | {"doubt": verl.doubt(lacking)}
    together, ranks, engines = sum(number or 0 for number in numbers), *(
        (number or 0) * gpus for number, gpus in zip(numbers, (train, generate // split), strict=True))
    if machines > 1 and None not in numbers and engines and not (ranks % together or engines % together):
        return found | {"is_divided": True, "is_together": True, "together": together, "engines": engines,
                        "ranks": ranks, "machines": f", on {together} machines",
                        "total": (ranks + engines * split) // together}
    total = train + generate if machines == 1 else max(train, generate)
    engines = max(1, (generate if machines == 1 else total * generate // (train + generate)) // split)
    ranks = train if machines == 1 else max(1, total - engines * split)
    return found | {"is_divided": True, "total": total, "engines": engines, "ranks": ranks}


def lengths(verl: Verl, facts: Facts) -> Facts:
    """Returns the micro-batch tokens: veRL's budget, or its rows of the greatest length."""
    limits, model_len = [verl.whole(key, 512) for key in LONGEST], f"{ROLLOUT}.max_model_len"
    if None in limits:
        return {"budget_by": "unknown", "doubt": verl.doubt(LONGEST[limits.index(None)])}
    longest = max(sum(limits), (verl.value(model_len) is not None and verl.whole(model_len, 1)) or 0)
    budget, rows = verl.whole(BUDGET, 16384), verl.whole(f"{ACTOR}.ppo_micro_batch_size_per_gpu", 0)
    split = verl.whole(f"{ACTOR}.ulysses_sequence_parallel_size", 1) or 1
    if rows and BUDGET not in (*verl.values, *verl.unknown):
        return {"longest": longest, "rows": rows, "tokens": rows * longest, "budget_by": "rows"}
    share = -(-longest // split)  # the GPUs of a micro-batch hold the longest sequence together
    return {"longest": share, "budget_by": "raised" if budget is not None and budget < share else "given"}


def run(verl: Verl, facts: Facts) -> Facts:
    """Returns names, directories, checkpoints and the monitor; translates what counts steps."""
    for key, to in table("verl")["intervals"].items():
        if facts["is_rl"] or to == SAVE:
            _interval(verl, key, to)
    for key, to in table("verl")["optimizer_steps"].items():
        if facts["is_rl"] or to == "buffer.total_steps":
            _in_optimizer_steps(verl, key, to)
    project, name = verl.value("trainer.project_name", facts["project"]), verl.value("trainer.experiment_name")
    place = verl.value("trainer.default_local_dir", "./checkpoints")
    if isinstance(place, str):
        place = place.removesuffix("/").removesuffix(f"/{verl.value('trainer.project_name')}/{name}")
        place = place.replace("~/", "${oc.env:HOME}/", 1)
    number, logger = verl.value(facts["keep"]), verl.value("trainer.logger", ["console"])
    number = None if isinstance(number, int) and number <= 0 else number
    loggers = [str(v) for v in (logger if isinstance(logger, list) else [logger])]
    known = [*(name for name in loggers if name in MONITORS), "none"]
    is_listed = "trainer.logger" not in verl.values or isinstance(logger, list)
    mini, tasks = verl.whole(MINI, 256), verl.whole("rollout.total_rollout_steps", None)
    saved = verl.value("trainer.save_freq", -1)
    every, interval = verl.whole("rollout.test_freq", None), verl.interval
    return {"project": directory_name(project), "name": directory_name(name), "place": place, "number": number,
            "is_nameless": "trainer.experiment_name" not in verl.values, "known": known[0],
            "source": directory_name(verl.made.source.rpartition(".")[0].replace("$", "") or "verl"),
            "all": " (all are kept)" if number is None else "", "listed": f"={', '.join(loggers)}" if is_listed else "",
            "is_one_of": len(known) > 2 or bool(set(loggers) - {*MONITORS, "console", "None"}),
            "monitors": ", ".join(MONITORS), "loggers": ", ".join(loggers), "val_only": verl.is_on("trainer.val_only"),
            "is_kept": number is not None or not (isinstance(saved, int) and saved <= 0),
            "mini": mini, "total": tasks // mini if tasks and mini and tasks >= mini else None,
            "has_total": bool(tasks and mini and tasks >= mini), "is_evaluated": bool(every and interval),
            "is_bounded": "rollout.total_rollout_steps" in verl.values, "interval": interval,
            "evaluations": every and interval and every * interval, "never": "rollout.test_freq" not in verl.unknown}


def _interval(verl: Verl, key: str, to: str) -> None:
    """Converts the steps between two checkpoints, or two evaluations, to optimizer steps."""
    value, each = verl.value(key), verl.interval
    if isinstance(value, int) and value <= 0:
        verl.leave(key, said("never_saved" if to == SAVE else "never_evaluated"), idle=True)
    elif to != SAVE and not verl.made.below("buffer", "explorer_input", "eval_tasksets"):
        verl.leave(key, "there is no evaluation set.")
    elif key in verl.unknown or each == 1:
        verl.say(key, to, value)
    else:
        _multiplied(verl, key, to)


def _in_optimizer_steps(verl: Verl, key: str, to: str) -> None:
    """Converts veRL's steps, of several optimizer steps each, to optimizer steps."""
    value, each = verl.value(key), verl.interval
    is_warmup, is_total = key == "trainer.critic_warmup", key == "trainer.total_training_steps"
    if key in verl.unknown or (is_warmup and value == 0):
        verl.say(key, to, value)
    elif is_warmup and verl.algorithm_type != "ppo":
        verl.leave(key, verl.no_critic())
    elif is_total and value in (0, -1) and each:
        verl.say(key, to, each, ": veRL ends after its first step")
    elif value in (None, -1, 0):
        verl.leave(key, "disabled there too.", idle=True)
    else:
        _multiplied(verl, key, to)


def _multiplied(verl: Verl, key: str, to: str) -> None:
    """Writes a number of veRL's steps as optimizer steps; leaves out what is no number, or of unknown length."""
    value, each = verl.value(key), verl.interval
    if not isinstance(value, int) or value <= 0 or each is None:
        verl.leave(key, f"needed a number of steps above 0, found {value}." if each else
                   said("steps_of_unknown_length", to=to))
    else:
        verl.say(key, to, value * each, "" if each == 1 else f" x {each} optimizer steps")
        if each > 1:
            verl.made.note("optimizer_steps", to=to, steps=value * each, key=key, value=value, each=each)


def started(verl: Verl, facts: Facts) -> Facts:
    """Returns the program that starts veRL's SFT trainer; torchrun's options, by the equivalent key, count instead of
    keys that veRL does not use.

    There are two: fsdp_sft_trainer reads a column of prompts and one of responses, or conversations with
    `data.multiturn.enable`; sft_trainer reads conversations. A step of both is an optimizer step, as here.
    """
    verl.algorithm_type, verl.interval = "sft", 1
    verl.made.choose(("stages", 0, "stage_name"), "sft", "")
    for key, given in facts["options"].items():
        if verl.value(key) not in (None, given.value):
            verl.made.note("torchruns_option", key=key, value=verl.value(key), counts=given.value)
        verl.unknown.pop(key, None)
        verl.values[key] = given
    return {"started": verl.entry.module if verl.entry else "its keys are those of veRL's SFT trainer"}


def ranks(verl: Verl, facts: Facts) -> Facts:
    """Returns whether the number of GPUs is known."""
    return {"has_gpus": facts["each"] is not None, "to": "trainer.ranks"}


def demonstrations(verl: Verl, facts: Facts) -> Facts:
    """Returns the files of `data.train_files`, and their columns: nested columns, or conversations."""
    key, value = "data.train_files", verl.value("data.train_files")
    files = listed(value)
    is_newer = verl.entry.name != "fsdp_sft_trainer" if verl.entry else "data.messages_key" in verl.values
    turns = verl.is_on("data.multiturn.enable", is_newer and "data.prompt_key" not in verl.values)
    found = {"files": files[0] if len(files) == 1 else files, "turns": turns,
             "has_files": key in verl.unknown or isinstance(value, (str, list)),
             **{name: f"data.{within}{name}_key" for name in ("messages", "tools")
                for within in ("", "multiturn.") if not within or f"data.multiturn.{name}_key" in verl.values}}
    for name, default in (("prompt", "question"), ("response", "answer")):
        within, column = f"data.{name}_dict_keys", verl.value(f"data.{name}_key", default)
        fields = verl.value(within)
        is_nested = isinstance(fields, list) and len(fields) == 1 and isinstance(column, str)
        is_column = fields in (None, []) and within not in verl.unknown
        found |= {name: f"{column}.{fields[0]}" if is_nested else column,
                  f"{name}_field": None if turns or not (is_nested or is_column) else is_nested}
    return found


def sequence(verl: Verl, facts: Facts) -> Facts:
    """Returns the limit of the whole sequence, for prompt and response each, and the micro-batch tokens."""
    key, tokens, to = "data.max_length", "data.max_token_len_per_gpu", "trainer.max_token_len_per_gpu"
    longest = verl.whole(key, 1024)
    found = {"longest": longest, "has_length": longest is not None, "is_length_unknown": key in verl.unknown,
             "length": verl.value(key) if longest is None else longest, "to": to, "doubt": verl.doubt(key)}
    if longest is None:
        return found | {"budget_by": None}
    least, raised = 2 * longest, ", at least a prompt and a response"
    rows = next((k for k in ("data.micro_batch_size_per_gpu", "data.micro_batch_size") if k in verl.values), "")
    if tokens in verl.values:
        is_short = (verl.whole(tokens, None) or least) < least
        return found | {"budget_by": "given", "budget": least if is_short else verl.value(tokens),
                        "raised": raised if is_short else ""}
    if rows and (number := verl.whole(rows, None)):
        return found | {"budget_by": "rows", "rows": rows, "budget": max(number * longest, least)}
    return found | {"budget_by": "least" if least > SETTINGS[to].default else None, "budget": least}


SAVE = "trainer.save_interval"
