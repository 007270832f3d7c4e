"""What an engine or a trainer would refuse at its start: kernels of GPUs, arguments and parsers that vLLM lacks.

Names of vLLM are read from its source, because importing it takes tens of seconds.
"""

import ast
import importlib.util
import math
import operator
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ouroboros.pipeline.job.devices import Gpus
from ouroboros.pipeline.settings.config import Config, resolve_dtype
from ouroboros.pipeline.settings.explorer import CPU_BLOCK, CPU_CACHE_MIB, RolloutModel
from ouroboros.pipeline.settings.reward_rules import answered
from ouroboros.pipeline.store.architecture import text_part
from ouroboros.pipeline.store.errors import Problem, nearest
from ouroboros.pipeline.store.model_engine import OTHER, engine_problem, images_problem

ENGINE = "explorer.rollout_model"
ARGUMENTS = ("EngineArgs", "AsyncEngineArgs")
WORDS = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
PLAIN = {"int": int, "float": (int, float), "bool": bool, "str": str, "None": type(None)}
HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # widths with kernels: v1/attention/backends/cpu_attn.py
WIDTHS = ("head_dim", "global_head_dim", "swa_head_dim")
MAMBA_1 = {"falcon_mamba", "jamba", "mamba"}
DELTA = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}  # gated delta rule with a kernel for CPUs
TRITON = {"kimi_linear", "olmo_hybrid"}  # gated delta rule without one


def unfit_engine(config: Config, gpus: Gpus) -> list[Problem]:
    """Lists settings of a stage with which it would end when its engine or its trainer starts on this machine."""
    replays = config.algorithm.enable_router_replay and config.kind.learns_from_rollouts
    return [*(_attention(config, gpus) if config.kind.trains else ()), *_engine(config, gpus),
            *(_replay(config, gpus) if replays else ())]


def of_stage(config: Config, plain: dict[str, Any] | None, gpus: Gpus, elsewhere: bool
             ) -> dict[str, list[Problem | None]]:
    """Returns what vLLM cannot do on any machine with such GPUs, and its arguments where another engine is set. plain:
    config.json of the model, where it is here. elsewhere: the run is for another machine."""
    settings, found = config.explorer.rollout_model, []
    if settings.engine_type != "vllm":
        return {"warnings": [] if elsewhere else _beside_another(settings)}
    if plain and (config.kind.explores or config.buffer.explorer_input.eval_tasksets):
        listed = engine_problem(plain, config.model.longest)
        if (unlike := images_problem(plain.get("model_type"))) and any(
                one.format.image_key for _, one in answered(config)):
            listed = listed or unlike
        found.append(listed if listed or gpus.any else cpu_problem(
            plain, resolve_dtype(config.model.dtype, False), settings.extra_engine_args))
    key = "enable_chunked_prefill"
    if not gpus.any and settings.extra_engine_args.get(key):
        found.append(Problem(f"{ENGINE}.extra_engine_args.{key}", "needs a GPU: on a CPU vLLM cannot rewind the random "
                             "generator of a prompt that is prefilled in parts.", "Leave it out.", found=True))
    return {"problems": found}


def _beside_another(settings: RolloutModel) -> list[Problem]:
    """Warns of arguments of vLLM that another engine does not read."""
    given = [name for name in ("extra_engine_args", "batch_invariant", "kv_cache_mib") if getattr(settings, name)]
    return [] if not given or settings.engine_type == "scripted" else [Problem(
        " and ".join(f"{ENGINE}.{name}" for name in given), f"changes nothing with engine_type={settings.engine_type}: "
        "it is of vLLM.", "Take it out, or set engine_type=vllm.")]


def _attention(config: Config, gpus: Gpus) -> Iterator[Problem]:
    name = config.trainer.attention
    if name in ("flash_attn", "varlen") and not gpus.any:
        yield Problem("trainer.attention", "needs a GPU.", "Use auto or padded.", found=name)
    elif name == "flash_attn" and (why := _unusable("flash_attn")):
        yield Problem("trainer.attention", f"the package flash-attn {why}.",
                      "pip install flash-attn for this torch, or set auto.", found=name)


@cache
def _unusable(package: str) -> str | None:
    """Returns why a package of compiled code cannot be imported, or None; tried in a separate process."""
    if not importlib.util.find_spec(package):
        return "is not installed"
    command = [sys.executable, "-P", "-c", f"import {package}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"does not import ({lines[-1]})" if done.returncode else None


def _replay(config: Config, gpus: Gpus) -> Iterator[Problem]:
    """Reports routings that nothing keeps: they are of what a stage itself samples, until it has trained on them."""
    key, engine = "algorithm.enable_router_replay", config.explorer.rollout_model.engine_type
    if not config.kind.is_online:
        yield Problem(key, f"with mode={config.mode}: the routings of what an earlier stage explored are not kept.",
                      "Set false, or mode=both or colocate.", found=True)
    elif engine == "vllm" and not gpus.any:
        yield Problem(key, f"needs a GPU with {ENGINE}.engine_type=vllm: on a CPU vLLM does not return the experts of "
                      "a token.", f"{OTHER} Or set false.", found=True)
    elif engine not in ("vllm", "transformers"):
        yield Problem(key, f"with {ENGINE}.engine_type={engine}, which says no routings.", OTHER, found=True)
    if config.algorithm.sample_strategy == "mix":
        yield Problem(key, "with algorithm.sample_strategy=mix: no engine routed the rows that an expert gave.",
                      "Set one of the two.", found=True)
    if config.explorer.partial_rollout:
        yield Problem(key, "with explorer.partial_rollout, which samples a row by several weights.",
                      "Set one of the two.", found=True)


def _engine(config: Config, gpus: Gpus) -> Iterator[Problem]:
    settings = config.explorer.rollout_model
    if settings.engine_type == "transformers" and settings.tensor_parallel_size > 1:
        yield Problem(f"{ENGINE}.tensor_parallel_size", "the engine transformers is not divided.",
                      "Set it to 1, or engine_type=vllm.", found=settings.tensor_parallel_size)
    if settings.engine_type == "scripted":
        yield Problem(f"{ENGINE}.engine_type", "answers from a table, in tests of Ouroboros; needed an engine of a "
                      "model.", "Set vllm, transformers or openai.", found="scripted")
    if settings.engine_type != "vllm":
        return
    yield from _without_gpus(settings) if not gpus.any else ()
    yield from _batched(config, gpus)
    for name, value in settings.extra_engine_args.items():
        if why := _refused(name, value):
            yield Problem(f"{ENGINE}.extra_engine_args.{name}", why, found=value)
    parser, known = config.explorer.tool_call_parser, _parsers()
    if parser and known and parser not in known:
        yield Problem("explorer.tool_call_parser", f"vLLM has no such parser.{nearest(parser, known)} Known: "
                      f"{', '.join(known)}.", found=parser)


def _batched(config: Config, gpus: Gpus) -> Iterator[Problem]:
    """Reports a batch of tokens in which a prompt, or a token of each sequence, has no place."""
    settings, key = config.explorer.rollout_model, "max_num_batched_tokens"
    least, whole = settings.max_num_seqs, not settings.extra_engine_args.get("enable_chunked_prefill", gpus.any)
    least = max(least, config.model.longest) if whole else least
    if type(tokens := settings.extra_engine_args.get(key)) is int and 0 < tokens < least:
        yield Problem(f"{ENGINE}.extra_engine_args.{key}", f"vLLM needs at least {least}, explorer.rollout_model."
                      f"max_num_seqs{' and the longest sequence of the model' * whole}.", found=tokens)


def memory_here() -> int:
    """Returns the bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _without_gpus(settings) -> Iterator[Problem]:
    if settings.batch_invariant:
        yield Problem(f"{ENGINE}.batch_invariant", "vLLM has such kernels for NVIDIA GPUs alone.", "Set false.",
                      found=True)
    room, cache = memory_here(), settings.kv_cache_mib or CPU_CACHE_MIB
    if cache * settings.engine_num << 20 > room:
        yield Problem(f"{ENGINE}.kv_cache_mib", f"of {settings.engine_num} engine(s): more than this machine's "
                      f"{room / 2**30:,.0f} GiB of memory.", "Lower it.", found=cache)


def _refused(name: str, value) -> str | None:
    """Returns why vLLM does not take an argument. Types that are more than plain ones are left to vLLM."""
    known = _arguments()
    if not known:
        return None
    if name not in known:
        return f"vLLM has no such argument.{nearest(name, known)}"
    parts = [part.strip() for part in known[name].split("|")]
    choices = [_literals().get(part, (None,) if part == "None" else ()) for part in parts]
    if all(choices):
        among = [one for several in choices for one in several]
        needed = f"vLLM needed one of {', '.join(map(str, among))}."
        return None if value in among else needed + nearest(str(value), map(str, among))
    kinds = [PLAIN.get(part) for part in parts]
    if None in kinds:
        return None
    if not any(type(value) is kind if kind in (int, bool) else isinstance(value, kind) for kind in kinds):
        return f"vLLM needs {known[name].replace('None', 'null').replace(' | ', ' or ')}."
    return None if value is None or isinstance(value, (str, bool)) else _beyond(name, value)


def _beyond(name: str, value: float) -> str | None:
    """Returns the bounds of a number that vLLM declares, where it breaks one."""
    bounds = _bounds().get(name, {})
    broken = [f"{WORDS[sign]} {bound}" for sign, bound in bounds.items() if not getattr(operator, sign)(value, bound)]
    return f"vLLM needs a number {' and '.join(broken)}." if broken or not math.isfinite(value) else None


@cache
def _arguments() -> dict[str, str]:
    """Returns the arguments of vllm.LLM and their annotations; empty where vLLM is not installed."""
    found: dict[str, str] = {}
    for node in ast.walk(_source("entrypoints/llm.py")):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            found |= {one.arg: ast.unparse(one.annotation) for one in node.args.kwonlyargs if one.annotation}
    fields = {}
    for node in ast.walk(_source("engine/arg_utils.py")):
        if isinstance(node, ast.ClassDef) and node.name in ARGUMENTS:
            fields |= {one.target.id: ast.unparse(one.annotation) for one in node.body
                       if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    return fields | found if fields else {}


@cache
def _bounds() -> dict[str, dict[str, float]]:
    """Returns the bounds that vLLM's configurations declare: name -> {"ge": 1}."""
    found = {}
    for node in _configurations():
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Call):
            bounds = {one.arg: ast.literal_eval(one.value) for one in node.value.keywords if one.arg in WORDS}
            found |= {node.target.id: bounds} if bounds else {}
    return found


@cache
def _literals() -> dict[str, tuple]:
    """Returns the names that vLLM gives to choices: CacheDType -> ("auto", "bfloat16", ...)."""
    named = {node.targets[0].id: node.value.slice for node in _configurations() if isinstance(node, ast.Assign)
             and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Subscript)
             and ast.unparse(node.value.value) == "Literal"}
    parts = {name: getattr(part, "elts", [part]) for name, part in named.items()}
    return {name: tuple(one.value for one in several) for name, several in parts.items()
            if all(isinstance(one, ast.Constant) for one in several)}


@cache
def _configurations() -> list[ast.AST]:
    """Returns the assignments of vLLM's modules of settings."""
    there = importlib.util.find_spec("vllm")
    places = there.submodule_search_locations or () if there else ()
    return [node for place in places for file in sorted(Path(place, "config").glob("*.py"))
            for node in ast.walk(_source(f"config/{file.name}")) if isinstance(node, ast.Assign | ast.AnnAssign)]


@cache
def _parsers() -> list[str]:
    """Returns vLLM's names of parsers for tool calls; empty where they are unknown."""
    for node in ast.walk(_source("tool_parsers/__init__.py")):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and any(
                isinstance(one, ast.Name) and one.id == "_TOOL_PARSERS_TO_REGISTER" for one in node.targets):
            return sorted(key.value for key in node.value.keys if isinstance(key, ast.Constant))
    return []


def _source(name: str) -> ast.AST:
    """Returns a module of vLLM, parsed; an empty one where it is not there."""
    there = importlib.util.find_spec("vllm")
    path = Path(next(iter(there.submodule_search_locations or ()), "/nowhere"), name) if there else None
    return ast.parse(path.read_text(encoding="utf-8") if path and path.is_file() else "")


def cpu_problem(config: dict[str, Any], dtype: str, arguments: dict[str, Any]) -> Problem | None:
    """Reports a model that vLLM does not run on a CPU. config: config.json, or the section model.init. dtype: of the
    weights. arguments: vLLM's extra ones."""
    said = text_part(config)
    words = next((one for find in (_cpu_layers, _cpu_attention, _cpu_experts)
                  for one in find(said, dtype, arguments)), None)
    return words and Problem("explorer.rollout_model.engine_type", f"vLLM does not run this model on a CPU: {words}.",
                             OTHER, found="vllm")


def _cpu_layers(said: dict[str, Any], dtype: str, arguments: dict[str, Any]) -> Iterator[str]:
    kind = said.get("model_type")
    if kind in MAMBA_1:
        yield "its Mamba-1 layers (selective scan) have kernels for GPUs alone"
    if kind in TRITON:
        yield "its linear attention needs Triton"
    if kind in DELTA and _any(said, "linear_attention"):
        if dtype != "bfloat16":
            yield f"its linear attention is computed in bfloat16 alone, and model.dtype is {dtype}"
        for key in ("linear_key_head_dim", "linear_value_head_dim"):
            if said.get(key, 0) % 32:
                yield f"heads of its linear attention are {said[key]} wide ({key}); needed a multiple of 32"


def _cpu_attention(said: dict[str, Any], dtype: str, arguments: dict[str, Any]) -> Iterator[str]:
    if said.get("index_topk"):
        yield "its sparse attention (index_topk) has kernels for GPUs alone"
    block = arguments.get("block_size", CPU_BLOCK) or 128  # vLLM's default
    block = block if type(block) is int else CPU_BLOCK  # which another rule refuses
    if block % CPU_BLOCK:
        yield f"blocks of its cache have a multiple of {CPU_BLOCK} tokens, and extra_engine_args.block_size is {block}"
    if (chunk := said.get("attention_chunk_size")) and chunk % block:
        yield f"its attention goes by chunks of {chunk} tokens (attention_chunk_size); needed a multiple of {block}"
    if said.get("kv_lora_rank") and said.get("model_type") != "minicpm3":
        yield ("its latent attention (kv_lora_rank) gives other log-probs there than transformers, with random weights "
               "by 2 to 4 nats")
        return
    heads, hidden = said.get("num_attention_heads"), said.get("hidden_size")
    widths = {key: said[key] for key in WIDTHS if said.get(key)} if heads else {}
    if heads and hidden and "head_dim" not in widths:
        widths["hidden_size / num_attention_heads"] = hidden // heads
    for key, width in widths.items():
        if width not in HEADS:
            yield f"its attention heads are {width} wide ({key}); kernels are for {', '.join(map(str, HEADS))}"


def _cpu_experts(said: dict[str, Any], dtype: str, arguments: dict[str, Any]) -> Iterator[str]:
    if said.get("model_type") == "nemotron_h" and _any(said, "moe"):
        yield "its experts have no gate, and kernels are for gated ones"


def _any(said: dict[str, Any], kind: str) -> bool:
    """Returns whether some layer is of a kind; as long as config.json lists none, one may be."""
    kinds = said.get("layer_types") or said.get("layers_block_type") or said.get("hybrid_override_pattern")
    return not kinds or kind in kinds or (isinstance(kinds, str) and "E" in kinds)
