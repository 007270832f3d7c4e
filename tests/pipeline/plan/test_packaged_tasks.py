"""Tasks of packages: rows made once while planning, split by their questions, and what is said of a wrong path."""

import json
from pathlib import Path

import pytest

from ouroboros.pipeline.check import sources
from ouroboros.pipeline.plan import hub
from ouroboros.pipeline.plan.packaged_tasks import facts, with_tasks
from ouroboros.pipeline.settings.data import Taskset
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.store import packages
from ouroboros.pipeline.store.digests import MadePath
from ouroboros.pipeline.store.errors import DataError
from tests.configs import changed, element
from tests.golden.messages import refuses
from tests.task_package import fetched

SET = "buffer.explorer_input.taskset"
HELD = {"name": "held", "path": "reasoning-gym://sums", "split": "test", "source_args": {"size": 20, "seed": 7}}


@pytest.fixture
def config(tmp_path, monkeypatch):
    """config(key=value, ...): the default recipe, whose tasks are sums."""
    monkeypatch.chdir(tmp_path)
    fetched(tmp_path)
    own = {"checkpoint_root_dir": str(tmp_path), f"{SET}.path": "reasoning-gym://sums", f"{SET}.source_args.size": 100,
           "buffer.explorer_input.eval_tasksets": [HELD]}
    return lambda values=None: changed(own | (values or {}))


def rows(path: str) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_splits_share_no_question_although_two_seeds_share_most(config):
    made, problems = hub.located(config())
    train, held = (rows(at(made, f"buffer.explorer_input.{one}.path")) for one in ("taskset", "eval_tasksets.0"))
    assert (problems, len(train), len(held)) == ([], 100, 20)
    assert not {one["question"] for one in train} & {one["question"] for one in held}
    assert train[5]["metadata"].keys() == {"n", "generator", "arguments"}
    assert train[0]["system_prompt"] == "Answer within <answer> tags."


def test_it_is_a_file_that_says_how_it_was_asked_for(config):
    made, _ = hub.located(config())
    path = at(made, f"{SET}.path")
    assert isinstance(path, MadePath)
    assert Path(path).is_file()
    assert at(hub.frozen(made), f"{SET}.path") == "reasoning-gym://sums"
    before = Path(path).stat().st_mtime_ns
    assert at(hub.located(made)[0], f"{SET}.path") == path  # a second time, from the file
    assert Path(path).stat().st_mtime_ns == before


@pytest.mark.parametrize(("path", "split"), [("a", "all"), (MadePath("a.jsonl", "sums://a"), "train")])
def test_a_file_of_tasks_has_those_of_its_split_alone(path, split):
    own = element(Taskset, {"path": "a", "split": "all"}).model_copy(update={"path": path})
    assert [one.split for one in sources._files_of(SET, "train", own, ())] == [split]


def test_other_arguments_are_other_tasks_also_in_a_stage(config):
    made, _ = with_tasks(config({"stages": [{"stage_name": "a"}, {"stage_name": "b", "buffer": {
        "explorer_input": {"taskset": {"source_args": {"size": 3}}}}}]}))
    assert "buffer" not in made.stages[0]
    assert len(rows(made.stages[1]["buffer"]["explorer_input"]["taskset"]["path"])) == 3
    assert len(rows(at(made, f"{SET}.path"))) == 100


def test_the_check_counts_different_tasks(config):
    made, _ = with_tasks(config({f"{SET}.source_args.largest": 4, f"{SET}.split": "all"}))
    assert len(rows(at(made, f"{SET}.path"))) == 4
    assert [" 4 " in f" {words} " for _, words in facts(made)] == [True, False]


@pytest.mark.parametrize(("key", "value", "named"), [
    ("path", "reasoning-gym://sms", "sums"), ("source_args", {"size": 5, "larges": 1}, "largest"),
    ("source_args", {"size": 5, "largest": 0}, "positive"), ("source_args", {}, "size"),
    ("source_args", {"size": 0}, "size=0"), ("split", "validation", "train")])
def test_what_cannot_be_made_is_one_sentence(config, key, value, named):
    made, problems = hub.located(config({f"{SET}.{key}": value}))
    assert not isinstance(at(made, f"{SET}.path"), MadePath)
    assert len(problems) == 1
    assert problems[0].startswith(f"{SET}.path")
    assert named in problems[0]


def test_a_package_that_is_not_fetched_is_named_with_the_command(config, tmp_path):
    (tmp_path / packages.PLACE / "reasoning-gym" / packages.FETCHED).write_text("of another release")
    _, problems = hub.located(config())
    assert len(problems) == 2
    assert all("ouro fetch reasoning-gym" in one for one in problems)


def test_an_unknown_package_lists_the_known_ones():
    refuses(DataError, lambda: packages.versions("reasoning_gym"), "reasoning-gym")
