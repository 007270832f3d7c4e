"""Seeds of two settings until their difference is decided; the runs are written here, not made."""

import pytest

from pipeline import cli
from pipeline.results import decide, view
from pipeline.run import search
from pipeline.store.errors import DataError
from tests.fake_run import FakeRun
from tests.pipeline.results.test_learnt import evaluated

TASKS = [f"t{number}" for number in range(10)]


def run_of(root, name: str, solved: int, tasks=TASKS) -> view.View:
    """A run that solved the first `solved` tasks."""
    run = FakeRun(root / name, f"toy/{name}")
    run.data()
    run.sft()
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
    """Differences 0.2 in every seed: evidence 13 after three (sqrt(1/13) 13^1.5), 70 after four (sqrt(1/17) 17^2)."""
    asked, solved = made
    solved |= {("b", seed): 7 for seed in range(1, 30)}
    assert ouro(*SIDES) == 0
    assert asked == [(side, seed) for seed in (1, 2, 3, 4) for side in "ab"]
    assert "algorithm.repeat_times=4 is better" in capsys.readouterr().out


def test_it_begins_with_the_seed_of_the_words_and_ends_with_the_most(made):
    asked, _ = made
    assert ouro(*SIDES, "seed=7", "--max-seeds", "3") == 0
    assert asked == [(side, seed) for seed in (7, 8, 9) for side in "ab"]


@pytest.mark.parametrize("sides", [("seed=1", "seed=2"), ("name=x", "algorithm.repeat_times=4"),
                                   ("algorithm.repeat_times=4", "algorithm.repeat_times=4")])
def test_sides_that_cannot_be_compared_are_refused(made, sides):
    assert ouro("--until-decided", *sides) == 2
    assert made[0] == []


@pytest.mark.parametrize("option", ["-m", "--detach", "--view", "--dry", "-v", "--update-hub"])
def test_it_excludes_options_of_a_single_run(made, option):
    assert ouro(*SIDES, option) == 2
    assert made[0] == []


def test_it_needs_an_evaluation_and_max_seeds_needs_it(made):
    assert ouro(*SIDES, "buffer.explorer_input.eval_tasksets=[]") == 2
    assert ouro("--max-seeds", "3") == 2
    assert made[0] == []


def test_seeds_may_have_other_tasks_and_tasks_without_a_value_count_nowhere(tmp_path):
    """Seed 1: ten tasks, +0.2; seed 2: nine of them, +1/9 of them. By seed: mean 0.15556, deviation 0.062854, standard
    error 0.044444, t of one degree 12.7062."""
    first = [run_of(tmp_path, "a1", 5), run_of(tmp_path, "a2", 5, TASKS[1:])]
    other = [run_of(tmp_path, "b1", 7), run_of(tmp_path, "b2", 6, TASKS[1:])]
    found = decide.differences(first, other, "sampled_accuracy")
    assert found.by_seed == pytest.approx([0.2, 1 / 9])
    assert (found.low, found.high) == pytest.approx((0.155556 - 0.564719, 0.155556 + 0.564719), abs=1e-4)


@pytest.mark.parametrize("word", ["continue_from_checkpoint=false", "++seed=2", "algorithm.repeat_times=none"])
def test_a_mistake_of_the_second_side_is_told_before_the_first_is_made(made, word):
    assert ouro("--until-decided", "algorithm.repeat_times=8", word) == 2
    assert made[0] == []


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


def test_decided_after():
    assert decide.decided_after([0.2, 0.2, 0.2, 0.2, -5]) == 4
    assert decide.decided_after([0.2, -0.2, 0.1, -0.1]) is None
