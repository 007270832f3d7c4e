"""Evaluates a model on held-out tasks: greedy accuracy, sampled accuracy, pass@k, each with a 95% interval.

Reads tasks.parquet and a model; writes samples.parquet (every response) and scores.parquet. A response that failed
(over-long prompt, reward error) counts as not solved and is counted in the scores.
"""

import os

from operators.statistics import mean_interval, pass_at_k, wilson
from pipeline import checkpoints, records, tables
from pipeline.devices import share_gpus, visible_gpus
from pipeline.errors import DataError
from pipeline.process import Context, run_stage
from pipeline.progress import Progress
from pipeline.tracking import open_tracker
from workflows import runner
from workflows.engine import Engine, open_engine
from workflows.prompts import load_tokenizer, prompt_text, prompt_tokens
from workflows.rewards import RewardFunction, Rewards
from workflows.seeds import base_seed, request_seed
from workflows.single_turn import load_workflow


def read_tasks(context: Context, taskset) -> list[records.Task]:
    """The tasks of an evaluation set. Raises DataError when there is none."""
    rows = tables.read_tasks(context.inputs["tasks"], taskset.split, taskset.limit)
    if not rows:
        path = context.inputs["tasks"] / "tasks.parquet"
        raise DataError(f"evaluation set '{taskset.name}': {path} has no task of split '{taskset.split}'. Let the "
                        "Data-Juicer recipe make one (split_by_hash_mapper), or remove the set.")
    return rows


def sample(
    context: Context, engine: Engine, tokenizer, taskset, rewards: list[RewardFunction], decoding: str
) -> list[records.Sample]:
    """Answers every task: once for greedy decoding, `repeat_times` times for sampled."""
    config, source = context.config, context.config.buffer.explorer_input
    tasks = read_tasks(context, taskset)
    runs = 1 if decoding == "greedy" else taskset.repeat_times or 1
    texts = [prompt_text(tokenizer, task.question, source.system_prompt) for task in tasks]
    tokens = prompt_tokens(tokenizer, texts)
    asked = [index for index in range(len(tasks)) for _ in range(runs)]
    seeds = [request_seed(f"{base_seed(config)}/{taskset.name}", 0, slot) for slot in range(len(asked))]
    workflow = load_workflow(taskset.default_workflow_type or source.default_workflow_type)
    sampling = _sampling(config, taskset, decoding)
    outcomes = runner.roll_out(engine, workflow, [tokens[i] for i in asked], seeds, sampling)
    runner.decode(outcomes, tokenizer)
    runner.reward(outcomes, [tasks[i].question for i in asked], [tasks[i].answer for i in asked], rewards)
    return [
        records.Sample(
            stage=context.id, model=context.inputs["model"].name, taskset=taskset.name, task_id=tasks[index].task_id,
            decoding=decoding, run_index=slot % runs, prompt=texts[index], response=outcome.response,
            response_tokens=outcome.trajectory.response_tokens if outcome.trajectory else [], reward=outcome.reward,
            accuracy=outcome.accuracy, status=outcome.status, reason=outcome.reason, seed=seeds[slot],
        )
        for slot, (index, outcome) in enumerate(zip(asked, outcomes, strict=True))
    ]


def _sampling(config, taskset, decoding: str) -> runner.Sampling:
    own, model = taskset.rollout_args, config.model
    if decoding == "greedy":
        return runner.Sampling.of(model, 0.0, 1.0, -1)
    return runner.Sampling.of(model, own.temperature, own.top_p, own.top_k)


def score(samples: list[records.Sample]) -> list[records.Score]:
    """The scores of one evaluation set from its responses, greedy and sampled.

    Raises DataError when a reward function does not say what is solved: 0% would be a wrong answer.
    """
    scores = []
    blind = next((s for s in samples if s.status == "ok" and s.accuracy is None), None)
    if blind:
        raise DataError(f"evaluation set '{blind.taskset}': its reward function returns no component `accuracy` (task "
                        f"{blind.task_id}), 1 for solved and 0 for not. Add it, or name a function that has it in "
                        "buffer.explorer_input.eval_tasksets.N.default_reward_fn_type.")
    for decoding in ("greedy", "sampled"):
        rows = [s for s in samples if s.decoding == decoding]
        solved: dict[str, list[bool]] = {}
        for row in rows:
            solved.setdefault(row.task_id, []).append((row.accuracy or 0.0) >= 1.0)
        if rows:
            failed = sum(row.status != "ok" for row in rows)
            scores += _greedy(rows[0], solved, failed) if decoding == "greedy" else _sampled(rows[0], solved, failed)
    return scores


def _greedy(row: records.Sample, solved: dict[str, list[bool]], failed: int) -> list[records.Score]:
    hits, count = sum(s[0] for s in solved.values()), len(solved)
    return [_score(row, "greedy_accuracy", (hits / count, *wilson(hits, count)), count, 1, failed)]


def _sampled(row: records.Sample, solved: dict[str, list[bool]], failed: int) -> list[records.Score]:
    runs = min(len(s) for s in solved.values())
    means = mean_interval([sum(s) / len(s) for s in solved.values()])
    scores = [_score(row, "sampled_accuracy", means, len(solved), runs, failed)]
    for k in (2**i for i in range(1, runs.bit_length())):
        values = [pass_at_k(len(s), sum(s), k) for s in solved.values()]
        scores.append(_score(row, f"pass@{k}", mean_interval(values), len(solved), runs, failed))
    return scores


def _score(row: records.Sample, metric: str, interval: tuple, tasks: int, runs: int, failed: int) -> records.Score:
    value, low, high = interval
    return records.Score(row.stage, row.model, row.taskset, metric, value, low, high, tasks, runs, failed)


def work(context: Context) -> None:
    config = context.config
    if gpus := visible_gpus(config):  # not more than it needs: another stage may have the others
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(share_gpus(gpus, config, ranks=0)[0])
    model = checkpoints.model_directory(context.inputs["model"])
    tokenizer = load_tokenizer(model)
    tasksets, opener = config.buffer.explorer_input.eval_tasksets, Rewards(config)
    rewards = [opener.of(taskset) for taskset in tasksets]
    samples: list[records.Sample] = []
    scores: list[records.Score] = []
    with open_tracker(context) as tracker, Progress(context.log, 2 * len(tasksets), "passes", context.name) as progress:
        engine = open_engine(model, config, tokenizer.eos_token_id, logs=context.directory)
        for taskset, functions in zip(tasksets, rewards, strict=True):
            mine = []
            for decoding in ("greedy", "sampled"):
                mine += sample(context, engine, tokenizer, taskset, functions, decoding)
                progress.advance(1, f"{taskset.name} {decoding}")
            runner.check_failures(mine, config.explorer.max_failed_ratio)
            samples += mine
            scores += score(mine)
        engine.close()
        tracker.log_scores(scores, step=0)
    tables.write(context.directory / "samples.parquet", records.Sample, samples)
    tables.write(context.directory / "scores.parquet", records.Score, scores)
    for row in scores:
        context.made[f"{row.taskset}/{row.metric}"] = [round(row.value, 4), round(row.low, 4), round(row.high, 4)]


if __name__ == "__main__":
    run_stage(work, __doc__)
