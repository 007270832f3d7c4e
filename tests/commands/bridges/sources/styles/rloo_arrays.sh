set -x
DATA=(
    data.train_files=$HOME/data/sums/train.parquet
    data.train_batch_size=1024   # tasks
)
DATA+=( data.max_prompt_length=512 data.max_response_length=1024 )
MODEL=( "actor_rollout_ref.model.path=/models/seven" )
EXTRA="trainer.nnodes=1 trainer.n_gpus_per_node=8"
python3 -u -m verl.trainer.main_ppo \
    algorithm.adv_estimator=rloo \
    "${DATA[@]}" "${MODEL[@]}" \
    actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    algorithm.use_kl_in_reward=True algorithm.kl_penalty=kl algorithm.kl_ctrl.kl_coef=0.001 \
    $EXTRA trainer.save_freq=-1 trainer.total_epochs=2 trainer.total_epochs=15 "$@"
