"""Text from outside that UTF-8 cannot encode, and JSON that files cannot hold."""

import json
import math
import os

import pytest

from ouroboros.pipeline.store import files, records, tables
from ouroboros.pipeline.store.data_files import parsed
from ouroboros.pipeline.store.foreign_text import DEEPEST, escaped, escaped_all, flaw
from ouroboros.pipeline.store.secret_names import masked
from tests.configs import broken, places, problems_of
from tests.factories import row
from tests.golden.messages import refuses


def nested(levels):
    value = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(("value", "is_flawed"), [
    *((one, True) for one in ("\ud800", {"a": ["x\udfff"]}, {"\ud800": 1}, math.nan, [math.inf],
                              {"a": {"b": -math.inf}}, nested(DEEPEST + 1), nested(100_000))),
    *((one, False) for one in ("", "a\x00ü😀", None, True, 10**400, -1.5, {"a": [1, {"b": None}]}, nested(DEEPEST)))])
def test_what_files_cannot_hold_has_a_flaw(value, is_flawed):
    assert bool(flaw(value)) == is_flawed


@pytest.mark.parametrize(("text", "keys"), [
    ('buffer: {explorer_input: {system_prompt: "x\\ud800"}}', ["buffer.explorer_input.system_prompt"]),
    ('name: "fi\\udcff"', ["name"]),
    ('stages: [{stage_name: sft, model: {model_path: "\\udfff"}}]', ["sft: model.model_path"]),
    ('explorer: {env_vars: {A: "\\ud800"}}', ["explorer.env_vars.A"]),
    ('algorithm: {advantage_fn_args: {a: {"\\ud800": 1}, b: ["\\ud800"]}}', [
        r"algorithm.advantage_fn_args.a.\ud800", "algorithm.advantage_fn_args.b.0"])])
def test_a_setting_that_is_no_unicode_is_refused(tmp_path, text, keys):
    """YAML knows the escape, though UTF-8 does not."""
    (tmp_path / "r.yaml").write_text(text)
    found = [one for one in problems_of(f"recipe={tmp_path / 'r.yaml'}", "model.init.enable=true")
             if "Unicode" in one.needed or one.key == "name"]
    assert sorted(places(found)) == sorted(keys)


def test_bytes_of_a_variable_that_are_no_utf8_are_refused(monkeypatch):
    monkeypatch.setenv("OURO_TEST_BYTES", os.fsdecode(b"a\xff"))
    assert broken("buffer.explorer_input.system_prompt=${oc.env:OURO_TEST_BYTES}") == [
        "buffer.explorer_input.system_prompt"]


def test_escapes_in_json_keep_their_meaning_and_other_text_is_untouched(tmp_path):
    assert (escaped("a\ud800b"), escaped("ü😀\x00")) == (r"a\ud800b", "ü😀\x00")
    assert json.loads(escaped(json.dumps("a\ud800b", ensure_ascii=False))) == "a\ud800b"
    assert escaped_all({"\ud800": ["\udfff", ("x", 1)]}) == {r"\ud800": [r"\udfff", ("x", 1)]}
    files.write_json(tmp_path / "a.json", ["\ud800"])
    assert files.read_json(tmp_path / "a.json", kind=list) == ["\ud800"]
    assert files.hash_json(["\ud800"]) != files.hash_json(["\ud801"])
    assert masked("no \ud800") == r"no \ud800"


def test_one_text_does_not_cost_the_other_rows_of_a_table(tmp_path):
    rows = [row(records.Experience, response="fine", reward_components={"a": 1.0}),
            row(records.Experience, response="\ud800", reward_components={"\udfff": 2.0})]
    tables.write(tmp_path / "part-0.parquet", records.Experience, rows)
    found = tables.read(tmp_path / "part-0.parquet", records.Experience).to_pylist()
    assert [one["response"] for one in found] == ["fine", r"\ud800"]
    assert [dict(one["reward_components"]) for one in found] == [{"a": 1.0}, {r"\udfff": 2.0}]


def test_a_line_of_a_data_file_with_half_a_surrogate_pair_is_refused():
    assert parsed(rb'{"a": "\ud83d\ude00"}', is_first=False) == {"a": "😀"}
    for line in (rb'{"a": "\ud800"}', rb'{"\udfff": 1}', rb'{"a": [{"b": "\ud83d"}]}'):
        with refuses(ValueError, "surrogate"):
            parsed(line, is_first=False)
