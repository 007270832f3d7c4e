"""The examples of the guide, the FAQ and the page for users of veRL: imported, checked without a problem, run."""

import json
import os
from pathlib import Path

import pytest
import yaml

from ouroboros.commands import cli
from ouroboros.pipeline.store import records, tables
from tests.bridges import SOURCES
from tests.servers import chat_app, serving

GIVEN = yaml.safe_load((SOURCES / "examples.yaml").read_text())
SCORED = ("linguistic_complexity", "conceptual_depth", "prior_knowledge", "step_complexity", "ambiguity", "accuracy",
          "grammar", "informativeness", "coherence")
CODE = """
def judged(task, endpoint, auxiliary_models):
    from openai import OpenAI

    with OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as policy:
        said = policy.chat.completions.create(model=endpoint.model, messages=task.messages).choices[0].message.content
    (judge,) = auxiliary_models
    verdict = judge.chat.completions.create(model=judge.model_path, messages=[{"role": "user", "content": said}],
                                            temperature=0, max_tokens=3)
    return {"judged": float(len(verdict.choices[0].message.content or ""))}


def nothing(response, answer):
    return 0.0
"""


def over(below: dict, above: dict) -> dict:
    return {**below, **{key: over(below[key], value) if isinstance(value, dict) and isinstance(below.get(key), dict)
                        else value for key, value in above.items()}}


@pytest.fixture
def imported(tmp_path, monkeypatch, tiny_model):
    """imported(name): the recipe of an example in a project with a tiny model, tasks and demonstrations."""
    rows = [{"question": f"{one} 2 = {one + 2}: ", "answer": json.dumps({"numbers": [one, 2], "target": one + 2})}
            for one in range(1, 9)]
    for name, content in (("tasks", rows), ("shown", [{**row, "answer": "1+2"} for row in rows])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    (tmp_path / "own_code.py").write_text(CODE)
    (tmp_path / "scoring.yaml").write_text(yaml.safe_dump({"process": [{"llm_quality_score_filter": {
        "api_or_hf_model": "m", "min_score": 0.0, "input_keys": ["prompt_text", "response_text"],
        "field_names": ["prompt", "response"]}}]}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": "k", "MODEL_PATH": tiny_model,
                        "TASKS": "tasks.jsonl", "DEMONSTRATIONS": "shown.jsonl",
                        "MLFLOW_KEY": "k", "SERVER_URL": "http://127.0.0.1:9/v1", "SERVER_KEY": "k"}.items():
        monkeypatch.setenv(name, str(value))

    def run(name: str) -> str:
        text = yaml.safe_dump(over(GIVEN["base"], {"name": name, **GIVEN["examples"][name]}), sort_keys=False)
        (tmp_path / f"{name}.yaml").write_text(text)
        assert cli.main(["import", "trinity", f"{name}.yaml"]) == 0
        return name

    return run


@pytest.mark.parametrize("name", GIVEN["examples"])
def test_an_example_is_imported_and_has_no_problem(imported, capsys, name):
    code = cli.main(["config", "check", f"recipe={imported(name)}", "--no-data"])
    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", [pytest.param("judge", marks=pytest.mark.slow),
                                  *(pytest.param(name, marks=pytest.mark.wide) for name in (
                                      "stages", "ppo_beside_verl", "grpo_beside_verl"))])
def test_an_example_runs(imported, capsys, name):
    """The examples of the page for users of veRL, and a warm-up before a stage that learns from rollouts."""
    tiny = [f"explorer.rollout_model.{one}" for one in ("engine_type=transformers", "tensor_parallel_size=1")]
    tiny += ["buffer.total_steps=1"]
    tiny += ["explorer.auxiliary_models.0.engine_type=transformers"] * (name == "judge")
    assert cli.main(["run", f"recipe={imported(name)}", *tiny]) == 0, capsys.readouterr()
    assert os.listdir("checkpoints/runs/guide")


@pytest.mark.wide
def test_operators_score_tasks_and_experience(imported, capsys, monkeypatch):
    """Each score is 3 of 5: half of 0.6 is added to a reward."""
    said = json.dumps({"dimension_scores": dict.fromkeys(SCORED, 3), "flags": []})
    with serving(chat_app(lambda body, headers: said)) as address:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{address}/v1")
        assert cli.main(["run", f"recipe={imported('data_processor')}", "buffer.total_steps=1",
                         "explorer.rollout_model.engine_type=transformers"]) == 0, capsys.readouterr().out
    (rows,) = Path("checkpoints/store").glob("rft-*/" + tables.LOCATIONS["curated"])
    (before,) = Path("checkpoints/store").glob("rft-*/" + tables.LOCATIONS["experience"])
    explored = tables.read(before, records.Experience)["reward"].to_pylist()
    assert tables.read(rows, records.Curated)["reward"].to_pylist() == pytest.approx([one + 0.3 for one in explored])


@pytest.mark.wide
def test_a_server_makes_demonstrations(imported, capsys, monkeypatch):
    with serving(chat_app(lambda body, headers: "1+2")) as address:
        monkeypatch.setenv("SERVER_URL", f"{address}/v1")
        assert cli.main(["run", f"recipe={imported('external')}", "buffer.total_steps=1"]) == 0, capsys.readouterr()
    (rows,) = Path("checkpoints/store").glob("*/" + tables.LOCATIONS["experience"])
    assert set(tables.read(rows, records.Experience)["response"].to_pylist()) == {"1+2"}
