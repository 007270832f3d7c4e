"""Secrets: refused where they would be written, masked where they are shown, filled in where they are used."""

import json
import os
import subprocess
import sys

import pytest

from ouroboros.pipeline.check.explain import show
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose import axes
from ouroboros.pipeline.job.context import open_stage
from ouroboros.pipeline.plan.plan import Plan, make_plan
from ouroboros.pipeline.settings import secrets
from ouroboros.pipeline.settings.config import walk
from ouroboros.pipeline.store.errors import ConfigError, masked
from ouroboros.pipeline.store.secret_names import TAKEN_AS_SECRETS
from tests.configs import changed, problems_of, refused
from tests.golden.messages import refuses

KEY = "buffer.explorer_input.taskset.reward_fn_args"


def test_a_secret_may_be_named_but_not_written():
    problem = next(one for one in problems_of(f"{KEY}.api_key=hush-hush") if one.key == f"{KEY}.api_key")
    assert "api_key: ${oc.env:VARIABLE}" in problem
    assert "hush" not in refused(f"{KEY}.api_key=hush-hush")


def test_a_variable_that_is_not_set_is_named_with_the_key_that_needs_it(monkeypatch):
    monkeypatch.delenv("OURO_TEST_KEY", raising=False)
    problem = problems_of(f"{KEY}.api_key=${{oc.env:OURO_TEST_KEY}}")[0]
    assert (problem.key, "OURO_TEST_KEY" in problem) == (f"{KEY}.api_key", True)


@pytest.mark.parametrize(("words", "seen"), [
    (["api_key=${oc.env:OURO_TEST_KEY}"], {"api_key": "hush-hush"}),
    (["key=${oc.env:OURO_TEST_KEY}", 'headers={Authorization: "Bearer ${oc.env:OURO_TEST_KEY}"}'],
     {"key": "hush-hush", "headers": {"Authorization": "Bearer hush-hush"}})])
def test_a_secret_reaches_the_stage_and_no_file(words, seen, tmp_path, monkeypatch):
    monkeypatch.setenv("OURO_TEST_KEY", "hush-hush")
    config = compose(["recipe=countdown", f"checkpoint_root_dir={tmp_path}", *(f"{KEY}.{word}" for word in words)])
    plan, handed = frozen_without(config, "hush", tmp_path)
    assert "${oc.env:OURO_TEST_KEY}" in show(config)
    assert handed["reward_fn_args"] == seen
    monkeypatch.setenv("OURO_TEST_KEY", "another")
    assert make_plan(config).targets == plan.targets  # a new key is no new stage


def test_a_stage_on_another_machine_says_which_variable_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setenv("OURO_TEST_KEY", "hush")
    plan = make_plan(changed({f"{KEY}.api_key": "${oc.env:OURO_TEST_KEY}", "checkpoint_root_dir": str(tmp_path),
                              "data_processor.task_pipeline.generator_args.api_key": "${oc.env:OURO_TEST_KEY}"}))
    plan.freeze()
    monkeypatch.delenv("OURO_TEST_KEY")
    with refuses(ConfigError, "api_key", "OURO_TEST_KEY"):
        open_stage(next(tmp_path.glob("store/tasks-*")))


def test_secrets_are_masked_and_what_only_sounds_like_one_is_not():
    given = {"a": [{"api_key": "x", "max_prompt_tokens": 5}], "HF_TOKEN": "y", "password": None, "prompt_key": "z"}
    assert secrets.mask(given) == {
        "a": [{"api_key": "***", "max_prompt_tokens": 5}], "HF_TOKEN": "***", "password": None, "prompt_key": "z"}
    assert given["a"][0]["api_key"] == "x"


def test_a_setting_that_names_a_secret_has_its_reference_and_one_that_is_no_argument_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("OURO_TEST_KEY", "hush-hush")
    words = [f"{KEY}.api_key=${{oc.env:OURO_TEST_KEY}}", f"{KEY}.url=http://${{{KEY}.api_key}}/"]
    _, seen = frozen_without(compose(["recipe=countdown", f"checkpoint_root_dir={tmp_path}", *words]), "hush", tmp_path)
    assert seen["reward_fn_args"] == {"api_key": "hush-hush", "url": "http://hush-hush/"}
    words += ["project=${oc.env:OURO_TEST_KEY}", f"name=${{{KEY}.api_key}}"]
    assert {one.key for one in problems_of(*words) if "OURO_TEST_KEY" in one} == {"project", "name"}
    assert "hush" not in refused(*words)


FREE = "buffer.explorer_input.taskset.workflow_args"


@pytest.mark.parametrize(("name", "is_one"), [
    ("OPENAI_API_KEY", True), ("MY_KEY", True), ("GITHUB_TOKEN", True), ("DB_PASSWORD", True), ("PGPASSWORD", True),
    ("CLIENT_SECRET", True), ("my_key", True), ("HOME", False), ("HF_TOKEN_PATH", False), ("MAX_TOKENS", False),
    ("KEYBOARD", False), ("TOKENIZERS_PARALLELISM", False)])
def test_which_variables_hold_a_secret(name, is_one, monkeypatch):
    """Of a variable in an interpolation, of an entry of env_vars, and of what messages do not show."""
    monkeypatch.setenv(name, "hush-hush")
    assert bool(secrets.named_in(f"${{oc.env:{name}}}")) == is_one
    assert (masked("hush-hush") == "***") == is_one
    if name.isupper():
        assert secrets.is_secret(f"explorer.env_vars.{name}") == is_one


@pytest.mark.parametrize(("key", "is_one"), [
    ("monitor.monitor_args.api_key", True), ("apiKey", True), ("x-api-key", True), ("a.my_password", True),
    ("HF_TOKEN", True), ("hf_token", True), ("clientSecret", True), ("api_key.0", True), ("max_prompt_tokens", False),
    ("format.prompt_key", False), ("key", False), ("tokenizer", False), ("eos_token_id", False), ("PATH", False)])
def test_which_settings_hold_a_secret(key, is_one):
    assert secrets.is_secret(key) == is_one


def test_no_setting_of_the_schema_is_a_secret():
    assert [key for key, _ in walk() if secrets.is_secret(key)] == []


def frozen_without(config: dict, secret: str, root) -> tuple[Plan, dict]:
    """The plan, whose files and words do not have the secret, and what rft is handed of its taskset."""
    plan = make_plan(config)
    plan.freeze()
    for file in root.rglob("*"):
        assert not file.is_file() or secret not in file.read_text()
    assert secret not in show(config)
    rft = next(s for s in plan.stages if s.name == "rft")
    spec = json.loads((root / "store" / f"rft-{rft.identity}" / "stage.json").read_text())
    return plan, secrets.reveal(spec)["config"]["buffer"]["explorer_input"]["taskset"]


@pytest.mark.parametrize(("overrides", "key", "words"), [
    (["seed=${oc.env:OURO_TEST_KEY}"], "seed", "'${oc.env:OURO_TEST_KEY}'"),
    (["project=${oc.env:OURO_TEST_KEY}"], "project", "OURO_TEST_KEY is a secret by its name"),
    ([f"{FREE}.a=${{oc.env:OURO_TEST_KEY,x}}"], f"{FREE}.a", "no default"),
    ([f"{FREE}.a=${{oc.env:OURO_TEST_KEY}}${{project}}"], f"{FREE}.a", "no other interpolation"),
    ([f"{FREE}.a='${{oc.decode:${{oc.env:OURO_TEST_KEY}}}}'"], f"{FREE}.a", "no other interpolation"),
    ([f"{FREE}.a=${{oc.env:OURO_OTHER_KEY}}"], f"{FREE}.a", "OURO_OTHER_KEY is not set"),
    (["seed=hush-hush"], "seed", "'***'"),
    ([f"{FREE}.a=${{oc.env:OURO_TEST_KEY}}", f"seed=${{{FREE}.a}}"], "seed", "'${oc.env:OURO_TEST_KEY}'")])
def test_no_problem_shows_the_value_of_a_secret_variable(overrides, key, words, monkeypatch):
    monkeypatch.setenv("OURO_TEST_KEY", "hush-hush")
    with pytest.raises(ConfigError) as error:
        compose(overrides)
    assert any(one.key == key and words in one for one in error.value.problems)
    assert "hush" not in str(error.value)
    assert not any("hush" in str(part) for one in error.value.problems for part in one.parts().values())


def test_a_secret_may_be_empty_by_default_and_nothing_else(monkeypatch):
    monkeypatch.delenv("OURO_TEST_KEY", raising=False)
    for text in ("${oc.env:OURO_TEST_KEY,}", "${oc.env:OURO_TEST_KEY, ''}", "${oc.env:OURO_TEST_KEY,null}"):
        assert secrets.problems_of({"api_key": text}) == []
        assert secrets.reveal({"api_key": text}) == {"api_key": ""}
    assert compose([f"{KEY}.api_key=${{oc.env:OURO_TEST_KEY,''}}"])
    (problem,) = secrets.problems_of({"api_key": "${oc.env:OURO_TEST_KEY,hush}"})
    assert (problem.key, "hush" in problem) == ("api_key", False)


def quoted(text: str) -> str:
    """Inside double quotes of Hydra."""
    return text.replace('"', '\\"')


@pytest.mark.parametrize(("spelled", "seen"), [
    *((spelled, "123") for spelled in (
        "${ oc.env:OURO_TEST_KEY}", '${oc.env:"OURO_TEST_KEY"}', "${oc.env : 'OURO_TEST_KEY' }",
        "${oc.env:OURO_${project}_KEY}", "${oc.${name}:OURO_TEST_KEY}",
        "${oc.env:OURO_ABSENT,${oc.env:OURO_TEST_KEY}}")), ("x${oc.env:\"OURO_${project}_KEY\"}", "x123")])
def test_a_secret_that_reaches_an_argument_in_a_roundabout_way_stays_a_reference(spelled, seen, tmp_path, monkeypatch):
    """The configuration never holds its value, however short."""
    monkeypatch.setenv("OURO_TEST_KEY", "123")
    config = compose(["recipe=countdown", f"checkpoint_root_dir={tmp_path}", "project=TEST", "name=env",
                      f'{FREE}.a="{quoted(spelled)}"'])
    text = config.buffer.explorer_input.taskset.workflow_args["a"]
    assert secrets.named_in(text) == ["OURO_TEST_KEY"]
    assert secrets.reveal({"a": text}) == {"a": seen}
    make_plan(config)


def test_a_variable_is_a_secret_where_a_setting_that_is_named_as_one_takes_it(monkeypatch):
    monkeypatch.setenv("OURO_TEST_PLAIN", "abc")
    with refuses(ConfigError, FREE, "OURO_TEST_PLAIN"):
        compose([f"{KEY}.api_key=${{oc.env:OURO_TEST_PLAIN}}", f"{FREE}.a=${{oc.env:OURO_TEST_PLAIN}}"])
    monkeypatch.setenv("OURO_TEST_PLAIN", "hush-hush")
    assert masked("hush-hush") == "hush-hush"
    secrets.reveal({"api_key": "${oc.env:OURO_TEST_PLAIN}"})
    assert masked("401 hush-hush") == "401 ***"
    TAKEN_AS_SECRETS.discard("OURO_TEST_PLAIN")


@pytest.mark.parametrize("overrides", [
    ["explorer.env_vars.OPENAI_API_KEY=hush1"] * 2, ["explorer.env_vars={OPENAI_API_KEY:hush1,A:b}"] * 2,
    ["+explorer.env_vars.OPENAI_API_KEY=hush1["], ["explorer.env_vars.OPENAI_API_KEY=hush1 hush2 (hush3"],
    ["explorer.env_vars.OPENAI_API_KEY=hush1,hush2"], ["stages.nothing.explorer.env_vars.API_KEY=hush1"],
    ["explorer.env_vars.HF_TOKEN.x=hush1"]])
def test_a_message_about_an_override_does_not_repeat_the_secret_in_it(overrides):
    with pytest.raises(ConfigError) as error:
        compose(overrides)
    assert "hush" not in str(error.value)
    assert "***" in str(error.value)


@pytest.mark.parametrize("override", ["API_KEY=hush1,hush1", "API_KEY=interval(1.5,2)", "API_KEY=shuffle(hush1,hush2)"])
def test_nor_does_one_about_an_axis_of_a_sweep(override):
    with refuses(ConfigError, "'explorer.env_vars.API_KEY=***'") as error:
        axes.read([f"explorer.env_vars.{override}"])
    assert "hush" not in str(error.value)


def test_the_value_of_a_secret_that_a_shell_filled_in_is_refused(monkeypatch):
    monkeypatch.setenv("OURO_TEST_TOKEN", "/hush/hush")
    for text in ("/hush/hush", "Bearer /hush/hush"):
        with refuses(ConfigError, "env_vars.X", "OURO_TEST_TOKEN", "${oc.env:OURO") as e:
            compose([f"explorer.env_vars.X='{text}'"])
        assert "hush" not in str(e.value)
    assert compose(["explorer.env_vars.X=/hush/hush/models"]).explorer.env_vars == {"X": "/hush/hush/models"}
    monkeypatch.setenv("OURO_TEST_TOKEN", "a_word")  # seven or fewer characters may be meant otherwise
    assert compose(["explorer.env_vars.X=a_word"]).explorer.env_vars == {"X": "a_word"}


def test_the_environment_of_a_process_in_proc_shows_no_secret_and_its_own_is_the_same():
    script = ("import ctypes, json, os; "
              "from ouroboros.pipeline.store.secret_names import conceal_secrets; conceal_secrets(); "
              "get = ctypes.CDLL(None).getenv; get.restype = ctypes.c_char_p; "
              "print(json.dumps([open('/proc/self/environ').read(), dict(os.environ), get(b'DOOR_KEY').decode()]))")
    given = {"DOOR_KEY": "sesame-open", "ADDRESS": "http://me:sesame-open@host", "A_TOKEN": "1", "RANK": "1",
             "EMPTY_KEY": "", "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", script], env=given, capture_output=True, text=True, check=True)
    shown, own, got = json.loads(done.stdout)
    assert "sesame" not in shown
    assert {"RANK=1", "A_TOKEN=*", f"PATH={given['PATH']}"} <= set(shown.split("\0"))
    assert {name: own[name] for name in given} == given
    assert got == "sesame-open"


@pytest.mark.parametrize(("value", "is_refused"), [("none", False), ("EMPTY", False), ("nonesuch", True)])
def test_what_stands_in_place_of_a_key_is_none(value, is_refused):
    assert bool(secrets.kept_out("api_key", value)) is is_refused
