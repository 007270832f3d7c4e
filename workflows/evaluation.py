"""Scores on held-out tasks: greedy accuracy, sampled accuracy, pass@k, each with a 95% interval.

Shared by evaluation stages and the explorer's interim evaluations. A failed response (over-long prompt, reward error)
counts as not solved and is counted in the scores. Where the reward functions return no `accuracy`, the scores are mean
rewards over the responses that have one.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

from ouroboros.operators.statistics import mean_interval, pass_at_k, reward_interval
from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.progress import task_words
from ouroboros.pipeline.job.tasksets import HELD, read_eval
from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.pictures import Kept, Picture, named
from ouroboros.workflows.attempts.concurrency import concurrency_of
from ouroboros.workflows.attempts.recording import EVALUATION, Journal, journal_file
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.engines.open import unshown
from ouroboros.workflows.leakage import prompt_of, training_prompts
from ouroboros.workflows.protocol.engine import Engine
from ouroboros.workflows.protocol.outcomes import Outcome, RewardFunction, Sampling, check_failures, decode
from ouroboros.workflows.protocol.prompts import prompt_tokens
from ouroboros.workflows.protocol.seeds import base_seed, request_seed
from ouroboros.workflows.protocol.sight import with_images
from ouroboros.workflows.protocol.trajectory import Trajectory
from ouroboros.workflows.rewards import Rewards, add_own_rewards
from ouroboros.workflows.single_turn import load_workflows
from ouroboros.workflows.task_at_hand import TaskAtHand, bound, unwritable
from ouroboros.workflows.template_rows import task_prompts

DECODINGS = ("greedy", "sampled")


@dataclass(frozen=True)
class Subject:
    """The weights under evaluation. model: directory name of their stage; step: its trainer step, or 0.

    weights: their hash, where a resumed stage may make others of that step.
    """

    model: str
    step: int
    weights: str = ""


@dataclass(frozen=True)
class EvaluationSet:
    """An evaluation set, ready to sample. taskset: its settings; texts and tokens: its prompts; unwritable: by place,
    why the chat template cannot write one. pictures, rewards: of each task.

    rows: of the set; equal rows are one task. trained: number of its tasks that are in the training data. opener: of
    its reward functions.
    """

    taskset: object
    tasks: list[records.Task]
    rows: int
    trained: int
    texts: list[str]
    tokens: list[list[int]]
    pictures: list[tuple[Picture, ...]]
    unwritable: dict[int, str]
    rewards: list[list[RewardFunction]]
    opener: Rewards


def read_sets(context: Context, tokenizer, rewards: Rewards) -> list[EvaluationSet]:
    """Reads `buffer.explorer_input.eval_tasksets` and applies the chat template.

    Raises DataError when a set has no task. A training stage has the sets as the input `held`, separate from its own
    tasks; an evaluating one as `tasks`.
    """
    inputs, made, learnt = context.inputs, [], training_prompts(context.inputs)
    for taskset in context.config.buffer.explorer_input.eval_tasksets:
        rows = read_eval(curated := inputs.get(HELD, inputs["tasks"]), taskset)
        tasks = list({task.task_id: task for task in rows}.values())
        trained = sum(prompt_of(task.context, task.question, task.pictures, task.answer) in learnt for task in tasks)
        texts, reasons = task_prompts(tokenizer, tasks, context.config)
        pictures = [named(task.pictures, curated) for task in tasks]
        tokens, unseen = with_images(tokenizer, prompt_tokens(tokenizer, texts), pictures, context.activity.alive)
        made.append(EvaluationSet(taskset, tasks, len(rows), trained, texts, tokens, pictures, reasons | unseen,
                                  rewards.by_task(taskset, tasks), rewards))
        _warn(context.log, made[-1])
    return made


def _warn(log, held: EvaluationSet) -> None:
    """Logs warnings about the set's tasks that affect how to read its scores."""
    tasks, name = len(held.tasks), held.taskset.name
    if held.rows > tasks:
        log.info("set %s: %s", name, task_words(tasks, held.rows))
    if held.trained:
        log.warning("%d of the %d tasks of %s are in the training data: its scores are not those of unseen tasks",
                    held.trained, tasks, name)


def evaluate(
    context: Context, engine: Engine, tokenizer, sets: Sequence[EvaluationSet], subject: Subject,
    advance: Callable[[str], None] = lambda done: None,
) -> list[records.Score]:
    """Evaluates the engine's weights on every set, and writes `samples` and `scores` of the step.

    advance: called after each set and decoding. Raises StageError when too many responses failed.
    """
    made: list[list[records.Sample]] = []
    kept = Kept(context.directory / f".shown-{subject.step}-held",
                unshown(context.config, Path(tokenizer.name_or_path)))
    journal = Journal(journal_file(context.directory, EVALUATION, subject.step), {
        "stage": context.id, **asdict(subject)}, context.log.warning)
    for held in sets:
        mine = []
        for decoding in DECODINGS:
            mine += sample(context, engine, tokenizer, held, decoding, subject, journal, kept)
            advance(f"{held.taskset.name} {decoding}")
        _check(context, held, mine)
        made.append(mine)
    own = {one.hash for held in sets for of_task in held.pictures for one in of_task}
    shown = {name for row in chain(*made) for name in row.pictures or ()} - own
    kept.write(context.directory, subject.step, shown, "sample_shown")
    scores = publish(context, sets, made, subject.step)
    journal.remove()
    return scores


def publish(context: Context, sets: Sequence[EvaluationSet], made: Sequence[list[records.Sample]], step: int
            ) -> list[records.Score]:
    """Writes `samples` and `scores` of a step, `scores` last: its presence marks a complete evaluation. made: the
    responses to each set."""
    scores = [replace(one, rows=held.rows, trained_tasks=held.trained)
              for held, mine in zip(sets, made, strict=True) for one in score(mine)]
    tables.write(tables.step_file(context.directory, "samples", step), records.Sample, [*chain(*made)])
    tables.write(tables.step_file(context.directory, "scores", step), records.Score, scores)
    return scores


def sample(
    context: Context, engine: Engine, tokenizer, held: EvaluationSet, decoding: str, subject: Subject,
    journal: Journal, kept: Kept | None = None,
) -> list[records.Sample]:
    """Answers every task: once for greedy decoding, `repeat_times` times for sampled."""
    config, taskset = context.config, held.taskset
    runs = 1 if decoding == "greedy" else taskset.repeat_times or 1
    asked = [index for index in range(len(held.tasks)) for _ in range(runs)]
    seeds = [request_seed(f"{base_seed(config)}/{taskset.name}", 0, slot) for slot in range(len(asked))]
    sampling = _sampling(config, taskset, decoding)
    outcomes = _answer(context, engine, tokenizer, held, decoding, asked, seeds, journal, kept)
    return [
        records.Sample(
            stage=context.id, model=subject.model, step=subject.step, taskset=taskset.name,
            task_id=held.tasks[index].task_id, decoding=decoding, run_index=slot % runs, prompt=held.texts[index],
            response=outcome.response,
            response_tokens=outcome.trajectory.response_tokens if outcome.trajectory else [], reward=outcome.reward,
            accuracy=outcome.accuracy, status=outcome.status, reason=outcome.reason, seed=seeds[slot],
            notes=outcome.noted, temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k,
            min_p=sampling.min_p, pictures=_seen(held.pictures[index], outcome),
        )
        for slot, (index, outcome) in enumerate(zip(asked, outcomes, strict=True))
    ]


def _seen(own: Sequence[Picture], outcome: Outcome) -> list[str] | None:
    """The images of a response's prompt, those that an agent showed among them."""
    done = outcome.trajectory
    shown = own if done is None or done.pictures is None else done.pictures
    return [one.hash for one in shown] if shown or own else None


def _answer(context: Context, engine: Engine, tokenizer, held: EvaluationSet, decoding: str, asked: list[int],
            seeds: list[int], journal: Journal, kept: Kept | None):
    """The rewarded outcomes of the tasks at the positions `asked`."""
    config, taskset = context.config, held.taskset
    source = config.buffer.explorer_input
    sampling = _sampling(config, taskset, decoding)
    tasks = [held.tasks[i] for i in asked]
    loaded = load_workflows(
        taskset.default_workflow_type or source.default_eval_workflow_type or source.default_workflow_type, tasks,
        taskset.workflow_args, config.explorer.max_timeout, context.directory, context.activity.calling)
    workflows = [unwritable(held.unwritable[i]) if i in held.unwritable else
                 bound(workflow, lambda task=task, i=i: TaskAtHand(task, held.rewards[i], tokenizer, config, False,
                                                                   held.pictures[i], kept))
                 for i, task, workflow in zip(asked, tasks, loaded, strict=True)]
    outcomes = roll_out(engine, workflows, [held.tokens[i] for i in asked], seeds, [sampling] * len(asked),
                        concurrency_of(config.explorer), journal,
                        [f"{taskset.name}/{decoding}/{slot}" for slot in range(len(asked))],
                        retries=config.explorer.max_retry_times, pictures=[held.pictures[i] for i in asked])
    with held.opener.judged_by(engine, tokenizer):
        _reward(context, tokenizer, held, asked, outcomes)
    return outcomes


def _reward(context: Context, tokenizer, held: EvaluationSet, asked: list[int], outcomes: list[Outcome]) -> None:
    decode(outcomes, tokenizer)
    add_own_rewards(outcomes, [held.tasks[i] for i in asked], [held.rewards[i] for i in asked], asked, context.config)


def rewarded(context: Context, tokenizer, held: EvaluationSet, stored: Sequence[records.Sample]
             ) -> list[records.Sample]:
    """Returns stored responses to a set with the rewards of its functions. Of a response of one turn alone a sample has
    all that is rewarded. Raises StageError when too many failed."""
    places = {task.task_id: index for index, task in enumerate(held.tasks)}
    asked = [places[one.task_id] for one in stored]
    outcomes = [Outcome("ok", trajectory=Trajectory(held.tokens[i], one.response_tokens, [], [1] * len(
        one.response_tokens), "")) if one.response_tokens else Outcome(one.status, one.reason)
        for i, one in zip(asked, stored, strict=True)]
    _reward(context, tokenizer, held, asked, outcomes)
    made = [replace(one, stage=context.id, model=context.id, reward=outcome.reward, accuracy=outcome.accuracy,
                    status=outcome.status, reason=outcome.reason, notes=outcome.noted)
            for one, outcome in zip(stored, outcomes, strict=True)]
    _check(context, held, made)
    return made


def _check(context: Context, held: EvaluationSet, made: Sequence[records.Sample]) -> None:
    """Warns of responses to a set that failed. Raises StageError when too many did."""
    if failed := check_failures(made, context.config.explorer.max_failed_ratio):
        context.log.warning("warning: %d of %d responses to %s failed and count as unsolved. First, task %s: %s",
                            len(failed), len(made), held.taskset.name, failed[0].task_id, failed[0].reason)


def _sampling(config, taskset, decoding: str) -> Sampling:
    own = taskset.rollout_args
    return Sampling.of(config.model, 0.0, 1.0, -1, own.max_tokens, 0.0) if decoding == "greedy" else Sampling.of_set(
        config.model, own)


# ------------------------------------------------------------------------------------------------------------ scores


def score(samples: list[records.Sample]) -> list[records.Score]:
    """The scores of one evaluation set from its responses, greedy and sampled.

    Accuracies cover the tasks whose responses have the component `accuracy`, or failed. None where all responses
    failed, since it is then unknown whether the rewards have an accuracy.
    """
    rewarded = [s for s in samples if s.status == "ok"]
    blind = all(s.accuracy is None for s in rewarded)
    scores = []
    for decoding in DECODINGS:
        rows = [s for s in samples if s.decoding == decoding]
        failed = sum(row.status != "ok" for row in rows)
        if blind:
            scores += _rewards(decoding, [row for row in rows if row.status == "ok"], failed)
            continue
        solved: dict[str, list[bool]] = {}
        for row in rows:
            if row.accuracy is not None or row.status != "ok":
                solved.setdefault(row.task_id, []).append((row.accuracy or 0.0) >= 1.0)
        if solved:
            scores += _greedy(rows[0], solved, failed) if decoding == "greedy" else _sampled(rows[0], solved, failed)
    return scores


def _rewards(decoding: str, rows: list[records.Sample], failed: int) -> list[records.Score]:
    """The mean over tasks of the mean reward of their responses."""
    of_tasks: dict[str, list[float]] = {}
    for row in rows:
        of_tasks.setdefault(row.task_id, []).append(row.reward)
    if not rows:
        return []
    means = reward_interval([sum(values) / len(values) for values in of_tasks.values()])
    runs = min(map(len, of_tasks.values()))
    return [_score(rows[0], f"{decoding}_reward", means, len(of_tasks), runs, failed)]


def _greedy(row: records.Sample, solved: dict[str, list[bool]], failed: int) -> list[records.Score]:
    values = [float(s[0]) for s in solved.values()]
    return [_score(row, "greedy_accuracy", mean_interval(values), len(solved), 1, failed)]


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
    return records.Score(row.stage, row.model, row.step, row.taskset, metric, value, low, high, tasks, runs, failed)
