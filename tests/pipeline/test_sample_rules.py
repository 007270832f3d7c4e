"""Rules about sample strategies, replay and rows of an expert, as `compose` tells them."""

import pytest

from pipeline.check.judge import compose, rules_of_stage
from pipeline.check.references import wrong_arguments
from pipeline.compose.stage_settings import effective
from pipeline.job.schedule import Schedule
from pipeline.plan.plan import make_plan
from pipeline.store.errors import ConfigError
from tests.configs import changed

REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"
EXPERTS = "buffer.trainer_input.auxiliary_buffers"
RFT = ("stages=[{stage_name: rft}]",)
MIX = ("algorithm=mix", f"{EXPERTS}.sft_dataset={{}}", *RFT)


def refused(*overrides):
    with pytest.raises(ConfigError) as caught:
        compose(list(overrides))
    return str(caught.value)


@pytest.mark.parametrize("name", ["mix", "mix_chord"])
def test_rows_of_an_expert_from_the_pool_or_from_files(name, tmp_path):
    (tmp_path / "shown.jsonl").write_text('{"prompt": "1", "response": "2"}\n')
    for given in ("{}", f"{{path: {tmp_path}/shown.jsonl}}"):
        config = compose([f"algorithm={name}", f"{EXPERTS}.sft_dataset={given}", *RFT])
        assert config["buffer"]["trainer_input"]["auxiliary_buffers"]["sft_dataset"]["format"]["prompt_key"] == "prompt"


def test_the_files_of_an_expert_make_the_stage_that_reads_them_and_their_path_does_not(tmp_path):
    def identities(words, name="a.jsonl"):
        path = tmp_path / name
        path.write_text(f'{{"prompt": "1", "response": "{words}"}}\n')
        config = compose([f"checkpoint_root_dir={tmp_path}", *MIX[:1], *RFT, f"{EXPERTS}.sft_dataset.path={path}"])
        return {stage.name: stage.identity for stage in make_plan(config).stages}

    first = identities("2")
    assert identities("2", "b.jsonl") == first
    other = identities("3")
    assert {name for name in first if first[name] != other[name]} >= {"tasks", "rft"}


def test_the_warmup_does_not_read_what_only_rft_does(tmp_path):
    """One configuration for both stages: neither replay nor experts make the sft stage another."""
    def sft(*overrides):
        config = compose([f"checkpoint_root_dir={tmp_path}", *overrides])
        return next(stage.identity for stage in make_plan(config).stages if stage.name == "sft")

    own = ("stages.rft.algorithm.algorithm_type=mix", f"stages.rft.{EXPERTS}.sft_dataset={{}}")
    assert sft() == sft(f"{REPLAY}.enable=true", f"{REPLAY}.reuse_cooldown_time=3") == sft(*own)


@pytest.mark.parametrize(("overrides", "words"), [
    (("algorithm=mix", *RFT), "sft_dataset_name=sft_dataset: no buffer of that name in"),
    (("algorithm=mix", f"{EXPERTS}.sft_datasett={{}}", *RFT), "Did you mean 'sft_datasett'?"),
    ((*MIX, "algorithm.sample_strategy_args.expert_data_ratio=0"), "greater than 0 and less than 1"),
    ((*MIX, "algorithm.sample_strategy_args.expert_data_ratio=1"), "greater than 0 and less than 1"),
    ((*MIX, "algorithm.sample_strategy=default"), "policy_loss_fn=mix needs rows of an expert"),
    ((*MIX, "algorithm.policy_loss_fn=ppo"), "rows of an expert have no advantage"),
    ((*MIX, f"{EXPERTS}.sft_dataset.pth=x"), f"unknown key '{EXPERTS}.sft_dataset.pth'"),
    ((*MIX, f"{EXPERTS}.sft_dataset.format.prompt_key=q"), f"read only with {EXPERTS}.sft_dataset.path"),
    ((f"{EXPERTS}.mine={{}}",), f"{EXPERTS}: no stage takes rows from them"),
    ((f"{EXPERTS}.mine=7",), f"key '{EXPERTS}.mine': needed a mapping of settings, found 7"),
    ((f"{REPLAY}.enable=true", f"{REPLAY}.replay_ratio=1"), "replay_ratio=1.0: needed a number greater than 0"),
    ((f"{REPLAY}.enable=true", f"{REPLAY}.replay_ratio=0"), "needed greater than 0"),
    ((f"{REPLAY}.priority_fn=newest",), "needed one of decay_limit_randomization, linear_decay"),
    ((f"{REPLAY}.reuse_cooldown_time=0",), "needed at least 1"),
    ((f"{REPLAY}.enable=true", "algorithm=sft", "stages=[]"), "no stage explores and trains"),
    ((f"{REPLAY}.enable=true", "buffer.train_batch_size=512", f"{REPLAY}.replay_ratio=0.1"),
     "less 48 expert or replayed rows neither divides"),
    (("algorithm=cpt", "stages=[]"), "experience_buffer.path is not set; needed files of plain text"),
    (("algorithm=cpt", "stages=[]", "buffer.trainer_input.experience_buffer.path=x.jsonl",
      "buffer.trainer_input.experience_buffer.format.prompt_type=messages"), "it trains on plain text"),
    (("algorithm=sft", "stages=[]", "buffer.trainer_input.experience_buffer.path=x.jsonl",
      "buffer.trainer_input.experience_buffer.format.response_key=null"), "only cpt on plain text")])
def test_what_cannot_be_is_refused_when_it_is_composed(overrides, words):
    assert words in refused(*overrides)


@pytest.mark.parametrize(("overrides", "words"), [
    ((f"{REPLAY}.enable=true",), "replay_buffer.enable: every rollout is there from the beginning"),
    (("algorithm.sample_strategy=staleness_control",), "recorded rollouts grow older"),
    (("algorithm=mix", f"{EXPERTS}.sft_dataset={{}}"), "mixes rows of an expert with new rollouts")])
def test_recorded_experience_is_trained_on_as_it_is(overrides, words):
    stages = "stages=[{stage_name: ask, mode: explore}, {stage_name: learn, mode: train}]"
    assert words in refused(stages, *overrides)


def test_a_staleness_that_the_schedule_cannot_keep_names_the_shortfall():
    """Handed over every 4 steps: steps 2, 3 and 4 train rollouts 1, 2 and 3 steps old, so at most 1 leaves step 3 none.
    A batch of 4 explorer steps with the same weights is always fresh."""
    control = ("algorithm.sample_strategy=staleness_control", "synchronizer.sync_interval=4",
               "synchronizer.sync_offset=0", *RFT)
    most = "algorithm.sample_strategy_args.max_staleness={}".format
    message = refused(*control, most(1))
    assert "trainer step 3 has 0 of its 512 rows left, 512 short" in message
    assert "up to 3 trainer steps old. Needed at least 3" in message
    assert compose([*control, most(3)])
    assert compose([*control[:1], "synchronizer.sync_interval=1", *control[2:], most(0)])


def test_staleness_by_hand():
    """Two explorer steps ahead, each a batch: step 4 trains version 3 and has rollouts of step 4, made with version 1.

    Two batches an explorer step, on-policy: the second half is one step old.
    """
    assert [Schedule(8, 8, 1, 2, 9).staleness(t) for t in (1, 2, 3, 4, 5)] == [{0: 8}, {1: 8}, {2: 8}, {2: 8}, {2: 8}]
    assert [Schedule(8, 4, 1, 0, 9).staleness(t) for t in (1, 2, 3)] == [{0: 4}, {1: 4}, {0: 4}]
    assert Schedule(4, 8, 1, 1, 9).staleness(3) == {0: 4, 1: 4}  # explorer steps 5 and 6: version 1 and 2 at step 3


def test_a_limit_below_0_is_refused_for_itself_alone():
    """No schedule is computed by it."""
    config = changed({"stages.rft.algorithm.sample_strategy": "staleness_control",
                      "stages.rft.algorithm.sample_strategy_args": {"max_staleness": -1}})
    settings = effective(config, config["stages"][1])
    assert rules_of_stage(settings) == []
    (line,) = wrong_arguments(settings)
    assert line == "algorithm.sample_strategy_args.max_staleness=-1: needed a number at least 0."
