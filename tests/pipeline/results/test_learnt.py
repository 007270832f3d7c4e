"""What a run learnt: scores, the paired change, failed attempts, the last lines."""

import math
import shlex
from pathlib import Path

import pytest

from ouroboros.commands import cli
from ouroboros.pipeline.results import compare, learnt, view
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.records import Experience, Sample, Score
from tests.factories import row
from tests.fake_run import FakeRun
from tests.golden.messages import wording


def evaluated(run: FakeRun, model: str, responses: dict[str, list], metric="sampled_accuracy", low=0.0, high=1.0):
    """Adds an evaluation. responses: task -> values of its sampled responses; None failed."""
    directory = run.stage(f"evaluate_{model}", "evaluate", "curate", model)
    values = [sum(v or 0 for v in of) / len(of) for of in responses.values()]
    of_set = {"stage": directory.name, "model": model, "step": 1, "taskset": "test"}
    score = {"value": sum(values) / len(values), "low": low, "high": high, "tasks": len(values), "runs": 2}
    tables.write(tables.step_file(directory, "scores", 1), Score, [row(Score, **of_set, metric=metric, **score)])
    tables.write(tables.step_file(directory, "samples", 1), Sample, [row(
        Sample, **of_set, task_id=task, decoding="sampled", run_index=i, status="reward_failed" if v is None else "ok",
        reason="score raised\nKeyError: 'seven'" if v is None else None, reward=v,
        accuracy=v if metric == "sampled_accuracy" else None) for task, of in responses.items()
        for i, v in enumerate(of)])


def trained(root: Path) -> FakeRun:
    return FakeRun(root).data().sft().rft()


def change(root: Path, before: dict, after: dict, *given, **intervals) -> learnt.Change:
    run = trained(root)
    evaluated(run, "sft", before, *given, **intervals)
    evaluated(run, "rft", after, *given, **intervals)
    (found,) = learnt.changes(view.open_view(run.view()))
    return found


def test_two_runs_are_compared_over_the_tasks_that_both_answered(tmp_path):
    """As above: differences .5 .5 .5 .5 0. A set of other tasks has no pairs."""
    answers = {"a": {"a": [0, 0], "b": [0, 0], "c": [None, 1], "d": [0, 1], "e": [1, 1]},
               "b": {"a": [0, 1], "b": [1, 0], "c": [1, 1], "d": [1, 1], "e": [1, 1]}, "c": {"z": [1, 1]}}
    runs = []
    for name, given in answers.items():
        run = FakeRun(tmp_path / name, f"toy/{name}").data().sft()
        evaluated(run, "sft", given)
        runs.append(view.open_view(run.view()))
    first, second, other = (learnt.scores(run)[0] for run in runs)
    (change,) = learnt.against(runs[0], runs[1], [(first, second)])
    assert (change.tasks, change.value) == (5, pytest.approx(0.4))
    assert (change.low, change.high) == (pytest.approx(-0.302683, abs=1e-5), pytest.approx(0.874111, abs=1e-5))
    assert learnt.against(runs[0], runs[2], [(first, other)])[0].tasks == 0
    lines = compare.paired(runs, "sampled_accuracy")
    assert [line.partition(":")[0] for line in lines] == ["toy/b against toy/a", "toy/c against toy/a"]
    assert compare.paired(runs, "pass@2") == []
    spec = files.read_json(runs[1].stages[-1].directory / "stage.json")
    for place, given in (("model", {"top_p": 0.9}), ("buffer", {"explorer_input": {"eval_tasksets": [
            {"name": "test", "rollout_args": {"top_k": 5, "top_p": None}}]}})):
        spec["config"][place] = given
    files.write_json(runs[1].stages[-1].directory / "stage.json", spec)
    found = compare.sampling(runs[1], "test")
    assert (found["top_p"], found["top_k"], found["temperature"]) == (0.9, 5, None)
    assert compare.paired(runs, "sampled_accuracy") != lines


def test_the_change_is_the_mean_of_the_differences_of_the_same_tasks(tmp_path):
    """Differences .5 .5 .5 .5 0, and -1 and 1: middle 2/7, variance (3 - 4/7) / 6 = 17/42, standard error
    sqrt(17/294) = 0.240465, t of 6 degrees 2.446912: 2/7 -+ 0.588397. Eight of .5 and two of 0: middle 1/3,
    variance (4 - 4/3) / 11, standard error 0.142134, t of 11 degrees 2.200985: 1/3 -+ 0.312835."""
    before = {"a": [0, 0], "b": [0, 0], "c": [None, 1], "d": [0, 1], "e": [1, 1]}
    after = {"a": [0, 1], "b": [1, 0], "c": [1, 1], "d": [1, 1], "e": [1, 1]}
    few = change(tmp_path / "few", before, after)
    assert (few.tasks, few.value, few.verdict) == (5, pytest.approx(0.4), "no clear change")
    assert (few.low, few.high) == (pytest.approx(-0.302683, abs=1e-5), pytest.approx(0.874111, abs=1e-5))
    before, after = ({task + again: of for task, of in some.items() for again in "12"} for some in (before, after))
    gain = change(tmp_path / "gain", before, after)
    assert (gain.low, gain.high) == (pytest.approx(0.020499, abs=1e-5), pytest.approx(0.646168, abs=1e-5))
    wording(gain.words(), "+40.0", "[+2.0, +64.6]", "10 paired")
    assert change(tmp_path / "loss", after, before).verdict == "worse"
    unclear = change(tmp_path / "unclear", {"a": [0, 0], "b": [1, 1], "c": [0, 0]},
                     {"a": [0, 1], "b": [1, 1], "c": [0, 0]})
    assert (unclear.value, unclear.high, unclear.verdict) == (pytest.approx(1 / 6), 1.0, "no clear change")


def test_rewards_are_paired_where_both_models_have_one(tmp_path):
    found = change(tmp_path, {"a": [1.0, 2.0], "b": [None, None], "c": [0.5, 0.5]},
                   {"a": [2.0, 3.0], "b": [9.0, 9.0], "c": [1.5, None]}, "sampled_reward", low=-9, high=9)
    assert (found.tasks, found.value, found.verdict) == (2, 1.0, "too few")
    wording(found.words(), "+1.000", "2 paired")


@pytest.mark.parametrize(("tasks", "verdict"), [(2, "too few"), (9, "too few"), (10, "better")])
def test_rewards_need_ten_pairs_for_a_verdict(tmp_path, tasks, verdict):
    """Differences 1 2 1 2 ...: of ten mean 1.5, standard error sqrt(2.5 / 9 / 10) = 1/6, t of 9 degrees 2.262157."""
    found = change(tmp_path, {f"t{i}": [0.0] for i in range(tasks)}, {f"t{i}": [1.0 + i % 2] for i in range(tasks)},
                   "sampled_reward")
    assert (found.tasks, found.verdict) == (tasks, verdict)
    assert found.low == (pytest.approx(1.5 - 2.262157 / 6) if tasks == 10 else -math.inf)


def test_a_run_without_an_evaluation_has_a_line_for_it(tmp_path):
    run = FakeRun(tmp_path).data().sft()
    assert "eval_tasksets" in learnt.summary(view.open_view(run.view()))


@pytest.mark.parametrize(("before", "after", "value"), [([0, 1], [1, 0], 0.0), ([0, 0], [0, 0], 0.0),
                                                        ([0, 0], [1, 1], 1.0), ([1, 1], [0, 0], -1.0)])
def test_equal_differences_of_two_tasks_decide_nothing_and_one_task_has_no_interval(tmp_path, before, after, value):
    """Two tasks and the pair -1 and 1: at value 0 a standard error of sqrt(2 / 3 / 4), t of 3 degrees 3.182."""
    found = change(tmp_path / "two", {"a": before, "b": before}, {"a": after, "b": after})
    assert (found.tasks, found.value, found.verdict) == (2, value, "no clear change")
    assert "too few" in found.words()
    assert found.low == pytest.approx(max(value / 2 - 3.182446 * (0.408248 if not value else 0.5), -1), abs=1e-5)
    one = change(tmp_path / "one", {"a": before}, {"a": after})
    assert (one.value, one.low, one.high, one.verdict) == (value, -math.inf, math.inf, "no clear change")


@pytest.mark.parametrize(("metric", "intervals", "verdict"), [
    ("sampled_accuracy", ((0.1, 0.3), (0.4, 0.9)), "better"), ("sampled_accuracy", ((0.4, 0.9), (0.1, 0.3)), "worse"),
    ("sampled_accuracy", ((0.1, 0.5), (0.4, 0.9)), "no clear change"),
    ("sampled_reward", ((0.0, 0.0), (1.0, 1.0)), "too few")])
def test_other_tasks_are_compared_by_the_two_intervals(tmp_path, metric, intervals, verdict):
    run = trained(tmp_path)
    for model, task, (low, high) in zip(("sft", "rft"), "ab", intervals, strict=True):
        evaluated(run, model, {task: [0, 1], "c": [1, 1]}, metric, low=low, high=high)
    (found,) = learnt.changes(view.open_view(run.view()))
    assert (found.tasks, found.verdict) == (0, verdict)
    wording(found.words())


def test_what_was_learnt_compares_evaluations_of_one_kind():
    """The base and rft were evaluated; a bench then asked rft again, another way: 0.9 is not compared with 0.2."""
    found = [row(Score, model=model, taskset="test", metric="sampled_accuracy", value=value)
             for model, value in (("base", 0.2), ("rft", 0.6), ("rft", 0.9))]
    ((first, last),) = learnt.evaluated(found)
    assert (first.value, last.value) == (0.2, 0.6)
    assert learnt.evaluated(found[1:]) == []


def test_the_change_that_the_last_stage_made_follows_that_of_the_whole_run(tmp_path):
    """base 0 of 2, sft 1 of 2, rft 2 of 2: +100 points over the run, +50 by rft."""
    run = trained(tmp_path)
    run.stage("base", "model")
    for model, right in (("base", 0), ("sft", 1), ("rft", 2)):
        evaluated(run, model, {"a": [int(right > 0)] * 2, "b": [int(right > 1)] * 2})
    told = [line for line in learnt.summary(view.open_view(run.view())).splitlines() if line.startswith("learnt")]
    assert [line.partition(";")[2].split()[:3] for line in told] == [
        ["no", "clear", "change:"], ["no", "clear", "change:"]]
    assert [" +100.0 points" in told[0], " +50.0 points" in told[1]] == [True, True]
    assert [" after base -> " in told[0], " after sft -> " in told[1]] == [True, True]


def test_the_last_lines_have_scores_change_seconds_and_the_report(tmp_path):
    run = FakeRun(tmp_path).whole()
    directory = run.stage("bench_rft", "bench", "curate", "rft")
    tables.write(tables.step_file(directory, "scores", 2), Score, [row(
        Score, model="rft-1", step=2, taskset="test", metric="sampled_accuracy", value=0.2, low=0.0, high=0.5, tasks=4,
        runs=2)])
    (run.path / "report.html").parent.mkdir(parents=True)
    (run.path / "report.html").touch()
    step, sft, rft, change, found, work, report = learnt.summary(view.open_view(run.view())).splitlines()
    assert [line.partition(":")[0] for line in (step, sft, rft)] == ["rft-1, step 2, on test", "sft on test",
                                                                     "rft on test"]
    wording([step], "20% [0, 50]", "4 tasks", "x 2")
    wording([change], "38% [35, 41]", "81% [78, 84]", "+0.0 points", "[-66.4, +66.4]", "4 paired")
    assert found.split("finds ")[1].startswith("few_steps")
    wording([work], "8 of 9", "3:14")  # 0.4 + 2.1 + 0.8 + 31 + 9 + 141 + 9 + 1 s
    assert report == f"report: {run.path / 'report.html'}"


def test_the_score_of_a_reward_model_is_among_them(tmp_path):
    run = trained(tmp_path)
    directory = run.stage("judge", "train", "curate", "sft")
    tables.write(tables.step_file(directory, "scores", 9), Score, [row(
        Score, model="judge", step=9, taskset="pairs", metric="pair_accuracy", value=0.8, low=0.7, high=0.9, tasks=40,
        runs=1, rows=44)])
    lines = learnt.summary(view.open_view(run.view())).splitlines()
    wording([[line.split(",")[0] for line in lines if "pairs" in line]], "80% ")


@pytest.mark.parametrize("inside", [True, False])
def test_failed_attempts_are_counted_and_the_query_runs_as_printed(tmp_path, monkeypatch, capsys, inside):
    monkeypatch.chdir(tmp_path if inside else "/")
    run = trained(tmp_path)
    evaluated(run, "rft", {"a": [0, None], "b": [None, 1]})
    rft = Path(run.stages[-2]["directory"])
    tables.write(tables.step_file(rft, "experience", 9), Experience, [row(
        Experience, stage=rft.name, turn=turn, slot=slot, reward=None, status="workflow_failed", reason=f"no {slot}")
        for slot in range(2) for turn in range(2)] + [
            row(Experience, stage=rft.name, slot=2, turn=0, reward=None, status="late", reason="no failure")])
    tables.write(tables.step_file(rft, "experience", 10), Experience, [row(  # of a shorter stage
        Experience, stage="rft-0123abcd", turn=0, reward=None, status="workflow_failed", reason="no 0")])
    lines = learnt.summary(view.open_view(run.view())).splitlines()
    at = lines.index("rft: 3 of 35 attempts failed: no 0 (and 1 more reasons)")  # 4 steps of 8, and these
    wording(lines, "evaluate_rft: 2", "4 attempts", "KeyError: 'seven'")
    FakeRun(tmp_path, "toy/latest").view()  # not the run that the question is about
    assert cli.main(shlex.split(lines[at + 1])[1:]) == 0
    out = capsys.readouterr().out
    assert ("no 0" in out, "no 1" in out, "(2 rows)" in out) == (True, True, True)
