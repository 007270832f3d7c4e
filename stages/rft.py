"""Reinforcement fine-tuning: a resident explorer and trainer that communicate through files.

Reads tasks.parquet and a model; writes experience/, rollouts/, trained/, steps/, weights/, checkpoints/ and model/. The
explorer is stages/explore.py (vLLM), the trainer stages/learn.py (DeepSpeed); pipeline/job/syncs.py decides which
weights generate which rollouts. This process starts both, follows the steps, and ends both when one dies.
"""

from ouroboros.pipeline.job.context import Context, environment
from ouroboros.pipeline.job.devices import visible_gpus
from ouroboros.pipeline.job.shares import cores, share_cores, share_gpus
from ouroboros.pipeline.settings.trainer import may_overlap, runs_ahead
from ouroboros.stages.explorer.children import Child, supervise, trainer_child
from ouroboros.stages.follow import Follower, finish_training, run_followed

BELOW_NORMAL = "1"  # where MPS runs, kernels of engines, short and waited for, take precedence over the trainer's


def work(context: Context) -> None:
    config = context.config
    gpus = visible_gpus(config.cluster.gpu_per_node)
    overlap, engines = runs_ahead(config), config.explorer.rollout_model.engine_num
    explorer_cores, trainer_cores = share_cores(cores(), overlap, bool(gpus), engines)
    trainer = trainer_child(config, trainer_cores)
    explorer = Child("explorer", "ouroboros.stages.explore", explorer_cores,
                     environment=environment(config.explorer.env_vars))
    if gpus and config.cluster.node_num == 1:
        for child, own in zip((explorer, trainer), share_gpus(gpus, config, config.trainer.ranks), strict=True):
            child.environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    if gpus and may_overlap(config):
        trainer.environment.setdefault("CUDA_MPS_CLIENT_PRIORITY", BELOW_NORMAL)
    with Follower(context) as follower:
        supervise(context, [explorer, trainer], follower.poll)
    finish_training(context)


if __name__ == "__main__":
    run_followed(work, __doc__)
