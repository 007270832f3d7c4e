"""Rules about sample strategies, replay and demonstrations in a train batch."""

import pytest

from ouroboros.pipeline.check.judge import compose, rules_of_stage
from ouroboros.pipeline.check.named_functions import wrong_arguments
from ouroboros.pipeline.compose.recipe import effective
from ouroboros.pipeline.job.schedule import Schedule
from ouroboros.pipeline.plan.plan import make_plan
from tests.configs import broken, changed, problems_of
from tests.golden.messages import wording

REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"
EXPERTS = "buffer.trainer_input.auxiliary_buffers"
RFT = ("stages=[{stage_name: rft}]",)
MIX = ("algorithm=mix", f"{EXPERTS}.sft_dataset={{}}", *RFT)


@pytest.mark.parametrize("name", ["mix", "mix_chord"])
def test_rows_of_an_expert_from_the_pool_or_from_files(name, tmp_path):
    (tmp_path / "shown.jsonl").write_text('{"prompt": "1", "response": "2"}\n')
    for given in ("{}", f"{{path: {tmp_path}/shown.jsonl}}"):
        config = compose([f"algorithm={name}", f"{EXPERTS}.sft_dataset={given}", *RFT])
        assert config.buffer.trainer_input.auxiliary_buffers["sft_dataset"].format.prompt_key == "prompt"


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


BUFFER, STRATEGY = "buffer.trainer_input.experience_buffer", "algorithm.sample_strategy"
RECORDED = ("stages=[{stage_name: ask, mode: explore}, {stage_name: learn, mode: train}]",)


@pytest.mark.parametrize(("overrides", "expected"), [
    (("algorithm=mix", *RFT), [f"{STRATEGY}_args.sft_dataset_name"]),
    (("algorithm=mix", f"{EXPERTS}.sft_datasett={{}}", *RFT), [f"{STRATEGY}_args.sft_dataset_name"]),
    ((*MIX, f"{STRATEGY}_args.expert_data_ratio=0"), 2 * [f"{STRATEGY}_args.expert_data_ratio"]),  # and its bounds
    ((*MIX, f"{STRATEGY}_args.expert_data_ratio=1"), [f"{STRATEGY}_args.expert_data_ratio"]),
    ((*MIX, f"{STRATEGY}=default"), ["algorithm.entropy_loss_fn", "algorithm.policy_loss_fn", EXPERTS]),
    ((*MIX, "algorithm.policy_loss_fn=ppo"), ["algorithm.policy_loss_fn"]),
    ((*MIX, f"{EXPERTS}.sft_dataset.pth=x"), [f"{EXPERTS}.sft_dataset.pth"]),
    ((*MIX, f"{EXPERTS}.sft_dataset.format.prompt_key=q"), [f"{EXPERTS}.sft_dataset.format.prompt_key"]),
    ((f"{EXPERTS}.mine={{}}",), [EXPERTS]), ((f"{EXPERTS}.mine=7",), [f"{EXPERTS}.mine"]),
    ((f"{REPLAY}.enable=true", f"{REPLAY}.replay_ratio=1"), [f"rft: {REPLAY}.replay_ratio"]),
    ((f"{REPLAY}.enable=true", f"{REPLAY}.replay_ratio=0"), [f"{REPLAY}.replay_ratio"]),
    ((f"{REPLAY}.priority_fn=newest",), [f"{REPLAY}.priority_fn"]),
    ((f"{REPLAY}.reuse_cooldown_time=0",), [f"{REPLAY}.reuse_cooldown_time"]),
    ((f"{REPLAY}.enable=true", "algorithm=sft", "stages=[]"), [f"{REPLAY}.enable"]),
    (("explorer.over_rollout.ratio=1",), ["explorer.over_rollout.ratio"]),
    # 512 less 48 replayed rows
    ((f"{REPLAY}.enable=true", "buffer.train_batch_size=512", f"{REPLAY}.replay_ratio=0.1"),
     ["rft: buffer.train_batch_size"]),
    (("algorithm=cpt", "stages=[]"), [f"{BUFFER}.path"]),
    (("algorithm=cpt", "stages=[]", f"{BUFFER}.path=x.jsonl", f"{BUFFER}.format.prompt_type=messages"),
     [f"{BUFFER}.format.prompt_type"]),
    (("algorithm=sft", "stages=[]", f"{BUFFER}.path=x.jsonl", f"{BUFFER}.format.response_key=null"),
     [f"{BUFFER}.format.response_key"]),
    # recorded experience is trained on as it is
    ((*RECORDED, f"{REPLAY}.enable=true"), [f"{REPLAY}.enable", f"learn: {REPLAY}.enable"]),
    ((*RECORDED, f"{STRATEGY}=staleness_control"), [f"learn: {STRATEGY}"]),
    ((*RECORDED, "algorithm=mix", f"{EXPERTS}.sft_dataset={{}}"), [EXPERTS, f"learn: {STRATEGY}"])])
def test_batches_that_no_stage_can_make_are_refused(overrides, expected):
    assert broken(*overrides) == expected


def test_a_staleness_that_the_schedule_cannot_keep_names_the_shortfall():
    """Handed over every 4 steps: steps 2, 3 and 4 train rollouts 1, 2 and 3 steps old, so at most 1 leaves step 3 none.
    A batch of 4 explorer steps with the same weights is always fresh."""
    control = ("algorithm.sample_strategy=staleness_control", "synchronizer.sync_interval=4",
               "synchronizer.sync_offset=0", *RFT)
    most = "algorithm.sample_strategy_args.max_staleness={}".format
    (problem,) = problems_of(*control, most(1))
    assert (problem.key, problem.found) == ("algorithm.sample_strategy_args.max_staleness", 1)
    wording(problem.needed, "3 has", "0 of", "512")
    wording(problem.do, "least 3")
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
    settings = effective(config, config.stages[1])
    assert rules_of_stage(settings) == []
    (problem,) = wrong_arguments(settings)
    assert (problem.key, problem.found) == ("algorithm.sample_strategy_args.max_staleness", -1)
