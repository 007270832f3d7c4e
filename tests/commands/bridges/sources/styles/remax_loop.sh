cat > config.json <<EOF
{"stage": 3}
EOF
run() {
    local lr=$1
    N=4
    python3 -m verl.trainer.main_ppo \
        algorithm.adv_estimator=remax \
        data.train_files=$HOME/data/sums/train.parquet \
        data.train_batch_size=$(( 128 * N )) \
        actor_rollout_ref.model.path=/models/three \
        actor_rollout_ref.actor.optim.lr=$lr \
        actor_rollout_ref.actor.ppo_mini_batch_size=128 \
        actor_rollout_ref.rollout.n=$N
}
for lr in 1e-6 5e-7; do
    run $lr
done
