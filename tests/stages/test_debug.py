"""`ouro debug workflow`: one attempt by a script or a server; what it shows, and what fails."""

import json
import os
from contextlib import suppress

import pytest

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.store import images
from ouroboros.pipeline.store.errors import ConfigError, DataError, OuroError
from ouroboros.stages.debug import Asked, debug
from tests.factories import jsonl
from tests.golden.messages import refuses, wording
from tests.harbor_kit import write_task
from tests.servers import chat_app, serving

COMMON = ("recipe=countdown", "model.max_response_tokens=16", "model.max_prompt_tokens=60")


def shown(*overrides, **asked):
    """Whether the attempt has a reward, and the lines that were shown."""
    lines = []
    settings = Recipe(compose([*COMMON, *overrides])).one_attempt(asked.pop("stage", None))
    return debug(settings, Asked(**asked), lines.append), "\n".join(lines)


def test_the_truth_as_the_reply_is_judged_like_a_response(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    is_fine, text = shown("buffer.explorer_input.default_reward_fn_type=accuracy_reward", script="answer")
    assert is_fine
    assert "mask 1x16" in text
    assert "accuracy=" in text
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_the_recipe_makes_answers():
    is_fine, text = shown("explorer.rollout_model.engine_type=transformers", task=3)
    assert is_fine
    assert "[call 0]" in text


def leveled(response, answer, level):
    return level


def test_the_reward_gets_the_columns_of_the_record(tmp_path):
    rows = jsonl(tmp_path / "rows.jsonl", [{"question": "1 + 1", "answer": "2", "level": level} for level in (3, 4)])
    reward = f"buffer.explorer_input.taskset.default_reward_fn_type={__name__}:leveled"
    is_fine, text = shown(f"buffer.explorer_input.taskset.path={rows}", reward, script="answer", task=1)
    assert is_fine
    assert "reward 4 " in text


def test_two_turns_of_a_script_are_two_calls_and_rows(tmp_path):
    script = tmp_path / "script.json"
    script.write_text(json.dumps(["1+2", "(3"]))
    is_fine, text = shown("buffer.explorer_input.default_workflow_type=retry_workflow", "model.max_model_len=150",
                          "buffer.explorer_input.taskset.workflow_args={max_env_steps: 2}", script=str(script), task=3)
    assert is_fine
    assert [mark in text for mark in ("[call 0]", "[call 1]", "[call 2]", "[row 1]")] == [True, True, False, True]
    assert "mask 1x4" in text  # three characters and the end of the turn


def test_a_script_plays_an_environment_through_the_chat_template_of_the_recipe(tmp_path):
    """The call of the first reply is in the prompt of the second: one row, whose mask is 0 on the lake between."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps(['[move(direction="left")]', "done"]))
    lines = []
    assert debug(Recipe(compose(["recipe=frozen_lake"])).one_attempt(None), Asked(script=str(script)), lines.append)
    text = "\n".join(lines)
    assert "mask 1x25 0x20 1x5" in text or "mask 1x25 0x25 1x5" in text  # a lake of 4x4, or with ` wall`
    assert "reward 0 (accuracy=0)" in text
    wording(text, "[tool call] move", '"left"}')


def test_a_harbor_task_is_tried_in_its_image(tmp_path):
    write_task(tmp_path / "tasks" / "one", environment__Dockerfile="FROM x\nRUN true\n")
    (tmp_path / "script.json").write_text('["done"]')
    settings = Recipe(compose([
        "recipe=terminal", f"checkpoint_root_dir={tmp_path}", "buffer.explorer_input.taskset.split=train",
        f"buffer.explorer_input.taskset.path={tmp_path / 'tasks'}"])).one_attempt(None)
    asked, lines = Asked(script=str(tmp_path / "script.json")), []
    with refuses(DataError, "one", "--until images"):
        debug(settings, asked, lines.append)
    [environment] = images.environments([str(tmp_path / "tasks")], {}, str(tmp_path))
    (images.directory(str(tmp_path)) / "layers" / "empty").mkdir(parents=True)
    image = images.Image("sha256:1", ["empty"], {}, "/", 0, "/root", os.geteuid(), 0, 0.0)
    image.write(images.place_of(str(tmp_path), environment.key))
    with suppress(OuroError):  # it has no programs
        debug(settings, asked, lines.append)
    assert '"digest": "sha256:1"' in lines[0]


def test_a_script_that_is_too_short_fails_the_attempt(tmp_path):
    (tmp_path / "script.json").write_text("[]")
    is_fine, text = shown(script=str(tmp_path / "script.json"))
    assert not is_fine
    wording(text, "workflow_failed", "0 replies")


def test_an_agent_that_fails_shows_its_traceback(tmp_path, monkeypatch, capfd):
    (tmp_path / "failing_agent.py").write_text(
        "def work(prompt, model):\n    model(prompt)\n    return tool()\n\n\ndef tool():\n"
        "    raise ValueError('no such file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    from ouroboros.workflows.attempts.isolated import host

    host.cache_clear()
    is_fine, text = shown("buffer.explorer_input.default_workflow_type='failing_agent:work'", script="answer")
    assert not is_fine
    wording(text, "ValueError")
    assert "in tool" in capfd.readouterr().err


def test_a_server_answers_in_place_of_the_model(monkeypatch):
    asked = []

    def answer(body, headers):
        asked.append((body["messages"], (body["max_tokens"], body["temperature"]), headers["authorization"]))
        return "(1+2"

    monkeypatch.setenv("OURO_TEST_KEY", "k")
    with serving(chat_app(answer)) as address:
        is_fine, text = shown("buffer.explorer_input.taskset.rollout_args={max_tokens: 9, temperature: 0.5}", task=3,
                              server={"base_url": f"{address}/v1", "model_name": "m", "api_key_env": "OURO_TEST_KEY"})
    assert is_fine
    ((messages, most, key),) = asked
    assert (messages[-1]["role"], most, key) == ("user", (9, 0.5), "Bearer k")
    assert "(1+2" in text
    assert f"m at {address}" in text
    assert "Bearer" not in text


@pytest.mark.parametrize(("asked", "error"), [
    ({"task": 10**6, "script": "answer"}, DataError), ({"taskset": "other"}, ConfigError),
    ({"stage": "other"}, ConfigError), ({"server": {"base_url": "http://a:b@c/v1", "model_name": "m"}}, ConfigError)])
def test_what_is_not_there_is_named(asked, error):
    with pytest.raises(error):
        shown(**asked)
