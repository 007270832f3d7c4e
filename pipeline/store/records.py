"""Definitions of the rows exchanged between stages.

A column exists because a field exists here, with its Arrow type and a one-line description. The Parquet
schema, the check on reading and the documentation derive from these classes. `NULL` in a column means what its line
says and nothing else. A column that is added with later=True is null in older files; change a record in any other way
and raise FORMAT: every stage then runs again.
"""

import dataclasses
from dataclasses import dataclass

import pyarrow as pa

from ouroboros.pipeline.store.call_records import Call, Feedback, ToolCall
from ouroboros.pipeline.store.evaluation_records import NOTES, Sample, Score
from ouroboros.pipeline.store.task_records import (
    COMPONENTS,
    FLOATS,
    KEPT,
    PICTURES,
    TOKENS,
    Image,
    Picture,
    Profile,
    RawTask,
    Rejected,
    Selection,
    Task,
    column,
)

FORMAT = 7


@dataclass(slots=True)
class Experience:
    """One response of a model to a task, with everything needed to reproduce it. Never rewritten.

    An attempt of several turns is several rows, from a workflow that returns its turns; they share the columns on the
    attempt: slot, group, run, accuracy, status, seed, and reward with its components, which are of a role where there
    are roles.
    """

    experience_id: str = column(pa.string(), "stage/group_id/run index, and /turn where the workflow returned turns: "
                                             "unique within a run")
    stage: str = column(pa.string(), "stage directory name, with its hash")
    step: int = column(pa.int32(), "explorer step, from 1")
    taskset: str = column(pa.string(), "name of the set that the task is from")
    slot: int = column(pa.int64(), "position of the attempt within the step; trainer batches are cut from (step, slot) "
                                   "by the first slots, as many as rollouts.attempts; rows behind these are never "
                                   "trained")
    task_id: str = column(pa.string(), "task that was answered")
    group_id: str = column(pa.string(), "step/task index, of a fresh task step/task index.round: the rows that one "
                                       "group advantage compares, those of a role with each other")
    run_index: int = column(pa.int32(), "which repeat of the task, from 0; repeat_times: the greedy response")
    resample_round: int = column(pa.int32(), "round of fresh tasks, from 1, that asked it, where groups without "
                                             "variance are replaced (max_resample_rounds); else 0")
    turn: int = column(pa.int32(), "which turn of the attempt, from 0")
    state_hash: str | None = column(pa.string(), "first 16 hex digits of the sha256 of what the workflow calls the "
                                                 "state in which the turn began; null when it tells none apart",
                                    null=True)
    step_reward: float | None = column(pa.float64(), "what the turn earned by itself; null when only the attempt as a "
                                                     "whole is rewarded", null=True)
    prompt: str = column(pa.string(), "prompt as text")
    response: str = column(pa.string(), "response as text")
    prompt_tokens: list[int] = column(TOKENS, "prompt token ids [P]")
    response_tokens: list[int] = column(TOKENS, "response token ids, end of sequence included when sampled [R]")
    rollout_logprobs: list[float] = column(FLOATS, "log-prob of each response token under the sampling policy [R]")
    action_mask: list[int] = column(pa.list_(pa.int8()), "1 where the token is the policy's own act [R]")
    reward: float | None = column(pa.float64(), "sum of the reward components, which are of the attempt's last "
                                                "response; null when the row failed", null=True)
    reward_components: dict = column(COMPONENTS, "each component of the reward by name; empty when the row failed")
    accuracy: float | None = column(
        pa.float64(), "component `accuracy`, 1 = solved; null when the reward function has none", null=True
    )
    status: str = column(pa.string(), "ok: the only rows that are trained; no_variance: of a group that taught nothing "
                                      "and was replaced, or missing in the end (max_resample_rounds); baseline: the "
                                      "greedy response (greedy_baseline); late: of a group that was not complete in "
                                      "time (over_rollout); not_played: without a row of a trained "
                                      "role (trained_roles); prompt_too_long, reward_failed or workflow_failed; "
                                      "no_feedback: recorded by ouro serve, and not rewarded")
    reason: str | None = column(pa.string(), "why the row is not ok; null when it is", null=True)
    finish_reason: str | None = column(pa.string(), "stop or length; null when nothing was generated", null=True)
    weights_version: int = column(pa.int32(), "trainer step that made the weights; 0 = the model the stage began with; "
                                              "with partial_rollout the oldest of weights_versions")
    weights_hash: str = column(pa.string(), "first 16 hex digits of the sha256 over names, types, shapes and xxh3 of "
                                            "all tensors (`hash` in the manifest of the version); with LoRA and for a "
                                            "model that was not trained in the stage, of the weight file")
    config_hash: str = column(pa.string(), "hash of the stage's settings and inputs")
    prompt_hash: str = column(pa.string(), "first 16 hex digits of the sha256 of the prompt token ids")
    commit: str = column(pa.string(), "git commit of the code, '+dirty' when the tree had changes, or 'unknown'")
    engine: str = column(pa.string(), "inference engine and version")
    temperature: float = column(pa.float32(), "sampling temperature")
    top_p: float = column(pa.float32(), "nucleus sampling bound, 1 = off")
    top_k: int = column(pa.int32(), "top-k bound, -1 = off")
    seed: int = column(pa.int64(), "seed of the attempt's first request; those of later turns are made of it")
    unix_seconds: float = column(pa.float64(), "when the row was made, seconds since 1970; not part of its identity")
    notes: str | None = column(pa.string(), NOTES, later=True, default=None)
    weights_versions: list[int] | None = column(
        TOKENS, "weights_version of each response token [R], null in it: of no reply of the model; null: without "
        "partial_rollout", later=True, default=None)
    min_p: float | None = column(pa.float32(), "min-p bound, 0 = off", later=True, default=None)
    kept_tokens: pa.Array | list | None = column(
        KEPT, "token ids that each response token was sampled among [R], none for tokens of no reply; "
        "null: of the whole vocabulary", later=True, default=None)
    token_rewards: list[float] | None = column(
        pa.list_(pa.float64()), "reward of each response token [R], where a reward function rewards single ones; sums "
        "to reward: what the whole response earned is on its last action token; null: none does, or a turn before the "
        "last", later=True, default=None)
    watch_reward: float | None = column(
        pa.float64(), "what explorer.watch gives the attempt, by which nothing is trained; null: not in its sample, or "
        "failed", later=True, default=None)
    pictures: list[str] | None = column(pa.list_(pa.string()), PICTURES, later=True, default=None)
    role: str | None = column(pa.string(), "player whose row and reward it is, in an attempt of several; null: the "
                                           "attempt has no roles", later=True, default=None)


@dataclass(slots=True)
class Trained:
    """The result of one optimizer step for one row: joins to Experience by id, an expert row to Task."""

    experience_id: str = column(pa.string(), "row that was trained on; of an expert task_id/row of its Task")
    train_step: int = column(pa.int32(), "optimizer step, from 1")
    advantage: float = column(pa.float64(), "advantage of every token of the row; the mean where each has its own")
    advantages: list[float] | None = column(
        FLOATS, "advantage of each action token [sum of mask]; null where one number is given to all", null=True)
    is_expert: bool = column(pa.bool_(), "whether an expert gave it, and no policy of this run")
    staleness: int | None = column(pa.int32(), "trainer steps between the weights that made the row (its oldest token, "
                                               "with partial_rollout) and those trained; "
                                               "null: an expert's", null=True)
    use_count: int | None = column(pa.int32(), "train batches that had the row's group before this one, 0 = a new row; "
                                               "null: an expert's", null=True)
    priority: float | None = column(pa.float64(), "by which its group was drawn again; null: not replayed", null=True)
    train_logprobs: list[float] = column(FLOATS, "log-prob of each action token in the training pass [sum of mask]")
    entropies: list[float] | None = column(
        FLOATS, "entropy of the policy at each action token in the training pass, nats [sum of mask]", later=True,
        default=None)


@dataclass(slots=True)
class FixedLogprobs:
    """Outputs of a frozen model for one row of a training stage: joins to Experience by id.

    Table `reference`: the stage's initial model; table `teacher`: that of model.teacher_model_path.
    """

    experience_id: str = column(pa.string(), "row that was scored; of a pair task/row/chosen, task/row/rejected")
    model_hash: str = column(pa.string(), "hash of that model's weight files")
    logprobs: list[float] = column(FLOATS, "log-prob of each action token at the trainer's temperature [sum of mask]")
    top_ids: list[int] | None = column(
        TOKENS, "of each action token the K tokens that the model finds likeliest, -1 for none [sum of mask * K]; "
        "null: no loss reads them", later=True, default=None)
    top_logprobs: list[float] | None = column(
        FLOATS, "their log-probs, and behind each K that of all other tokens together [sum of mask * (K + 1)]; null: "
        "as top_ids", later=True, default=None)


@dataclass(slots=True)
class Step:
    """One optimizer step of a training stage, with the cost of the explorer steps that it uses first.

    Null where a component was not active.
    """

    stage: str = column(pa.string(), "stage directory name, with its hash")
    step: int = column(pa.int32(), "optimizer step, from 1")
    loss: float = column(pa.float64(), "loss of the whole train batch")
    grad_norm: float = column(pa.float64(), "global gradient norm before clipping; 0 while only the critic learns")
    lr: float = column(pa.float64(), "learning rate of this step; 0 while only the critic learns")
    trained_rows: int = column(pa.int32(), "rows in the train batch")
    trained_tokens: int = column(pa.int64(), "tokens through the training forward and backward, prompt included")
    entropy: float | None = column(pa.float64(), "mean entropy of the policy over the trained tokens, nats", null=True)
    reward: float | None = column(pa.float64(), "mean reward of the new rows of the batch", null=True)
    solve_rate: float | None = column(pa.float64(), "mean accuracy of the new rows of the batch", null=True)
    kl: float | None = column(
        pa.float64(), "mean k3 estimate of KL(rollout policy || trained policy) before the update, nats", null=True
    )
    clip_fraction: float | None = column(pa.float64(), "share of tokens whose ratio was clipped", null=True)
    statistics: dict = column(COMPONENTS, "what else the loss says of a token, by name: means over trained tokens; of "
                                          "rollouts or an expert's rows alone over theirs")
    kl_loss: float | None = column(
        pa.float64(), "mean of kl_loss_fn over the trained tokens, nats, before its coefficient", null=True)
    kl_loss_coef: float | None = column(pa.float64(), "its coefficient in this step", null=True)
    kl_penalty: float | None = column(
        pa.float64(), "mean of kl_penalty_fn over the tokens of the batch's rows, nats, before its coefficient",
        null=True)
    kl_penalty_coef: float | None = column(pa.float64(), "its coefficient in this step", null=True)
    teacher_kl: float | None = column(
        pa.float64(), "mean of log policy - log teacher over the trained tokens before the step, nats: an estimate of "
        "KL(policy || teacher)", null=True)
    mismatch_mean: float | None = column(
        pa.float64(), "mean |rollout log-prob - train log-prob| over the tokens of all rows that the policy rolled "
        "out, before the update: of engine and trainer alone where staleness_max is 0, else also of what the policy "
        "moved since; by staleness it can be asked of `trained`", null=True)
    mismatch_max: float | None = column(pa.float64(), "the largest of the same", null=True)
    kl_rollout_trainer: float | None = column(
        pa.float64(), "KL(rollout policy || trained policy) of the same tokens, nats", null=True)
    kl_trainer_rollout: float | None = column(
        pa.float64(), "KL(trained policy || rollout policy) of the same tokens, nats", null=True)
    effective_sample_size: float | None = column(
        pa.float64(), "(sum w)^2 / (n sum w^2) of their n weights, bounded as rollout_correction says, 0 to 1",
        null=True)
    corrected_fraction: float | None = column(
        pa.float64(), "share of the same tokens whose weight is over its threshold", null=True)
    zero_variance_groups: int | None = column(pa.int32(), "groups whose rewards were all equal", null=True)
    failed_rows: int | None = column(pa.int32(), "rows that would have been in the batch, but failed", null=True)
    replayed_rows: int | None = column(pa.int32(), "rows of the batch that were trained on before", null=True)
    expert_rows: int | None = column(pa.int32(), "rows of the batch that an expert gave", null=True)
    stale_rows: int | None = column(pa.int32(), "rows that are not in it, being older than max_staleness", null=True)
    resampled_groups: int | None = column(
        pa.int32(), "groups without variance that gave way to fresh ones; null without max_resample_rounds", null=True)
    resample_rounds: int | None = column(pa.int32(), "rounds of fresh tasks that this took", null=True)
    missing_groups: int | None = column(pa.int32(), "places that even so have no group to train on", null=True)
    response_tokens_mean: float | None = column(pa.float64(), "mean response length, tokens", null=True)
    staleness_max: int | None = column(pa.int32(), "largest staleness in the batch", null=True)
    rollout_seconds: float | None = column(pa.float64(), "generation", null=True)
    rollout_tokens: int | None = column(pa.int64(), "generated tokens", null=True)
    sync_seconds: float | None = column(pa.float64(), "load the published weights and prove them", null=True)
    explore_other_seconds: float | None = column(
        pa.float64(), "explorer: task choice, rewards, rows; waits excluded", null=True
    )
    evaluate_seconds: float | None = column(pa.float64(), "evaluations on the way, by the explorer", null=True)
    explore_wait_seconds: float | None = column(pa.float64(), "explorer: waiting for weights", null=True)
    train_seconds: float = column(pa.float64(), "forward, backward, optimizer")
    publish_seconds: float | None = column(pa.float64(), "write the weights for the explorer", null=True)
    train_other_seconds: float = column(pa.float64(), "trainer: reading, SQL, checkpoints; waits excluded")
    train_wait_seconds: float = column(pa.float64(), "trainer: waiting for experience")
    seconds: float = column(pa.float64(), "wall time from step to step, waits included")
    vf_loss: float | None = column(pa.float64(), "critic: clipped squared error of the batch, halved", null=True)
    vf_clipfrac: float | None = column(pa.float64(), "critic: share of tokens whose clipped error is larger", null=True)
    vf_explained_variance: float | None = column(
        pa.float64(), "critic: 1 - Var(returns - values) / Var(returns) before the step; null also for equal returns",
        null=True)
    critic_grad_norm: float | None = column(pa.float64(), "critic: gradient norm before clipping", null=True)
    critic_lr: float | None = column(pa.float64(), "critic: learning rate of this step", null=True)
    peak_memory_gib: float | None = column(pa.float64(), "peak accelerator memory; null on CPU", null=True)
    token_budget: int | None = column(
        pa.int32(), "largest micro-batch of a rank, tokens: max_token_len_per_gpu, or half of it after a step that the "
        "GPU's memory did not suffice for", later=True, default=None)
    compiled_graphs: int | None = column(
        pa.int32(), "graphs that torch.compile made since the last step", later=True, default=None)
    packing: str | None = column(
        pa.string(), "packed: rows went through the policy as one sequence; rows: by the family's own code", later=True,
        default=None)
    routed_differently: float | None = column(
        pa.float64(), "share of the pairs of a trained token and a layer with experts for which the trainer's router "
        "chose others than the engine's; null: no experts, or the engine does not say them (vLLM says them with "
        "algorithm.enable_router_replay)", later=True, default=None)
    overlap: bool | None = column(
        pa.bool_(), "engines answered on the same devices while it trained (trainer.overlap)", later=True, default=None)
    mismatch_p95: float | None = column(
        pa.float64(), "what 95% of the differences of mismatch_mean do not exceed", later=True, default=None)
    mismatch_outside: float | None = column(
        pa.float64(), "share of the same tokens whose ratio, trained / rollout policy, is outside 0.8 to 1.2, PPO's "
        "usual clip range", later=True, default=None)
    dropped_rows: int | None = column(
        pa.int32(), "rows that would have been in the batch, but were dropped by experience_pipeline; null without it",
        later=True, default=None)
    rollout_tail_seconds: float | None = column(
        pa.float64(), "generation: from the end of 90% of the attempts to that of all", later=True, default=None)
    watch_reward: float | None = column(
        pa.float64(), "mean of what explorer.watch gives attempts of its last explorer step", later=True, default=None)
    host_memory_gib: float | None = column(
        pa.float64(), "memory in use on the trainer's machine, by all of its programs: mean over the step", later=True,
        default=None)
    host_load: float | None = column(
        pa.float64(), "share of its CPUs in use, 0 to 1: mean over the step", later=True, default=None)
    gpu_memory_gib: float | None = column(
        pa.float64(), "memory in use on all of its GPUs: mean over the step", later=True, default=None)
    gpu_load: float | None = column(
        pa.float64(), "share of the time in which its GPUs compute, 0 to 1: mean over the step", later=True,
        default=None)
    start: dict | None = column(
        COMPONENTS, "in the first step of a process: seconds of what came before it, by name, of engines those of the "
        "slowest, unless the step's rollouts are older; engines and trainer start at once", later=True, default=None)


@dataclass(slots=True)
class Rollout:
    """One explorer step and its cost. Its rows are in Experience."""

    stage: str = column(pa.string(), "stage directory name, with its hash")
    step: int = column(pa.int32(), "explorer step, from 1")
    weights_version: int = column(pa.int32(), "trainer step that made the weights it began with")
    attempts: int = column(pa.int32(), "attempts that train batches are cut from, groups x repeats: as many slots")
    rows: int = column(pa.int32(), "rows that train batches are cut from, one for each turn of these attempts")
    failed_rows: int = column(pa.int32(), "of those, failed")
    tokens: int = column(pa.int64(), "generated tokens, those of replaced groups and of greedy responses included")
    rollout_seconds: float = column(pa.float64(), "generation")
    sync_seconds: float = column(pa.float64(), "load the published weights and prove them; 0 when none were due")
    probe_max_difference: float | None = column(
        pa.float64(), "largest |engine - trainer| log-prob on the probe; null when no sync was due", null=True)
    other_seconds: float = column(pa.float64(), "task choice, rewards, rows; files are written during the next step")
    evaluate_seconds: float = column(pa.float64(), "evaluation of its weights before it; 0 when none was due")
    wait_seconds: float = column(pa.float64(), "waiting for weights")
    resampled_groups: int | None = column(
        pa.int32(), "groups without variance that gave way to fresh ones; null without max_resample_rounds", null=True)
    resample_rounds: int | None = column(pa.int32(), "rounds of fresh tasks that this took", null=True)
    missing_groups: int | None = column(pa.int32(), "places that even so have no group to train on", null=True)
    late_groups: int | None = column(pa.int32(), "groups that were not complete in time; null without over_rollout",
                                     later=True, default=None)
    tail_seconds: float | None = column(
        pa.float64(), "generation: from the end of 90% of the attempts to that of all", later=True, default=None)
    watch_reward: float | None = column(
        pa.float64(), "mean of what explorer.watch gives its sample of attempts", later=True, default=None)
    newest_version: int | None = column(
        pa.int32(), "trainer step that made the weights it ended with; null without partial_rollout", later=True,
        default=None)
    start: dict | None = column(COMPONENTS, "in the first step of a process: seconds that the engines took to start, "
                                "by name", later=True, default=None)


def schema(record: type) -> pa.Schema:
    """Returns the Arrow schema of a record with nullability, so that wrong nulls fail on writing and reading."""
    fields = [pa.field(f.name, f.metadata["arrow"], nullable=f.metadata["null"]) for f in dataclasses.fields(record)]
    return pa.schema(fields, metadata={"record": record.__name__, "format": str(FORMAT)})


def later(record: type) -> list[str]:
    """Returns the columns that files written before their introduction lack."""
    return [f.name for f in dataclasses.fields(record) if f.metadata["later"]]


# table name -> record. A table is a view of that name in `ouro sql`.
@dataclass(slots=True)
class Curated:
    """What data_processor.experience_pipeline made of one row that was ok: joins to Experience by id.

    Of an attempt of several turns the last one is judged, of several players that of each, and each of its rows has
    the verdict.
    """

    experience_id: str = column(pa.string(), "row of experience")
    step: int = column(pa.int32(), "explorer step, from 1")
    reward: float = column(pa.float64(), "reward by which advantages are computed; that of experience where no "
                                         "operator changed it")
    scores: dict = column(COMPONENTS, "numbers that operators found, by name, in their order")
    operator: str | None = column(pa.string(), "operator that dropped the row; null: it is kept", null=True)
    reason: str | None = column(pa.string(), "why it was dropped; null: it is kept", null=True)


TABLES: dict[str, type] = {
    "images": Image,
    "pictures": Picture,
    "shown": Picture,
    "raw": RawTask,
    "tasks": Task,
    "rejected": Rejected,
    "experience": Experience,
    "curated": Curated,
    "selection": Selection,
    "profile": Profile,
    "trained": Trained,
    "reference": FixedLogprobs,
    "teacher": FixedLogprobs,
    "steps": Step,
    "rollouts": Rollout,
    "calls": Call,
    "tool_calls": ToolCall,
    "feedback": Feedback,
    "samples": Sample,
    "sample_shown": Picture,
    "scores": Score,
}
