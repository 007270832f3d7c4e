"""Our reward functions and the rows that they judge: what `ouro config check` says before a run."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from ouroboros.operators.formats import read_records
from ouroboros.operators.generate import GENERATORS
from ouroboros.pipeline.check.reading import Sample
from ouroboros.pipeline.check.samples import generator_problems, sources_here
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.settings.data import TaskFormat
from ouroboros.pipeline.store.records import RawTask
from ouroboros.stages.judged_rows import replies, unearned, unjudgeable
from ouroboros.workflows.environments.folder import Folder
from ouroboros.workflows.environments.frozen_lake import FrozenLake
from ouroboros.workflows.environments.shop import Shop
from ouroboros.workflows.environments.sudoku import Sudoku
from tests.configs import overridden

KEY = "buffer.explorer_input.default_reward_fn_type"
OF_SET = "buffer.explorer_input.taskset.default_reward_fn_type"
RUBRIC = json.dumps([{"name": "polite", "question": "Is it?"}])


def judged(name, truths, optional=None, questions=(), **arguments):
    asked = questions or [f"question {i}" for i in range(len(truths))]
    rows = [{"question": question, "answer": truth} for question, truth in zip(asked, truths, strict=True)]
    source = {"key": "buffer.explorer_input.taskset.path", "format_key": "buffer.explorer_input.taskset.format",
              "rewards": [{"name": name, "arguments": arguments, "key": KEY, "optional": optional}]}
    drawn = Sample(rows, [], [(Path("rows.parquet"), number) for number in range(1, len(rows) + 1)])
    return unjudgeable(source, drawn, list(read_records(rows, TaskFormat(), "task", "rows.jsonl", 0)))


@pytest.mark.parametrize("truth", [
    "", " ", "####", "so\n#### ", "\\boxed{}", "$", "\\frac{1}{2", "\\sqrt{", "}", "\\text{", "{1, 2",
    "\\boxed{\\frac{1}{2}", "**"])
def test_a_truth_that_no_answer_matches_is_a_problem(truth):
    warnings, [line] = judged("accuracy_reward", ["42", truth, "43"])
    assert not warnings
    for part in (KEY, "taskset.format.response_key", "1 of 3", "(row 2)", "question 1"):
        assert part in line


@pytest.mark.parametrize("truth", [
    42, -0.5, "42", "work\n#### 42", "so \\boxed{42}", "\\frac{1}{2}", "Paris", "B", "x^{2}+1", "\\{1, 2\\}", "[0, 1)",
    "12:30", "50\\%", "9^{9^9}", "1000000!", "x" * 600, "an essay of several lines\nwith {braces}", ["a", "b"],
    {"numbers": [1], "target": 1}, "#### 5 apples", "\\left( 3, \\frac{\\pi}{2} \\right)", "\\text{(C)}", True,
    None])  # another rule reports an absent one
def test_a_truth_that_its_own_text_matches_is_none(truth):
    assert judged("accuracy_reward", [truth]) == ([], [])


@pytest.mark.parametrize(("questions", "truths", "arguments", "reply"), [
    (["What is the value of 84?", "9 + 8 + 7", "6 + 5"], ["84", "24", "11"], {}, "its question"),
    (["Expand.\n(x+1)^2", "Expand.\nx(x+1)"], ["x^2+2x+1", "x^2+x"], {}, "its question"),
    ([f"<answer>{i} + {i}</answer>" for i in range(20)], [str(2 * i) for i in range(20)], {"allow_unevaluated": True},
     "its question")])
def test_a_reply_that_answers_nothing_and_is_paid_is_a_warning_with_the_row(questions, truths, arguments, reply):
    [line], problems = judged("accuracy_reward", truths, questions=questions, **arguments)
    assert problems == []
    for part in (KEY, reply, repr(questions[0]), repr(truths[0])):
        assert part in line
    assert judged("accuracy_reward", truths, "my.module:agent", questions, **arguments) == ([], [])


@pytest.mark.parametrize(("questions", "truths"), [
    ([f"What is {i} + {i}?" for i in range(40)], [str(2 * i) for i in range(40)]),
    (["Which is 5?"] + [f"What is {i} + {i}?" for i in range(19)], ["5"] + [str(2 * i) for i in range(19)]),  # 1 of 20
    (["Which?\nA. 1\nB. 2"] * 40, ["A", "B"] * 20)])  # always B: as often right as any letter
def test_what_is_paid_for_nothing_now_and_then_is_none(questions, truths):
    assert judged("accuracy_reward", truths, questions=questions) == ([], [])


@pytest.mark.parametrize(("name", "reward", "no"), [
    ("countdown", "countdown_reward", "dirt"), ("products", "accuracy_reward", "guesses")])
def test_rows_of_our_generators_pay_nothing_for_their_prompts(name, reward, no):
    rows = [*GENERATORS[name](1, tasks=40, demonstrations=0, **{no: 0.0})]
    assert judged(reward, [row.answer for row in rows], questions=[row.question for row in rows]) == ([], [])


@pytest.mark.parametrize("world", [Folder, FrozenLake, Shop, Sudoku])
def test_worlds_pay_nothing_without_work_or_for_the_question(world):
    name = {FrozenLake: "frozen_lake"}.get(world, world.__name__.lower())
    for row in (row for row in GENERATORS[name](1, tasks=20, demonstrations=0) if row.answer):
        made = world()
        made.reset(SimpleNamespace(answer=row.answer, question=row.question))
        assert made.reward()["accuracy"] == 0
        for reply in replies(row) if world is Shop else ():
            made.submit(reply)
            assert made.reward()["accuracy"] == 0


@pytest.mark.parametrize(("name", "truth", "reason"), [
    ("countdown_reward", "42", "no JSON object"), ("countdown_reward", "forty-two", "not JSON"),
    ("countdown_reward", {"numbers": [1]}, "target"), ("countdown_reward", {"numbers": "1 2", "target": 3}, "numbers"),
    ("judge_reward", "42", "rubric"), ("judge_reward", [{"name": "polite"}], "question")])
def test_a_function_is_called_with_rows_that_it_cannot_judge(name, truth, reason):
    warnings, [line] = judged(name, [truth, truth])
    assert not warnings
    assert reason in line
    assert "2 of 2" in line


@pytest.mark.parametrize(("name", "truth", "arguments"), [
    ("countdown_reward", {"numbers": [3, 5], "target": 8}, {}), ("judge_reward", RUBRIC, {}),
    ("judge_reward", "42", {"rubric": RUBRIC}), ("judge_reward", "42", {"compare": True})])
def test_rows_for_a_function_are_no_problem(name, truth, arguments):
    assert judged(name, [truth], **arguments) == ([], [])


def test_where_the_workflow_may_reward_it_is_a_warning():
    [line], problems = judged("countdown_reward", ["42"], optional="mine:play")
    assert KEY in line
    assert "mine:play" in line
    assert not problems


def stages_of(*overrides):
    return list(Recipe(overridden(*overrides)).settings.values())


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "6*7?", "answer": "42"}) + "\n")
    return path


def asked(stages):
    return {source["key"]: [(one["name"], one["key"], one["optional"]) for one in source["rewards"]]
            for source in sources_here(stages)}


def test_each_source_is_judged_by_the_functions_of_its_sets(rows):
    place = "buffer.explorer_input.taskset"
    default = stages_of(f"{place}.path={rows}")
    assert asked(default) == {f"{place}.path (countdown_train)": [("countdown_reward", KEY, None)]}
    own = stages_of(f"{place}.path={rows}", f"{place}.default_reward_fn_type=[accuracy_reward,overlong_penalty]")
    assert asked(own) == {f"{place}.path (countdown_train)": [("accuracy_reward", OF_SET, None)]}
    users = stages_of(f"{place}.path={rows}", f"{place}.default_reward_fn_type=my.module:score")
    assert asked(users) == {f"{place}.path (countdown_train)": []}
    workflow = stages_of(f"{place}.path={rows}", f"{place}.default_workflow_type=my.module:agent")
    assert asked(workflow) == {f"{place}.path (countdown_train)": [("countdown_reward", KEY, "my.module:agent")]}


def test_a_generator_that_makes_no_expressions_does_not_suit_countdown_reward():
    pool = "data_processor.task_pipeline"
    other = stages_of(f"{pool}.generator=products")
    found = [problem.key for stage in other for problem in generator_problems(stage)]
    assert found
    assert set(found) == {KEY}
    assert not any(map(generator_problems, stages_of()))
    fits = stages_of(f"{pool}.generator=products", "buffer.explorer_input.default_reward_fn_type=accuracy_reward")
    assert not any(map(generator_problems, fits))


def test_all_messages_of_a_prompt_are_tried_as_a_reply():
    """The origin that a system message explains is the truth of some rows, and is in no question."""
    messages = [{"role": "system", "content": "You start at (0, 0)."}, {"role": "user", "content": "Go up once."}]
    row = RawTask(0, "Go up once.", "(0, 0)", None, messages=json.dumps({"messages": messages}))
    assert replies(row) == ["Go up once.", "Go up once.", "", "You start at (0, 0).\nGo up once."]
    paid = [1.0, *(float(row.answer in reply) for reply in replies(row))]
    [line] = unearned([(row, paid)])
    assert "whole prompt" in line
