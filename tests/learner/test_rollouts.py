"""Train batches: cut from the experience table by hand-made steps."""

import math
import os
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from ouroboros.pipeline.job.load import Load
from ouroboros.pipeline.store import hashes, records, tables
from ouroboros.pipeline.store.errors import DataError, StageError
from ouroboros.pipeline.store.pictures import Picture
from ouroboros.stages.learner.actor import Result
from ouroboros.stages.learner.batches.rollouts import Rollouts
from ouroboros.stages.learner.engine.batch import Batch, Origin, Row
from ouroboros.stages.learner.objective import Objective
from ouroboros.stages.learner.record import Seconds, step_record, total, trained_rows
from tests.factories import row
from tests.golden.messages import refuses

# Two tasks twice an explorer step: four rows. One train batch a step, on-policy, unless a test says otherwise.
SMALL = ("buffer.batch_size=2", "algorithm.repeat_times=2", "buffer.total_steps=4", "synchronizer.sync_offset=0",
         "synchronizer.sync_interval=1", "synchronizer.sync_timeout=0.01")


@pytest.fixture
def stage(tmp_path, context_of):
    """stage("key=value", ...): the context of an rft stage with three train tasks."""
    tasks = [row(records.Task, task_id=f"t{i}", row=i, split="test" if i == 3 else "train") for i in range(4)]
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, tasks)
    return lambda *overrides: context_of(tmp_path / "o'rft [1]", *SMALL, *overrides, tasks=tmp_path / "curate")


def explore(context, step, rewards, version=None, temperature=1.0):
    """Writes an explorer step of rows with these rewards, None = failed; row i answers i + 1 tokens. Its context."""
    version = step - 1 if version is None else version
    made = [row(records.Experience, experience_id=f"{step}/{i}", step=step, slot=i, group_id=f"{step}/{i // 2}",
                prompt_tokens=[7, 8], response_tokens=[9] * (i + 1), rollout_logprobs=[-0.5] * (i + 1),
                action_mask=[1] * (i + 1), reward=reward, accuracy=None if reward is None else float(reward >= 1),
                status="reward_failed" if reward is None else "ok", weights_version=version, temperature=temperature)
            for i, reward in enumerate(rewards)]
    tables.write(tables.step_file(context.directory, "experience", step), records.Experience, made)
    rollout = row(records.Rollout, step=step, weights_version=version, rollout_seconds=step / 10, tokens=10, rows=4)
    tables.write(tables.step_file(context.directory, "rollouts", step), records.Rollout, [rollout])
    return context


def batch_of(source, step):
    return source.with_advantages(source.cut(step))


def edit(context, change, step=1):
    """Writes an explorer step again, each row as change(place, row)."""
    path = tables.step_file(context.directory, "experience", step)
    rows = [records.Experience(**one) for one in tables.read(path, records.Experience).to_pylist()]
    tables.write(path, records.Experience, [change(place, one) for place, one in enumerate(rows)])


def test_rows_of_several_versions_are_trained_by_their_log_probs_alone(stage):
    """The same rows with a version for every token: only the oldest one counts, for staleness."""
    context = explore(stage(), 1, [1.0, 0.0, 1.0, 1.0], version=0)
    expected = batch_of(Rollouts(context), 1)
    edit(context, lambda _, one: replace(one, weights_versions=[0, *[3] * (len(one.response_tokens) - 1)]))
    found = batch_of(Rollouts(context), 1)
    assert found.rows == expected.rows
    assert [found.staleness(one) for one in found.rows] == [0] * 4


@pytest.mark.parametrize(("sampled", "own"), [(0.7, None), (0.9, np.float32(0.9))])
def test_rows_have_a_temperature_where_it_is_not_the_models(stage, sampled, own):
    """Tables hold it in single precision, in which 0.7 is another number than in a recipe."""
    context = explore(stage("model.temperature=0.7"), 1, [1.0, 0.0, 1.0, 1.0], temperature=sampled)
    assert [one.temperature for one in batch_of(Rollouts(context), 1).rows] == [own] * 4


def test_rows_have_what_their_tokens_were_sampled_among(stage):
    """A row that was truncated, and does not say by what, would be trained with biased ratios."""
    context = explore(stage(), 1, [1.0, 0.0, 1.0, 1.0])
    path = tables.step_file(context.directory, "experience", 1)
    rows = [records.Experience(**one) for one in tables.read(path, records.Experience).to_pylist()]
    made = [replace(one, top_k=2, kept_tokens=[[9, 10]] * len(one.response_tokens)) for one in rows]
    tables.write(path, records.Experience, [rows[0], *made[1:]])
    found = batch_of(Rollouts(context), 1).rows
    assert found[0].kept is None
    assert [one.kept.ids.tolist() for one in found[1:]] == [[9, 10] * 2, [9, 10] * 3, [9, 10] * 4]
    for lacking in (None, [[9, 10]], [[8, 10]] * 2):
        tables.write(path, records.Experience, [rows[0], replace(made[1], kept_tokens=lacking), *made[2:]])
        with pytest.raises(DataError) as told:
            batch_of(Rollouts(context), 1)
        assert made[1].experience_id in str(told.value)


def test_files_of_older_releases_lack_what_tokens_were_sampled_among(stage):
    context = explore(stage(), 1, [1.0, 0.0, 1.0, 1.0])
    path = tables.step_file(context.directory, "experience", 1)
    older = pq.read_table(path, partitioning=None).drop_columns(["kept_tokens", "min_p", "token_rewards"])
    hashes.write(path, lambda temporary: pq.write_table(older, temporary))
    assert [one.kept for one in batch_of(Rollouts(context), 1).rows] == [None] * 4


def test_rewards_of_single_tokens_decide_the_advantages_of_their_tokens(stage):
    """Returns of the second row's tokens 1 + 3 and 3, of the first 0, the others 0: whitened over all ten."""
    context = stage("algorithm.advantage_fn=reinforceplusplus", "algorithm.advantage_fn_args={}")
    explore(context, 1, [0.0, 4.0, 0.0, 0.0])
    edit(context, lambda place, one: replace(one, token_rewards=[1.0, 3.0]) if place == 1 else one)
    returns = np.array([0, 4, 3, *[0] * 7])
    wanted = (returns - returns.mean()) / returns.std(ddof=1)
    found = batch_of(Rollouts(context), 1).rows
    assert np.concatenate([one.columns["advantages"] for one in found]) == pytest.approx(wanted, abs=1e-6)
    with pytest.raises(DataError):
        batch_of(Rollouts(stage()), 1)  # grpo compares sums


def test_staleness_control_takes_whole_groups_or_none(stage):
    """max_staleness 1 at step 4: versions 2 and 3. The second group has a row of version 1 and is left out with it;
    rewards 1 and 0 of the first are +-0.7071."""
    context = stage("algorithm.sample_strategy=staleness_control", "algorithm.sample_strategy_args.max_staleness=1")
    explore(context, 4, [1.0, 0.0, 1.0, 0.0])
    edit(context, lambda place, one: replace(one, weights_version=(3, 2, 3, 1)[place]), step=4)
    found = batch_of(Rollouts(context), 4)
    assert [one.id for one in found.rows] == ["4/0", "4/1"]
    assert [one.columns["advantages"] for one in found.rows] == pytest.approx([0.7071, -0.7071], abs=1e-4)
    assert found.metrics.stale_rows == 2


def test_a_batch_is_a_step_with_advantages_and_facts(stage):
    """Groups (1, 0) and (1, 1): std of the first sqrt(1/2), so +-0.707107; the second teaches nothing."""
    context = explore(stage(), 1, [1.0, 0.0, 1.0, 1.0])
    batch = batch_of(Rollouts(context), 1)
    assert [r.id for r in batch.rows] == ["1/0", "1/1", "1/2", "1/3"]
    assert [r.columns["advantages"] for r in batch.rows] == pytest.approx([0.707106, -0.707106, 0.0, 0.0], abs=2e-6)
    columns = {"advantages": 0.0, "old_logprobs": [-0.5] * 3, "rollout_logprobs": [-0.5] * 3}
    origin = Origin(1, 2, 0, "1/1", 0, 1.0, 1.0)
    assert batch.rows[2] == Row("1/2", [7, 8, 9, 9, 9], 2, [1, 1, 1], columns, origin)
    assert [batch.staleness(r) for r in batch.rows] == [0, 0, 0, 0]
    metrics, (explored,) = batch.metrics, batch.explored
    assert (metrics.reward, metrics.solve_rate) == (0.75, 0.75)
    assert (metrics.zero_variance_groups, metrics.failed_rows) == (1, 0)
    assert (metrics.response_tokens_mean, explored.tokens, explored.rollout_seconds) == (2.5, 10, 0.1)


def test_failed_rows_are_counted_and_not_trained_on_and_leave_their_group(stage):
    """The second group has one row left: no one to compare it with."""
    context = explore(stage(), 1, [1.0, 0.0, None, 1.0])
    batch = batch_of(Rollouts(context), 1)
    assert [r.id for r in batch.rows] == ["1/0", "1/1", "1/3"]
    assert batch.rows[2].columns["advantages"] == 0.0
    assert (batch.metrics.failed_rows, batch.metrics.zero_variance_groups) == (1, 1)


def test_a_step_without_a_usable_row_says_so(stage):
    context = explore(stage(), 1, [None] * 4)
    with refuses(StageError, "1 has", "1 to", "4 failed", "4 are"):
        batch_of(Rollouts(context), 1)


def test_half_a_step_is_a_batch_and_groups_are_still_whole(stage):
    """train_batch_size 1: trainer step 3 is the third row; its advantage compares it with the fourth."""
    context = explore(stage("buffer.train_batch_size=1", "buffer.total_steps=8"), 1, [1.0, 1.0, 0.0, 1.0])
    source = Rollouts(context)
    assert [r.id for r in batch_of(source, 3).rows] == ["1/2"]
    assert batch_of(source, 3).rows[0].columns["advantages"] == pytest.approx(-0.707106, abs=2e-6)
    assert batch_of(source, 4).metrics.staleness_max == 3  # version 0 trained at step 4
    assert [one.tokens for one in batch_of(source, 1).explored] == [10]  # in the record of the first step that uses it
    assert batch_of(source, 3).explored == []


def test_two_steps_are_a_batch_in_order(stage):
    context = explore(stage("buffer.train_batch_size=8"), 1, [1.0, 0.0, 1.0, 1.0], version=0)
    explore(context, 2, [0.0, None, 0.0, 1.0], version=0)
    batch = batch_of(Rollouts(context), 1)
    assert [r.id for r in batch.rows] == ["1/0", "1/1", "1/2", "1/3", "2/0", "2/2", "2/3"]
    assert batch.rows[5].columns["advantages"] == pytest.approx(-0.707106, abs=2e-6)
    assert batch.metrics.failed_rows == 1
    assert total(batch.explored, "rollout_seconds") == pytest.approx(0.1 + 0.2)  # of both explorer steps
    assert total(batch.explored, "tokens") == 20
    assert total(batch.explored, "missing_groups") is None


def test_what_the_explorer_has_not_made_is_waited_for(stage):
    with refuses(StageError, "step 1", "rollouts/step=000001.parquet", "explorer.log"):
        batch_of(Rollouts(stage()), 1)


def test_colocated_the_trainer_waits_until_the_explorer_can_do_no_more(stage):
    """One step off: with version 0 the explorer makes steps 1 and 2, so step 1 alone does not free the device."""
    context = stage("mode=colocate", "synchronizer.sync_offset=1", "trainer.overlap=false")
    explore(context, 1, [1.0, 0.0, 1.0, 1.0], version=0)
    with refuses(StageError, "step 2"):
        batch_of(Rollouts(context), 1)
    explore(context, 2, [1.0, 0.0, 1.0, 1.0], version=0)
    assert len(batch_of(Rollouts(context), 1).rows) == 4
    with refuses(StageError, "step 3"):
        batch_of(Rollouts(context), 2)
    context.config.trainer.overlap = True  # step 2 is all that it needs
    assert len(batch_of(Rollouts(context), 2).rows) == 4


def test_a_step_is_recorded_with_the_mismatch_to_the_rollout(stage):
    """Rollout log-probs -0.5. Rows 0 (fresh) and 1 (one step old) were scored -0.75; demonstrations do not count."""
    context = explore(stage(), 1, [1.0, 0.0, 1.0, 1.0], version=0)
    batch = batch_of(Rollouts(context), 1)
    for place in (1, 2):
        batch.rollouts[place].origin = replace(batch.rollouts[place].origin, weights_version=-1)
    batch.demonstrations.append(Row("t/0", [7, 9], 1, [1], {"advantages": 0.0, "rollout_logprobs": 0.0}))
    scored = [np.full(n, s, np.float32) for n, s in ((1, -0.75), (2, -0.75), (3, -0.5), (4, -0.5), (1, -9.0))]
    found = Objective(context.config).mismatch(batch.rollouts, scored[:4])
    assert found.mismatch_max == pytest.approx(0.25)
    assert found.mismatch_mean == pytest.approx(3 * 0.25 / 10)  # 1 token of row 0, 2 of row 1
    w = math.exp(-0.25)  # trainer / rollout on the three tokens; 1 on the seven
    assert found.kl_rollout_trainer == pytest.approx(3 * (w - 1 + 0.25) / 10)
    assert found.kl_trainer_rollout == pytest.approx(3 * (w * -0.25 - w + 1) / 10)
    assert found.effective_sample_size == pytest.approx((7 + 3 * w) ** 2 / (10 * (7 + 3 * w * w)))
    assert found.corrected_fraction == 0.0
    made = trained_rows(batch, scored, [one + 9.0 for one in scored])
    assert [(r.experience_id, r.train_step, r.staleness) for r in made] == [
        ("1/0", 1, 0), ("1/1", 1, 1), ("1/2", 1, 1), ("1/3", 1, 0), ("t/0", 1, None)]
    written = tables.to_arrow(made, records.Trained)
    assert written["train_logprobs"].to_pylist()[1] == [-0.75, -0.75]
    assert written["entropies"].to_pylist()[1] == [8.25, 8.25]
    result = Result(1.0, 2.0, 0.1, None, {"entropy": 0.5, "kl": 0.1, "clip_fraction": 0.2, "mu": 0.3}, 18, [])
    step = step_record("rft-1", batch, result, found, None, Seconds(1.0, None, 0.0, 0.0, 1.0, None),
                       Load(host_load=0.5))
    assert (step.loss, step.grad_norm, step.kl, step.trained_rows, step.trained_tokens) == (1.0, 2.0, 0.1, 5, 18)
    assert (step.stage, step.lr, step.mismatch_max, step.reward, step.rollout_tokens, step.statistics) == (
        "rft-1", 0.1, found.mismatch_max, 0.75, 10, [("mu", 0.3)])
    tables.to_arrow([step], records.Step)  # every column has a value that may be there


@pytest.mark.parametrize(("age", "own", "parts"), [
    (0, {"trainer: imports": 3.0}, ["engines: imports", "trainer: imports"]),
    (86400, {"trainer: imports": 3.0}, ["trainer: imports"]),  # of engines of the process before, which was killed
    (0, {}, None)])  # after a resume the rollouts of a later step are the first ones of the new engines
def test_a_step_has_the_start_of_engines_only_in_the_first_step_of_their_process(stage, age, own, parts):
    context = explore(stage(), 1, [1.0, 0.0, 1.0, 1.0])
    path = tables.step_file(context.directory, "rollouts", 1)
    tables.write(path, records.Rollout, [row(records.Rollout, step=1, rows=4, start=[("imports", 14.0)])])
    os.utime(path, (path.stat().st_mtime - age,) * 2)
    batch, result = batch_of(Rollouts(context), 1), Result(1.0, 2.0, 0.1, None, {}, 18, [])
    step = step_record("rft-1", batch, result, None, None, Seconds(1.0, None, 0.0, 0.0, 1.0, None, own), Load())
    assert (step.start and [name for name, _ in step.start]) == parts


def test_weights_over_the_threshold_are_counted_as_the_correction_bounds_them(stage):
    """Rollout -0.5, trainer 0: w = e^0.5 = 1.65, over a threshold of 1.5 in rows 0 and 1: three of ten tokens."""
    context = stage("algorithm.bypass_old_logprobs=false", "algorithm.rollout_correction.threshold=1.5")
    explore(context, 1, [1.0, 0.0, 1.0, 1.0], version=0)
    batch, objective = batch_of(Rollouts(context), 1), Objective(context.config)
    found = objective.mismatch(batch.rollouts, [np.full(i + 1, s, np.float32)
                                                for i, s in enumerate((0.0, 0.0, -0.5, -0.5))])
    assert found.corrected_fraction == pytest.approx(3 / 10)
    assert found.effective_sample_size == pytest.approx((7 + 3 * 1.5) ** 2 / (10 * (7 + 3 * 1.5**2)))


def with_reference(source, step, values):
    """The cut of a step, whose rows the reference gives these log-probs a token."""
    cut = source.cut(step)
    for row_, value in zip(cut.rollouts, values, strict=True):
        row_.columns["ref_logprobs"] = np.full(len(row_.mask), value, np.float32)
    return cut


def test_a_penalty_is_taken_off_the_reward_of_group_advantages_too(stage):
    """All rewards 1, so nothing to learn; k1 = -0.5 + 1 = 0.5 a token in row 1 (two tokens), 0 in the others.

    coef 0.2: rewards of the first group 1 and 0.8: std sqrt(0.02), so +-0.1 / 0.1414 = +-0.7071. The reported reward
    stays 1. Mean KL: 2 of 10 tokens have 0.5.
    """
    context = explore(stage("algorithm.kl_penalty_fn=k1", "algorithm.kl_penalty_fn_args.kl_coef=0.2"), 1, [1.0] * 4)
    source = Rollouts(context)
    batch = source.with_advantages(with_reference(source, 1, [-0.5, -1.0, -0.5, -0.5]))
    assert [r.columns["advantages"] for r in batch.rows] == pytest.approx([0.7071, -0.7071, 0, 0], abs=1e-4)
    assert (batch.metrics.reward, batch.metrics.kl_penalty_coef) == (1.0, 0.2)
    assert batch.metrics.kl_penalty == pytest.approx(0.1)


def test_a_penalty_reaches_the_very_token_and_its_coefficient_adapts(stage):
    """REINFORCE++ on rows of 1 to 4 tokens with reward 0 and k1 = 0.5 in row 3: token rewards -0.1 each there, so sums
    from behind -0.4, -0.3, -0.2, -0.1, and 0 in the six other tokens: mean -0.1, squares 0.3 - 10 x 0.01 = 0.2, std
    sqrt(0.2 / 9)."""
    adaptive = "algorithm.kl_penalty_fn_args={kl_coef: 0.2, adaptive: true, target_kl: 0.1, horizon: 100}"
    context = stage("algorithm.kl_penalty_fn=k1", adaptive, "algorithm.advantage_fn=reinforceplusplus")
    explore(context, 1, [0.0] * 4)
    source = Rollouts(context)
    batch = source.with_advantages(with_reference(source, 1, [-0.5, -0.5, -0.5, -1.0]))
    std = math.sqrt(0.2 / 9)
    assert batch.rows[3].columns["advantages"] == pytest.approx([(g + 0.1) / std for g in (-0.4, -0.3, -0.2, -0.1)])
    assert batch.rows[0].columns["advantages"] == pytest.approx([0.1 / std])
    assert batch.metrics.kl_penalty_coef == 0.2
    assert source.penalty.kl_coef == pytest.approx(0.2 * (1 + 0.2 * 4 / 100))  # KL 0.2 is twice the target
    made = trained_rows(batch, [np.zeros(i + 1, np.float32) for i in range(4)])
    assert made[3].advantages == pytest.approx(batch.rows[3].columns["advantages"])
    assert made[3].advantage == pytest.approx(-0.15 / std)


@pytest.mark.parametrize(("size", "coefficient"), [(4, 0.2 * 1.008), (2, 0.2 * 1.004**2), (1, 0.2 * 1.002**4)])
def test_an_adaptive_coefficient_follows_the_rows_of_the_step_however_few_are_cut(stage, size, coefficient):
    """k1 = 0.2 everywhere, twice the target: 0.2 x rows / 100 more in each trainer step, of four rows in all."""
    adaptive = "algorithm.kl_penalty_fn_args={kl_coef: 0.2, adaptive: true, target_kl: 0.1, horizon: 100}"
    context = stage("algorithm.kl_penalty_fn=k1", adaptive, f"buffer.train_batch_size={size}")
    explore(context, 1, [1.0, 0.0, 1.0, 1.0])
    source = Rollouts(context)
    for step in range(1, 4 // size + 1):
        cut = source.cut(step)
        for row_ in cut.rollouts:
            row_.columns["ref_logprobs"] = np.full(len(row_.mask), -0.7, np.float32)
        assert source.with_advantages(cut).metrics.kl_penalty == pytest.approx(0.2)
    assert source.penalty.kl_coef == pytest.approx(coefficient)


def test_a_step_without_an_action_token_says_so(stage):
    """Row 3 alone has some, and trainer step 1 is row 0: there is no KL to follow, and nothing to learn."""
    context = explore(stage("algorithm.kl_penalty_fn=k1", "buffer.train_batch_size=1"), 1, [1.0, 0.0, 1.0, 1.0])
    edit(context, lambda place, one: replace(one, action_mask=[0] * len(one.response_tokens)) if place < 3 else one)
    source = Rollouts(context)
    with refuses(StageError, "1 has"):
        source.with_advantages(with_reference(source, 1, [-0.5, -1.0, -1.0, -1.0]))


def test_gae_takes_the_critics_values_and_gives_it_returns(stage):
    """Reward 1 at the end, V = 0.25 throughout, gamma = lambda = 1: G = 1 - V everywhere, so whitened 0; returns 1."""
    context = explore(stage("algorithm.advantage_fn=ppo", "algorithm.advantage_fn_args={}"), 1, [1.0] * 4)
    source = Rollouts(context)
    cut = source.cut(1)
    for row_ in cut.rollouts:
        row_.columns["values"] = np.full(len(row_.mask), 0.25, np.float32)
    batch = source.with_advantages(cut)
    assert batch.rows[2].columns["advantages"] == pytest.approx([0.0] * 3)
    assert batch.rows[2].columns["returns"] == pytest.approx([1.0] * 3)


def test_rows_that_an_advantage_leaves_out_are_not_trained_on(stage):
    """The second group's rewards are equal."""
    context = explore(stage("algorithm.advantage_fn_args={std_threshold: 0.0}"), 1, [1.0, 0.0, 1.0, 1.0])
    assert [r.id for r in batch_of(Rollouts(context), 1).rows] == ["1/0", "1/1"]
    explore(context, 1, [1.0] * 4)
    with refuses(StageError, "1 has", "algorithm.advantage_fn=grpo"):
        batch_of(Rollouts(context), 1)


def test_rows_that_an_advantage_gives_twice_are_trained_on_twice(stage):
    context = stage("algorithm.advantage_fn_args={std_threshold: 0.0, duplicate_experiences: true}")
    explore(context, 1, [1.0, 0.0, 1.0, 1.0])
    assert [r.id for r in batch_of(Rollouts(context), 1).rows] == ["1/0", "1/0", "1/1", "1/1"]


def test_the_stage_publishes_and_ends_as_the_schedule_says(stage):
    """3 tasks, one epoch, 2 rows each: one batch of 4."""
    assert Rollouts(stage()).total_steps == 4
    assert [Rollouts(stage()).syncs.publishes(t) for t in (1, 2, 3, 4)] == [True, True, True, False]
    assert Rollouts(stage("buffer.total_steps=null")).total_steps == 1
    assert Rollouts(stage("buffer.total_steps=null", "buffer.explorer_input.taskset.limit=2",
                          "buffer.total_epochs=5")).total_steps == 5


def test_the_probe_is_the_head_of_the_longest_row(stage):
    context = explore(stage(), 1, [1.0, 0.0, 1.0, 1.0])
    batch = batch_of(Rollouts(context), 1)
    assert batch.probe(256) == ([7, 8, 9, 9, 9], ())  # of six: the engine must have room for one token more
    assert batch.probe(3) == ([7, 8, 9], ())


def test_the_probe_is_of_a_row_with_images_if_there_is_one_and_has_all_of_its_prompt():
    seen = Row("seen", [1, 2, 3, 4, 5, 6], 4, [1, 1], pictures=(Picture("file", "hash"),))
    batch = Batch(1, [Row("long", list(range(9)), 1, [1] * 8), seen])
    assert batch.probe(2) == ([1, 2, 3, 4], seen.pictures)
    assert batch.probe(9) == ([1, 2, 3, 4, 5], seen.pictures)
    of_an_agent = Row("two", [1, 2, 3, 4, 5, 6, 7], 2, [1, 0, 0, 1, 1], pictures=seen.pictures)  # it ends at 5
    assert Batch(1, [of_an_agent]).probe(2) == ([1, 2, 3, 4, 5], seen.pictures)


def test_attempts_that_were_cut_have_no_token_in_the_loss(stage):
    """Rewards 1 and 0 of the first group are compared as ever; of its second row nothing is learnt."""
    context = explore(stage("algorithm.mask_truncated_completions=true"), 1, [1.0, 0.0, 1.0, 1.0])
    edit(context, lambda place, one: replace(one, finish_reason=("stop", "length", "stop", None)[place]))
    found = batch_of(Rollouts(context), 1)
    assert [one.columns["advantages"] for one in found.rows[:2]] == pytest.approx([0.7071, -0.7071], abs=1e-4)
    assert [sum(one.mask) for one in found.rows] == [1, 0, 3, 4]
    assert [sum(one.mask) for one in batch_of(Rollouts(stage()), 1).rows] == [1, 2, 3, 4]


def test_components_count_by_their_weights_in_advantages_alone(stage):
    """Form 0.2 and right 1 with weight 3: 3.2. A component that a row lacks adds nothing. Plain sums are reported."""
    context = explore(stage("algorithm.reward_weights={right: 3.0}", "algorithm.advantage_fn=reinforce",
                            "algorithm.advantage_fn_args={}"), 1, [1.2, 0.2, 0.2, 0.2])
    parts = [[("form", 0.2), ("right", 1.0)], *[[("form", 0.2), ("right", 0.0)]] * 2, [("form", 0.2)]]
    edit(context, lambda place, one: replace(one, reward_components=parts[place]))
    found = batch_of(Rollouts(context), 1)
    assert [one.columns["advantages"] for one in found.rows] == pytest.approx([3.2, 0.2, 0.2, 0.2])
    assert found.metrics.reward == pytest.approx(0.45)


def test_a_component_that_a_batch_lacks_adds_nothing_and_is_told_once(stage, caplog):
    context = stage("algorithm.reward_weights={rare: 3.0}", "algorithm.advantage_fn=reinforce",
                    "algorithm.advantage_fn_args={}")
    for step in (1, 2):
        explore(context, step, [1.0, 0.0, 1.0, 0.5])
    source = Rollouts(context)
    for step in (1, 2):
        assert [one.columns["advantages"] for one in batch_of(source, step).rows] == pytest.approx([1, 0, 1, 0.5])
    assert [one.args[0] for one in caplog.records if one.levelname == "WARNING"] == ["rare"]


def play(context, first, second):
    """Writes explorer step 1 with a row of each of two players in every slot. first, second: their rewards."""
    explore(context, 1, first)
    path = tables.step_file(context.directory, "experience", 1)
    rows = [replace(records.Experience(**one), role="first")
            for one in tables.read(path, records.Experience).to_pylist()]
    others = [replace(one, experience_id=f"{one.experience_id}/1", turn=1, role="second", reward=reward)
              for one, reward in zip(rows, second, strict=True)]
    tables.write(path, records.Experience, [*rows, *others])


def test_players_of_an_attempt_are_compared_by_role(stage):
    """Two attempts at each of two tasks, a row of each player. First's rewards at the first task 3 and 1, second's -3
    and 5: less the means of their roles 1, -1 and -4, 4. Over all four rows the mean would be 1.5."""
    context = stage("algorithm.advantage_fn=dr_grpo")
    play(context, [3.0, 1.0, 0.0, 0.0], [-3.0, 5.0, 0.0, 1.0])
    found = batch_of(Rollouts(context), 1)
    assert {row.id: row.columns["advantages"] for row in found.rows} == {
        "1/0": 1.0, "1/1": -1.0, "1/2": 0.0, "1/3": 0.0, "1/0/1": -4.0, "1/1/1": 4.0, "1/2/1": -0.5, "1/3/1": 0.5}
    assert (found.metrics.zero_variance_groups, found.metrics.reward) == (1, 7 / 8)


def test_the_baseline_of_a_player_is_what_it_earned_greedily(stage):
    """The greedy players of the first task earn 2 and -2, so 3 - 2, 1 - 2, -3 + 2 and 5 + 2; those of the second 1 and
    nothing, as its second player made no row: 0 - 1 twice for the first, and no rows of the second."""
    context = stage("algorithm.advantage_fn=remax", "algorithm.advantage_fn_args={}", "algorithm.greedy_baseline=true")
    play(context, [3.0, 1.0, 0.0, 0.0], [-3.0, 5.0, 0.0, 1.0])
    path = tables.step_file(context.directory, "experience", 1)
    rows = [records.Experience(**one) for one in tables.read(path, records.Experience).to_pylist()]
    greedy = [replace(rows[place], experience_id=f"greedy/{place}", slot=slot, reward=reward, status="baseline")
              for place, slot, reward in ((0, 4, 2.0), (4, 4, -2.0), (2, 5, 1.0))]
    tables.write(path, records.Experience, [*rows, *greedy])
    found = {row.id: row.columns["advantages"] for row in batch_of(Rollouts(context), 1).rows}
    assert {id_: values[0] for id_, values in found.items()} == {
        "1/0": 1.0, "1/1": -1.0, "1/2": -1.0, "1/3": -1.0, "1/0/1": -1.0, "1/1/1": 7.0}


def test_a_group_without_a_baseline_is_refused_where_there_are_no_players(stage):
    context = stage("algorithm.advantage_fn=remax", "algorithm.advantage_fn_args={}", "algorithm.greedy_baseline=true")
    explore(context, 1, [1.0, 0.0, 1.0, 0.0])
    with refuses(DataError, "baseline_reward"):
        batch_of(Rollouts(context), 1)


def test_a_player_whose_last_reply_was_cut_does_not_mask_the_others(stage):
    context = stage("algorithm.mask_truncated_completions=true")
    play(context, [3.0, 1.0, 0.0, 0.0], [-3.0, 5.0, 0.0, 1.0])
    edit(context, lambda place, one: replace(one, finish_reason="length" if one.experience_id == "1/0/1" else "stop"))
    assert [row.id for row in batch_of(Rollouts(context), 1).rows if not any(row.mask)] == ["1/0/1"]
