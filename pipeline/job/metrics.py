"""Monitor metric names for columns of the tables (the names of the Trinity-RFT guide)."""

from collections.abc import Iterable

from ouroboros.pipeline.job.progress import rate
from ouroboros.pipeline.store.records import Rollout, Score, Step


def step_metrics(step: Step) -> dict[str, float]:
    """Returns a step's columns under the names of the Trinity-RFT metrics, without nulls."""
    named = {metric: getattr(step, column) for metric, column in STEP_METRICS.items()}
    named |= {f"actor/{name}": value for name, value in dict(step.statistics).items()}
    named["perf/rollout_tokens_per_second"] = rate(step.rollout_tokens, step.rollout_seconds)
    named["perf/train_tokens_per_second"] = rate(step.trained_tokens, step.train_seconds)
    named["perf/throughput"] = rate(step.trained_tokens, step.seconds)
    return {metric: float(value) for metric, value in named.items() if value is not None}


def rollout_metrics(rollout: Rollout) -> dict[str, float]:
    """Does the same for an explorer step that no trainer step reports."""
    named = {metric: getattr(rollout, column) for metric, column in ROLLOUT_METRICS.items()}
    named["perf/rollout_tokens_per_second"] = rate(rollout.tokens, rollout.rollout_seconds)
    return {metric: float(value) for metric, value in named.items() if value is not None}


def score_metrics(scores: Iterable[Score]) -> dict[str, float]:
    """Returns `eval/<taskset>/<metric>` and the bounds of its interval, of every score."""
    return {f"eval/{score.taskset}/{score.metric}{end}": value for score in scores
            for end, value in (("", score.value), ("/low", score.low), ("/high", score.high))}


STEP_METRICS = {  # metric -> column of Step
    "actor/loss": "loss", "actor/grad_norm": "grad_norm", "actor/lr": "lr", "actor/ppo_kl": "kl",
    "actor/pg_clipfrac": "clip_fraction", "actor/entropy_loss": "entropy", "actor/kl_loss": "kl_loss",
    "actor/kl_coef": "kl_loss_coef",
    "advantage/kl": "kl_penalty", "advantage/kl_coef": "kl_penalty_coef",
    "actor/teacher_kl": "teacher_kl",
    "critic/vf_loss": "vf_loss", "critic/vf_clipfrac": "vf_clipfrac",
    "critic/vf_explained_var": "vf_explained_variance", "critic/grad_norm": "critic_grad_norm",
    "critic/lr": "critic_lr",
    "rollout/reward/mean": "reward", "rollout/accuracy/mean": "solve_rate", "rollout/watch_reward/mean": "watch_reward",
    "rollout/mismatch/mean": "mismatch_mean", "rollout/mismatch/max": "mismatch_max",
    "rollout/mismatch/p95": "mismatch_p95", "rollout/mismatch/outside_clip_range": "mismatch_outside",
    "rollout/mismatch/routed_differently": "routed_differently",
    "rollout/mismatch/kl_rollout_trainer": "kl_rollout_trainer",
    "rollout/mismatch/kl_trainer_rollout": "kl_trainer_rollout",
    "rollout/mismatch/effective_sample_size": "effective_sample_size",
    "rollout/mismatch/corrected_fraction": "corrected_fraction",
    "rollout/zero_variance_groups": "zero_variance_groups", "rollout/failed_rows": "failed_rows",
    "rollout/resampled_groups": "resampled_groups", "rollout/resample_rounds": "resample_rounds",
    "rollout/missing_groups": "missing_groups",
    "response_length/mean": "response_tokens_mean",
    "sample/model_version_drift/max": "staleness_max", "sample/experience_count": "trained_rows",
    "sample/replayed_rows": "replayed_rows", "sample/expert_rows": "expert_rows", "sample/stale_rows": "stale_rows",
    "sample/dropped_rows": "dropped_rows",
    "time/rollout": "rollout_seconds", "time/rollout_tail": "rollout_tail_seconds", "time/sync_weight": "sync_seconds",
    "time/explore_other": "explore_other_seconds", "time/eval": "evaluate_seconds",
    "time/wait_explore_step": "explore_wait_seconds", "time/train_step": "train_seconds",
    "time/publish_weight": "publish_seconds", "time/train_other": "train_other_seconds",
    "time/wait_train_step": "train_wait_seconds", "time/step": "seconds",
    "perf/total_num_tokens": "trained_tokens", "perf/max_memory_allocated_gib": "peak_memory_gib",
    "perf/token_budget": "token_budget", "perf/compiled_graphs": "compiled_graphs",
    "perf/host_memory_gib": "host_memory_gib", "perf/host_load": "host_load",
    "perf/gpu_memory_gib": "gpu_memory_gib", "perf/gpu_load": "gpu_load",
}

ROLLOUT_METRICS = {  # metric -> column of Rollout
    "sample/experience_count": "rows",
    "rollout/failed_rows": "failed_rows", "rollout/resampled_groups": "resampled_groups",
    "rollout/resample_rounds": "resample_rounds", "rollout/missing_groups": "missing_groups",
    "rollout/watch_reward/mean": "watch_reward",
    "time/rollout": "rollout_seconds", "time/rollout_tail": "tail_seconds", "time/explore_other": "other_seconds",
}
