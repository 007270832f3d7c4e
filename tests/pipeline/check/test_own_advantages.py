"""Advantages of the user's: whether they compare the rollouts of a group, declared or read from their code."""

import pytest

from ouroboros.pipeline.check import data, named_functions, preflight
from ouroboros.pipeline.check.judge import compose, judged
from ouroboros.pipeline.check.user_code import imported
from ouroboros.pipeline.compose.recipe import Recipe
from tests.configs import overridden, places
from tests.golden.messages import wording

MODULES = {"mine/__init__.py": "", "mine/tools.py": "def compare(batch):\n    return batch.groupby('group_id')\n",
           "mine/parts.py": """
import functools
import duckdb
import pyarrow.compute as pc
from ouroboros.operators.advantages.group import Grpo
from mine import tools

SQL = "SELECT experience_id, reward - avg(reward) OVER (PARTITION BY group_id) AS advantage FROM batch"

def sql(batch, scale=1.0):
    return duckdb.sql(f"SELECT {scale} * (reward - median(reward) OVER (PARTITION BY group_id)) FROM batch")

def constant(batch):
    return duckdb.sql(SQL)

def tasks(batch):
    return batch.to_pandas().groupby("task_id").reward.mean()

def attribute(batch):
    return [one.group_id for one in batch]

def ours(batch):
    return Grpo()(batch)

def inner(batch):
    def of(row):
        return tools.compare(row)
    return list(map(of, batch))

@functools.wraps(sql)
def wrapped(*given):
    return sql(*given)

def keyed(batch, *, by="group_id"):
    return batch.group_by(by)

def twice(f):
    def scaled(batch):
        return 2 * f(batch)
    return scaled

enclosed = twice(sql)

def alone(batch):
    \"\"\"The reward itself, whatever the group_id.\"\"\"
    return duckdb.sql("SELECT experience_id, reward AS advantage FROM batch")

def library(batch):
    return pc.mean(batch["reward"])

def declared(batch):
    return alone(batch)
declared.compares_groups = declared.chooses_rows = True

def denied(batch):
    return sql(batch)
denied.compares_groups = False

def steps(batch):
    return duckdb.sql("SELECT experience_id, step_reward AS advantage FROM batch")

def wrong(batch):
    return alone(batch)
wrong.compares_groups = "yes"
"""}
COMPARING = ("sql", "constant", "tasks", "attribute", "ours", "inner", "wrapped", "keyed", "enclosed", "declared")
OTHERS = ("alone", "library", "denied", "steps")


def of(name: str, *more: str):
    return overridden(f"algorithm.advantage_fn='mine.parts:{name}'", *more)


@pytest.fixture
def known(project):
    """The functions of the module, and what is wrong with it; it is imported once."""
    return imported([of(name) for name in (*COMPARING, *OTHERS, "wrong")])


def test_an_advantage_that_compares_is_known_by_its_declaration_or_its_code(known):
    functions, wrong = known
    assert {name.partition(":")[2]: one.compares_groups for name, one in functions.items()} == {
        **dict.fromkeys(COMPARING, True), **dict.fromkeys(OTHERS, False)}
    assert len(wrong) == 1
    wording(wrong[0], "'mine.parts:wrong'", "compares_groups")


def test_groups_of_one_are_refused_where_rollouts_are_compared(known):
    functions, _ = known
    for name in (*COMPARING, *OTHERS):
        found = named_functions.wrong_arguments(of(name, "algorithm.repeat_times=1"), functions)
        assert [one.key for one in found] == ["algorithm.repeat_times"] * (name in COMPARING)
        assert all(("compares_groups" in one.do + one.needed) == (name != "declared") for one in found)
        assert named_functions.wrong_arguments(of(name, "algorithm.repeat_times=2"), functions) == []


@pytest.mark.parametrize(("repeats", "expected"), [(1, ["learn: algorithm.advantage_fn"]), (2, [])])
def test_recorded_groups_are_those_of_the_stage_that_explored(known, repeats, expected):
    look = f"{{stage_name: look, mode: explore, algorithm: {{repeat_times: {repeats}}}}}"
    learn = "{stage_name: learn, mode: train, algorithm: {advantage_fn: 'mine.parts:sql', repeat_times: 3}}"
    config, _ = judged([f"stages=[{look}, {learn}]"])
    assert places(data.lonely_groups(Recipe(config), known[0])) == expected
    assert data.lonely_groups(Recipe(config), {}) == []


def test_weights_of_components_are_refused_where_step_rewards_are_read(known):
    for name in ("alone", "sql", "steps"):
        found = named_functions.wrong_arguments(of(name, "algorithm.reward_weights={a: 2.0}"), known[0])
        assert [one.key for one in found] == ["algorithm.reward_weights"] * (name == "steps")


def test_rows_that_an_advantage_of_the_users_chooses_need_no_advantage_in_the_loss(known):
    losses = [named_functions.loss_note(of(name, "algorithm.policy_loss_fn=sft"), known[0]) for name in (
        "declared", "denied")]
    assert [one is None for one in losses] == [True, False]


def test_it_is_found_before_a_run(project):
    config = compose(["algorithm.advantage_fn='mine.parts:sql'", "stages.rft.algorithm.repeat_times=1"])
    found = [one for one in preflight.check(config, code=True).problems if "repeat_times" in one]
    assert len(found) == 1
