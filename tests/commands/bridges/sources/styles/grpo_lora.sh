set -x
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files=$HOME/data/sums/train.parquet \
    data.train_batch_size=16 data.shuffle=False \
    actor_rollout_ref.model.path=/models/three \
    actor_rollout_ref.model.lora_rank=64 actor_rollout_ref.model.lora_alpha=32 \
    actor_rollout_ref.actor.optim.lr=3e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 \
    actor_rollout_ref.rollout.n=5 actor_rollout_ref.rollout.load_format=safetensors \
    trainer.n_gpus_per_node=2 trainer.nnodes=1 2>&1 | tee lora.log
