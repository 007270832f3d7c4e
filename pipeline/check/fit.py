"""Checks whether a training stage fits its GPUs, and otherwise finds the cheapest change that makes it fit."""

import math
import os
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from pipeline.check.memory import GIB, USABLE, Rollout, Training, learning, rollout, training
from pipeline.check.workload import explores, workload
from pipeline.job.devices import Gpus, needed_gpus
from pipeline.plan.modes import TRAINING, kind_of
from pipeline.settings.config import resolve_dtype
from pipeline.store.errors import Problem
from pipeline.store.model_shape import Shape, shape_at, split_problem

GRAIN = 1024  # tokens: suggested micro-batch budgets are multiples of it
MOST_CHANGES, MOST_RANKS = 4, 64  # limits of a suggestion
SMALL_CHUNK = 1024
ENGINE = "explorer.rollout_model"


def element_bytes(config: dict[str, Any], gpus: Gpus) -> int:
    """Returns the bytes per weight in training and rollout."""
    return {"float32": 4, "bfloat16": 2}[resolve_dtype(config["model"]["dtype"], gpus.any)]


def answering_gpus(config: dict[str, Any]) -> int:
    """Returns the number of GPUs used by engines and auxiliary models."""
    engine, auxiliary = config["explorer"]["rollout_model"], config["explorer"]["auxiliary_models"]
    return needed_gpus(config["mode"], engine["tensor_parallel_size"] * engine["engine_num"],
                       sum(model["engine_num"] for model in auxiliary))


def stage_gpus(config: dict[str, Any]) -> int:
    """Returns the number of GPUs used by a training stage."""
    ranks = config["trainer"]["ranks"]
    if not trains(config):
        return answering_gpus(config)
    return needed_gpus(config["mode"], ranks, answering_gpus(config)) if explores(config) else ranks


def trains(config: dict[str, Any]) -> bool:
    """Returns whether a stage with these settings has a trainer."""
    return kind_of(config) in TRAINING


def count_problem(config: dict[str, Any], gpus: Gpus) -> Problem | None:
    """Reports a stage that needs more GPUs than available; `gpus.count` 0 means a CPU run and is no problem."""
    needed, ranks, engine = stage_gpus(config), config["trainer"]["ranks"], answering_gpus(config)
    evaluates = bool(config["buffer"]["explorer_input"]["eval_tasksets"])
    if not gpus.count or max(needed, engine if evaluates else 0) <= gpus.count:
        return None
    judges = " with explorer.auxiliary_models" if config["explorer"]["auxiliary_models"] else ""
    where = "cluster.node_num x gpu_per_node declares" if gpus.declared else "visible here:"
    if needed <= gpus.count:
        return Problem(ENGINE, f"needs {engine} GPUs{judges} to evaluate, {where} {gpus.count}.",
                       f"Lower {ENGINE}.engine_num or tensor_parallel_size.")
    if not trains(config):
        return Problem(ENGINE, f"needs {engine} GPUs{judges}, {where} {gpus.count}.", "Ask for fewer.")
    if not explores(config):
        return Problem("trainer.ranks", f"needs {ranks} GPUs, {where} {gpus.count}.", "Ask for fewer ranks.",
                       found=ranks)
    advice = "Ask for fewer."
    if config["mode"] == "both" and max(ranks, engine) <= gpus.count:
        advice = "Set mode=colocate to take turns on the same ones, or ask for fewer."
    return Problem("mode", f"needs {needed} GPUs ({ranks} for trainer.ranks, {engine} for {ENGINE}{judges}), {where} "
                   f"{gpus.count}.", advice, found=config["mode"])


def judge_bytes(config: dict[str, Any], gpus: Gpus) -> float:
    """Returns the weight bytes of the largest reward model, resident with trainer and engine under colocate.

    A model whose config.json is missing or cannot be counted adds nothing: its path is checked elsewhere.
    """
    if config["mode"] != "colocate":
        return 0.0
    found = [(model, shape_at(model["model_path"])) for model in config["explorer"]["auxiliary_models"]]
    return max((float(shape.critic * element_bytes({"model": model}, gpus)) for model, shape in found if shape),
               default=0.0)


def trainer_problem(shape: Shape, config: dict[str, Any], gpus: Gpus) -> str | None:
    """Reports a trainer estimate above USABLE of a GPU, with the cheapest change that helps."""
    element, judges = element_bytes(config, gpus), judge_bytes(config, gpus) / GIB
    found = training(shape, config, element).peak / GIB
    if found + judges <= USABLE * gpus.gib:
        return None
    change = _words(cheapest(shape, config, gpus))
    advice = f"The cheapest change that fits: {change}." if change else (
        "No setting makes it fit: take a smaller model, shorter sequences, or more or larger GPUs.")
    beside = f" less the {judges:.1f} of reward models" if judges else ""
    return (f"the trainer needs about {found:.1f} GiB on each GPU, and may fill {USABLE:.0%} of {gpus.gib:g}{beside}. "
            f"{advice}")


def engine_problem(shape: Shape, config: dict[str, Any], gpus: Gpus, beside: float = 0) -> str | None:
    """Reports an engine that cannot hold its weights and one sequence of maximum length.

    beside: bytes that an idle trainer and reward models hold on the same GPU, 0 when they use others.
    """
    element, utilization = element_bytes(config, gpus), config["explorer"]["rollout_model"]["gpu_memory_utilization"]
    engine, longest = rollout(shape, config, element, gpus.gib), workload(config).longest
    least, whole = engine.weights + engine.token * longest, gpus.gib * GIB
    room = 1 - beside / whole
    share = _share(utilization, least / whole, room)
    if share is None:
        kept = f", beside {beside / GIB:.1f} GiB that {_keepers(config)}" if beside else ""
        return (f"the engine needs {least / GIB:.1f} GiB on each GPU for weights and one sequence of {longest:,} "
                f"tokens{kept}; a GPU has {gpus.gib:g}. {_wider(shape, config, gpus, room)}")
    if share > utilization:
        return (f"explorer.rollout_model.gpu_memory_utilization={utilization}: {engine.share / GIB:.1f} GiB do not "
                f"hold weights and one sequence of {longest:,} tokens, {least / GIB:.1f} GiB. Raise it to {share}.")
    if share < utilization:
        return (f"explorer.rollout_model.gpu_memory_utilization={utilization}: the engine's {engine.share / GIB:.1f} "
                f"GiB and the {beside / GIB:.1f} GiB that {_keepers(config)} exceed {gpus.gib:g}. Lower it to {share}.")
    return None


def _share(wanted: float, least: float, room: float) -> float | None:
    """Returns the share of a GPU between `least` and `room` nearest to the wanted one, exact or rounded to
    twentieths, hundredths or thousandths; None without one."""
    if least <= wanted <= room:
        return wanted
    for parts in (20, 100, 1000):
        low, high = math.ceil(least * parts), math.floor(room * parts)
        if low <= high:
            return (low if wanted < least else high) / parts
    return None


def _wider(shape: Shape, config: dict[str, Any], gpus: Gpus, room: float) -> str:
    """Suggests the fewest GPUs over which an engine fits within `room` of each, and its memory share."""
    engine = config["explorer"]["rollout_model"]
    for parts in range(engine["tensor_parallel_size"] + 1, shape.heads + 1):
        changes = {"tensor_parallel_size": parts}
        trial = _with(config, changes, "explorer", "rollout_model")
        if split_problem(shape, parts) or (gpus.count is not None and stage_gpus(trial) > gpus.count):
            continue
        found = rollout(shape, trial, element_bytes(config, gpus), gpus.gib)
        least = (found.weights + found.token * workload(config).longest) / (gpus.gib * GIB)
        share = _share(engine["gpu_memory_utilization"], least, room)
        if share is not None:
            if share != engine["gpu_memory_utilization"]:
                changes["gpu_memory_utilization"] = share
            fits = " ".join(f"explorer.rollout_model.{name}={value}" for name, value in changes.items())
            return f"What fits: {fits}."
    apart = "set mode=both with GPUs of its own, or " if config["mode"] == "colocate" else ""
    return f"No explorer.rollout_model.tensor_parallel_size fits: {apart}take a smaller model, or more or larger GPUs."


def _keepers(config: dict[str, Any]) -> str:
    """Names what else holds memory on a GPU that the engine shares."""
    who = ["the colocated trainer"] if trains(config) else []
    judges = ["reward models"] if config["explorer"]["auxiliary_models"] else []
    return " and ".join([*who, *judges]) + (" keep" if judges else " keeps")


def cheapest(shape: Shape, config: dict[str, Any], gpus: Gpus) -> dict[str, Any] | None:
    """Returns the fewest, then cheapest trainer changes with which the estimate fits; None when there are none.
    Includes reward models on the same GPU. In order of cost: smaller head chunks, recomputation, smaller
    micro-batches, ZeRO-2, ZeRO-3, optimizer offload to the host, more ranks."""
    element, room = element_bytes(config, gpus), gpus.gib - judge_bytes(config, gpus) / GIB / USABLE
    changes = list(_changes(config, gpus))
    for count in range(1, MOST_CHANGES + 1):
        for chosen in map(dict, combinations(changes, count)):
            if len(chosen) < count:
                continue
            changed = _with(config, {name: value for name, value in chosen.items() if value is not None})
            if "max_token_len_per_gpu" in chosen:
                chosen["max_token_len_per_gpu"] = _largest_budget(shape, changed, element, room)
                changed = _with(config, chosen)
            if training(shape, changed, element).peak <= USABLE * room * GIB:
                return chosen
    return None


def _words(trainer: dict[str, Any] | None) -> str:
    """Formats changes of the section `trainer` as overrides; empty without changes."""
    return " ".join(f"trainer.{name}={str(value).lower()}" for name, value in (trainer or {}).items())


def _changes(config: dict[str, Any], gpus: Gpus) -> Iterator[tuple[str, Any]]:
    """Returns memory-saving settings and their values, cheapest first; None: to be computed."""
    settings = config["trainer"]
    if settings["logprob_chunk_tokens"] > SMALL_CHUNK:
        yield "logprob_chunk_tokens", SMALL_CHUNK
    if not settings["enable_gradient_checkpointing"]:
        yield "enable_gradient_checkpointing", True
    yield "max_token_len_per_gpu", None
    yield from (("zero_stage", stage) for stage in (2, 3) if stage > settings["zero_stage"])
    if not settings["offload_optimizer"]:
        yield "offload_optimizer", True
    ranks = settings["ranks"] * 2
    while ranks <= MOST_RANKS and (gpus.count is None or stage_gpus(_with(config, {"ranks": ranks})) <= gpus.count):
        yield "ranks", ranks
        ranks *= 2


def _with(config: dict[str, Any], changes: dict[str, Any], *section: str) -> dict[str, Any]:
    """Returns the settings with some of a section changed; the default section is `trainer`."""
    first, *rest = section or ("trainer",)
    return {**config, first: _with(config[first], changes, *rest) if rest else {**config[first], **changes}}


def _largest_budget(shape: Shape, config: dict[str, Any], element: int, gib: float) -> int:
    """Returns the largest smaller micro-batch budget that fits, in multiples of GRAIN; else the longest row."""
    longest = workload(config).longest
    low, high = longest // GRAIN, (config["trainer"]["max_token_len_per_gpu"] - 1) // GRAIN
    while low < high:
        middle = -(-(low + high) // 2)
        trial = _with(config, {"max_token_len_per_gpu": middle * GRAIN})
        low, high = (middle, high) if training(shape, trial, element).peak <= USABLE * gib * GIB else (low, middle - 1)
    return max(low * GRAIN, longest)


def problems(shape: Shape, config: dict[str, Any], gpus: Gpus) -> list[str]:
    """Lists why the trainer and engine of a stage do not fit; `gpus.gib` must be known."""
    judges = judge_bytes(config, gpus)
    if not trains(config):
        engine = engine_problem(shape, config, gpus, judges)
        return [engine] if engine else []
    trainer = trainer_problem(shape, config, gpus)
    if not explores(config):
        return [trainer] if trainer else []
    idle = 0.0
    if config["mode"] == "colocate":  # memory held once the suggestions are applied
        change = cheapest(shape, config, gpus) if trainer else {}
        idle = 0.0 if change is None else training(shape, _with(config, change), element_bytes(config, gpus)).idle
    engine = engine_problem(shape, config, gpus, idle + judges)
    if engine and trainer and idle:
        engine += " The trainer is counted here with the change that is advised for it."
    return [problem for problem in (trainer, engine) if problem]


def gpu_words(config: dict[str, Any], gpus: Gpus) -> str:
    """Formats the number of GPUs a stage uses out of the total."""
    if not gpus.any:
        return (f"none is declared (cluster.gpu_per_node) or visible: a CPU run on {os.cpu_count()} threads, whose "
                "memory is not estimated; jobs of SLURM would ask for no GPU")
    needed, ranks = stage_gpus(config), config["trainer"]["ranks"]
    of = "" if gpus.count is None else f" of {gpus.count}"
    if not trains(config):
        return f"{needed}{of}: the engine"
    if not explores(config):
        return f"{needed}{of}: one for each rank"
    turns = "in turns" if config["mode"] == "colocate" else "side by side"
    return f"{needed}{of}: trainer {ranks} and engine {answering_gpus(config)}, {turns} (mode={config['mode']})"


def adapter_words(shape: Shape, config: dict[str, Any]) -> str | None:
    """Formats an adapter's parameter count and the total; None without an adapter or training."""
    if not (config["model"]["lora_configs"] and trains(config)):
        return None
    learnt = learning(shape, config)
    return (f"rank {config['model']['lora_configs'][0]['lora_rank']}: {learnt:,} parameters learn, beside the model's "
            f"{shape.parameters:,} ({learnt / shape.parameters:.2%})")


def described(shape: Shape, config: dict[str, Any], gpus: Gpus) -> list[tuple[str, str]]:
    """Returns the estimate of a stage as (word, sentence) pairs."""
    element = element_bytes(config, gpus)
    lines = [("memory", _trainer_words(training(shape, config, element), gpus))] if trains(config) else []
    if (explores(config) or not lines) and gpus.gib:
        lines.append(("" if lines else "memory", _engine_words(rollout(shape, config, element, gpus.gib), config)))
    return lines


def _trainer_words(found: Training, gpus: Gpus) -> str:
    backward = [("gradients", found.gradients + found.bucket), ("activations", found.activations)]
    step = [("optimizer step's own", found.step)]  # activations are already freed
    parts = [("weights", found.weights), ("optimizer", found.optimizer),
             *(step if found.idle + found.step == found.peak else backward)]
    if found.critic:
        parts.append(("critic", found.critic))
    limit = f" of {gpus.gib:g}" if gpus.gib else ""
    listed = ", ".join(f"{word} {value / GIB:.1f}" for word, value in parts)
    return f"trainer about {found.peak / GIB:.1f} GiB{limit} a GPU ({listed})"


def _engine_words(found: Rollout, config: dict[str, Any]) -> str:
    longest = workload(config).longest
    return (f"engine {found.share / GIB:.1f} GiB a GPU: weights {found.weights / GIB:.1f}, cache for "
            f"{found.tokens // longest:,} sequences of {longest:,} tokens")
