"""Scores of an evaluation, worked out by hand, and the responses behind them."""

import pytest

from ouroboros.operators.statistics import mean_interval
from ouroboros.pipeline.job.progress import score_words
from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.workflows.attempts.recording import Journal
from ouroboros.workflows.engines.open import open_engine
from ouroboros.workflows.evaluation import Subject, evaluate, read_sets, sample, score
from ouroboros.workflows.protocol.prompts import load_tokenizer
from ouroboros.workflows.rewards import Rewards
from tests.factories import row
from tests.golden.messages import refuses, wording


def samples(decoding: str, **solved: list[float | None]) -> list[records.Sample]:
    return [row(records.Sample, task_id=task, decoding=decoding, run_index=run, accuracy=accuracy, taskset="test",
                status="reward_failed" if accuracy is None else "ok")
            for task, accuracies in solved.items() for run, accuracy in enumerate(accuracies)]


def by_metric(scores: list[records.Score]) -> dict[str, records.Score]:
    return {s.metric: s for s in scores}


def test_greedy_accuracy_is_a_proportion_of_tasks():
    (found,) = score(samples("greedy", a=[1.0], b=[0.0], c=[1.0], d=[None]))
    assert (found.metric, found.value, found.tasks, found.runs, found.failed_rows) == ("greedy_accuracy", 0.5, 4, 1, 1)
    assert (found.value, found.low, found.high) == mean_interval([1.0, 0.0, 1.0, 0.0])


def test_sampled_accuracy_and_pass_at_k():
    """a 2 of 4, b 0 of 4, c 4 of 4. Accuracy (1/2 + 0 + 1) / 3. pass@2: a 1 - C(2,2)/C(4,2) = 5/6; pass@4: a 1."""
    scores = score(samples("sampled", a=[1.0, 0.0, 1.0, 0.0], b=[0.0] * 4, c=[1.0] * 4))
    found = by_metric(scores)
    assert list(found) == ["sampled_accuracy", "pass@2", "pass@4"]
    assert found["sampled_accuracy"].value == pytest.approx(0.5)
    assert found["pass@2"].value == pytest.approx((5 / 6 + 0 + 1) / 3)
    assert found["pass@4"].value == pytest.approx(2 / 3)
    assert all(s.low <= s.value <= s.high and (s.tasks, s.runs) == (3, 4) for s in scores)


@pytest.mark.parametrize(("runs", "metrics"), [(1, 1), (2, 2), (3, 2), (7, 3), (8, 4)])
def test_pass_at_powers_of_two_that_there_are_responses_for(runs, metrics):
    assert len(score(samples("sampled", a=[1.0] * runs))) == metrics


def test_a_failed_response_is_not_solved_and_a_part_of_one_neither():
    (found,) = score(samples("sampled", a=[None], b=[0.9], c=[1.0]))
    assert found.value == pytest.approx(1 / 3)
    assert found.failed_rows == 1


def rewarded(decoding: str, **rewards: list[float | None]) -> list[records.Sample]:
    return [row(records.Sample, task_id=task, decoding=decoding, reward=reward, accuracy=None, taskset="test",
                status="reward_failed" if reward is None else "ok")
            for task, values in rewards.items() for reward in values]


def test_without_an_accuracy_the_mean_reward_of_what_could_be_rewarded_is_shown():
    """Means of the tasks: 2 and -1, so 0.5; their deviation is 1.5 sqrt(2), the standard error 1.5,
    Student's t of two tasks 12.706. c failed."""
    greedy, sampled = score([*rewarded("greedy", a=[3.0], b=[3.0]),
                             *rewarded("sampled", a=[1.0, 3.0], b=[-1.0, None], c=[None, None])])
    assert (greedy.metric, greedy.value, greedy.low, greedy.high) == ("greedy_reward", 3.0, 3.0, 3.0)
    assert (sampled.metric, sampled.value, sampled.tasks, sampled.failed_rows) == ("sampled_reward", 0.5, 2, 3)
    assert (sampled.low, sampled.high) == (pytest.approx(0.5 - 12.706 * 1.5, abs=1e-3), pytest.approx(19.559, abs=1e-3))
    wording(score_words([greedy, sampled]), "0.500 [-18.559, 19.559]", "step 0")


def test_tasks_to_which_no_accuracy_applies_are_left_out_of_it():
    """Of a 1 of 2, b without one, c failed: accuracies 1/2 and 0."""
    style = rewarded("sampled", b=[0.3, 0.4])
    found = by_metric(score([*samples("sampled", a=[1.0, 0.0], c=[None, None]), *style]))
    assert (found["sampled_accuracy"].value, found["sampled_accuracy"].tasks) == (0.25, 2)


def test_a_set_all_of_whose_responses_failed_has_no_score():
    assert score(rewarded("greedy", a=[None])) == []


TASKS = [row(records.Task, task_id=f"t{i}", row=i, split="train" if i == 0 else "test", question=f"{i} 1 = {i + 1}",
             answer=f'{{"numbers": [{i}, 1], "target": {i + 1}}}') for i in range(5)]


@pytest.fixture
def stage(tmp_path, tiny_model, context_of, tiny_settings):
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, TASKS)
    context = context_of(tmp_path / "evaluate", tasks=tmp_path / "curate", model=tiny_model)
    context.config = tiny_settings("monitor.monitor_type=none", "model.max_response_tokens=6")
    (taskset,) = context.config.buffer.explorer_input.eval_tasksets
    taskset.limit, taskset.repeat_times = 3, 4
    return context


def test_the_seed_of_the_engine_decides_the_samples(stage):
    model = stage.inputs["model"]
    tokenizer = load_tokenizer(model)
    engine = open_engine(model, stage.config, [tokenizer.eos_token_id])
    (held,) = read_sets(stage, tokenizer, Rewards(stage.config))

    def responses(decoding, seed):
        stage.config.explorer.rollout_model.seed = seed
        found = sample(stage, engine, tokenizer, held, decoding, Subject("m", 3), Journal())
        return [row.response_tokens for row in found]

    assert responses("sampled", None) == responses("sampled", stage.config.seed)
    assert responses("sampled", 99) != responses("sampled", None)
    assert responses("greedy", 99) == responses("greedy", None)


def test_a_set_without_tasks_is_named(stage):
    (taskset,) = stage.config.buffer.explorer_input.eval_tasksets
    taskset.split = "validation"
    with refuses(DataError, "evaluation set 'countdown_test':", "tasks.parquet"):
        read_sets(stage, load_tokenizer(stage.inputs["model"]), Rewards(stage.config))


def test_the_answers_to_a_task_are_its_group(stage, monkeypatch):
    """Three tasks, sampled four times."""
    model, seen = stage.inputs["model"], []
    tokenizer = load_tokenizer(model)
    engine = open_engine(model, stage.config, [tokenizer.eos_token_id])
    (held,) = read_sets(stage, tokenizer, Rewards(stage.config))
    monkeypatch.setattr("ouroboros.workflows.evaluation.add_own_rewards", lambda *given: seen.append(given[-2]))
    sample(stage, engine, tokenizer, held, "sampled", Subject("m", 3), Journal())
    assert seen == [[0] * 4 + [1] * 4 + [2] * 4]


def test_failed_responses_of_a_set_are_said_once(stage, monkeypatch):
    """Of three tasks, sampled four times and once greedily: those of the second."""
    def failing(outcomes, tasks, *_):
        for outcome, task in zip(outcomes, tasks, strict=True):
            outcome.status = "reward_failed" if task.task_id == second else "ok"
            outcome.reason = "no number"

    said, tokenizer = [], load_tokenizer(stage.inputs["model"])
    monkeypatch.setattr(stage.log, "warning", lambda _, *given: said.append(given))
    engine = open_engine(stage.inputs["model"], stage.config, [tokenizer.eos_token_id])
    (held,) = sets = read_sets(stage, tokenizer, Rewards(stage.config))
    second = held.tasks[1].task_id
    stage.config.explorer.max_failed_ratio = 0.5
    monkeypatch.setattr("ouroboros.workflows.evaluation.add_own_rewards", failing)
    evaluate(stage, engine, tokenizer, sets, Subject("m", 3))
    assert [(*counts, task) for *counts, _, task, _ in said] == [(5, 15, second)]


def test_no_image_is_left_of_an_evaluation_that_was_killed(stage, monkeypatch):
    """Those that agents showed are gone before the scores, after which no start looks at it again."""
    left, gone = stage.directory / ".shown-3-held", []
    left.mkdir(parents=True)
    (left / "a").write_bytes(b"image")
    monkeypatch.setattr("ouroboros.workflows.evaluation.publish", lambda *given: gone.append(not left.exists()))
    tokenizer = load_tokenizer(stage.inputs["model"])
    engine = open_engine(stage.inputs["model"], stage.config, [tokenizer.eos_token_id])
    evaluate(stage, engine, tokenizer, read_sets(stage, tokenizer, Rewards(stage.config)), Subject("m", 3))
    assert gone == [True]
