"""The section `explorer`: the engine that answers tasks, and the models that score answers."""

import math
import re
from collections.abc import Iterator
from typing import Any

from ouroboros.pipeline.settings.arguments.answers import REWARDS, WORKFLOWS
from ouroboros.pipeline.settings.arguments.base import LONGEST
from ouroboros.pipeline.settings.arguments.experience import asks_models
from ouroboros.pipeline.settings.kinds import Kind
from ouroboros.pipeline.settings.remote import Remote
from ouroboros.pipeline.settings.setting import LIMIT, Section, at, rule, section, setting
from ouroboros.pipeline.store.errors import Problem
from ouroboros.pipeline.store.signatures import parameters_of

# of our workflows, those with their own processes
ISOLATED = {"code_reward": "auto", "reasoning_gym_reward": "namespaces"}  # unless the argument isolation says how
BY_THEMSELVES = tuple(name for name, one in WORKFLOWS.items() if one.acts_by_itself)

# arguments of vllm.LLM that the product passes itself -> the setting to use in their place; None: there is none
OWN_ENGINE_ARGS: dict[str, str | None] = {
    **dict.fromkeys(("model", "tokenizer", "revision", "tokenizer_revision"), "model.model_path"),
    "hf_overrides": "model.override_config", "dtype": "model.dtype", "seed": "explorer.rollout_model.seed",
    "max_model_len": "model.max_prompt_tokens, model.max_response_tokens or model.max_model_len",
    **{name: f"explorer.rollout_model.{name}" for name in (
        "max_num_seqs", "tensor_parallel_size", "enforce_eager", "gpu_memory_utilization")},
    **dict.fromkeys(("pipeline_parallel_size", "prefill_context_parallel_size", "nnodes"),
                    "explorer.rollout_model.tensor_parallel_size"),  # the only number of GPUs that is counted
    "kv_cache_memory_bytes": "explorer.rollout_model.kv_cache_mib", "enable_sleep_mode": "mode=colocate",
    **dict.fromkeys(("enable_lora", "max_loras", "max_cpu_loras", "max_lora_rank"), "model.lora_configs"),
    "generation_config": "model.temperature, model.top_p or model.top_k",
    "disable_log_stats": "explorer.runner_concurrency=auto", "trust_remote_code": "model.trust_remote_code",
    **dict.fromkeys(("tokenizer_mode", "structured_outputs_config", "max_logprobs", "logprobs_mode",
                     "worker_extension_cls", "logits_processors", "language_model_only", "skip_tokenizer_init",
                     "hf_config_path", "config_format", "data_parallel_size", "worker_cls")),
}
# those by which an engine quantizes, guesses tokens ahead, attends to others, or has other weights or states than the
# model's: arguments, and names within those that are mappings
OTHER_WEIGHTS = re.compile(r"(?!disable_.*quantiz).*quantiz|.*cache_dtype|.*kv_dtype$|calculate_kv_scales$|"
                           r"spec(ulative)?_|load_format$|model_weights$|model_class_overrides$|use_replayssm$|"
                           r".*stochastic_rounding$|.*attention_dtype$|lora_dtype$|fuse_.*_quant$|.*_per_quant$|"
                           r"(moe|linear)_backend$|inductor_passes$|use_non_causal$|(disable_)?sliding_window$|"
                           r"indexer_sparse_logits$|kv_sharing_fast_prefill$|(watermark|diffusion|hisparse)_config$")
WITHOUT_BITS = re.compile(r"load_in_\dbit$|bnb_|.*quantiz|qat$|.*qlora$|bits$")  # of weights that are trained
FEWER_BITS = re.compile(rf"{WITHOUT_BITS.pattern}|.*(_dtype|_scales|_quant|stochastic_rounding)$|spec(ulative)?_")
OF_FEWER_BITS = ("log-probs of such an engine would be those of another distribution than is trained (weights, cache "
                 "or kernels of fewer bits), or are not proved to be those of the same one (speculation).")
UNPROVED = ("the engine runs the weights as they are trained, one token after the other; it was not proved that it "
            "answers like the trainer otherwise.")
AS_TRAINED = (  # values of theirs that do not: types of models, ways to read their files, kernels for them
    None, False, "auto", [], {}, "bfloat16", "float32", "bf16",
    "safetensors", "fastsafetensors", "runai_streamer", "pt", "npcache",
    "triton", "batched_triton", "triton_unfused", "cutlass", "flashinfer_cutlass", "flashinfer_trtllm", "torch")


def _named(given: dict[str, Any], above: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yields (dotted path, last name, value) of every entry, mappings before what is in them."""
    for name, value in given.items():
        yield f"{above}{name}", str(name), value
        if isinstance(value, dict):
            yield from _named(value, f"{above}{name}.")


def _unproved(name: str) -> str:
    """Returns why an argument of OTHER_WEIGHTS, or a key of WITHOUT_BITS, is refused to engines."""
    return OF_FEWER_BITS if FEWER_BITS.match(name) else UNPROVED


def why_absent(key: str) -> str | None:
    """Returns why there is no setting of this name: it would quantize, or an engine would answer otherwise."""
    place, _, name = key.rpartition(".")
    without_bits = WITHOUT_BITS.match(name)
    if "rollout" in place and (without_bits or OTHER_WEIGHTS.match(name)):
        return _unproved(name)
    if without_bits and place in ("model", "trainer"):
        return "weights are in model.dtype, those that an adapter leaves frozen in 4 bits with model.load_in_4bit=true."
    return "its weights are loaded in its dtype." if without_bits and "auxiliary_models" in place else None


SMALL = 0.2  # share of the engines' memory that the weights of two on a GPU may take
LARGEST = 0.9  # share of a GPU that two engines with caches of a given size may take
ENGINE_BYTES = 4.2 * 2**30  # an engine's context, graphs, activations and workspaces; of 1.5B and 7B (gpu_path.md)


class RolloutModel(Section):
    engine_type: str = setting("vllm", "vllm, transformers (plain generate) or openai (the server of `external`, "
                                       "in evaluations and with mode=explore; depends on time)",
                               choices=("vllm", "transformers", "openai"), unlisted=("scripted",))
    external: Remote = section(Remote)
    engine_num: int = setting(1, "engines side by side, each with its own GPUs or CPU cores", ge=1, how=True)
    tensor_parallel_size: int = setting(1, "GPUs per engine", ge=1, how=True)
    engines_per_gpu: int | str = setting(
        "auto", "vLLM engines that share each GPU and its part gpu_memory_utilization; auto: 2 where both copies of "
                "the weights take at most a fifth of that part, else 1", choices=("auto", 1, 2, 3, 4), how=True)
    gpu_memory_utilization: float = setting(0.9, "share of GPU memory for the engine", gt=0, le=1, how=True)
    kv_cache_mib: int | None = setting(None, "size of each vLLM engine's key/value cache, MiB; null: 64 on a CPU, on a "
                                             "GPU what gpu_memory_utilization leaves", ge=1, how=True)
    max_num_seqs: int = setting(256, "number of sequences decoded at once", ge=1, how=True)
    enforce_eager: bool = setting(False, "no CUDA graphs: starts sooner, decodes slower", how=True)
    batch_invariant: bool = setting(False, "vLLM's kernels whose results do not depend on the batch, so that responses "
                                           "are the same with any number of engines; slower, and NVIDIA GPUs of "
                                           "compute capability 9 or more only", how=True)
    seed: int | None = setting(None, "base of all request seeds; null: the run's seed", acts="never")
    extra_engine_args: dict[str, Any] = setting({}, "arguments passed to vllm.LLM as they are; none that other "
                                                    "settings decide")

    @property
    def sizes_cache(self) -> bool:
        """Whether `kv_cache_mib` decides the size of a cache on a GPU."""
        return self.engine_type == "vllm" and self.kv_cache_mib is not None

    def on_gpu(self, weights: float, total: float) -> int:
        """Returns how many engines share a GPU of `total` bytes. `auto`: one of a small model leaves its GPU idle while
        Python prepares the next decoding step, and a second fills these gaps. weights: bytes of the whole model."""
        if self.engine_type != "vllm":
            return 1
        if self.engines_per_gpu != "auto":
            return self.engines_per_gpu
        part = total * (LARGEST if self.sizes_cache else self.gpu_memory_utilization)
        fits = not self.sizes_cache or 2 * self.bytes_of_one(weights) <= part
        return 2 if 0 < 2 * weights <= SMALL * part and fits and self.tensor_parallel_size == 1 else 1

    def bytes_of_one(self, weights: float) -> float:
        """Returns the bytes that an engine of these weights with `kv_cache_mib` takes on each of its GPUs."""
        return weights / self.tensor_parallel_size + (self.kv_cache_mib << 20) + ENGINE_BYTES

    def held(self, weights: float, total: float) -> float:
        """Returns the bytes of a GPU of `total` that its engines hold. weights: bytes of the whole model."""
        if not self.sizes_cache:
            return self.gpu_memory_utilization * total
        return self.on_gpu(weights, total) * self.bytes_of_one(weights)

    def largest_cache(self, room: float, weights: float, total: float) -> int:
        """Returns the `kv_cache_mib` with which engines take `room` bytes of a GPU of `total`: with auto of the number
        that fits with the smallest caches, for a smaller cache may make room for a second engine."""
        number = self.merged({"kv_cache_mib": 1}).on_gpu(weights, total)
        return self.kv_cache_mib + math.floor((room / number - self.bytes_of_one(weights)) / 2**20)

    @rule
    def _own_arguments(self):
        for name in sorted(OWN_ENGINE_ARGS.keys() & self.extra_engine_args.keys()):
            use = OWN_ENGINE_ARGS[name]
            yield Problem(f"extra_engine_args.{name}", f"is what {use} decides." if use else
                          "is fixed, because training relies on it.", f"Set {use}." if use else "Leave it out.",
                          found=self.extra_engine_args[name])
        for path, name, value in _named(self.extra_engine_args):
            if OTHER_WEIGHTS.match(name) and value not in AS_TRAINED:
                yield Problem(f"extra_engine_args.{path}", _unproved(name), "Leave it out.", found=value)


# tokens of a block of a CPU's cache, which rows of a prompt share whole: the least of its kernels (vLLM's default: 128)
CPU_BLOCK = 32
CPU_CACHE_MIB = 64  # of an engine without kv_cache_mib
PROMPT_PIECE = 1024  # tokens of a teacher's prompts that its engine computes at once on a GPU


class AuxiliaryModel(Section):
    """A model besides the policy: a sequence classifier with one label scores responses (reward_model); any other model
    is served to judge_reward and to workflows with a parameter `auxiliary_models`, or is a teacher
    (model.teacher_name)."""

    name: str | None = setting(None, "name of the model in reward_fn_args: `model` of reward_model, `judge_model` of "
                                     "judge_reward; needed when there are several")
    model_path: str | None = setting(None, "directory or hub id of the model; all but a teacher need a chat template",
                                   acts="never")
    engine_type: str = setting("vllm", "engine of a chat model or teacher: vllm or transformers (plain generate)",
                               choices=("vllm", "transformers"))
    engine_num: int = setting(1, "number of copies that share the requests, each with its own GPUs", ge=1, how=True)
    tensor_parallel_size: int = setting(1, "GPUs per copy; a model that scores is not divided", ge=1, how=True)
    gpu_memory_utilization: float = setting(0.9, "share of GPU memory for the engine of a chat model or teacher", gt=0,
                                            le=1, how=True)
    dtype: str = setting("auto", "type of the model's weights; auto: bfloat16 on GPU, float32 on CPU",
                         choices=("auto", "float32", "bfloat16"))
    enable_thinking: bool | None = setting(None, "whether the chat template asks a chat model to think; null: as the "
                                                 "template has it")
    max_prompt_tokens: int | None = setting(None, "longest prompt of a chat model, tokens; a longer one is refused. "
                                                  "null: as long as max_model_len allows", ge=1)
    max_response_tokens: int | None = setting(None, "longest reply of a chat model, tokens; null: as long as "
                                                    "max_model_len allows", ge=1)
    max_model_len: int | None = setting(
        None, "longest conversation, tokens; a longer one fails its row. null: of a chat model max_prompt_tokens + "
              "max_response_tokens where both are set, else what the model has positions for", ge=2)
    max_token_len: int = setting(16384, "batch budget of a model that scores, padded tokens; a longer conversation is "
                                        "a batch alone", ge=1, how=True)

    @rule
    def _lengths(self):
        for name in ("max_prompt_tokens", "max_response_tokens"):
            if self.max_model_len and (getattr(self, name) or 0) >= self.max_model_len:
                yield Problem(name, f"needed fewer than max_model_len={self.max_model_len}, which has room for prompt "
                              "and reply.", found=getattr(self, name))


class OverRollout(Section):
    """An explorer step that does not wait for its slowest tasks."""

    ratio: float = setting(0.0, "share of the tasks of an explorer step that it does not wait for: the first groups to "
                                "be complete, a share of 1 - ratio, are its rows; the attempts at the others are "
                                "cancelled. Depends on time; 0: all are waited for", ge=0, acts="never")
    wait_after_min: float = setting(0.0, "time for the other groups once enough are complete, seconds; of more, those "
                                         "that come first in the step are taken", ge=0, le=LONGEST)

    @rule
    def _leaves_some(self):
        if self.ratio >= 1:
            yield Problem("ratio", "a step would be complete without a group; needed less than 1.", found=self.ratio)


class Watch(Section):
    """A second reward, by which nothing is trained."""

    default_reward_fn_type: str | list[str] | None = setting(
        None, "reward functions that score a sample of the attempts of each explorer step (column watch_reward), and "
              "by which nothing is trained; null: none", names=REWARDS)
    reward_fn_args: dict[str, Any] = setting({}, "their arguments: each takes those that it has")
    share: float = setting(0.1, "share of the attempts that they score", gt=0, le=1)


class DynamicTimeout(Section):
    """A limit on the time of an attempt, by the times of those before it."""

    enable: bool = setting(False, "whether an attempt at a training task fails once it has taken `ratio` times the "
                                  "mean of the stage's successful attempts, waits for the engine included. Depends on "
                                  "time")
    ratio: float = setting(3.0, "multiple of that mean after which an attempt has failed", ge=1)
    warmup_min_steps: int = setting(1, "explorer steps without this limit after each start of a stage, whose attempts "
                                       "give the first mean", ge=1)


class Explorer(Section):
    acts = "explorer"
    rollout_model: RolloutModel = section(RolloutModel)
    auxiliary_models: list[AuxiliaryModel] = setting([], "models besides the policy, which score its responses or are "
                                                         "asked by judges and workflows")
    max_failed_ratio: float = setting(0.1, "share of failed rows in a step above which the stage stops", ge=0, le=1,
                                      how=True)
    step_timeout_seconds: float | None = setting(
        None, "time without a sign of life after which the explorer counts as hanging; null: as in "
              "trainer.step_timeout_seconds", **LIMIT, how=True)
    tool_call_parser: str | None = setting(
        None, "vLLM's name of the parser for tool calls in responses, such as hermes, llama3_json or mistral, for "
              "workflows with a parameter `endpoint`; null: by the marks in the chat template, else hermes")
    runner_concurrency: int | str | None = setting(
        None, "attempts in progress at once, at least 1; null: all; auto: as many as the key/value cache of vLLM has "
              "room for, which depends on time. A workflow with a parameter `model` has a process for each", how=True)
    over_rollout: OverRollout = section(OverRollout)
    dynamic_timeout: DynamicTimeout = section(DynamicTimeout)
    watch: Watch = section(Watch)
    partial_rollout: bool = setting(
        False, "answers in progress go on under the next explorer step's weights, as soon as these are published; "
               "mode=both, or mode=colocate with trainer.overlap=true, and synchronizer.sync_offset of at least 1 or "
               "sync_style=trainer_driven. Depends on time")
    trained_roles: list[str] = setting([], "players whose rows are kept and trained, in attempts of several; empty: "
                                           "all")
    max_timeout: float | None = setting(
        None, "time for the code of a workflow in one attempt, or of a reward function in one call, after which the "
              "attempt has failed, seconds; null: none", ge=0.1, le=LONGEST, how=True)
    env_vars: dict[str, Any] = setting({}, "environment variables of the processes that answer tasks (the explorer, "
                                           "evaluations); a secret: ${oc.env:VARIABLE}", acts="never")
    eval_interval: int | None = setting(
        None, "trainer steps between evaluations on eval_tasksets, by the explorer of an rft stage while its trainer "
              "waits (at most sync_timeout), each of the first weights it is handed that reached a multiple; null: "
              "never (the guide's 100 would cost time unasked: what a stage made is evaluated in any case)",
        ge=1, how=True)
    bench_on_latest_checkpoint: bool = setting(False, "whether mode=bench evaluates the last checkpoint of a stage "
                                                      "only",
                                               how=True)
    bench_steps: list[int] | None = setting(
        None, "trainer steps that mode=bench evaluates, of checkpoints or of published versions that were kept "
              "(synchronizer.keep); null: every checkpoint that was kept")
    eval_on_startup: bool = setting(True, "evaluate the model that the first training stage begins with, in the "
                                          "stage evaluate_base", how=True)
    max_retry_times: int = setting(0, "further attempts at a task whose workflow failed, each with its own seed, "
                                      "and further calls of a reward function that raised", ge=0)

    @rule
    def _concurrency(self):
        given, engine = self.runner_concurrency, self.rollout_model.engine_type
        if given == "auto" and engine != "vllm":
            yield Problem("runner_concurrency", f"with engine_type={engine}, which has no key/value cache whose use is "
                          "known.", "Set a number, or null.", found=given)
        elif given is not None and given != "auto" and (isinstance(given, str) or given < 1):
            yield Problem("runner_concurrency", "needed a number of at least 1, auto, or null for all at once.",
                          found=given)

    @rule
    def _bench(self):
        if self.bench_on_latest_checkpoint and self.bench_steps is not None:
            yield Problem("bench_steps", "with bench_on_latest_checkpoint=true, which evaluates the last step alone.",
                          "Leave out one of the two.", found=self.bench_steps)
        if any(step < 0 for step in self.bench_steps or ()):
            yield Problem("bench_steps", "needed numbers of trainer steps, at least 0.", found=self.bench_steps)

    @rule
    def _variables(self):
        for name, value in self.env_vars.items():
            key = f"env_vars.{name}"
            if not re.fullmatch(r"[A-Za-z_]\w*", str(name), re.ASCII):
                yield Problem(key, "needed the name of an environment variable: letters, digits and '_'.")
            if name in OURS:
                yield Problem(key, "is set by the stage itself.", OURS[name])
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                yield Problem(key, "needed a text or a number; a variable holds a text.", "Put the word in quotes.",
                              found=value)
            elif "\0" in str(value):
                yield Problem(key, "needed a text without the character NUL, which no variable can hold.")

    @rule
    def _models_to_ask(self):
        models = self.auxiliary_models
        for i, model in enumerate(models):
            if not model.model_path:
                yield Problem(f"auxiliary_models.{i}.model_path", "needed a Hugging Face directory, found null.")
        names = [model.name for model in models]
        if len(models) > 1 and (None in names or len(set(names)) < len(names)):
            yield Problem("auxiliary_models", f"are named {', '.join(map(str, names))}: needed names that differ.")


def depends_on_time(kind: Kind, config: Any) -> list[str]:
    """Returns the settings in use by which a repeated stage of this kind may have other rows."""
    workflows = _workflows(kind.explores, config) if kind.engine else {}
    on = {"explorer.over_rollout": kind.explores and at(config, "explorer.over_rollout.ratio", 0) > 0,
          "explorer.dynamic_timeout": kind.explores and at(config, "explorer.dynamic_timeout.enable", False),
          "explorer.partial_rollout": kind.is_online and at(config, "explorer.partial_rollout", False),
          "synchronizer.sync_style": kind.is_online and at(config, "synchronizer.sync_style", "fixed") != "fixed",
          "data_processor.experience_pipeline": kind.makes_experience and asks_models(
              at(config, "data_processor.experience_pipeline.operators") or []),
          "data_processor.task_pipeline": "rejected" in kind.writes and asks_models(_curation(config)),
          "explorer.rollout_model.engine_type": kind.engine and at(
              config, "explorer.rollout_model.engine_type") == "openai",
          "explorer.auxiliary_models": any(one.get("judge_model") and not one.get("judge_url")
                                           for _, one in rewarded(kind, config)),
          "buffer.explorer_input.default_reward_fn_type": runs_programs(kind, config) is not None,
          "explorer.runner_concurrency": kind.engine and at(config, "explorer.runner_concurrency") == "auto",
          **{key: asks_by_itself(name) for key, name in workflows.items()}}
    return [key for key, is_on in on.items() if is_on]


def rewarded(kind: Kind, config: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Returns the reward functions of each set that a stage rewards, and their arguments."""
    section = at(config, "buffer.explorer_input") or {}
    several = at(section, "eval_tasksets") or [] if kind.evaluates else [
        at(section, "taskset"), *(at(section, "tasksets") or [])] if kind.makes_experience else []
    return [(at(one, "default_reward_fn_type") or at(section, "default_reward_fn_type") or "",
             at(one, "reward_fn_args") or {}) for one in several if one]


def runs_programs(kind: Kind, config: Any) -> list[str] | None:
    """Returns how functions of ISOLATED isolate what replies run, in each set; None where they reward none."""
    found = [given.get("isolation", ISOLATED[name]) for names, given in rewarded(kind, config)
             for name in ([names] if isinstance(names, str) else names) if name in ISOLATED]
    return found or None


def _curation(config: Any) -> list[dict[str, Any]]:
    """Returns the operators of curation, a recipe as an operator on experience has it."""
    place = "data_processor.task_pipeline"
    return [*(at(config, f"{place}.operators") or []), {"name": "", "args": {
        "config_path": at(config, f"{place}.config_path")}}]


def because_of_time(keys: list[str]) -> str:
    """Returns why a repeated stage may differ: the keys of `depends_on_time`, at least one, in a sentence's end."""
    return f"because {' and '.join(keys)} {'depends' if len(keys) == 1 else 'depend'} on time"


def _workflows(explores: bool, config: Any) -> dict[str, str | None]:
    """Returns the workflows of the sets that a stage answers, by the settings that name them."""
    section = "buffer.explorer_input"
    several = at(config, f"{section}.tasksets") or []
    trained = [f"tasksets.{place}" for place in range(len(several))] or ["taskset"]
    evaluated = [f"eval_tasksets.{place}" for place in range(len(at(config, f"{section}.eval_tasksets") or []))]
    found = {}
    for place in trained if explores else evaluated:
        keys = [f"{place}.default_workflow_type", *([] if explores else ["default_eval_workflow_type"]),
                "default_workflow_type"]
        key = next((one for one in keys if at(config, f"{section}.{one}")), keys[-1])
        found[f"{section}.{key}"] = at(config, f"{section}.{key}")
    return found


def asks_by_itself(workflow: str | None) -> bool:
    """Returns whether attempts of a workflow have their own processes, whose requests come when they come: which are
    computed together depends on time, and with it the last bits of log-probs."""
    if not workflow or ":" not in workflow:
        return workflow in BY_THEMSELVES
    return not {"model", "endpoint", "toolbox", "auxiliary_models"}.isdisjoint(parameters_of(workflow).names())


# environment variables that a stage sets for its explorer, and the alternative for each
OURS = {
    "CUDA_VISIBLE_DEVICES": "Set it where the run is started, or cluster.gpu_per_node.",
    "PYTHONPATH": "Set it where the run is started.",
}
