"""The table of every key of the Trinity-RFT guide: complete, true of the schema, and what it says."""

from pathlib import Path

import pytest

from ouroboros.commands.bridges.page import counts, page
from ouroboros.commands.bridges.source import read_yaml
from ouroboros.pipeline.check.judge import compose, judged
from ouroboros.pipeline.check.stage import unread
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.settings import guide
from ouroboros.pipeline.settings.config import walk
from ouroboros.pipeline.settings.key_tables import Always, Refused, Renamed, Translated, Works, expanded, table
from ouroboros.pipeline.settings.setting import plain
from tests.golden.messages import wording

TARGETS = {fate.to if isinstance(fate, Renamed | Translated) else key for key, fate in guide.fates().items()
           if isinstance(fate, Works | Renamed | Translated)}
ROOT = Path(__file__).resolve().parents[3]
EVERY_KEY = ROOT / "tests" / "commands" / "bridges" / "sources" / "every_key.yaml"


def is_here(key: str) -> bool:
    """Whether a key is a setting, a part of free arguments, or a section of settings."""
    settings = dict(walk())
    free = [k for k, item in settings.items() if str(item.annotation).startswith("dict")]
    is_section = any(k.startswith(f"{key}.") for k in settings)
    return key in settings or is_section or any(key.startswith(f"{k}.") for k in free)


@pytest.mark.parametrize("key", sorted(TARGETS))
def test_what_works_is_a_setting_of_ours(key):
    assert is_here(key)


def test_a_key_has_one_fate():
    read = table("trinity_guide")
    patterns = [read["works"], *(group["keys"] for name in ("noted", "always", "left_out") for group in read[name]),
                *read["renamed"]]
    listed = [key for one in patterns for key in expanded(one)]
    assert sorted(listed) == sorted(guide.fates())
    assert [len(expanded(there)) % len(expanded(here if isinstance(here, str) else here[0]))
            for there, here in read["renamed"].items()] == [0] * len(read["renamed"])
    with_values = {*guide.of_values(), *(key for one in read["meant"] for key in expanded(one))}
    assert [key for key in with_values if not isinstance(guide.fates()[key], Works | Renamed)] == []


def test_no_refused_key_is_a_setting_of_ours():
    settings = dict(walk())
    assert not [key for key, fate in guide.fates().items() if isinstance(fate, Refused | Always) and key in settings]


REASONS = sorted({fate.why for fate in guide.fates().values() if isinstance(fate, Refused | Always)})


@pytest.mark.parametrize("why", REASONS, ids=lambda why: why[:30])
def test_a_refusal_is_one_sentence_or_two_with_what_to_do(why):
    assert why.endswith(".")
    assert "\n" not in why
    assert len(why) < 260


def test_the_page_of_all_keys_is_what_the_tables_say():
    assert (ROOT / "docs" / "trinity-keys.md").read_text() == page()  # else: ouro import keys > docs/trinity-keys.md


def test_every_key_of_the_guide_is_in_the_table():
    known = [g.key for g in read_yaml(EVERY_KEY.read_text(), "every_key.yaml") if not g.key.endswith("stage_name")]
    assert len(known) > 150
    assert [key for key in known if guide.find(key) is None] == []


@pytest.mark.parametrize(("key", "said"), [
    ("model.tinker.rank", "`model.lora_configs.*.lora_rank`"),
    ("model.tinker.something_new", "model.tinker: here it is `model.lora_configs`"),
    ("trainer.param_offload", "here it is `trainer.offload_param`"),
    ("trainer.trainer_strategy", "`trainer.zero_stage` (fsdp: 3, fsdp2: 3; ZeRO-3"),
    ("stages.sft.explorer.name", "explorer.name: there are no actors"),
    ("buffer.trainer_input.auxiliary_buffers.mine.name", "the key above it is the name"),
    ("service.data_juicer.port", "Data-Juicer runs inside the stages that use it"),
    *((key, None) for key in ("trainer.grad_clip", "trainer.zero_stage", "algorithm.policy_loss_fn_args.tau", "nothing",
                              "stages", ""))])  # what works, or is none of the guide
def test_an_absent_key_is_explained(key, said):
    found = guide.explain_absent(key)
    assert found is None if said is None else said in found


@pytest.mark.parametrize(("key", "value", "said"), [
    ("synchronizer.sync_method", "nccl", "weights"), ("synchronizer.sync_method", "checkpoint", None),
    ("stages.0.buffer.trainer_input.experience_buffer.storage_type", "queue", "Parquet"),
    ("trainer.grad_clip", 1.0, None), ("synchronizer.sync_method", ["nccl"], None)])
def test_a_refused_value_is_explained(key, value, said):
    found = guide.explain_value(key, value)
    assert found is None if said is None else said in found


def test_every_key_has_one_of_four_fates():
    found = counts()
    assert set(found) == {"Works", "Renamed", "Always", "Refused"}
    assert sum(found.values()) == 326
    assert found["Refused"] <= 40
    assert isinstance(guide.fates()["project"], Works)
    assert isinstance(guide.fates()["cluster.ray_address"], Refused)


@pytest.mark.parametrize(("given", "key"), [
    ("trainer.use_remove_padding=true", None), ("trainer.use_remove_padding=false", "trainer.use_remove_padding"),
    ("service.data_juicer.auto_start=true", None), ("buffer.max_retry_times=3", None),
    ("buffer.max_retry_times=-1", "buffer.max_retry_times"),
    ("buffer.explorer_input.taskset.format.image_key=null", None),
    ("buffer.explorer_input.taskset.format.video_key=videos", "buffer.explorer_input.taskset.format.video_key"),
    ("explorer.rollout_model.enable_multimodal=true", None),
    ("stages=[{stage_name: a, trainer: {balance_batch: true}}]", None),
    ("stages=[{stage_name: a, service: {data_juicer: {auto_start: true}}}]", None),
    ("stages=[{stage_name: a, service: {data_juicer: {auto_start: false}}}]", "service"),
    ("stages=[{stage_name: a, trainer: {balance_batch: 1}}]", "trainer.balance_batch")])
def test_what_always_holds_is_accepted_with_the_value_that_holds(given, key):
    config, problems = judged([given])
    assert [one.key for one in problems] == ([] if key is None else [key])
    assert "use_remove_padding" not in str(plain(config))


def test_what_always_holds_is_said_once_for_the_run_and_for_each_stage():
    given = ["trainer.use_remove_padding=true", "buffer.max_retry_times=3", "trainer.grad_clip=2",
             "stages=[{stage_name:a,trainer:{balance_batch:true,grad_clip:3},service:{data_juicer:{port:null}}}]"]
    config = compose(given).merged({"seed": 2})
    found = [one for one in unread(Recipe(config)) if "any case" in one.needed]
    assert [(one.stages, sorted(one.key.split(", "))) for one in found] == [
        ((), ["buffer.max_retry_times", "trainer.use_remove_padding"]),
        (("a",), ["service.data_juicer.port", "trainer.balance_batch"])]
    wording(str(found[0]), "trainer.use_remove_padding")
    assert [one for one in unread(Recipe(compose(given[2:3]))) if "any case" in one.needed] == []


def test_a_run_without_an_unknown_key_does_not_open_the_table(monkeypatch):
    def opened(_):
        raise AssertionError("the table was opened")

    monkeypatch.setattr(guide, "fates", opened)
    monkeypatch.setattr(guide, "table", opened)
    _, problems = judged(["stages=[{stage_name: a, after: [], trainer: {grad_clip: 2}}]", "trainer.save_interval=3",
                          "algorithm.policy_loss_fn_args.clip_range_low=0.1",
                          "buffer.trainer_input.auxiliary_buffers={mine: {path: rows}}"])
    assert [one.key for one in problems if "unknown" in one] == []
