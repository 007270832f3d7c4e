#!/bin/bash
set -euo pipefail
case "${1:-7b}" in
    7b)  N=8;  NODES=2; TP=2 ;;
    32b) N=16; NODES=8; TP=4 ;;
    *)   echo "which size?" >&2; exit 1 ;;
esac
B=$(( 8 * $(nproc) ))
if [[ "${RANK:-0}" == "0" ]]; then
    ray start --head --port 6379
    python3 -m verl.trainer.main_ppo --config-name=ppo_trainer \
        algorithm.adv_estimator=grpo \
        data.train_files=$HOME/data/sums/train.parquet \
        data.train_batch_size=$B \
        data.max_prompt_length=long \
        actor_rollout_ref.model.path=/models/seven \
        actor_rollout_ref.rollout.n=${N:-5} \
        actor_rollout_ref.rollout.tensor_model_parallel_size=$TP \
        actor_rollout_ref.actor.ppo_mini_batch_size=64 \
        trainer.critic_warmup=3 \
        +ray_kwargs.ray_init.num_cpus=16 \
        trainer.n_gpus_per_node=8 trainer.nnodes=$NODES
else
    ray start --address "$HEAD:6379" --block
fi
