"""`import ouroboros`: the page docs/python.md, and what its functions return and refuse."""

import pickle
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import ouroboros
from ouroboros.commands.run import invoke
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import ConfigError, DataError, OuroError, QueryError, StageError
from ouroboros.pipeline.store.files import HOME

PAGE = (HOME / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"(<!-- not run[^\n]*-->\n)?```python\n(.*?)```", PAGE, re.S)


@pytest.fixture
def here(run, monkeypatch):
    """A finished run, in the current directory."""
    monkeypatch.chdir(run.root)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return run


def test_the_page_runs_from_top_to_bottom(here, capsys):
    assert [bool(kept) for kept, _ in BLOCKS] == [True, True, False, False, False, False]
    names: dict = {}
    for kept, block in BLOCKS:
        if not kept:
            exec(compile(block, "docs/python.md", "exec"), names)
    assert len(names["per_version"]) > 0
    assert names["report"].problems == []
    assert (names["judge"]("\\boxed{42}", "42"), names["strict"]("<answer>7</answer>", "7")) == (1.0, 0.5)


def test_the_python_of_the_page_for_users_of_trinity_runs(here, tiny_model, capsys):
    place = here.root / "store" / "rft-0" / "checkpoints" / "step=000780"
    place.mkdir(parents=True)
    (place / "model").symlink_to(tiny_model)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", (HOME / "docs" / "migrate.md").read_text(), re.S):
        exec(compile(block, "docs/migrate.md", "exec"), names)
    assert capsys.readouterr().out.count("prompt=") == 4
    assert names["model"].num_parameters() > 0


def test_tables_are_those_of_the_command_line(here):
    tables = ouroboros.tables(ouroboros.runs()[0])
    assert {"tasks", "experience", "steps", "scores"} <= {*tables}
    assert tables["steps"].df().equals(tables.sql("SELECT * FROM steps").df())
    with pytest.raises(KeyError):
        tables["nothing"]
    with pytest.raises(QueryError):
        tables.sql("DROP VIEW steps")
    with pytest.raises(QueryError):
        tables.sql("SELECT nothing FROM steps")


def test_without_a_run_it_says_so(tmp_path):
    assert ouroboros.runs(tmp_path) == []
    with pytest.raises(DataError):
        ouroboros.tables(root=tmp_path)


def test_a_reward_has_its_components():
    found = ouroboros.reward("accuracy_reward")("\\boxed{42}", "42")
    assert found == 1
    assert found.components == {"accuracy": 1.0}
    assert pickle.loads(pickle.dumps(found)).components == found.components


def test_a_reward_of_the_users_is_read_as_the_explorer_reads_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_notebook_rewards.py").write_text(
        "def plain(response, answer, scale=2): return scale * len(response)\n"
        "async def later(response, answer): return {'a': 0.25, 'b': 0.5}\n"
        "def batch(responses, answers): return [1.0 for _ in responses]\n"
        "def tokens(response, answer): return [0.5, 0.25]\n"
        "def broken(response, answer): return 'high'\n"
        "def of_ids(response, answer, completion_ids): return 1.0\n")
    reward = {name: ouroboros.reward(f"my_notebook_rewards:{name}")
              for name in ("plain", "later", "batch", "tokens", "broken", "of_ids")}
    assert [reward[name]("abc", "x") for name in ("plain", "later", "batch", "tokens")] == [6, 0.75, 1, 0.75]
    for name in ("broken", "of_ids"):
        with pytest.raises(DataError):
            reward[name]("abc", "x")
    assert ouroboros.reward("my_notebook_rewards:plain", scale=3)("abc", "x") == 9
    for name, arguments in (("my_notebook_rewards:plain", {"size": 1}), ("accuracy_reward", {"tmeout": 1}), ("no", {}),
                            ("judge_reward", {})):
        with pytest.raises(ConfigError):
            ouroboros.reward(name, **arguments)


def test_check_returns_problems_with_their_keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = ouroboros.check(None, "seed=x", "mode=sideways", data=False)
    assert {problem.key for problem in report.problems} == {"seed", "mode"}
    assert report.plan is None


def test_run_returns_the_name_or_raises(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked, codes = [], [0, 1]
    made = SimpleNamespace(project="ouroboros", name="again", view=Path("runs/ouroboros/again"))
    monkeypatch.setattr(invoke, "run", lambda words, extra, **_: asked.append((words, extra)) or (codes.pop(0), made))
    assert ouroboros.run("countdown", "name=again") == "ouroboros/again"
    with pytest.raises(StageError):
        ouroboros.run(snakemake=("-n",))
    assert asked == [(["recipe=countdown", "name=again"], []), ([], ["-n"])]


def test_a_run_is_its_name_with_what_it_has_made(here):
    run = ouroboros.Run(ouroboros.runs()[0])
    assert (type(ouroboros.runs()[0]), f"{run}") == (ouroboros.Run, run)
    assert run.table("steps").df().equals(ouroboros.tables(run)["steps"].df())
    assert run.scores.columns == ["model", "step", "taskset", "metric", "value", "low", "high"]
    kept = pickle.loads(pickle.dumps(ouroboros.Run(run, here.root)))
    assert (kept, kept.root) == (run, here.root)
    with pytest.raises(StageError):
        run.report()
    for call in (run.policy, lambda: run.export("out"), lambda: ouroboros.export(run, "out", stage="nothing")):
        with pytest.raises(DataError):
            call()


def test_functions_do_what_their_commands_do(here, monkeypatch):
    asked = []
    monkeypatch.setattr(invoke, "run", lambda words, extra, **_: asked.append(words) or (0, None))
    run = ouroboros.runs()[0]
    plan = here.root / "runs" / run / "plan.json"
    files.write_json(plan, files.read_json(plan) | {"overrides": ["seed=2"]})
    (plan.parent / "config.yaml").write_text("seed: 2\n")
    assert ouroboros.evaluate(run, [0, 50]) == run
    assert asked == [["seed=2", "mode=bench", "explorer.bench_steps=[0,50]"]]
    compared = ouroboros.compare(run)
    assert [*compared["run"]] == [run]
    assert {"value", "low", "high"} <= {*compared.columns}
    assert (ouroboros.init("mine", template="math") / "conf/recipe/project.yaml").exists()
    with pytest.raises(OuroError):
        ouroboros.init("mine", template="math")
    with pytest.raises(DataError):
        ouroboros.replay(run, "algorithm=rloo", stage="nothing")
    with pytest.raises(ConfigError):
        ouroboros.serve("http://127.0.0.1:1/v1", stage="rft")
