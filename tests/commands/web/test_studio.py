"""`ouro studio`: recipes as texts of which single keys change, what is said of drafts, where they are saved, and who is
let in."""

import subprocess

import pytest
import yaml
from starlette.testclient import TestClient

from ouroboros.commands.web import drafts, studio
from ouroboros.commands.web.recipe_text import changed, fragment, written
from ouroboros.pipeline.check import fields
from ouroboros.pipeline.check.judge import judged
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.settings.config import walk
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import ConfigError, DataError
from ouroboros.pipeline.store.yaml_values import Loader
from tests.fake_run import FakeRun
from tests.golden.messages import wording

RECIPES = sorted((files.CONF / "recipe").glob("*.yaml"))
TEXT = """# a recipe
name: mine  # of the run

model:
  init: {enable: true, hidden_size: 64}   # tiny
  max_prompt_tokens: 24  # tokens

# how long
buffer:
  batch_size: 64
  eval: &set {path: a, format: &columns {prompt_key: q}}
  other: {path: b, format: *columns}

stages:
  - stage_name: sft
    buffer: {total_steps: 1}
  - stage_name: rft
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stranger():
    return TestClient(studio.Studio("secret").asgi(), base_url="http://localhost:9000")


@pytest.fixture
def client(stranger):
    stranger.headers["authorization"] = "Bearer secret"
    return stranger


def asked(client, name: str, **given):
    answer = client.post(f"/api/studio/{name}", json=given)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(("key", "value", "old", "new"), [
    ("name", "other", "name: mine  #", "name: other  #"),
    ("model.max_prompt_tokens", "32", "tokens: 24  #", "tokens: 32  #"),
    ("model.init.enable", "false", "enable: true", "enable: false"),
    ("model.init.rope_theta", "100", "size: 64}", "size: 64, rope_theta: 100}"),
    ("model.init.hidden_size", None, ", hidden_size: 64}", "}"),
    ("model.init.enable", None, "{enable: true, ", "{"),
    ("model.max_prompt_tokens", None, "  max_prompt_tokens: 24  # tokens\n", ""),
    ("name", None, "name: mine  # of the run\n", ""),
    ("model.temperature", "0.5", "# tokens\n", "# tokens\n  # WHY\n  temperature: 0.5\n"),
    ("algorithm.optimizer.lr", "5e-4", "name: rft\n",
     "name: rft\n\nalgorithm:\n  optimizer:\n    # WHY\n    lr: 5e-4\n"),
    ("stages.rft.algorithm.optimizer.lr", "5e-4", "name: rft\n",
     "name: rft\n    algorithm:\n      optimizer:\n        # WHY\n        lr: 5e-4\n"),
    ("stages.sft.buffer.total_steps", None, "\n    buffer: {total_steps: 1}", ""),
    ("buffer.batch_size", "[1, {a: b}]", "size: 64\n", "size: [1, {a: b}]\n")])
def test_one_key_changes_and_nothing_else(key, value, old, new):
    made = changed(TEXT, key.split("."), value, "WHY")
    assert TEXT.count(old) == 1
    assert made == TEXT.replace(old, new)


@pytest.mark.parametrize(("text", "key", "value", "made"), [
    ("", "seed", "2", "seed: 2\n"), ("# only a comment", "seed", "2", "# only a comment\nseed: 2\n"),
    ("a:\n", "a.b", "1", "a: {b: 1}\n"), ("a: {}", "a.b.c", "1", "a: {b: {c: 1}}\n"), ("a: 1  # c", "a", None, ""),
    ("a: |\n  x\n  y\n\nb: 1\n", "a", "z", "a: z\n\nb: 1\n"), ("s:\n  a: >-\n    x\n\nb: 1\n", "s.c", "2",
                                                                  "s:\n  a: >-\n    x\n  c: 2\n\nb: 1\n"),
    ("l:\n- {a: 1}\n- a: 2\n  b: 3\n", "l.1.b", None, "l:\n- {a: 1}\n- a: 2\n"),
    ("l:\n- {a: 1}\n- a: 2\n  b: 3\n", "l.1.a", None, "l:\n- {a: 1}\n- b: 3\n"),
    ("l: [1, 2]\n", "l.1", "5", "l: [1, 5]\n"), ("é: 'ü'\na: 1\n", "a", "2", "é: 'ü'\na: 2\n"),
    ("l:\n- a: 2  # of a\n  # of b\n  b: 3\n", "l.0.a", None, "l:\n- # of b\n  b: 3\n"),
    ("a:\r\n  b: 1\r\nc: 2\r\n", "a.d", "3", "a:\r\n  b: 1\r\n  d: 3\r\nc: 2\r\n"),
    ("a:\r\n  b: 1\r\nc: 2\r\n", "a.b", "3", "a:\r\n  b: 3\r\nc: 2\r\n"),
    ("a:  # why\n  b:  # how\n    c: 1\n  d: 2\n", "a.b.c", "3", "a:  # why\n  b:  # how\n    c: 3\n  d: 2\n"),
])
def test_forms_of_yaml(text, key, value, made):
    assert changed(text, key.split("."), value) == made


@pytest.mark.parametrize(("text", "key", "value"), [
    *((text, key, "7") for text, key in (
        ("? a", "a"), ("{a, b: 1}", "a"), ("a: 1\na: 2", "a"), ("a: &x {b: 1}\nc: *x", "c.b"), ("l: []", "l.0"),
        ("a: b", "l.0.a"), ("x: &a {b: 1}\ny:\n  <<: *a\n", "x"))),
    # a comment would be dropped with the key beside it
    ("a: {b: 1,  # of b\n    # of c\n    c: 2}\n", "a.b", None), ("a: {b: 1,  # of b\n    c: 2}\n", "a.c", None),
    # other keys would change
    (TEXT, "buffer.eval.format.prompt_key", "x"), (TEXT, "buffer.eval", "x"), (TEXT, "buffer.batch_size.more", "x"),
    (TEXT, "stages.0", None)])
def test_what_is_not_changed_safely_is_refused(text, key, value):
    with pytest.raises(ConfigError):
        changed(text, key.split("."), value)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_values_of_a_shipped_recipe_change_and_come_back_and_new_keys_go_without_a_trace(path):
    text = path.read_text(encoding="utf-8")
    repeated = {"workflow_args", "format"} if "*" in text else set()  # by aliases: refused
    values = [key for key, value in written(text)[""].items() if value[:1] not in ("[", "{") and "'" not in value
              and not repeated & set(key.split("."))]
    for key in values[::3]:
        other = changed(text, key.split("."), "other")
        assert other != text
        back = changed(other, key.split("."), fragment(written(text)[""][key], fields.is_text(key)))
        assert back.replace('"', "") == text.replace('"', "")
    for key in ("trainer.ranks", "log.level", "model.init.tie", "cluster.slurm.qos"):
        more = changed(text, key.split("."), "2", "a meaning")
        assert key in written(text)[""] or changed(more, key.split("."), None, "a meaning") == text


@pytest.mark.parametrize(("typed", "is_text", "means"), [
    ("5e-4", False, 5e-4), ("007", True, "007"), ("true", True, "true"), ("null", True, None), 
    ("a: b # c", True, "a: b # c"),
    ("[1, 2]", False, [1, 2]), ("a: 1\nb: {c: x}", False, {"a": 1, "b": {"c": "x"}}), ("auto", False, "auto"),
    ("{not", False, "{not"), ("${seed}", True, "${seed}"), ("module:function", True, "module:function"),
    ("two\nlines", True, "two\nlines"), ("a\u2028b\x85c", True, "a\u2028b\x85c"), ("\ud83d", True, "\ud83d"),
    ("\U0001f600 é", True, "\U0001f600 é"), ("a\u2028b", False, "a\u2028b"), ("- a\n- b", False, ["a", "b"]),
    ("!!int x", False, "!!int x"), ("9" * 5000, False, "9" * 5000), ("[" * 5000, False, "[" * 5000)])
def test_what_is_typed_is_one_line_that_means_the_same(typed, is_text, means):
    made = fragment(typed, is_text)
    assert yaml.load(f"a: {made}", Loader) == {"a": means}
    assert yaml.load(f"{{a: {made}, b: 1}}", Loader)["a"] == means
    assert "\n" not in made


def identities(text: str, tmp_path) -> dict[str, str]:
    file = tmp_path / "planned.yaml"
    file.write_text(text)
    config, problems = judged([f"recipe={file}"])
    assert problems == []
    return {stage.name: stage.identity for stage in make_plan(config).stages}


def test_a_recipe_made_field_by_field_plans_to_the_identities_of_the_shipped_one(tmp_path):
    shipped = (files.CONF / "recipe/countdown.yaml").read_text(encoding="utf-8")
    values = written(shipped)
    known = {one["key"]: one for one in fields.fields()}
    text = "stages:\n  - stage_name: sft\n  - stage_name: rft\n"
    for scope, of_scope in values.items():
        for key, value in of_scope.items():
            is_leaf = not any(other.startswith(f"{key}.") for other in of_scope)
            if key == "buffer.explorer_input.eval_tasksets" or (
                    is_leaf and not key.startswith(("stages", "stage_name", "buffer.explorer_input.eval_tasksets"))):
                assert key in known or "_args." in key
                field = known.get(key, {"text": False})
                text = drafts.edited(text, scope, key, value, field)["text"]
    assert identities(text, tmp_path) == identities(shipped, tmp_path)
    wording(text, "learning")


def test_every_setting_is_a_field_with_its_meaning_and_default():
    found = {one["key"]: one for one in fields.fields()}
    assert set(found) == {key for key, _ in walk()} - {"stages"}
    rate = found["algorithm.optimizer.lr"]
    assert (rate["default"], rate["bounds"], rate["meaning"]) == (
        "1e-06", ">= 0, <= 1", "peak learning rate; at 0 nothing is learned")
    assert {"countdown_reward", "accuracy_reward"} <= {
        name for name, what in found["buffer.explorer_input.default_reward_fn_type"]["names"] if what}
    assert {key for _, _, keys in studio.QUESTIONS for key in keys} <= set(found)


def test_arguments_are_those_of_the_function_that_a_stage_calls(client):
    opened = asked(client, "open", file="countdown")
    told = asked(client, "judge", text=opened["text"], file=opened["file"])
    of_rft = {one["key"]: one for one in told["arguments"]["rft"]}
    assert of_rft["algorithm.policy_loss_fn_args.clip_range"]["default"] == "0.2"
    assert not any(key.startswith("algorithm.policy") for key in (one["key"] for one in told["arguments"]["sft"]))
    text = asked(client, "edit", text=opened["text"], stage="rft", key="algorithm.algorithm_type", value="sapo",
                 field={"text": True})["text"]
    told = asked(client, "judge", text=text, file=opened["file"])
    assert "algorithm.policy_loss_fn_args.clip_range" not in {one["key"] for one in told["arguments"]["rft"]}
    assert told["values"]["rft"]["algorithm.algorithm_type"] == "sapo"


def test_a_draft_is_judged_as_by_config_check(client):
    opened = asked(client, "open", file="countdown")
    right = asked(client, "judge", text=opened["text"], file=opened["file"])
    assert (right["problems"], len(right["stages"]), right["run"]) == ([], 8, "ouroboros/countdown")
    wrong = opened["text"].replace("lr: 5e-4", "lr: 7").replace("batch_size: 64", "batch_sise: 64")
    found = {one["key"]: one for one in asked(client, "judge", text=wrong, file=opened["file"])["problems"]}
    assert set(found) == {"algorithm.optimizer.lr", "buffer.batch_sise"}
    line = wrong[:wrong.index("lr: 7")].count("\n") + 1
    assert (found["algorithm.optimizer.lr"]["file"], found["algorithm.optimizer.lr"]["line"]) == (
        "conf/recipe/my_countdown.yaml", line)
    for text in ("a: [", "- a", "a: &x [*x]", "a: \0", "? [a]: b", "", "stages: 1", "stages: [1, {a: b}]",
                 "stages: [{stage_name: [a]}]", f"seed: {'9' * 5000}"):
        assert "problems" in asked(client, "judge", text=text, file="x.yaml")
    again = asked(client, "judge", text=opened["text"], file=opened["file"])  # no file of before is remembered
    assert again == right


def test_a_recipe_is_saved_below_the_directory_and_never_over_what_it_does_not_know(tmp_path):
    first = drafts.save(tmp_path, "conf/recipe/mine.yaml", "name: a\n", None)
    assert drafts.opened(tmp_path, "conf/recipe/mine.yaml") == {
        "text": "name: a\n", "file": "conf/recipe/mine.yaml", "digest": first["digest"]}
    second = drafts.save(tmp_path, "conf/recipe/mine.yaml", "name: b\n", first["digest"])
    for digest in (None, first["digest"]):
        with pytest.raises(DataError):
            drafts.save(tmp_path, "conf/recipe/mine.yaml", "name: c\n", digest)
    (tmp_path / "conf/recipe/mine.yaml").unlink()
    with pytest.raises(DataError):
        drafts.save(tmp_path, "conf/recipe/mine.yaml", "name: c\n", second["digest"])
    assert [one["file"] for one in drafts.recipes(tmp_path) if not one["shipped"]] == []


@pytest.mark.parametrize("file", ["../out.yaml", "/tmp/out.yaml", "mine.txt", "store/a.yaml", "out/x.yaml",
                                  "conf/recipe/countdown.yaml", ".", "conf/recipe/a,b.yaml", "a\0.yaml", "a\n.yaml",
                                  "conf/config.yaml", "conf/recipe/../config.yaml", "conf/algorithm/mine.yaml",
                                  "profiles/slurm/config.yaml", ".github/workflows/x.yaml", ".gitlab-ci.yml",
                                  "conf/recipe/linked.yaml", "linked/config.yaml", "elsewhere/mine.yaml"])
def test_no_other_place_is_written(tmp_path, file):
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (tmp_path / "out").symlink_to(outside)
    (tmp_path / "conf/recipe").mkdir(parents=True)
    (tmp_path / "conf/recipe/linked.yaml").symlink_to(tmp_path / "conf/config.yaml")
    (tmp_path / "linked").symlink_to(tmp_path / "conf")
    for digest in (None, files.hash_text("old: 1\n")):
        with pytest.raises(ConfigError):
            drafts.save(tmp_path, file, "name: a\n", digest)
    assert not list(outside.iterdir())
    assert [path.name for path in tmp_path.rglob("*.y*ml")] == ["linked.yaml"]


@pytest.mark.parametrize("file", ["mine.yaml", "conf/recipe/mine.yml", "conf/recipe/team/mine.yaml"])
def test_recipes_are_written_where_they_are(tmp_path, file):
    drafts.save(tmp_path, file, "name: a\n", None)
    assert (tmp_path / file).read_text() == "name: a\n"


def test_a_shipped_recipe_is_opened_as_a_new_file_and_no_other_is_read(client, tmp_path):
    opened = asked(client, "open", file="countdown")
    assert (opened["file"], opened["digest"]) == ("conf/recipe/my_countdown.yaml", None)
    assert opened["text"] == (files.CONF / "recipe/countdown.yaml").read_text(encoding="utf-8")
    for file in ("/etc/passwd", "../x.yaml", "absent.yaml", "countdown/../../../README", 7, None):
        assert client.post("/api/studio/open", json={"file": file}).status_code == 400


def test_only_the_page_itself_is_answered(stranger):
    for name in ("form", "open", "save", "start", "judge"):
        assert stranger.post(f"/api/studio/{name}", json={"file": "countdown"}).status_code == 403
    assert "static/studio.js" in stranger.get("/").text
    stranger.headers["authorization"] = "Bearer secret"
    for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}, {"sec-fetch-site": "cross-site"}):
        for name in ("save", "start"):
            assert stranger.post(f"/api/studio/{name}", json={}, headers=headers).status_code in (400, 403)
    assert stranger.get("/api/studio/start").status_code == 405


@pytest.mark.parametrize(("said", "text", "words", "page"), [
    ("ouro: ouroboros/a_2026 begins; to go on with it: ouro run\nouro: ouroboros/a_2026 runs in the background as "
     "process 7; what it prints: x", "name: a\n", [], "#/run/ouroboros/a_2026"),
    ("nothing to do: all 2 stages of ouroboros/a are complete\nlearnt", "name: a\n", [], "#/run/ouroboros/a"),
    ("ouro: ouroboros/a runs in the background as process 7", "name: a\nseed: ???\n", ["seed=1,2"],
     "#/run/ouroboros/a"),
    ("ouro: ouroboros/a runs in the background as process 7", "checkpoint_root_dir: other\n", [], None)])
def test_the_page_is_of_the_run_that_was_started(client, tmp_path, monkeypatch, said, text, words, page):
    drafts.save(studio.Path(), "mine.yaml", text, None)
    for name in ("a", "a_2026"):
        run = FakeRun(tmp_path, f"ouroboros/{name}").data()
        run.view()
    monkeypatch.setattr(studio, "command", lambda *_: subprocess.CompletedProcess([], 0, said, ""))
    assert asked(client, "start", file="mine.yaml", words=words)["page"] == page


@pytest.mark.parametrize("name", ["form", "open", "save", "new", "start", "edit", "judge", "measure", "prompt",
                                  "columns"])
def test_what_files_cannot_hold_is_refused(client, name):
    for body in (b'{"text": "name: \\ud83d", "file": "x.yaml"}', b'{"words": ' + b"[" * 100_000,
                 b'{"text": ' + b'{"a": ' * 200 + b"1" + b"}" * 201, b'{"file": "x.yaml", "task": Infinity}'):
        answer = client.post(f"/api/studio/{name}", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400
    if name not in ("form", "start", "columns"):
        large = {"text": "a" * (1 << 21), "file": "a" * (1 << 21), "data": "a" * (1 << 21), "stage": "", "task": 0}
        assert client.post(f"/api/studio/{name}", json=large).status_code == 400


@pytest.mark.parametrize(("name", "given"), [
    ("edit", {"text": "a: 1\n", "stage": "", "key": ".".join("a" * 5000), "value": "1", "field": {}}),
    ("edit", {"text": "[" * 5000, "stage": "", "key": "a", "value": "1", "field": {}}),
    ("save", {"text": "[" * 5000, "file": "x.yaml", "digest": None}),
    ("open", {"file": "a" * 5000 + ".yaml"}), ("columns", {"path": "a/" * 5000}),
    ("columns", {"path": "a\0"}), ("new", {"data": "a\0", "model": "m", "name": "x"}),
    ("prompt", {"text": "name: a", "file": "x.yaml", "stage": "\0", "task": 0}), ("open", {"file": "a\0.yaml"})])
def test_deep_and_long_texts_and_what_is_no_path_or_name_are_refused(client, name, given):
    assert client.post(f"/api/studio/{name}", json=given).status_code == 400


@pytest.mark.parametrize("words", [["--dry"], ["lr"], [7], ["-m=1"], ["x=1\n"], ["x=\0"], "x=1"])
def test_what_is_no_sweep_starts_nothing(client, words):
    drafts.save(studio.Path(), "mine.yaml", "name: a\n", None)
    assert client.post("/api/studio/start", json={"file": "mine.yaml", "words": words}).status_code == 400
    assert not studio.Path("runs").exists()


def test_a_recipe_is_described_by_its_first_sentence(tmp_path):
    """Whole: an abbreviation ends no sentence, and commands below it are no part of it."""
    about = "GRPO on sums (Cobbe et al. 2021): small, on GPUs"
    (tmp_path / "conf/recipe").mkdir(parents=True)
    (tmp_path / "conf/recipe/mine.yaml").write_text(f"# {about}\n#   ouro run recipe=mine\n# More.\n")
    (own,) = [one for one in drafts.recipes(tmp_path) if not one["shipped"]]
    assert own["about"] == about
