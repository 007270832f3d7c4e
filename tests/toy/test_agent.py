"""An agent that asks by OpenAI's client, through whole pipelines on real engines: recipe products, with an adapter."""

from pathlib import Path

import pytest

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.plan.plan import make_plan
from tests.toy.conftest import stage_of, table
from tests.toy.test_late_groups import ouro
from tests.toy.test_whole_lora import LORA, assert_hand_overs_are_proved, assert_whole_model_is_that_of_the_adapter

SHORT = ("data_processor.task_pipeline.generator_args={tasks: 60, demonstrations: 200, guesses: 0.5}",
         "buffer.batch_size=2", "buffer.total_steps=2", "algorithm.repeat_times=2", "stages.sft.buffer.total_steps=2",
         "stages.sft.buffer.batch_size=16", "stages.sft.buffer.explorer_input.eval_tasksets=[]",
         "buffer.explorer_input.eval_tasksets.0.limit=2", "synchronizer.sync_interval=1", "synchronizer.sync_offset=0",
         *LORA, "stages.rft.algorithm.entropy_loss_fn_args.entropy_coef=0.1")  # no reward: entropy alone moves weights
NO_TOOLS = [f"buffer.explorer_input.{one}.workflow_args={{tools: false}}" for one in ("taskset", "eval_tasksets.0")]


def run(root, *overrides):
    """The plan of a run of the recipe, which was run."""
    words = ["recipe=products", f"checkpoint_root_dir={root}", "monitor=none", *overrides]
    ouro("run", *words)
    return make_plan(compose(words))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, Path]:
    """Directories of a short run's rft stage, and of the model that it began with."""
    root = tmp_path_factory.mktemp("agent")
    plan = run(root, *SHORT)
    return Path(stage_of(plan, "rft").directory), Path(stage_of(plan, "sft").directory) / "model"


@pytest.mark.slow
def test_what_an_agent_sampled_is_what_is_trained_on(trained):
    rows, calls = (table(trained[0], name) for name in ("experience", "calls"))
    assert len({(row["step"], row["slot"]) for row in rows}) == 2 * 4
    assert {call["api"] for call in calls} == {"chat.completions"}
    for row in rows:
        assert row["status"] == "ok", row["reason"]
        attempt, _, _ = row["experience_id"].rpartition("/")
        sampled = [token for call in calls if call["attempt"] == attempt for token in call["tokens"]]
        kept = [token for token, own in zip(row["response_tokens"], row["action_mask"], strict=True) if own]
        assert kept == sampled
    assert len(table(trained[0], "trained")) == len(rows)


@pytest.mark.slow
def test_every_adapter_is_proved_in_the_engine(trained):
    assert_hand_overs_are_proved(trained[0])


@pytest.mark.slow
def test_the_stage_hands_on_a_whole_model_and_the_adapter_that_makes_it(trained):
    assert_whole_model_is_that_of_the_adapter(*trained)


@pytest.mark.wide
def test_an_agent_learns_to_use_its_calculator_and_cannot_without(tmp_path):
    """Held-out products, sampled: [low, high] before, after, and after the same training without the calculator."""
    learnt, control = run(tmp_path), run(tmp_path, "name=control", *NO_TOOLS)

    def sampled(plan, stage):
        scores = table(tmp_path / stage_of(plan, stage).directory, "scores")
        return next((one["low"], one["high"]) for one in scores if one["metric"] == "sampled_accuracy")

    before, after, without = sampled(learnt, "evaluate_sft"), sampled(learnt, "evaluate_rft"), sampled(
        control, "evaluate_rft")
    assert after[0] > before[1]
    assert without[1] < after[0]
