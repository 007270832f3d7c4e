"""Batches with rows of an expert beside the rollouts: who gives them, what of them the loss and the tables see."""

import logging

import numpy as np
import pytest
import torch

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.settings.data import AuxiliaryBuffer
from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.batches.rollouts import Rollouts
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.packing import Aggregation, pack
from ouroboros.stages.learner.objective import Objective
from ouroboros.stages.learner.record import trained_rows
from tests.configs import TINY, element
from tests.factories import row
from tests.golden.messages import refuses
from tests.learner.test_rollouts import SMALL, batch_of, explore

MIX = ("algorithm.algorithm_type=mix", "algorithm.advantage_fn=grpo", "algorithm.sample_strategy=mix",
       "algorithm.policy_loss_fn=mix", "algorithm.policy_loss_fn_args={}", "algorithm.entropy_loss_fn=mix",
       "algorithm.sample_strategy_args={expert_data_ratio: 0.25}")


@pytest.fixture
def stage(tmp_path, context_of, tiny_model):
    """stage(buffer, solutions, "key=value", ...): an rft stage with this number of demonstrations of sft_dataset."""
    def make(*overrides, demonstrations=3, path="shown.jsonl"):
        tasks = [row(records.Task, task_id=f"t{i}", row=i, split="train", question="1") for i in range(3)]
        tasks += [row(records.Task, task_id="same", row=10 + i, split="sft", question="1 2", solution=f"{i}",
                      taskset="sft_dataset" if path else None) for i in range(demonstrations)]
        tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, tasks)
        context = context_of(tmp_path / "rft", *TINY, *SMALL, *MIX, *overrides, tasks=tmp_path / "curate",
                             model=tiny_model)
        buffers = {"sft_dataset": element(AuxiliaryBuffer, {"path": path})}
        context.config.buffer.trainer_input.auxiliary_buffers = buffers
        explore(context, 1, [1.0, 0.0, 1.0, 1.0])
        explore(context, 2, [1.0, 0.0, 1.0, 1.0])
        return context

    return make


def test_expert_rows_stand_behind_the_rollouts_in_turn(stage):
    """Four rollouts of an explorer step and a quarter of experts: ceil(6 / 4) = 2 of 6. The third comes next, again."""
    source = Rollouts(stage())
    first, second = batch_of(source, 1), batch_of(source, 2)
    assert [r.id for r in first.rows] == ["1/0", "1/1", "1/2", "1/3", "same/10", "same/11"]
    assert [r.id for r in second.rows][4:] == ["same/12", "same/10"]
    assert [r.columns["is_expert"] for r in first.rows] == [False] * 4 + [True] * 2
    assert [r.id for r in first.rollouts] == ["1/0", "1/1", "1/2", "1/3"]
    assert [first.staleness(r) for r in first.rows] == [0, 0, 0, 0, None, None]
    assert (first.metrics.expert_rows, first.metrics.replayed_rows, first.metrics.reward) == (2, 0, 0.75)
    assert first.rows[0].columns["advantages"] == pytest.approx(0.7071, abs=1e-4)  # as without them


def test_the_records_of_expert_rows_lead_to_their_task(stage):
    source = Rollouts(stage())
    batch = batch_of(source, 1)
    made = trained_rows(batch, [np.zeros(sum(r.mask), np.float32) for r in batch.rows])
    assert [(r.experience_id, r.is_expert, r.staleness, r.use_count, r.advantage) for r in made[3:5]] == [
        ("1/3", False, 0, 0, 0.0), ("same/10", True, None, None, 0.0)]
    tables.to_arrow(made, records.Trained)


def test_without_a_path_the_experts_are_the_demonstrations_of_the_pool(stage):
    assert [r.id for r in batch_of(Rollouts(stage(path=None)), 1).rows[4:]] == ["same/10", "same/11"]


def test_a_buffer_without_a_demonstration_says_so(stage):
    with refuses(DataError, "buffer.trainer_input.auxiliary_buffers.sft_dataset"):
        Rollouts(stage(demonstrations=0))


def mixed_rows():
    """Two rollouts of 1 and 3 tokens, two expert rows of 2 tokens."""
    columns = {"advantages": 1.0, "old_logprobs": -0.5, "rollout_logprobs": -0.5, "ref_logprobs": -0.5}
    return [Row(f"r{i}", [5] * (2 + n), 2, [1] * n, {**columns, "is_expert": i > 1})
            for i, n in enumerate((1, 3, 2, 2))]


def test_kinds_are_averaged_apart():
    """Four tokens of rollouts and two of an expert; in the plain mean each would weigh 1/6."""
    (micro,) = pack(mixed_rows()[:3], 100, 0, 1, ("is_expert",), Aggregation(by_kind=True))
    assert micro.weights.tolist() == micro.shares.tolist() == [0.25] * 4 + [0.5] * 2
    assert micro.columns["is_expert"].dtype == bool


def test_a_kl_loss_is_taken_on_rollouts_alone(settings):
    """k2 of a gap of 1 nat: 0.5. The expert row's reference is far off, and is not read."""
    objective = Objective(settings(*TINY, *MIX, "algorithm.kl_loss_fn=k2", "algorithm.kl_loss_fn_args.kl_coef=1.0",
                                   "algorithm.entropy_loss_fn_args={}", "algorithm.policy_loss_fn_args={mu: 0.5}"))
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    columns = {"logprobs": logprobs, "old_logprobs": logprobs.detach(), "advantages": torch.zeros(2),
               "is_expert": torch.tensor([False, True]), "rows": torch.tensor([0, 1]),
               "ref_logprobs": torch.tensor([-2.0, 900.0]), "entropy": torch.zeros(2)}
    loss, statistics = objective(columns)
    assert statistics["kl_loss"].tolist() == [0.5, 0.0]
    assert loss.tolist() == [0.5, 0.5]  # kl; mu * 1 nat
    assert torch.autograd.grad(loss.sum(), logprobs)[0].tolist() == [1.0, -0.5]


def test_a_step_on_a_mixed_batch_reports_each_kind_over_its_own_tokens(tiny_model, tiny_settings, process):
    """mu stands on the four expert tokens of eight: its mean over them is mu, not half of it. In any cut the same."""
    def step(budget):
        config = tiny_settings(*MIX, f"trainer.max_token_len_per_gpu={budget}",
                               "algorithm.policy_loss_fn_args={mu: 0.3}")
        return Actor(tiny_model, config, process).step(mixed_rows(), Objective(config), 1e-3, 1)

    whole, cut = step(4096), step(64 + 6)
    assert whole.statistics["mu"] == pytest.approx(0.3)
    assert whole.statistics["sft_loss"] > 0
    assert cut.loss == pytest.approx(whole.loss, rel=1e-5)
    assert cut.grad_norm == pytest.approx(whole.grad_norm, rel=1e-4)
    for name in whole.statistics:
        assert cut.statistics[name] == pytest.approx(whole.statistics[name], rel=1e-4, abs=1e-6)


def test_a_stage_is_handed_all_that_its_batches_are_made_of(tmp_path, tiny_model, stage):
    """512 rollouts an explorer step, a quarter of a batch again and a quarter of an expert: 1024 rows."""
    curated = stage().inputs["tasks"]
    replay = "buffer.trainer_input.experience_buffer.replay_buffer"
    plan = make_plan(compose([
        f"checkpoint_root_dir={tmp_path}", "algorithm=mix", "algorithm.sample_strategy_args.expert_data_ratio=0.25",
        "buffer.trainer_input.auxiliary_buffers.sft_dataset={}", f"{replay}.enable=true", f"{replay}.replay_ratio=0.25",
        "stages=[{stage_name: rft}]"]))
    made = next(one for one in plan.stages if one.kind == "rft")
    inputs = {"tasks": curated, "model": tiny_model}
    for row_ in (tasks := [*tables.read_tasks(curated, "sft", taskset="sft_dataset")]):
        row_.taskset = None  # those of the pool
    tables.write(curated / "tasks.parquet", records.Task, [*tables.read_tasks(curated, "train"), *tasks])
    source = Rollouts(Context("p/n", made.name, made.identity, tmp_path / "own", made.config, inputs,
                              logging.getLogger("tests")))
    schedule = source.schedule
    assert (schedule.rows_per_explorer_step, schedule.rows_per_trainer_step, schedule.other_rows) == (512, 512, 512)
    assert (source.replay.groups, len(source.sampling.rows)) == (32, 3)
