#!/usr/bin/env bash
set -x
data=$HOME/data/sums
train_files=${train_files:-"['$data/train.parquet']"}
stamp() {
    date '+%d-%H-%M'
}
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=gae \
    data.train_files="$train_files" data.val_files="['$data/test.parquet']" \
    data.train_batch_size=512 \
    data.max_prompt_length=1024 data.max_response_length=512 \
    actor_rollout_ref.model.path=/models/seven \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    critic.model.path=/models/seven critic.optim.lr=1e-5 \
    trainer.critic_warmup=2 \
    trainer.experiment_name="ppo_$(stamp)" \
    trainer.n_gpus_per_node=8 trainer.nnodes=${NNODES:-1} \
    trainer.save_freq=20 trainer.test_freq=5 trainer.total_epochs=15 $@
