"""Checks whether a training stage fits its GPUs; otherwise says by how much, and which settings matter most."""

import math
import os
from dataclasses import replace
from functools import reduce
from typing import Any

from ouroboros.pipeline.check.memory import (
    GIB,
    USABLE,
    Training,
    asleep,
    beside,
    besides,
    engines,
    layer_tokens,
    recomputes,
    rollout,
    training,
    with_tower,
)
from ouroboros.pipeline.check.model_size import Size, Sizes, named
from ouroboros.pipeline.check.workload import Disk, disk, workload
from ouroboros.pipeline.job.devices import Gpus
from ouroboros.pipeline.job.shares import all_auxiliary_gpus, answering_gpus, engine_gpus, held_gpus
from ouroboros.pipeline.settings.combinations import four_bits
from ouroboros.pipeline.settings.config import Config, longest_sequence, resolve_dtype
from ouroboros.pipeline.settings.explorer import ENGINE_BYTES, PROMPT_PIECE
from ouroboros.pipeline.settings.images import may_have_images
from ouroboros.pipeline.settings.model import TEACHER, Model
from ouroboros.pipeline.settings.trainer import must_overlap
from ouroboros.pipeline.settings.unused import without_teacher
from ouroboros.pipeline.store.errors import Problem

ENGINE = "explorer.rollout_model"


def element_bytes(config: Config, gpus: Gpus) -> int:
    """Returns the bytes per weight in training and rollout."""
    return _element_bytes(config.model.dtype, gpus)


def _element_bytes(dtype: str, gpus: Gpus) -> int:
    return {"float32": 4, "bfloat16": 2}[resolve_dtype(dtype, gpus.any)]


def of_stage(config: Config, gpus: Gpus, start: Model, teacher: Model | None, sizes: Sizes | None
             ) -> tuple[dict[str, list], Disk | None]:
    """Returns where a stage exceeds its GPUs, with the facts of its estimate, and its disk space; None where its model
    was not counted. start, teacher: the sections `model` that name its initial model and its teacher."""
    size, facts = sizes and sizes.of(start, config.model.lora_configs), [("GPUs", gpu_words(config, gpus))]
    found = {"problems": [count_problem(config, gpus)], "warnings": [], "facts": facts}
    if size is None:
        return found, None
    if size.tower:
        size = with_tower(size, config.kind.trains and not config.trainer.freeze_vision_tower, _shows_images(config))
    element, taught = element_bytes(config, gpus), sizes.of(teacher) if teacher and gpus.any else None
    own = config.own_teacher if taught else None
    copied = taught if own is None and config.model.teacher_url is None else None
    if gpus.gib:
        found["warnings" if config.ignore_validator_suggestions else "problems"] += [
            *beyond_memory(size, config, gpus, judge_bytes(config, gpus, sizes)),
            teacher_problem(copied, size, config, element, gpus.gib) if copied else None,
            tight_teacher(taught, config, _element_bytes(own.dtype, gpus), gpus.gib) if own else None]
    found["problems"].append(tiles_problem(size, config))
    taken, trained = disk(config, size, element), adapter_words(size, config)
    found["problems"].append(four_bits_problem(size, config))
    facts += [*([("LoRA", trained)] if trained else []), *described(size, config, gpus),
              *([("its teacher", teacher_words(taught, config, element))] if taught else []), ("disk", taken.words())]
    return found, taken


def _shows_images(config: Config) -> bool:
    """Returns whether prompts of a stage may have images: a generator makes them, or a set names the key of some or has
    messages."""
    pool, given = config.data_processor.task_pipeline, config.buffer.trainer_input
    sets = [pool, given.experience_buffer, *given.auxiliary_buffers.values(),
            *(one for _, one in config.buffer.explorer_input.places)]
    return bool(pool.generator) or any(may_have_images(one.format) for one in sets)


def count_problem(config: Config, gpus: Gpus) -> Problem | None:
    """Reports a stage that needs more GPUs than available; `gpus.count` 0 means a CPU run and is no problem."""
    needed, ranks, answering = held_gpus(config.kind, config), config.trainer.ranks, answering_gpus(config)
    engine = answering_gpus(without_teacher(config)) if config.model.teacher_name else answering
    evaluates = bool(config.buffer.explorer_input.eval_tasksets)
    if not gpus.count or max(needed, engine if evaluates else 0) <= gpus.count:
        return None
    judges = " with explorer.auxiliary_models" if config.explorer.auxiliary_models else ""
    where = "cluster.node_num x gpu_per_node declares" if gpus.declared else "visible here:"
    if needed <= gpus.count:
        return Problem(ENGINE, f"needs {engine} GPUs{judges} to evaluate, {where} {gpus.count}.",
                       f"Lower {ENGINE}.engine_num or tensor_parallel_size.")
    if not config.kind.trains:
        return Problem(ENGINE, f"needs {engine} GPUs{judges}, {where} {gpus.count}.", "Ask for fewer.")
    if not config.kind.explores:
        return Problem("trainer.ranks", f"needs {ranks} GPUs, {where} {gpus.count}.", "Ask for fewer ranks.",
                       found=ranks)
    advice = "Ask for fewer."
    if config.mode == "both" and max(ranks, answering) <= gpus.count:
        advice = "Set mode=colocate to take turns on the same ones, or ask for fewer."
    return Problem("mode", f"needs {needed} GPUs ({ranks} for trainer.ranks, {answering} for {ENGINE}{judges}), "
                   f"{where} {gpus.count}.", advice, found=config.mode)


def judge_bytes(config: Config, gpus: Gpus, sizes: Sizes) -> float:
    """Returns the bytes of the largest auxiliary model, resident with trainer and engine under colocate: the weights of
    a reward model, which add nothing where it was not counted, or all that the engine of a teacher may take."""
    models = config.explorer.auxiliary_models if config.mode == "colocate" else []
    found = [(model, sizes.of(named(model, sizes.starts))) for model in models if model is not config.own_teacher]
    own = [one.gpu_memory_utilization * gpus.gib * GIB for one in models if one is config.own_teacher and gpus.gib]
    return max([*own, *(float(size.critic * _element_bytes(model.dtype, gpus)) for model, size in found if size)],
               default=0.0)


def beyond_memory(size: Size, config: Config, gpus: Gpus, judges: float = 0.0) -> list[Problem]:
    """Lists why the trainer and engine of a stage do not fit. judges: bytes of auxiliary models on the same GPU;
    `gpus.gib` must be known. A colocated engine is judged together with the idle trainer once that fits."""
    config = resolved(size, config, gpus, judges)
    trainer = trainer_problem(size, config, gpus, judges) if config.kind.trains else None
    if not trainer and (together := overlap_problem(size, config, gpus, judges)):
        return [together]
    if config.mode == "colocate" and config.kind.trains and not trainer:
        judges += training(size, config, element_bytes(config, gpus)).idle
    engine = engine_problem(size, config, gpus, judges) if config.kind.engine and engine_gpus(config) else None
    return [problem for problem in (trainer, engine) if problem]


def resolved(size: Size, config: Config, gpus: Gpus, judges: float = 0.0) -> Config:
    """Returns the configuration with `auto` of gradient checkpointing resolved, if the GPU's memory is known."""
    if not gpus.gib:
        return config
    element, total = element_bytes(config, gpus), gpus.gib * GIB
    room = USABLE * total - judges - beside(config, total, element * size.parameters)
    chosen = recomputes(size, config, element, room)
    return config.but("trainer.enable_gradient_checkpointing", chosen)


def trainer_problem(size: Size, config: Config, gpus: Gpus, judges: float = 0.0) -> Problem | None:
    """Reports a trainer estimate above USABLE of a GPU, less what auxiliary models and sleeping engines hold there: the
    excess, the parts, and which settings make it fit."""
    element, total = element_bytes(config, gpus), gpus.gib * GIB
    others = {"auxiliary models": judges, "sleeping engines": 0 if must_overlap(config) else
              asleep(config, total, element * size.parameters)}
    room = USABLE * total - sum(others.values())
    found = training(size, config, element)
    if found.peak <= room:
        return None
    less = "".join(f" less {held / GIB:.1f} of {what}" for what, held in others.items() if held)
    return Problem("trainer", f"needs about {found.peak / GIB:.1f} GiB on each GPU ({_parts(found)}), "
                   f"{(found.peak - room) / GIB:.1f} more than {USABLE:.0%} of {gpus.gib:g}{less}.",
                   _advice(size, config, gpus, room))


def tiles_problem(size: Size, config: Config) -> Problem | None:
    """Reports MLPs that are to be computed in parts, of a model without any that can be."""
    shards = config.trainer.tiled_mlp_num_shards
    if shards == 1 or not config.kind.trains or any(layer.tiled for _, layer in size.layers):
        return None
    return Problem("trainer.tiled_mlp_num_shards", "no layer of the model has an MLP of gate_proj, up_proj, down_proj "
                   "and act_fn.", "Set 1.", found=shards)


def four_bits_problem(size: Size, config: Config) -> Problem | None:
    """Reports weights that are to be in 4 bits, of a model whose layers are not held so."""
    if config.model.load_in_4bit and config.kind.trains and size.unheld:
        return Problem("model.load_in_4bit", f"in the model {size.unheld}.", "Set false.", found=True)
    return None


def _breaks_four_bits(config: Config) -> bool:
    """Returns whether settings break the rule of 4 bits; of model.dtype=auto those with the type of a GPU."""
    dtype = "bfloat16" if config.model.dtype == "auto" else config.model.dtype
    return any(four_bits(config.but("model.dtype", dtype)))


def overlap_problem(size: Size, config: Config, gpus: Gpus, judges: float = 0.0) -> Problem | None:
    """Reports `trainer.overlap=true` where trainer, engines and auxiliary models together exceed USABLE of a GPU."""
    if not must_overlap(config):
        return None
    element, settings = element_bytes(config, gpus), config.explorer.rollout_model
    trainer = training(size, config, element).peak
    total, weights = gpus.gib * GIB, element * size.parameters
    excess = trainer + (answering := engines(config, total, weights)) + judges - USABLE * total
    if excess <= 0:
        return None
    of_judges = f" and {judges / GIB:.1f} for auxiliary models" if judges else ""
    share = f"{ENGINE}.gpu_memory_utilization"
    most: float = math.floor(100 * (settings.gpu_memory_utilization - excess / total)) / 100
    if settings.sizes_cache:
        share, room = f"{ENGINE}.kv_cache_mib", settings.held(weights, total) - excess
        most = settings.largest_cache(room, weights, total)
    fits = most > 0 and not beyond_memory(size, config.but(share, most), gpus, judges)
    lower = f"Set {share}={most:g}" if fits else "Lower trainer.max_token_len_per_gpu"
    return Problem("trainer.overlap", f"needs about {trainer / GIB:.1f} GiB for the trainer and "
                   f"{answering / GIB:.1f} for engines{of_judges}, {excess / GIB:.1f} more than {USABLE:.0%} of "
                   f"{gpus.gib:g}.", f"{lower}, or set trainer.overlap=auto.", found=True)


def _advice(size: Size, config: Config, gpus: Gpus, room: float) -> str:
    """Names the settings that make the trainer fit `room` bytes: the least costly, and none that can be left out."""
    element, taken = element_bytes(config, gpus), dict[str, Any]()

    def changed(changes: dict[str, Any]) -> Config:
        return reduce(lambda made, change: made.but(*change), changes.items(), config)

    def peak(changes: dict[str, Any]) -> float:
        return training(size, changed(changes), element).peak

    breaks = _breaks_four_bits(config)  # which is a problem of its own
    for key, value in _changes(size, config, gpus).items():
        more = taken | {key: value}
        if (breaks or not _breaks_four_bits(changed(more))) and peak(taken) > room and peak(more) < peak(taken):
            taken = more
    for key in list(taken):
        without = {name: value for name, value in taken.items() if name != key}
        taken = without if without and peak(without) <= max(room, peak(taken)) else taken
    if not taken:
        return "No setting of the trainer lowers it: take a smaller model, shorter sequences, or larger GPUs."
    lasting = {"model.dtype": "bfloat16"} if "model.load_in_4bit" in taken and config.model.dtype == "auto" else {}
    listed = " ".join(f"{key}={str(value).lower()}" for key, value in (taken | lasting).items())
    lacks = "" if peak(taken) <= room else ": take a smaller model too, shorter sequences, or larger GPUs"
    return f"With {listed} about {peak(taken) / GIB:.1f} GiB{lacks}."


def _changes(size: Size, config: Config, gpus: Gpus) -> dict[str, Any]:
    """Maps settings that may save memory to values, the least costly first."""
    settings = config.trainer
    changes = {"trainer.logprob_chunk_tokens": min(settings.logprob_chunk_tokens, 1024),
               "trainer.max_token_len_per_gpu": max(settings.max_token_len_per_gpu // 2, workload(config).longest),
               "trainer.enable_gradient_checkpointing": True, "algorithm.optimizer.optimizer_type": "adamw8bit",
               "model.load_in_4bit": True, "trainer.offload_optimizer": True,
               "trainer.ranks": 2 * settings.ranks, "trainer.zero_stage": 3}
    possible = gpus.count is None or (
        held_gpus(config.kind, config.but("trainer.ranks", 2 * settings.ranks)) <= gpus.count)
    left_out = {"trainer.ranks": not possible, "model.load_in_4bit": size.unheld or config.model.load_in_4bit,
                "algorithm.optimizer.optimizer_type": config.algorithm.optimizer.optimizer_type != "adamw"}
    return {key: value for key, value in changes.items() if not left_out.get(key)}


def engine_problem(size: Size, config: Config, gpus: Gpus, others: float = 0) -> Problem | None:
    """Reports an engine whose memory share is too small for weights and one sequence, or too large for its GPU.

    others: bytes that an idle trainer and auxiliary models hold on the same GPU.
    """
    element, settings = element_bytes(config, gpus), config.explorer.rollout_model
    engine, longest, whole = rollout(size, config, element, gpus.gib), workload(config).longest, gpus.gib * GIB
    weights, cache, number = element * size.parameters, engine.token * longest, engine.number
    needed, held, more = engine.weights + cache, settings.held(weights, whole), besides(config, whole, weights)
    room = whole - others - sum(more.values())
    if needed <= engine.share and held <= room:
        return None
    key, unit, parts = "gpu_memory_utilization", "", ""
    if settings.sizes_cache:
        key, unit, least = "kv_cache_mib", " MiB", max(math.ceil(cache / 2**20), 1)
        most = settings.largest_cache(room, weights, whole)
        parts = f" (and {ENGINE_BYTES / GIB:.1f} GiB for graphs and activations, {held / number / GIB:.1f} GiB in all)"
    else:
        most = math.floor(100 * room / whole) / 100
        least = math.ceil(100 * settings.merged({key: most}).on_gpu(weights, whole) * needed / whole) / 100
    advice = f"Set it between {least} and {most}{unit}." if least <= most else (
        "Raise explorer.rollout_model.tensor_parallel_size, or take a smaller model or larger GPUs"
        f"{', or mode=both with separate GPUs' if config.mode == 'colocate' else ''}.")
    who = "the engine" if number == 1 else f"each of {number} engines"
    return Problem(f"{ENGINE}.{key}", f"{who} has {engine.share / GIB:.1f} of {gpus.gib:g} GiB on each GPU and needs "
                   f"{needed / GIB:.1f} for weights and one sequence of {longest:,} tokens{parts}; trainer and "
                   f"auxiliary models keep {others / GIB:.1f}{_besides(more)}.", advice, found=getattr(settings, key))


def gpu_words(config: Config, gpus: Gpus) -> str:
    """Formats the number of GPUs a stage uses out of the total."""
    if not gpus.any:
        return (f"none is declared (cluster.gpu_per_node) or visible: a CPU run on {os.cpu_count()} threads; jobs of "
                "SLURM would ask for no GPU")
    needed, ranks = held_gpus(config.kind, config), config.trainer.ranks
    of = "" if gpus.count is None else f" of {gpus.count}"
    if config.kind.only_rewards:
        return f"{needed}{of}: reward models"
    if not config.kind.trains:
        return f"{needed}{of}: the engine"
    if not config.kind.explores:
        return f"{needed}{of}: one for each rank"
    turns = "in turns" if config.mode == "colocate" else "side by side"
    others = all_auxiliary_gpus(config)
    parts = f", engine {engine_gpus(config)} and auxiliary models {others}" if others else (
        f" and engine {engine_gpus(config)}")
    return f"{needed}{of}: trainer {ranks}{parts}, {turns} (mode={config.mode})"


def adapter_words(size: Size, config: Config) -> str | None:
    """Formats an adapter's parameter count and the total; None without an adapter or training."""
    if not (config.model.lora_configs and config.kind.trains):
        return None
    return (f"rank {config.model.lora_configs[0].lora_rank}: trains {size.trained:,} parameters besides the "
            f"model's {size.parameters:,} ({size.trained / size.parameters:.2%})")


def described(size: Size, config: Config, gpus: Gpus) -> list[tuple[str, str]]:
    """Returns the estimate of a stage as (word, sentence) pairs."""
    config, element, lines = resolved(size, config, gpus), element_bytes(config, gpus), []
    if config.kind.trains:
        found, limit = training(size, config, element), f" of {gpus.gib:g}" if gpus.gib else ""
        if not gpus.any:  # what nothing is written to takes no host memory
            found = replace(found, bucket=min(found.bucket, element * size.trained), process=0)
        where = f"{limit} a GPU" if gpus.any else " of host memory a rank"
        lines.append(("memory", f"trainer about {found.peak / GIB:.1f} GiB{where} ({_parts(found)})"))
    if gpus.gib and config.kind.engine and engine_gpus(config):
        lines.append(("" if lines else "memory", _engine_words(size, config, element, gpus.gib)))
    return lines


def _parts(found: Training) -> str:
    """Formats the parts of the peak: those of the backward pass or, when it is higher, of the optimizer step."""
    backward = {"gradients": found.gradients + found.bucket, "activations": found.activations}
    parts = {"process": found.process, "weights": found.weights, "optimizer": found.optimizer, "critic": found.critic,
             **({"optimizer step": found.step} if found.idle + found.leaves + found.step == found.peak else backward)}
    return ", ".join(f"{word} {value / GIB:.1f}" for word, value in parts.items() if value or word not in (
        "process", "critic"))


def _engine_words(size: Size, config: Config, element: int, gib: float) -> str:
    found, longest, total = rollout(size, config, element, gib), workload(config).longest, gib * GIB
    held, more = (one(config, total, element * size.parameters) for one in (engines, besides))
    who, each = ("engine", "") if found.number == 1 else (f"{found.number} engines", "each with ")
    own = f", graphs and activations {ENGINE_BYTES / GIB:.1f}" if config.explorer.rollout_model.sizes_cache else ""
    return (f"{who} {held / GIB:.1f} GiB a GPU: {each}weights {found.weights / GIB:.1f}, cache for "
            f"{found.tokens // longest:,} sequences of {longest:,} tokens{own}{_besides(more)}")


def _besides(held: dict[str, float]) -> str:
    return "".join(f"; {use} {one / GIB:.1f}" for use, one in held.items() if one >= 0.05 * GIB)


def scoring(teacher: Size, config: Config, element: int) -> float:
    """Returns a scoring teacher's bytes on a rank's GPU: its weights, one layer's tensors, a chunk of logits.

    c P + T x what a layer saves per token + (c + 16) chunk V: the logits, and in float32 they, their softmax, its
    product with them and its logarithm's. element: c, bytes of a weight.
    """
    settings = config.trainer
    tokens = settings.max_token_len_per_gpu
    layer = max(layer_tokens(teacher, layer, element, settings.attention) for _, layer in teacher.layers)
    logits = (element + 16) * min(settings.logprob_chunk_tokens, tokens) * teacher.vocabulary
    return element * teacher.parameters + tokens * layer + logits


def teacher_problem(teacher: Size, policy: Size, config: Config, element: int, gib: float) -> Problem | None:
    """Reports a scoring teacher that, with the trainer's persistent memory, exceeds USABLE of a GPU of `gib`."""
    own, kept = scoring(teacher, config, element) / GIB, training(policy, config, element).idle / GIB
    if own + kept <= USABLE * gib:
        return None
    return Problem(TEACHER, f"while it scores, the teacher needs about {own:.1f} GiB on each GPU in addition to "
                   f"{kept:.1f} that the trainer keeps, and both may fill {USABLE:.0%} of {gib:g}.", "Lower "
                   "trainer.max_token_len_per_gpu, set trainer.offload_optimizer=true, or trainer.zero_stage=3 with "
                   "more ranks, or take a smaller teacher.")


def prompt_logits(teacher: Size, config: Config, element: int) -> float:
    """Returns the bytes of the logits of a prompt, or of the piece that an engine of ours computes at once, as vLLM
    holds them within its share: as they are computed and, in float32, they and their log-probs."""
    longest = longest_sequence(config.model)
    return (element + 8) * (min(longest, PROMPT_PIECE) if config.own_teacher else longest) * teacher.vocabulary


def tight_teacher(teacher: Size, config: Config, element: int, gib: float) -> Problem | None:
    """Reports an engine whose share of a GPU of `gib` does not hold its teacher. element: bytes of a weight."""
    one, place = config.own_teacher, config.explorer.auxiliary_models.index(config.own_teacher)
    own = config.but(f"{ENGINE}.engines_per_gpu", 1).but(f"{ENGINE}.kv_cache_mib", None)
    for name in ("tensor_parallel_size", "gpu_memory_utilization"):
        own = own.but(f"{ENGINE}.{name}", getattr(one, name))
    engine = rollout(teacher, own, element, gib)
    cache = engine.token * longest_sequence(config.model)
    needed = (engine.weights + cache + prompt_logits(teacher, config, element)) / GIB
    if needed <= engine.share / GIB:
        return None
    return Problem(f"explorer.auxiliary_models.{place}.gpu_memory_utilization", f"the teacher needs about {needed:.1f} "
                   f"of {gib:g} GiB for its weights, a prompt and its logits.", "Raise it or tensor_parallel_size, or "
                   "take a smaller teacher.", found=one.gpu_memory_utilization)


def teacher_words(teacher: Size, config: Config, element: int) -> str:
    """Describes the cost of a teacher, for the plan."""
    size, logits = element * teacher.parameters / GIB, prompt_logits(teacher, config, element) / GIB
    if config.model.teacher_url is not None:
        return (f"asked at model.teacher_url; that server needs up to {logits:.1f} GiB for the logits of a prompt, "
                f"besides weights of {size:.1f} GiB, and is not counted here")
    if one := config.own_teacher:
        return (f"the model {one.name} of explorer.auxiliary_models: weights of {size / one.tensor_parallel_size:.1f} "
                f"GiB on each of its GPUs, and up to {logits:.1f} GiB for the logits of prompts")
    return (f"{size:.1f} GiB in host memory for each of {config.trainer.ranks} rank(s); on the GPU while it "
            f"scores: about {scoring(teacher, config, element) / GIB:.1f} GiB")
