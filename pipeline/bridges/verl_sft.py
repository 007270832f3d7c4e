"""A script that starts veRL's SFT trainer as a recipe of one sft stage: keys, rules, and what its trainers default to.

There are two: fsdp_sft_trainer reads a column of prompts and one of responses, or conversations where
`data.multiturn.enable` says so; sft_trainer reads conversations. A step of both is an optimizer step, as here.
"""

from typing import Any

from pipeline.bridges import verl_adapter, verl_keys, verl_machinery, verl_rules
from pipeline.bridges.source import Given
from pipeline.bridges.translation import SETTINGS
from pipeline.bridges.verl_source import Verl
from pipeline.settings.guide_keys import Refused, Renamed

BUFFER = "buffer.trainer_input.experience_buffer"
OPTIMIZER = "algorithm.optimizer"
_NO_VALIDATION = ("the loss on held-out demonstrations is not measured: name a set with truths in "
                  "buffer.explorer_input.eval_tasksets, and the model's answers to it are scored.")
_OVER_LIMIT = "a demonstration over model.max_prompt_tokens or model.max_response_tokens is left out, and counted."
_CHAT = "the chat template says how a conversation reads: model.custom_chat_template."
_CUT = "a conversation is read by its roles and contents alone."


def _model(name: str) -> Renamed | Refused:
    return verl_keys.KEYS[f"actor_rollout_ref.model.{name}"]


KEYS: dict[str, Renamed | Refused] = {
    "model.partial_pretrain": Renamed("model.model_path"),
    "model.path": Renamed("model.model_path"),
    "model.enable_gradient_checkpointing": Renamed("trainer.enable_gradient_checkpointing"),
    **{f"model.{name}": _model(name) for name in (
        "lora_rank", "lora_alpha", "target_modules", "exclude_modules", "lora_adapter_path", "use_liger",
        "external_lib", "trust_remote_code", "use_shm", "use_remove_padding", "override_config", "tokenizer_path",
        "custom_chat_template")},
    "model.fsdp_config.cpu_offload": Renamed("trainer.offload_optimizer"),
    "model.fsdp_config.offload_params": Renamed("trainer.offload_param"),
    "model.fsdp_config": Refused(verl_keys.BY_ZERO),
    "model.strategy": Refused(verl_keys.BY_ZERO),
    "model": Refused("belongs to the model: change its config.json, or name another model."),
    "_target_": Refused(verl_machinery.OWN_CLASS),
    "engine.param_offload": Renamed("trainer.offload_param"),
    "engine.optimizer_offload": Renamed("trainer.offload_optimizer"),
    "engine.ulysses_sequence_parallel_size": Refused(verl_keys.NO_SPLIT, (1,)),
    "engine": Refused(verl_keys.BY_ZERO),
    "ulysses_sequence_parallel_size": Refused(verl_keys.NO_SPLIT, (1,)),
    "use_remove_padding": Refused(verl_keys.PACKED),
    "optim.lr": Renamed(f"{OPTIMIZER}.lr"),
    "optim.betas": Renamed(f"{OPTIMIZER}.betas"),
    "optim.weight_decay": Renamed(f"{OPTIMIZER}.weight_decay"),
    "optim.warmup_steps_ratio": Renamed(f"{OPTIMIZER}.lr_warmup_steps_ratio"),
    "optim.lr_warmup_steps_ratio": Renamed(f"{OPTIMIZER}.lr_warmup_steps_ratio"),
    "optim.lr_warmup_steps": Renamed(f"{OPTIMIZER}.lr_warmup_steps"),
    "optim.min_lr_ratio": Renamed(f"{OPTIMIZER}.min_lr_ratio"),
    **{f"optim.{name}": Renamed(f"{OPTIMIZER}.lr_scheduler_type", verl_keys.SCHEDULES | {"wsd": "wsd"})
       for name in ("lr_scheduler", "lr_scheduler_type", "warmup_style")},
    "optim.clip_grad": Renamed("trainer.grad_clip"),
    "optim.lr_decay_style": Renamed(f"{OPTIMIZER}.lr_scheduler_type", verl_machinery.DECAY),
    "optim.eps": Renamed(f"{OPTIMIZER}.eps"),
    **{f"optim.{name}": verl_keys.KEYS[f"actor_rollout_ref.actor.optim.{name}"] for name in (
        "optimizer", "optimizer_impl", "override_optimizer_config", "min_lr", "lr_warmup_init", "lr_decay_steps",
        "lr_wsd_decay_style", "lr_wsd_decay_steps", "weight_decay_incr_style", "use_checkpoint_opt_param_scheduler",
        "num_cycles", "zero_indexed_step")},
    "optim": Refused(verl_machinery.ADAM, ("fsdp", "fsdp2", "megatron", "veomni", "torchtitan", "automodel")),
    "optim.total_training_steps": Refused(verl_keys.FOLLOWS),
    "data.train_batch_size": Renamed("buffer.train_batch_size"),
    "data.max_token_len_per_gpu": Renamed("trainer.max_token_len_per_gpu"),
    "data.chat_template": Renamed("model.custom_chat_template"),
    "data.val_files": Refused(_NO_VALIDATION),
    "data.val_batch_size": Refused(_NO_VALIDATION),
    "data.val_max_samples": Refused(_NO_VALIDATION, (-1,)),
    "data.enable_thinking_default": Refused(_CUT),
    **{f"data.{name}": verl_keys.KEYS[f"data.{name}"] for name in (
        "image_patch_size", "mm_processor_kwargs", "apply_chat_template_kwargs.enable_thinking", "sampler")},
    "global_profiler": verl_keys.KEYS["global_profiler"],
    **{f"trainer.{name}": verl_keys.KEYS[f"trainer.{name}"] for name in ("profile_interval", "profile_steps")},
    "data.train_max_samples": Refused("cut the file itself: all demonstrations are trained on.", (-1,)),
    "data.truncation": Refused(_OVER_LIMIT),
    **{f"data.{name}": Refused(_CUT) for name in (
        "multiturn.tools_key", "multiturn.enable_thinking_key", "tools_key", "enable_thinking_key")},
    **{f"data.{name}": Refused(_CHAT) for name in ("apply_chat_template_kwargs", "ignore_input_ids_mismatch")},
    **{f"data.{name}": Refused(verl_keys.BUDGET) for name in (
        "micro_batch_size", "micro_batch_size_per_gpu", "use_dynamic_bsz", "pad_mode", "balance_dp_token")},
    **{f"data.{name}": verl_keys.KEYS[f"data.{name}"] for name in (
        "custom_cls", "use_shm", "trust_remote_code", "dataloader_num_workers", "shuffle", "seed")},
    "data.num_workers": verl_keys.KEYS["data.dataloader_num_workers"],
    "trainer.total_epochs": Renamed("buffer.total_epochs"),
    "trainer.n_gpus_per_node": Renamed("cluster.gpu_per_node"),
    "trainer.seed": Renamed("seed"),
    "trainer.resume_mode": verl_keys.KEYS["trainer.resume_mode"],
    "trainer.test_freq": Refused(_NO_VALIDATION, (-1,)),
    **{f"trainer.{name}": verl_keys.KEYS[f"trainer.{name}"] for name in (
        "default_hdfs_dir", "resume_from_path", "device")},
    "trainer.resume_path": verl_keys.KEYS["trainer.resume_from_path"],
    "trainer.balance_batch": verl_keys.KEYS["trainer.balance_batch"],
    "checkpoint": Refused(verl_keys.OWN_LAYOUT),
    "trainer.checkpoint": Refused(verl_keys.OWN_LAYOUT),
    "hydra": verl_keys.KEYS["hydra"],
    "profiler": verl_keys.KEYS["actor_rollout_ref.actor.profiler"],
}

# veRL's defaults where ours differ: of both trainers, and of the older and the newer one's optimizer
OF_BOTH = {"trainer.total_epochs": 4, "data.train_batch_size": 256}
OLDER = {"optim.lr": 1e-5, "optim.betas": [0.9, 0.95], "optim.lr_scheduler": "cosine",
         "optim.lr_warmup_steps_ratio": 0.1}
NEWER = {"optim.lr": 1e-3}
ALIASES = (("optim.lr_scheduler", "optim.lr_scheduler_type", "optim.warmup_style"),
           ("optim.lr_warmup_steps_ratio", "optim.warmup_steps_ratio", "optim.lr_warmup_steps"),
           ("trainer.total_epochs", "trainer.total_training_steps"))


def algorithm(verl: Verl) -> None:
    verl.algorithm_type = "sft"
    verl.made.choose(("stages", 0, "stage_name"), "sft", "")
    started = verl.entry.module if verl.entry else "its keys are those of veRL's SFT trainer"
    verl.choose("algorithm.algorithm_type", "sft", started)
    verl.choose("mode", "train", "no rollouts are made")


def gpus(verl: Verl, options: dict[str, Given]) -> None:
    """GPUs by torchrun's options, which count; without them by the keys that veRL only notes."""
    for key, given in options.items():
        if verl.value(key) not in (None, given.value):
            verl.made.chosen.append(f"{key}={verl.value(key)}: torchrun's option says {given.value}, which counts.")
        verl.unknown.pop(key, None)
        verl.values[key] = given
    verl_rules.nodes(verl, verl.whole(verl_rules.GPUS, 1))
    if each := verl.whole(verl_rules.GPUS, 1):
        verl.choose("trainer.ranks", each, "all GPUs, one process each")
        verl.choose("trainer.zero_stage", 3, verl_rules.SHARDED)
    else:
        verl.made.chosen.append(f"trainer.ranks is not set: {verl.doubt(verl_rules.GPUS)}.")


def data(verl: Verl) -> None:
    """`data.train_files` as an experience buffer: columns, columns within a column, or conversations."""
    key = "data.train_files"
    files = verl.value(key)
    if isinstance(files, str) and files.startswith("["):
        files = [part.strip(" '\"") for part in files.strip("[]").split(",")]
    if isinstance(files, list) and len(files) == 1:
        files = files[0]
    if key in verl.unknown or isinstance(files, (str, list)):
        verl.say(key, f"{BUFFER}.path", files)
    else:
        verl.leave(key, "needed the path of a file, or a list of them.")
    is_newer = verl.entry.name != "fsdp_sft_trainer" if verl.entry else "data.messages_key" in verl.values
    newer = is_newer and "data.prompt_key" not in verl.values
    if verl.is_on("data.multiturn.enable", newer):
        _conversations(verl)
    else:
        verl.leave("data.multiturn.enable", "said by prompt_type=plaintext.", idle=True)
        verl.leave("data.multiturn.messages_key", "means nothing without data.multiturn.enable=True.", idle=True)
        for name, default in (("prompt", "question"), ("response", "answer")):
            _column(verl, name, default)


def _conversations(verl: Verl) -> None:
    verl.fold("data.multiturn.enable", f"{BUFFER}.format.prompt_type")
    verl.choose(f"{BUFFER}.format.prompt_type", "messages", "conversations: lists of {role, content}")
    key = "data.multiturn.messages_key" if "data.multiturn.messages_key" in verl.values else "data.messages_key"
    verl.say(key, f"{BUFFER}.format.messages_key", verl.value(key, "messages"), default=True)
    verl.choose(f"{BUFFER}.format.enable_concatenated_multi_turn", True, "veRL trains on every turn of the assistant")


def _column(verl: Verl, name: str, default: str) -> None:
    """`data.prompt_key`, and with `data.prompt_dict_keys` the field within it."""
    key, within = f"data.{name}_key", f"data.{name}_dict_keys"
    fields: Any = verl.value(within)
    column = verl.value(key, default)
    if isinstance(fields, list) and len(fields) == 1 and isinstance(column, str):
        column = f"{column}.{fields[0]}"
        verl.fold(within, f"{BUFFER}.format.{name}_key")
    elif fields in (None, []) and within not in verl.unknown:
        verl.leave(within, "off there too: the column itself is read.", idle=True)
    else:
        verl.leave(within, "needed one field: a column leads into a struct here as column.field.")
    verl.say(key, f"{BUFFER}.format.{name}_key", column, default=True)


def lengths(verl: Verl) -> None:
    """One limit of the whole sequence there, one each of prompt and response here; and the rows of a micro-batch."""
    key, budget = "data.max_length", "trainer.max_token_len_per_gpu"
    longest = verl.whole(key, 1024)
    if longest is None:
        verl.say(key, "model.max_prompt_tokens", verl.value(key))
        if key in verl.unknown:
            verl.say(key, "model.max_response_tokens", None)
        verl.made.chosen.append(f"{budget} is not set: {verl.doubt(key)}.")
        return
    verl.say(key, "model.max_prompt_tokens", longest, default=True)
    verl.choose("model.max_response_tokens", longest, key)
    verl.made.chosen.append(f"model.max_prompt_tokens={longest}, model.max_response_tokens={longest}: veRL limits the "
                            "sum, here each has a limit, so that nothing is left out that veRL trains on. Lower them "
                            "where the model has fewer positions than both together.")
    _budget(verl, 2 * longest, longest, budget)


def _budget(verl: Verl, least: int, longest: int, to: str) -> None:
    """The tokens of a micro-batch: the key that says so, else its rows, else our default where that is enough."""
    tokens, note = "data.max_token_len_per_gpu", ", at least a prompt and a response"
    rows = next((k for k in ("data.micro_batch_size_per_gpu", "data.micro_batch_size") if k in verl.values), None)
    if tokens in verl.values:
        given = verl.whole(tokens, None)
        is_short = given is not None and given < least
        verl.say(tokens, to, least if is_short else verl.value(tokens), note if is_short else "")
    elif rows and verl.whole(rows, None):
        verl.say(rows, to, max(verl.whole(rows, None) * longest, least), f" x {longest} tokens{note}")
    elif least > SETTINGS[to].default:
        verl.choose(to, least, note.removeprefix(", "))


def run(verl: Verl) -> None:
    """Names, checkpoints, the length of the run: its steps are optimizer steps, as ours."""
    verl_rules.names(verl, "gsm8k-sft", "checkpoints")
    verl.interval = 1
    verl_rules.interval(verl, "trainer.save_freq", "trainer.save_interval")
    verl_rules.in_optimizer_steps(verl, "trainer.total_training_steps", "buffer.total_steps")
    verl_rules.kept(verl, "trainer.max_ckpt_to_keep")
    verl_rules.monitor(verl)


def adapter(verl: Verl) -> None:
    verl_adapter.adapter(verl, "model")


def defaults(verl: Verl) -> None:
    """Lines for what the script leaves to the defaults of the trainer that it starts, where ours differ."""
    older = verl.entry is None or verl.entry.name == "fsdp_sft_trainer"
    for key, value in (OF_BOTH | (OLDER if older else NEWER)).items():
        same = next((names for names in ALIASES if key in names), (key,))
        if not any(name in verl.values or name in verl.unknown for name in same):
            verl.say(key, KEYS[key].to, value, default=True)


RULES = (algorithm, gpus, data, lengths, adapter, run)
