"""The tables of keys: true of our settings, and each row does what it says."""

import string

import pytest

from ouroboros.commands.bridges import tables
from ouroboros.commands.bridges.translation import TASK
from ouroboros.commands.bridges.trinity_older import names_of_today
from ouroboros.pipeline.settings import guide
from ouroboros.pipeline.settings.config import walk
from ouroboros.pipeline.settings.key_tables import Refused, Renamed, expanded
from tests.bridges import from_trinity, from_verl, launch

SETTINGS = dict(walk())
FREE = tuple(f"{key}." for key, item in SETTINGS.items() if str(item.annotation).startswith(("dict", "list[dict")))
VERL, SFT = tables.table("verl"), tables.table("verl_sft")
OF_TABLES = [fate.to for name in ("verl", "verl_sft", "trinity") for fate in tables.keys(name).values()
             if isinstance(fate, Renamed)]
ROWS = [row for section in tables.table("verl_rows").values() for row in section]
OF_RULES = [*VERL["intervals"].values(), *(row["to"] for row in ROWS if "to" in row), *VERL["optimizer_steps"].values(),
            *tables.table("trinity")["numbers"].values(),
            *(f"algorithm.{key}" for losses in tables.table("trinity")["objective"].values() for key in losses)]


@pytest.mark.parametrize("key", sorted({*OF_TABLES, *OF_RULES}))
def test_every_target_is_a_setting_of_ours(key):
    assert key in SETTINGS or key.startswith(FREE)


@pytest.mark.parametrize("name", ["verl", "verl_sft", "trinity"])
def test_a_key_has_one_row_and_a_reason_is_a_sentence(name):
    read = tables.table(name)
    groups = [*read.get("left_out", ()), *read.get("without_effect", ())]
    listed = [key for patterns in (*(group["keys"] for group in groups), *read.get("renamed", ()))
              for key in expanded(patterns)]
    assert len(listed) == len(set(listed))
    fields = {"why", "keys", "disabled", "switch", "loses", "equals"}
    assert all(group["why"].endswith(".") and set(group) <= fields for group in groups)
    assert {group["loses"] for group in groups if "loses" in group} <= set(TASK)


def test_a_row_has_known_fields_and_one_meaning():
    fields = {"key", "to", "value", "fact", "default", "values", "more", "folded", "why", "lost", "note", "ask", "when",
              "comment", "of"}
    assert all(set(row) <= fields and len({"why", "note", "ask", "to"} & set(row)) == 1 for row in ROWS)
    assert {row[kind] for row in ROWS for kind in ("note", "ask") if kind in row} <= set(tables.table("sentences"))


def test_defaults_are_of_keys_with_one_counterpart():
    assert all(isinstance(tables.keys("verl")[key], Renamed) for key in VERL["defaults"])
    sections = [SFT[name] for name in SFT if name.startswith("defaults")]
    assert all(isinstance(tables.keys("verl_sft")[key], Renamed) for section in sections for key in section)


def test_older_names_lead_to_names_that_are_known():
    known = [*SETTINGS, *guide.fates()]
    unknown = [to for to in names_of_today().values()
               if not any(f"{key}.".startswith(f"{guide.general(to)}.") for key in known)]
    assert [to for to in unknown if guide.find(to) is None and not to.startswith(FREE)] == []


@pytest.fixture(scope="module")
def silent():
    """The settings of a script with two keys."""
    return set(from_verl(launch("algorithm.adv_estimator=grpo", "trainer.nnodes=1")).entries)


@pytest.mark.parametrize("key", [k for k, fate in tables.keys("verl").items() if isinstance(fate, Refused)
                                 and not k.startswith(("critic", "_target_", "data.gen_batch"))])
def test_a_key_of_verl_without_a_counterpart_has_no_line(key, silent):
    made = from_verl(launch("algorithm.adv_estimator=grpo", "trainer.nnodes=1", f"{key}=some"))
    assert made.keys == 3
    if key not in VERL["together"]:
        assert set(made.entries) == silent


@pytest.mark.parametrize("key", [k for k, fate in tables.keys("trinity").items() if isinstance(fate, Refused)
                                 and k != "explorer.auxiliary_models.*"])
def test_a_key_of_trinitys_code_is_left_out_with_its_reason(key):
    parts = key.replace("*", "x").split(".")
    value = "some"
    for part in reversed(parts):
        value = [value] if part == "x" and "auxiliary_buffers" not in parts else {part: value}
    made = from_trinity(str(value))
    assert [given.key.replace(".0", ".x") for given, _ in [*made.left_out, *made.idle]] == [key.replace("*", "x")]


def test_every_sentence_is_used_with_its_values():
    for name, sentence in tables.table("sentences").items():
        values = {field for _, field, _, _ in string.Formatter().parse(sentence) if field}
        if not name.startswith("page"):
            assert "{" not in tables.said(name, **dict.fromkeys(values, "x"))
