#!/usr/bin/env bash
set -xeuo pipefail
prompt=$((1024 * 2))
response=$((1024 * 4))
batch=512
many=$((batch * 3))
NNODES=${NNODES:-16}
HOME_OF_DATA=${HOME_OF_DATA:-"${HOME}/verl"}
ray job submit --no-wait --runtime-env="${RUNTIME_ENV:-env.yaml}" \
    -- python3 -m recipe.dapo.main_dapo \
    data.train_files="${HOME_OF_DATA}/math.parquet" data.val_files="${HOME_OF_DATA}/aime.parquet" \
    data.max_prompt_length=${prompt} data.max_response_length=${response} \
    data.gen_batch_size=${many} data.train_batch_size=${batch} \
    algorithm.adv_estimator=grpo \
    algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc \
    algorithm.filter_groups.max_num_gen_batches=10 \
    actor_rollout_ref.model.path=/models/base \
    actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.actor.loss_agg_mode="token-mean" \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((prompt + response)) \
    actor_rollout_ref.rollout.n=16 \
    reward_model.reward_manager=dapo \
    reward_model.overlong_buffer.enable=True reward_model.overlong_buffer.len=$((1024)) \
    reward_model.overlong_buffer.penalty_factor=1.0 \
    trainer.n_gpus_per_node=8 trainer.nnodes="${NNODES}"
