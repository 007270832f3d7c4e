"""Seeds of two settings until their difference is decided; the runs are written here, not made."""

import numpy as np
import pytest

from ouroboros.commands import cli
from ouroboros.commands.run import search
from ouroboros.operators.statistics import evidence
from ouroboros.pipeline.results import decide, view
from ouroboros.pipeline.store.errors import DataError
from tests.fake_run import FakeRun
from tests.golden.messages import wording
from tests.pipeline.results.test_learnt import evaluated

TASKS = [f"t{number}" for number in range(10)]


def run_of(root, name: str, solved: int, tasks=TASKS) -> view.View:
    """A run that solved the first `solved` tasks."""
    run = FakeRun(root / name, f"toy/{name}").data().sft()
    evaluated(run, "sft", {task: [int(at < solved)] for at, task in enumerate(tasks)})
    return view.open_view(run.view())


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Makes runs as `solved` says, by side and seed; returns what was asked for."""
    asked, solved = [], {}

    def make(words, extra):
        side = "b" if "algorithm.repeat_times=4" in words else "a"
        seed = int(next(word for word in words if word.startswith("seed=")).partition("=")[2])
        asked.append((side, seed))
        return run_of(tmp_path, f"{side}{seed}", solved.get((side, seed), 5))

    monkeypatch.setattr(search, "make", make)
    return asked, solved


def ouro(*words: str) -> int:
    return cli.main(["run", "recipe=countdown", *words])


SIDES = ("--until-decided", "algorithm.repeat_times=8", "algorithm.repeat_times=4")


def test_seeds_are_made_until_one_is_better(made, capsys):
    """Differences 0.2 in every seed: evidence 70 after four (sqrt(1/17) 17^2), but fewer than six seeds decide
    nothing. Of one seed in ten six show none with probability 0.9^6 = 0.531."""
    asked, solved = made
    solved |= {("b", seed): 7 for seed in range(1, 30)}
    assert ouro(*SIDES) == 0
    assert asked == [(side, seed) for seed in (1, 2, 3, 4, 5, 6) for side in "ab"]
    wording(capsys.readouterr().out, "algorithm.repeat_times=4 is better", "(1-f)^6: 53% for one in ten",
            "undecided before 6 seeds")


def test_it_begins_with_the_seed_of_the_words_and_ends_with_the_most(made):
    asked, _ = made
    assert ouro(*SIDES, "seed=7", "--max-seeds", "6") == 0
    assert asked == [(side, seed) for seed in range(7, 13) for side in "ab"]


@pytest.mark.parametrize("words", [
    *((*SIDES, "--max-seeds", most) for most in ("0", "5")), ("--max-seeds", "7"),  # these cannot decide
    *((*SIDES, option) for option in ("-m", "--detach", "--view", "--dry", "-v", "--update-hub")),  # of a single run
    *(("--until-decided", *sides) for sides in (
        ("seed=1", "seed=2"), ("name=x", "algorithm.repeat_times=4"), ("algorithm.repeat_times=4",) * 2)),
    *(("--until-decided", "algorithm.repeat_times=8", word) for word in (  # a mistake of the second side
        "continue_from_checkpoint=false", "++seed=2", "algorithm.repeat_times=none")),
    (*SIDES, "buffer.explorer_input.eval_tasksets=[]")])
def test_what_cannot_be_decided_is_refused_before_a_run_is_made(made, words):
    assert ouro(*words) == 2
    assert made[0] == []


def test_seeds_may_have_other_tasks_and_tasks_without_a_value_count_nowhere(tmp_path):
    """Seed 1: ten tasks, +0.2; seed 2: nine of them, +1/9 of them. By seed: mean 0.15556, deviation 0.062854, standard
    error 0.044444, t of one degree 12.7062."""
    first = [run_of(tmp_path, "a1", 5), run_of(tmp_path, "a2", 5, TASKS[1:])]
    other = [run_of(tmp_path, "b1", 7), run_of(tmp_path, "b2", 6, TASKS[1:])]
    found = decide.differences(first, other, "sampled_accuracy")
    assert found.by_seed == pytest.approx([0.2, 1 / 9])
    assert (found.low, found.high) == pytest.approx((0.155556 - 0.564719, 0.155556 + 0.564719), abs=1e-4)


def test_differences_are_paired_by_task_and_seed(tmp_path):
    """Seed 1: +0.2; seed 2: -0.1. Mean 0.05; infinite for one seed."""
    first = [run_of(tmp_path, name, 5) for name in ("a1", "a2")]
    other = [run_of(tmp_path, "b1", 7), run_of(tmp_path, "b2", 4)]
    found = decide.differences(first, other, "sampled_accuracy")
    assert found.by_seed == pytest.approx([0.2, -0.1])
    assert (found.tasks, found.mean, found.decided) == (10, pytest.approx(0.05), False)
    assert found.low < 0 < found.high
    assert decide.differences(first[:1], other[:1], "sampled_accuracy").high == float("inf")


def test_runs_of_other_tasks_have_no_differences(tmp_path):
    with pytest.raises(DataError):
        decide.differences([run_of(tmp_path, "a", 5)], [run_of(tmp_path, "b", 5, TASKS[:-1])], "sampled_accuracy")
    with pytest.raises(DataError):
        decide.differences([run_of(tmp_path, "c", 5)], [run_of(tmp_path, "d", 5)], "pass@2")


def decided_after(by_seed):
    """The number of differences after which one who looks after each stops; None if none decides."""
    return next((count for count in range(1, len(by_seed) + 1) if not decide.undecided(by_seed[:count])), None)


@pytest.mark.parametrize(("differences", "count"), [
    ([0.2, 0.2, 0.2, 0.2, 0.2, 0.2, -5], 6), ([0.2, -0.2, 0.1, -0.1], None),
    ([0.2, 0.1 + 0.1, 0.3 - 0.1, 0.2, 0.2, 0.2], 6),  # equal but for rounding
    # far is beyond five median distances: of 0.16, 0.18, 0.2, 0.22, 0.24 the median is 0.2, and that of the distances
    # 0.02: from 0.1 to 0.3
    *(([0.16, 0.18, 0.2, 0.22, 0.24, last], count) for last, count in (
        (0.299, 6), (0.301, None), (0.101, 6), (0.099, None)))])
def test_decided_after(differences, count):
    assert decided_after(differences) == count


def test_one_seed_that_is_far_from_the_others_keeps_all_undecided():
    """The third collapses."""
    differences = [0.2, 0.3, -0.4, *[0.2, 0.3] * 9]
    assert evidence(differences) > 20
    wording(decide.undecided(differences), "difference 3 of 21")


@pytest.mark.parametrize(("kind", "parameters"), [("normal", (0, 1)), ("uniform", (-1, 1)), ("standard_t", (3,))])
def test_differences_without_a_cause_are_decided_at_most_once_in_twenty(kind, parameters):
    drawn = getattr(np.random.default_rng(3), kind)(*parameters, size=(1500, 20)).tolist()
    assert sum(decided_after(one) is not None for one in drawn) <= 0.05 * 1500
