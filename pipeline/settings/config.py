"""Every setting: its type, meaning, unit, bounds and default, in one place.

The names are those of the Trinity-RFT configuration guide. `conf/` holds choices of values, never a key that is not
declared here. A setting with `how=True` says how a stage runs (devices, memory, logs), not what it makes: it does not
enter the stage's identity, so changing it re-runs nothing.
"""

from functools import cache
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from pipeline.settings.algorithm import ADVANTAGES, KL_ESTIMATORS, POLICY_LOSSES, Algorithm, Critic
from pipeline.settings.data import REWARDS, WORKFLOWS, DataProcessor, ExplorerInput, TrainerInput
from pipeline.settings.setting import Section, section, setting

__all__ = ["ADVANTAGES", "KL_ESTIMATORS", "POLICY_LOSSES", "REWARDS", "WORKFLOWS", "Config", "longest_sequence",
           "resolve_dtype", "walk"]


class Init(Section):
    """A small random model: Qwen2 architecture over a tokenizer with one token per printable ASCII character."""

    enable: bool = setting(False, "make the model instead of reading model_path")
    hidden_size: int = setting(64, "width", ge=8)
    num_hidden_layers: int = setting(3, "layers", ge=1)
    num_attention_heads: int = setting(2, "query heads; hidden_size / heads must be a multiple of 32", ge=1)
    num_key_value_heads: int = setting(2, "key/value heads; must divide num_attention_heads", ge=1)
    intermediate_size: int = setting(256, "width of the gated MLP", ge=8)
    tie_word_embeddings: bool = setting(True, "share the input embedding with the output head")
    rope_theta: float = setting(1e4, "base of the rotary positions; a small one keeps near positions apart", gt=1)


class Lora(Section):
    """LoRA (Hu et al. 2021, arXiv:2106.09685): W + lora_alpha / lora_rank x B A in place of W; only A and B learn."""

    name: str | None = setting(None, "what the engine calls it; null: adapter", how=True)
    path: str | None = setting(None, "peft directory (adapter_config.json, adapter_model.safetensors), or hub id, "
                                     "to begin with; null: a new one, whose B is zero, so that it changes nothing yet")
    lora_rank: int = setting(32, "rows of A, columns of B", ge=1, le=512)
    lora_alpha: int = setting(32, "the product counts lora_alpha / lora_rank", ge=1)
    lora_dtype: str = setting("auto", "A and B have model.dtype, their master weights and the optimizer float32",
                              choices=("auto",), how=True)
    target_modules: str | list[str] = setting(
        "all-linear", "last names of the linear layers that get one, such as [q_proj, v_proj]; all-linear: every one "
                      "but the output head")
    exclude_modules: list[str] = setting([], "last names of layers of target_modules that get none")


class Model(Section):
    model_path: str | None = setting(None, "Hugging Face model directory, or an id of the hub, org/name[@revision]; "
                                           "null with init.enable")
    critic_model_path: str | None = setting(None, "directory or hub id of the model that ppo's critic begins with; "
                                                  "null: the model that the stage begins with")
    teacher_model_path: str | None = setting(None, "what on_policy_distill and jsd learn from: directory or hub id of "
                                             "a model with the policy's tokenizer, or the name of a stage above that "
                                             "trains")
    init: Init = section(Init)
    lora_configs: list[Lora] = setting([], "at most one adapter, which training stages learn in place of all weights; "
                                           "a critic learns all of its own")
    custom_chat_template: str | None = setting(None, "chat template (Jinja) in place of the tokenizer's; the trained "
                                               "model keeps it")
    chat_template_path: str | None = setting(None, "file with a chat template; wins over custom_chat_template")
    enable_thinking: bool | None = setting(None, "handed to the chat template under this name; null: not handed over")
    dtype: str = setting("auto", "weights in training and rollout; auto: bfloat16 on GPU, float32 on CPU",
                         choices=("auto", "float32", "bfloat16"))
    max_prompt_tokens: int = setting(1024, "longest prompt, tokens; a longer one is kept as a marked row", ge=1)
    max_response_tokens: int = setting(1024, "longest response, tokens", ge=1)
    min_response_tokens: int = setting(1, "a response has at least its end token, so 0 and 1 mean the same",
                                       choices=(0, 1), how=True)
    enable_prompt_truncation: bool = setting(
        True, "a prompt over max_prompt_tokens takes no part in the loss: it is kept whole, as a marked row",
        choices=(True,), how=True)
    repetition_penalty: float = setting(1.0, "1 = off: the trainer scores the distribution without it",
                                        choices=(1.0,), how=True)
    max_model_len: int | None = setting(None, "longest sequence, tokens; null: prompt + response", ge=2)
    temperature: float = setting(1.0, "sampling temperature of rollouts; the trainer scores logits / temperature", gt=0)
    top_p: float = setting(1.0, "nucleus sampling bound, 1 = off", gt=0, le=1)
    top_k: int = setting(-1, "sample among the k likeliest tokens, -1 = off", ge=-1)


class Cluster(Section):
    node_num: int = setting(1, "machines", ge=1, le=1, how=True)
    gpu_per_node: int | None = setting(None, "use at most so many of the visible GPUs; null: all", ge=0, how=True)
    gpu_memory_gib: float | None = setting(None, "memory of one GPU, by which `ouro config check` judges a plan; null: "
                                           "that of the visible ones, GiB", gt=0, how=True)


class Buffer(Section):
    batch_size: int = setting(32, "tasks per explorer step", ge=1)
    train_batch_size: int | None = setting(None, "experiences per optimizer step (sft: demonstrations); null: an "
                                                 "explorer step's (sft: batch_size)", ge=1)
    total_epochs: int = setting(1, "passes over the tasks; ignored when total_steps is set", ge=1)
    total_steps: int | None = setting(None, "optimizer steps of the stage (mode=explore: explorer steps)", ge=1)
    explorer_input: ExplorerInput = section(ExplorerInput)
    trainer_input: TrainerInput = section(TrainerInput)


class RolloutModel(Section):
    engine_type: str = setting("vllm", "vllm, transformers (plain generate) or scripted (tests only)",
                               choices=("vllm", "transformers", "scripted"))
    engine_num: int = setting(1, "engines side by side, each with GPUs or CPU cores of its own", ge=1, how=True)
    tensor_parallel_size: int = setting(1, "GPUs per engine", ge=1, how=True)
    gpu_memory_utilization: float = setting(0.9, "share of GPU memory for the engine", gt=0, le=1, how=True)
    kv_cache_mib: int = setting(64, "key/value cache on CPU, MiB", ge=1, how=True)
    max_num_seqs: int = setting(256, "sequences decoded at once", ge=1, how=True)
    enforce_eager: bool = setting(False, "no CUDA graphs: starts sooner, decodes slower", how=True)
    seed: int | None = setting(None, "base of all request seeds; null: the run's seed")
    extra_engine_args: dict[str, Any] = setting({}, "passed to vllm.LLM as they are")


class AuxiliaryModel(Section):
    """A model beside the policy: one that scores responses, for the reward function reward_model."""

    name: str | None = setting(None, "what reward_fn_args.model calls it; needed when there are several")
    model_path: str | None = setting(
        None, "directory or hub id of a sequence classifier with one label and a chat template")
    engine_num: int = setting(1, "copies that score side by side, one GPU each", ge=1, how=True)
    tensor_parallel_size: int = setting(1, "GPUs per copy: a scoring model is not divided", ge=1, le=1, how=True)
    dtype: str = setting("auto", "its weights; auto: bfloat16 on GPU, float32 on CPU",
                         choices=("auto", "float32", "bfloat16"))
    max_model_len: int | None = setting(
        None, "longest conversation, tokens; a longer one fails its row. null: what the model has positions for", ge=1)
    max_token_len: int = setting(16384, "batch budget, padded tokens; a longer conversation is a batch of its own",
                                 ge=1, how=True)


class Explorer(Section):
    rollout_model: RolloutModel = section(RolloutModel)
    auxiliary_models: list[AuxiliaryModel] = setting([], "models beside the policy, which score its responses")
    max_failed_ratio: float = setting(0.1, "share of failed rows in a step above which the stage stops", ge=0, le=1,
                                      how=True)
    env_vars: dict[str, Any] = setting({}, "environment variables of the processes that answer tasks (the explorer, "
                                           "evaluations); a secret: ${oc.env:VARIABLE}")
    eval_interval: int | None = setting(
        None, "trainer steps between evaluations on eval_tasksets, by the explorer of an rft stage while its trainer "
              "waits (at most sync_timeout), each of the first weights it is handed that reached a multiple; null: "
              "never (the guide's 100 would cost time unasked: what a stage made is evaluated in any case)",
        ge=1, how=True)
    bench_on_latest_checkpoint: bool = setting(False, "mode=bench: evaluate the last checkpoint of a stage only",
                                               how=True)
    eval_on_startup: bool = setting(True, "evaluate the model that the first training stage begins with, as a stage "
                                          "of its own (evaluate_base)", how=True)
    max_retry_times: int = setting(0, "further attempts at a task whose reward function raised", ge=0)


class Trainer(Section):
    zero_stage: int = setting(1, "DeepSpeed ZeRO stage", choices=(1, 2, 3), how=True)
    ranks: int = setting(1, "data-parallel processes (one GPU each)", ge=1, how=True)
    max_token_len_per_gpu: int = setting(16384, "micro-batch budget, tokens per rank", ge=1, how=True)
    grad_clip: float = setting(1.0, "largest global gradient norm; 0 = no clipping", ge=0)
    save_interval: int = setting(100, "optimizer steps between checkpoints; the last step is always saved",
                                 ge=1, how=True)
    max_checkpoints_to_keep: int | None = setting(2, "older checkpoints are deleted; null = all are kept", ge=1,
                                                  how=True)
    attention: str = setting("auto", "packed attention; auto: flash_attn if installed, else varlen on GPU, else padded",
                             choices=("auto", "flash_attn", "varlen", "padded"), how=True)
    use_dynamic_bsz: bool = setting(True, "micro-batches are packed to a budget of tokens, never to a number of rows",
                                    choices=(True,), how=True)
    enable_gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass", how=True)
    offload_optimizer: bool = setting(False, "ZeRO-Offload: optimizer states in host memory", how=True)
    critic: Critic = section(Critic)
    critic_warmup: int = setting(0, "first optimizer steps, in which only the critic learns (ppo)", ge=0)
    offload_param: bool = setting(False, "parameters in host memory too; zero_stage=3 only", how=True)
    logprob_chunk_tokens: int = setting(4096, "positions per chunk of the output head", ge=1, how=True)


class Synchronizer(Section):
    sync_method: str = setting("checkpoint", "weights go through files", choices=("checkpoint",))
    sync_style: str = setting("fixed", "who decides when to sync", choices=("fixed",))
    sync_interval: int = setting(1, "trainer steps between two handovers of weights", ge=1)
    sync_offset: int = setting(0, "explorer steps that the explorer may run ahead of the trainer", ge=0)
    sync_timeout: float = setting(1200.0, "longest wait for the other side, seconds", gt=0, how=True)
    probe_tolerance: float | None = setting(
        None, "largest allowed |engine - trainer| log-prob on the probe; null: 1e-3 in float32, 0.5 in bfloat16",
        gt=0, how=True)


class Monitor(Section):
    monitor_type: str = setting("mlflow", "where metrics go", choices=("mlflow", "tensorboard", "wandb", "none"),
                                how=True)
    monitor_args: dict[str, Any] = setting({}, "mlflow: uri; wandb: base_url; secrets: the environment", how=True)


class Log(Section):
    level: str = setting("INFO", "least severe level written", choices=("DEBUG", "INFO", "WARNING", "ERROR"), how=True)


class Sweep(Section):
    max_points: int = setting(64, "points of `ouro run -m` above which it asks to be told so", ge=1, how=True)


class Config(Section):
    project: str = setting("ouroboros", "first part of runs/<project>/<name>")
    name: str = setting("run", "second part of runs/<project>/<name>")
    mode: str = setting("both", "both: explorer and trainer side by side; colocate: they take turns on the same "
                                "devices; explore: the explorer alone, no model is made; train: the trainer alone, on "
                                "what an earlier stage explored (sft: as always); bench: no training, every checkpoint "
                                "kept of the stages before is evaluated",
                        choices=("both", "colocate", "explore", "train", "bench"), how=True)
    continue_from_checkpoint: bool = setting(
        True, "a stage that was cut off goes on from its last checkpoint; false: what it left is deleted and it begins "
              "anew (stages that are complete stay)", how=True)
    checkpoint_root_dir: str = setting(".", "directory that holds store/ and runs/", how=True)
    ignore_validator_suggestions: bool = setting(False, "a GPU memory estimate over the limit is only a warning",
                                                 how=True)
    seed: int = setting(1, "of everything random", ge=0)
    algorithm: Algorithm = section(Algorithm)
    model: Model = section(Model)
    cluster: Cluster = section(Cluster)
    buffer: Buffer = section(Buffer)
    explorer: Explorer = section(Explorer)
    trainer: Trainer = section(Trainer)
    synchronizer: Synchronizer = section(Synchronizer)
    monitor: Monitor = section(Monitor)
    data_processor: DataProcessor = section(DataProcessor)
    log: Log = section(Log)
    sweep: Sweep = section(Sweep)
    stages: list[dict[str, Any]] = setting(
        [], "training stages: stage_name, after, and whatever differs from the settings above, merged key by key; "
            "none: one stage")


# settings that identify a run and configure no stage
RUN_WIDE = ("project", "name", "checkpoint_root_dir", "stages", "sweep")


def resolve_dtype(name: str, gpu: bool) -> str:
    """Returns `model.dtype` as the name of a torch dtype: trainer and engines must agree on it."""
    return ("bfloat16" if gpu else "float32") if name == "auto" else name


def longest_sequence(model) -> int:
    """Returns the tokens of the longest sequence that the section `model` allows."""
    return model.max_model_len or model.max_prompt_tokens + model.max_response_tokens


def elements(kind: Any) -> type[Section] | None:
    """Returns the section type of a list's elements or a mapping's values; None for any other type."""
    *_, element = get_args(kind) if get_origin(kind) in (list, dict) else (None,)
    return element if is_section(element) else None


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


@cache
def walk(kind: type[Section] = Config) -> tuple[tuple[str, FieldInfo], ...]:
    """Yields (dotted key, field) of every setting below `kind`, in order; of lists and mappings under `key.*`."""
    return tuple(_walk(kind, ""))


def _walk(kind: type[Section], prefix: str):
    for name, field in kind.model_fields.items():
        key = prefix + name
        if is_section(field.annotation):
            yield from _walk(field.annotation, key + ".")
        else:
            yield key, field
            if element := elements(field.annotation):
                yield from _walk(element, key + ".*.")
