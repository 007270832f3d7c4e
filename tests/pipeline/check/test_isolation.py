"""code_reward in a recipe: what isolates is checked before a run, and the stage is marked as depending on time."""

import pytest

from ouroboros.pipeline.check.samples import isolation
from ouroboros.pipeline.settings.explorer import depends_on_time, runs_programs
from ouroboros.pipeline.settings.kinds import KINDS
from ouroboros.pipeline.settings.row_columns import asked_columns
from ouroboros.workflows.environments import confinement, programs
from tests.configs import overridden

KEY = "buffer.explorer_input.default_reward_fn_type"


def recipe(*words):
    return overridden("buffer.explorer_input.default_reward_fn_type=code_reward", *words)


@pytest.fixture(autouse=True)
def nothing_isolates(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(confinement, "landlock_version", lambda: 0)
    programs.cell.cache_clear()
    yield
    programs.cell.cache_clear()


def test_a_machine_that_isolates_nothing_is_a_problem_and_isolation_none_a_warning():
    problems, warnings = isolation(recipe()).values()
    assert [one.key for one in problems] == ["buffer.explorer_input.taskset.reward_fn_args.isolation"]
    assert "apt-get install bubblewrap" in problems[0]
    assert warnings == []
    problems, warnings = isolation(recipe("buffer.explorer_input.taskset.reward_fn_args={isolation: none}")).values()
    assert (problems, [one.found for one in warnings]) == ([], ["none"])


def test_all_columns_of_its_records_are_kept():
    source = recipe().buffer.explorer_input
    assert asked_columns(source.taskset, source, "taskset") == ["*"]


@pytest.mark.parametrize(("kind", "how"), [("rft", ["auto"]), ("evaluate", ["auto"]), ("curate", None)])
def test_a_stage_that_runs_programs_depends_on_time(kind, how):
    assert runs_programs(KINDS[kind], recipe()) == how
    assert (KEY in depends_on_time(KINDS[kind], recipe())) == bool(how)
