"""The page of every key that the bridges know: docs/trinity-keys.md."""

from pipeline.bridges import verl_async, verl_dapo, verl_keys, verl_sft
from pipeline.bridges.verl_source import ACTOR, ROLLOUT
from pipeline.settings import guide
from pipeline.settings.guide_keys import Refused, Renamed

# keys that say something only together with others, and what they decide
BY_RULES = {
    "algorithm.adv_estimator": "`algorithm.algorithm_type`, `algorithm.advantage_fn` (gae: ppo)",
    "algorithm.norm_adv_by_std_in_grpo": "`algorithm.advantage_fn` (False: dr_grpo)",
    "algorithm.gamma": "`algorithm.advantage_fn_args.gamma`",
    "algorithm.lam": "`algorithm.advantage_fn_args.lam`",
    "algorithm.use_kl_in_reward": "`algorithm.kl_penalty_fn` (False: none), with kl_penalty (kl: k1, mse: k2)",
    "algorithm.kl_ctrl.kl_coef": "`algorithm.kl_penalty_fn_args.kl_coef`; type, target_kl and horizon likewise",
    f"{ACTOR}.use_kl_loss": "`algorithm.kl_loss_fn` (False: none), with kl_loss_type",
    f"{ACTOR}.kl_loss_coef": "`algorithm.kl_loss_fn_args.kl_coef`",
    f"{ACTOR}.clip_ratio": "`clip_range_low` and `clip_range_high` of `algorithm.policy_loss_fn_args`",
    f"{ACTOR}.policy_loss.loss_mode": "`algorithm.policy_loss_fn` (vanilla: ppo)",
    f"{ACTOR}.tis_imp_ratio_cap": "`algorithm.rollout_correction.threshold`, at the level of tokens",
    "algorithm.rollout_correction.rollout_is": "`algorithm.rollout_correction.level` (null: none)",
    "algorithm.rollout_correction.rollout_is_threshold": "`algorithm.rollout_correction.threshold`",
    "algorithm.rollout_correction.bypass_mode": "`algorithm.bypass_old_logprobs`; without weights, and where a step of "
                                                "veRL has several optimizer steps, true",
    f"{ROLLOUT}.do_sample": "always so: rollouts to train on are sampled",
    f"{ACTOR}.ppo_mini_batch_size": "`buffer.batch_size`; times rollout.n: `buffer.train_batch_size`",
    "data.train_batch_size": "`synchronizer.sync_interval`, divided by ppo_mini_batch_size",
    f"{ACTOR}.ppo_max_token_len_per_gpu": "`trainer.max_token_len_per_gpu`",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": "`trainer.max_token_len_per_gpu`, times the longest sequence",
    f"{ACTOR}.optim.lr_warmup_steps": "`algorithm.optimizer.lr_warmup_steps`, times sync_interval",
    "data.train_files": "`buffer.explorer_input.tasksets`, one for each file, with prompt_key, response_key, shuffle",
    "data.val_files": "`buffer.explorer_input.eval_tasksets`, one for each file",
    f"{ROLLOUT}.val_kwargs": "`repeat_times` and `rollout_args` of each evaluation set",
    "trainer.project_name": "`project`",
    "trainer.experiment_name": "`name`",
    "trainer.default_local_dir": "`checkpoint_root_dir`",
    "trainer.critic_warmup": "`trainer.critic_warmup`, times sync_interval",
    "trainer.nnodes": "`cluster.node_num`, which is 1: more machines are said",
    "trainer.save_freq": "`trainer.save_interval` (-1: left out)",
    "trainer.max_actor_ckpt_to_keep": "`trainer.max_checkpoints_to_keep` (0, -1: all, which is null)",
    "trainer.test_freq": "`explorer.eval_interval` (-1: left out)",
    "trainer.total_training_steps": "`buffer.total_steps`, times sync_interval",
    "trainer.logger": "`monitor.monitor_type` (console alone: none)",
}
BUFFER = "buffer.trainer_input.experience_buffer"
SFT_BY_RULES = {
    "data.train_files": f"`{BUFFER}.path`",
    "data.prompt_key": f"`{BUFFER}.format.prompt_key`, with data.prompt_dict_keys the field within it",
    "data.response_key": f"`{BUFFER}.format.response_key`, with data.response_dict_keys the field within it",
    "data.multiturn.enable": f"`{BUFFER}.format.prompt_type`: messages; and every turn is trained on",
    "data.multiturn.messages_key": f"`{BUFFER}.format.messages_key`; data.messages_key likewise",
    "data.max_length": "`model.max_prompt_tokens` and `model.max_response_tokens`",
    "data.micro_batch_size_per_gpu": "`trainer.max_token_len_per_gpu`, times data.max_length",
    "trainer.save_freq": "`trainer.save_interval` (-1: left out)",
    "trainer.max_ckpt_to_keep": "`trainer.max_checkpoints_to_keep` (0, -1: all, which is null)",
    "trainer.total_training_steps": "`buffer.total_steps`",
    **{key: BY_RULES[key] for key in ("trainer.project_name", "trainer.experiment_name", "trainer.default_local_dir",
                                      "trainer.logger", "trainer.nnodes")},
}

HEAD = [
    "",
    "## veRL's keys",
    "",
    "What `ouro import verl FILE` makes of a key, and `ouro import trinity FILE` of one below",
    "`trainer.trainer_config`, unless Trinity-RFT itself sets it from a section of its own. A key that is not listed",
    "has no counterpart that is known; an import names it.",
    "",
    "| veRL | here |",
    "|---|---|",
]


SFT_HEAD = [
    "",
    "## Keys of veRL's SFT trainers",
    "",
    "What they are in a script that starts `verl.trainer.fsdp_sft_trainer` or `verl.trainer.sft_trainer`.",
    "",
    "| veRL | here |",
    "|---|---|",
]


def page() -> str:
    """The tables of the guide's keys, of veRL's, and of its SFT trainers', as one Markdown page."""
    by_rules = BY_RULES | verl_dapo.ROWS | verl_async.ROWS
    lines = [*HEAD, *_rows(verl_keys.KEYS, by_rules), *SFT_HEAD, *_rows(verl_sft.KEYS, SFT_BY_RULES)]
    return guide.page() + "\n".join(lines) + "\n"


def of_verl(key: str) -> str | None:
    """What a key of veRL is here, in the words of the page; None for a key that is not known."""
    if key in (said := BY_RULES | verl_dapo.ROWS | verl_async.ROWS):
        return said[key]
    found = verl_keys.find(key)
    if found is None and (key in SFT_BY_RULES or verl_sft.KEYS.get(key)):
        return SFT_BY_RULES.get(key) or _cell(verl_sft.KEYS[key])
    return _cell(found[1]) if found else None


def _cell(fate: Renamed | Refused) -> str:
    return f"not meant here: {fate.why}" if isinstance(fate, Refused) else f"`{fate.to}`"


def _rows(keys: dict[str, Renamed | Refused], by_rules: dict[str, str]) -> list[str]:
    rows = {key: _cell(fate) for key, fate in keys.items()} | by_rules
    return [f"| `{key}` | {rows[key]} |" for key in sorted(rows)]
