"""A run with long answers of a random model, on which the trainer works meanwhile, and what a kill leaves of it.

Whether weights come during a step depends on time: what is asserted holds wherever answers were cut.
"""

from pathlib import Path

import pytest

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.store import checkpoints, files
from tests.toy.conftest import stage_of, table
from tests.toy.kill import killed, start
from tests.toy.test_late_groups import ouro, stage_to_kill

STEPS, ROWS = 5, 8
LONG = ("stages=[{stage_name: rft}]", "name=long", "data_processor.task_pipeline.generator_args.tasks=40",
        "data_processor.task_pipeline.generator_args.demonstrations=0", "buffer.batch_size=4",
        "algorithm.repeat_times=2", f"buffer.total_steps={STEPS}", "buffer.explorer_input.eval_tasksets=[]",
        "model.max_response_tokens=400", "explorer.runner_concurrency=2", "explorer.partial_rollout=true",
        "synchronizer.sync_interval=1", "synchronizer.sync_offset=1", "trainer.save_interval=2", "monitor=none")


def assert_whole(directory: Path) -> list[dict]:
    """Tokens are of the weights of their step or of the next, in this order, and batches are full. Returns the rows."""
    rows, rollouts, trained = (table(directory, name) for name in ("experience", "rollouts", "trained"))
    assert [r["weights_version"] for r in rollouts] == [max(step - 2, 0) for step in range(1, STEPS + 1)]
    assert len(rows) == STEPS * ROWS
    for row in rows:
        sampled, begins = row["weights_versions"], max(row["step"] - 2, 0)
        assert len(sampled) == len(row["response_tokens"])
        assert sampled == sorted(sampled)
        assert begins <= sampled[0] == row["weights_version"] <= sampled[-1]
        assert sampled[-1] <= rollouts[row["step"] - 1]["newest_version"] <= begins + (row["step"] > 1)
    hashes = {(row["weights_version"], row["weights_hash"]) for row in rows}
    assert len(hashes) == len({version for version, _ in hashes})
    oldest = {row["experience_id"]: row["weights_version"] for row in rows}
    assert len(trained) == STEPS * ROWS
    assert all(one["staleness"] == one["train_step"] - 1 - oldest[one["experience_id"]] for one in trained)
    return rows


@pytest.mark.slow
def test_it_trains_and_says_that_it_depends_on_time(tmp_path):
    given = (f"checkpoint_root_dir={tmp_path}", *LONG)
    ouro("run", *given)
    directory = Path(stage_of(make_plan(compose(list(given))), "rft").directory)
    assert_whole(directory)
    assert files.read_json(directory / files.MANIFEST)["depends_on_time"] == ["explorer.partial_rollout"]
    ouro("verify", "long", "--root", str(tmp_path))


@pytest.mark.slow
def test_at_once_on_the_same_devices_it_makes_what_it_makes_in_turns(tmp_path):
    """trainer.overlap changes when the trainer works, not which weights answer: all is equal to the bit."""
    given = (*(word for word in LONG if word.partition("=")[0] not in (
        "explorer.partial_rollout", "explorer.runner_concurrency", "model.max_response_tokens")),
        "model.max_response_tokens=24", "mode=colocate", "explorer.rollout_model.engine_type=transformers")
    made = {}
    for overlap in (False, True):
        words = (f"checkpoint_root_dir={tmp_path / str(overlap)}", *given, f"trainer.overlap={str(overlap).lower()}")
        ouro("run", *words)
        stage = stage_of(make_plan(compose(list(words))), "rft")
        directory = Path(stage.directory)
        rows, trained, steps = (table(directory, name) for name in ("experience", "trained", "steps"))
        assert [step["overlap"] for step in steps] == [overlap] * STEPS
        last = checkpoints.model_directory(directory)
        rows = [{key: value for key, value in row.items() if key != "unix_seconds"} for row in rows]
        made[overlap] = stage.identity, rows, trained, files.hash_file(last / checkpoints.WEIGHTS)
    assert len(made[True][1]) == STEPS * ROWS
    assert made[True] == made[False]


@pytest.mark.kill
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("style", "interval", "bound"), [("trainer_driven", 1, 2), ("explorer_driven", 2, 3)])
def test_killed_where_one_side_drives_it_keeps_what_was_written(tmp_path, style, interval, bound, ranks):
    """Killed four times, by both tables; its checkpoints are of every third step."""
    steps = 12
    given = (*(word for word in LONG if word.partition("=")[0] not in (
        "explorer.partial_rollout", "explorer.runner_concurrency", "model.max_response_tokens", "trainer.save_interval",
        "buffer.total_steps", "synchronizer.sync_interval", "synchronizer.sync_offset")),
        "model.max_response_tokens=24", "explorer.rollout_model.engine_type=transformers", "trainer.save_interval=3",
        "buffer.explorer_input.default_reward_fn_type=tests.kills.agents:digits", f"buffer.total_steps={steps}",
        f"synchronizer.sync_style={style}", f"synchronizer.sync_interval={interval}",
        f"synchronizer.max_staleness={bound}", f"trainer.ranks={ranks}")
    stage = stage_to_kill(tmp_path, given)
    for name, step in (("rollouts", 2), ("steps", 4), ("rollouts", 8), ("steps", 10)):
        killed(stage, name, step)
    assert start(stage).wait(timeout=600) == 0
    directory = Path(stage.directory)
    rows, rollouts, trained = (table(directory, name) for name in ("experience", "rollouts", "trained"))
    versions = [one["weights_version"] for one in rollouts]
    assert versions == sorted(versions)
    assert versions[-1] > 0
    assert len({(row["weights_version"], row["weights_hash"]) for row in rows}) == len(set(versions))
    assert all(row["weights_version"] == versions[row["step"] - 1] for row in rows)
    assert (len(rows), len(trained)) == (steps * ROWS, steps * ROWS)
    assert all(0 <= one["staleness"] <= bound for one in trained)
    assert files.read_json(directory / files.MANIFEST)["depends_on_time"] == ["synchronizer.sync_style"]
