"""`ouroboros.train` before a stage starts: rows as files, arguments as a recipe, what is refused."""

import datetime
import json
import os
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml

import ouroboros
from ouroboros.commands.by_source import name_of
from ouroboros.commands.init import recipe
from ouroboros.commands.run import invoke
from ouroboros.commands.training import stored
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.store.errors import ConfigError, DataError
from tests.golden.messages import wording

MODEL = {"init": {"enable": True}}
ROWS = [{"question": f"{a}+1=", "answer": str(a + 1)} for a in range(40)]
FORMS = {"a list": list, "an iterator": iter, "pandas": lambda rows: pd.DataFrame(rows)[::-1][::-1],
         "pyarrow": pa.Table.from_pylist, "datasets": datasets.Dataset.from_list,
         "csv": lambda rows: pd.DataFrame(rows, dtype=str).to_csv("rows.csv", index=False) or "rows.csv"}


def score(response, answer):
    return float(response.strip() == answer)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A project directory, in which `train` writes and starts nothing; what it would have started is appended."""
    monkeypatch.chdir(tmp_path)
    asked = []

    def run(words, extra, **_):
        asked.append(words)
        config = compose(words)
        return 0, SimpleNamespace(project=config.project, name=f"{config.name}_2",
                                  view=Path(config.checkpoint_root_dir, "runs", config.project, f"{config.name}_2"))

    monkeypatch.setattr(invoke, "run", run)
    return asked


@pytest.fixture
def unmeasured(monkeypatch):
    """No process counts tokens and parameters: the answers have 2 tokens. Returns the files that it would have read."""
    asked = []
    monkeypatch.setattr(recipe.samples, "ask", lambda request: asked.extend(
        os.path.relpath(one["path"]) for one in request["sources"]) or {
        "problems": [], "longest": [["max_prompt_tokens", 6, 6, ""], ["max_response_tokens", 2, 2, ""]], "sizes": {}})
    return asked


def written(name: str = "train") -> dict:
    return yaml.safe_load(Path("conf", "recipe", f"{name}.yaml").read_text())


@pytest.mark.parametrize("form", FORMS)
def test_equal_rows_are_one_file_in_whatever_form_they_come(here, form):
    path = stored(FORMS[form](ROWS), "data")
    assert [json.loads(line) for line in Path(path).read_text().splitlines()] == ROWS
    assert path == stored(ROWS, "data")


def test_values_of_tables_are_those_that_are_meant(here):
    labels = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    path = stored(datasets.Dataset.from_dict({"text": ["a"], "label": [1]}, labels), "data")
    assert json.loads(Path(path).read_text()) == {"text": "a", "label": "yes"}
    rows = [{"n": np.int64(3), "v": np.array([0.5]), "on": datetime.date(2026, 11, 29)}]
    assert json.loads(Path(stored(rows, "data")).read_text()) == {"n": 3, "v": [0.5], "on": "2026-11-29"}
    assert json.loads(Path(stored(pd.DataFrame({"x": ["a"], "y": [float("nan")]}), "data")).read_text())["y"] is None
    assert json.loads(Path(stored([{"x": pd.NaT, "y": pd.NA}], "data")).read_text()) == {"x": None, "y": None}
    streamed = datasets.IterableDataset.from_generator(lambda: iter(ROWS))
    assert streamed.features is None
    assert stored(streamed, "data") == stored(ROWS, "data")


@pytest.mark.parametrize(("data", "words"), [
    ([], ["data"]), (None, ["None"]), ({"train": ROWS}, ["train"]), (["a", "b"], ["row 1"]),
    ([{"question": "a"}, {"question": {1, 2}}], ["row 2", "question", "set"]),
    ([{"question": "a", "answer": float("nan")}], ["row 1", "answer", "nan"]), ([{1: "a"}], ["row 1"]),
    (pd.DataFrame([[1, 2]], columns=["a", "a"]), ["named a"]), (pa.table([[1], [2]], ["a", "a"]), ["named a"]),
    ("rows.jsonl", ["rows.jsonl"])])
def test_what_are_no_rows_is_refused_by_row_and_column(here, data, words):
    with pytest.raises(DataError) as refused:
        stored(data, "data")
    wording(str(refused.value), *words)


def test_an_id_of_the_hub_is_one(here):
    assert stored("openai/gsm8k", "data") == "hf://datasets/openai/gsm8k"


def test_a_call_is_a_recipe_that_the_command_runs(here, unmeasured):
    run = ouroboros.train(MODEL, ROWS, score, steps=50, seed=3, trainer={"save_interval": 25},
                          **{"algorithm.optimizer.lr": 1e-3, "stages.rft.buffer.batch_size": 4})
    assert (run, run.root, here) == (f"{Path.cwd().name}/train_2", Path(), [["recipe=train"]])  # what `ouro run` made
    made = written()
    assert made["buffer"]["explorer_input"]["default_reward_fn_type"] == name_of(score, "reward")
    assert (made["buffer"]["total_steps"], made["seed"], made["trainer"]["save_interval"]) == (50, 3, 25)
    assert (made["algorithm"]["optimizer"]["lr"], made["algorithm"]["algorithm_type"]) == (1e-3, "grpo")
    assert made["stages"] == [{"stage_name": "rft", "buffer": {"batch_size": 4}}]
    before = Path("conf/recipe/train.yaml").read_bytes()
    assert ouroboros.check("train", data=False, call=False).problems == []
    ouroboros.train(MODEL, iter(ROWS), [score], steps=50, seed=3, trainer={"save_interval": 25},
                    **{"algorithm.optimizer.lr": 1e-3, "stages.rft.buffer.batch_size": 4})
    assert Path("conf/recipe/train.yaml").read_bytes() == before


def test_arguments_are_settings_of_a_recipe(here, unmeasured):
    def stock(fruit: str) -> int:
        """How many pieces of a fruit are left."""
        return len(fruit)

    shown = [{"prompt": row["question"], "completion": f"It is {row['answer']}, as one counts on from there, one by "
              "one."} for row in ROWS]
    ouroboros.train(MODEL, ROWS, [score, "accuracy_reward"], {"algorithm_type": "rloo", "repeat_times": 4},
                    eval_data=ROWS[:8], sft_data=shown, tools=stock, steps=9, name="two")
    made = written("two")
    source = made["buffer"]["explorer_input"]
    assert source["default_reward_fn_type"] == [name_of(score, "reward"), "accuracy_reward"]
    assert source["default_workflow_type"] == "tool_call_workflow"
    assert [one["workflow_args"]["tools"] for one in (source["taskset"], *source["eval_tasksets"])] == [
        [name_of(stock, "tools")]] * 2
    assert source["eval_tasksets"][0]["path"] == stored(ROWS[:8], "eval_data")
    assert source["taskset"]["path"] == stored(ROWS, "data")
    assert (made["algorithm"]["algorithm_type"], made["algorithm"]["repeat_times"]) == ("rloo", 4)
    assert [one["stage_name"] for one in made["stages"]] == ["sft", "rft"]
    assert (made["buffer"]["total_steps"], made["stages"][0]["buffer"]["total_steps"]) == (9, None)
    assert ouroboros.check("two", data=False, call=False).problems == []


CHOICES = [{"question": f"{a}+1=", "choices": [str(a), str(a + 1)], "answer": 1} for a in range(40)]


def test_rows_to_evaluate_on_are_converted_as_those_to_train_on(here, unmeasured):
    ouroboros.train(MODEL, CHOICES, eval_data=CHOICES[:3])
    source = written()["buffer"]["explorer_input"]
    assert [json.loads(line) for line in Path(source["eval_tasksets"][0]["path"]).read_text().splitlines()] == [
        {"question": f"{a}+1=\n\nA. {a}\nB. {a + 1}", "answer": "B"} for a in range(3)]
    assert unmeasured == [source["taskset"]["path"]]
    with pytest.raises(DataError) as refused:
        ouroboros.train(MODEL, CHOICES, eval_data=ROWS)
    wording(str(refused.value), "40 of 40")


def test_a_split_that_is_converted_is_evaluated_in_its_own_file(here, unmeasured):
    Path("rows").mkdir()
    for split, rows in (("train", CHOICES[5:]), ("test", CHOICES[:5])):
        Path("rows", f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    ouroboros.train(MODEL, "rows")
    source = written()["buffer"]["explorer_input"]
    counts = [len(Path(one["path"]).read_text().splitlines()) for one in (source["taskset"], *source["eval_tasksets"])]
    assert counts == [35, 5]
    ouroboros.train(MODEL, ROWS, score, eval_data="rows", name="other")
    assert written("other")["buffer"]["explorer_input"]["eval_tasksets"][0]["split"] == "test"


def test_lengths_are_those_of_converted_demonstrations(here, unmeasured):
    shown = [{"instruction": f"Count {a}", "input": "", "output": f"{a} and {a + 1}"} for a in range(40)]
    ouroboros.train(MODEL, shown, algorithm="sft")
    made = written()
    assert unmeasured == [made["buffer"]["trainer_input"]["experience_buffer"]["path"]]
    assert made["model"]["max_prompt_tokens"] == 8  # 6 tokens and a quarter, in eights


@pytest.mark.parametrize(("more", "key"), [
    ({"steps": 0}, "buffer.total_steps"), ({"algorithm": "grop"}, "algorithm.algorithm_type"),
    ({"algorithm.optimiser.lr": 1e-5}, "algorithm.optimiser"), ({"stps": 3}, "stps")])
def test_a_setting_that_is_wrong_is_the_problem_that_the_command_reports(here, unmeasured, more, key):
    with pytest.raises(ConfigError) as refused:
        ouroboros.train(MODEL, ROWS, score, **more)
    assert [problem.key for problem in refused.value.problems] == [key]
    wording(str(refused.value), key)


@pytest.mark.parametrize(("arguments", "error", "words"), [
    ({"data": [{"left": "a", "right": "b"}]}, DataError, ["left", "right"]),
    ({"prompt_key": "quetsion"}, DataError, ["question"]),
    ({"reward": None, "data": [{"question": "a?", "answer": f"w{at}"} for at in range(9)]}, ConfigError, ["reward"]),
    ({"algorithm": "dpo"}, DataError, ["dpo"]), ({"stages.rtf.seed": 2}, ConfigError, ["rft"]),
    ({"trainer": {"save_interval": {1}}}, ConfigError, ["trainer"]), ({"name": "mine"}, ConfigError, ["mine.yaml"]),
    ({"name": "sums"}, ConfigError, ["sums.yaml"]), ({"name": "../sums_"}, ConfigError, ["../sums_"]),
    ({"name": "a/b"}, ConfigError, ["a/b"]),
    ({"sft_data": ROWS}, DataError, ["sft_data"]), ({"model": {"model_path": "x", "dtyp": 1}}, ConfigError, ["dtyp"])])
def test_what_train_cannot_write_is_refused(here, unmeasured, arguments, error, words):
    Path("conf/recipe").mkdir(parents=True)
    Path("conf/recipe/mine.yaml").write_text("# @package _global_\nseed: 2\n")
    with pytest.raises(error) as refused:
        ouroboros.train(**{"model": MODEL, "data": ROWS, "reward": score} | arguments)
    wording(str(refused.value), *words)
    assert here == []


@pytest.mark.parametrize("more", [{"explorer.auxiliary_models": [{"model_path": "x", "api_key": "b-c-d-e-f"}]},
                                  {"buffer.explorer_input.taskset.workflow_args": {"header": "b-c-d-e-f"}}])
def test_a_secret_is_in_no_recipe(here, unmeasured, monkeypatch, more):
    monkeypatch.setenv("A_KEY", "b-c-d-e-f")
    with pytest.raises(ConfigError) as refused:
        ouroboros.train(MODEL, ROWS, score, **more)
    assert "b-c-d-e-f" not in str(refused.value)
    assert not Path("conf/recipe/train.yaml").exists()


def test_names_of_columns_may_have_any_characters(here, unmeasured):
    odd = "a\nb: [\u2028\x7f"
    ouroboros.train(MODEL, [{odd: row["question"], "answer": row["answer"], "un\nused": 1} for row in ROWS], score,
                    prompt_key=odd)
    assert written()["data_processor"]["task_pipeline"]["format"]["prompt_key"] == odd
