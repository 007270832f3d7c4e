"""The table of every key of the Trinity-RFT guide: complete, true of the schema, and what it says."""

from pathlib import Path

import pytest

from pipeline.bridges.page import page
from pipeline.bridges.source import read_yaml
from pipeline.settings import guide
from pipeline.settings.config import walk
from pipeline.settings.guide_keys import DIFFERS, MEANT, RENAMED, VALUES, WORKS, Refused, Works
from pipeline.settings.guide_refused import REFUSED

ROOT = Path(__file__).resolve().parents[3]
EVERY_KEY = Path(__file__).parents[1] / "bridges" / "sources" / "every_key.yaml"


def is_here(key: str) -> bool:
    """Whether a key is a setting, a part of free arguments, or a section of settings."""
    settings = dict(walk())
    free = [k for k, item in settings.items() if str(item.annotation).startswith("dict")]
    is_section = any(k.startswith(f"{key}.") for k in settings)
    return key in settings or is_section or any(key.startswith(f"{k}.") for k in free)


@pytest.mark.parametrize("key", sorted({*WORKS, *(fate.to for fate in RENAMED.values())}))
def test_what_works_is_a_setting_of_ours(key):
    assert is_here(key)


def test_a_key_of_another_meaning_is_a_setting_of_ours_and_not_explained_away():
    assert [key for key in DIFFERS if not is_here(key)] == []
    assert guide.explain_absent("explorer.max_retry_times") is None


def test_a_key_has_one_fate():
    tables = [set(WORKS), set(RENAMED), set(REFUSED), set(DIFFERS)]
    assert sum(map(len, tables)) == len(set.union(*tables))
    assert set(VALUES) | set(MEANT) <= set(WORKS) | set(RENAMED)


def test_no_refused_key_is_a_setting_of_ours():
    assert not [key for key in REFUSED if key in dict(walk())]


@pytest.mark.parametrize("fate", {id(f.why): f for f in REFUSED.values()}.values(), ids=lambda f: f.why[:30])
def test_a_refusal_is_one_sentence_or_two_with_what_to_do(fate):
    assert fate.why.endswith(".")
    assert "\n" not in fate.why
    assert len(fate.why) < 260


def test_the_page_of_all_keys_is_what_the_tables_say():
    assert (ROOT / "docs" / "trinity-keys.md").read_text() == page()  # else: ouro import keys > docs/trinity-keys.md


def test_every_key_of_the_guide_is_in_the_table():
    known = [g.key for g in read_yaml(EVERY_KEY.read_text(), "every_key.yaml") if not g.key.endswith("stage_name")]
    assert len(known) > 150
    assert [key for key in known if guide.find(key) is None] == []


@pytest.mark.parametrize(("key", "said"), [
    ("model.tinker.rank", "models are trained here, by DeepSpeed ZeRO"),
    ("model.tinker.something_new", "model.tinker: models are trained here"),
    ("trainer.param_offload", "here it is `trainer.offload_param`"),
    ("trainer.trainer_strategy", "`trainer.zero_stage` (fsdp: 3, fsdp2: 3; ZeRO-3"),
    ("stages.sft.explorer.name", "explorer.name: there are no actors"),
    ("buffer.trainer_input.auxiliary_buffers.mine.name", "the key above it is the name"),
    ("service.data_juicer.port", "Data-Juicer runs inside the stage curate")])
def test_an_absent_key_is_explained(key, said):
    assert said in guide.explain_absent(key)


@pytest.mark.parametrize("key", [
    "trainer.grad_clip", "trainer.zero_stage", "algorithm.policy_loss_fn_args.tau", "nothing", "stages", ""])
def test_a_key_that_works_or_is_none_of_the_guide_is_not_explained(key):
    assert guide.explain_absent(key) is None


def test_a_refused_value_is_explained_and_another_is_not():
    assert "weights go through files" in guide.explain_value("synchronizer.sync_method", "nccl")
    assert "Parquet" in guide.explain_value("stages.0.buffer.trainer_input.experience_buffer.storage_type", "queue")
    assert guide.explain_value("synchronizer.sync_method", "checkpoint") is None
    assert guide.explain_value("trainer.grad_clip", 1.0) is None
    assert guide.explain_value("synchronizer.sync_method", ["nccl"]) is None


def test_the_table_is_of_four_fates():
    assert {type(fate).__name__ for fate in guide.KEYS.values()} == {"Works", "Renamed", "Refused", "Differs"}
    assert isinstance(guide.KEYS["project"], Works)
    assert isinstance(guide.KEYS["service"], Refused)
