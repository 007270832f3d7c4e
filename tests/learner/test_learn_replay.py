"""A real trainer on hand-made rollouts, with replay, rows of an expert and a reference, cut off and taken up."""

import pytest

from ouroboros.pipeline.settings.data import AuxiliaryBuffer
from ouroboros.pipeline.store import checkpoints, files, records, recovery, tables
from ouroboros.stages import learn
from tests.configs import TINY, element
from tests.factories import row
from tests.learner.test_rollouts import SMALL, explore

REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"
SETTINGS = (*TINY, *SMALL, "algorithm.algorithm_type=mix", "algorithm.sample_strategy=mix",
            "algorithm.sample_strategy_args={expert_data_ratio: 0.2}", "algorithm.policy_loss_fn=mix",
            "algorithm.policy_loss_fn_args={mu: 0.3}", "algorithm.entropy_loss_fn=mix", "algorithm.kl_loss_fn=k3",
            "algorithm.optimizer.lr=0.001", "algorithm.optimizer.lr_warmup_steps=0", f"{REPLAY}.enable=true",
            f"{REPLAY}.replay_ratio=0.3", "buffer.total_steps=5", "trainer.save_interval=2")


@pytest.fixture
def stage(tmp_path, tiny_model, context_of, process, monkeypatch):
    """stage(name): the same stage in another directory, with the rollouts of five steps; a checkpoint after 2 and 4."""
    monkeypatch.setattr(learn.Process, "start", lambda *_: process)
    monkeypatch.setattr(learn.Process, "stop", lambda self: None)
    tasks = [row(records.Task, task_id=f"t{i}", row=i, split="train", question="1") for i in range(3)]
    tasks += [row(records.Task, task_id=f"s{i}", row=i + 3, split="sft", question="1", solution=f"{i}")
              for i in range(5)]
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, tasks)

    def make(name):
        context = context_of(tmp_path / name, *SETTINGS, tasks=tmp_path / "curate", model=tiny_model)
        context.config.buffer.trainer_input.auxiliary_buffers = {"sft_dataset": element(AuxiliaryBuffer, {})}
        roll(context)
        return context

    return make


def roll(context):
    for step in range(1, 6):
        explore(context, step, [1.0, 0.0, float(step % 2), 1.0])


def made_by(context):
    """Rows that were trained on, what was reported of them, and the weights."""
    trained = [r for step in range(1, 6) for r in tables.read(
        tables.step_file(context.directory, "trained", step), records.Trained).to_pylist()]
    steps = [tables.read(tables.step_file(context.directory, "steps", step), records.Step).to_pylist()[0]
             for step in range(1, 6)]
    kept = ("loss", "grad_norm", "kl_loss", "replayed_rows", "expert_rows", "trained_rows", "statistics")
    last = checkpoints.checkpoint_directory(context.directory, 5)
    return trained, [{name: step[name] for name in kept} for step in steps], files.read_json(
        last / files.MANIFEST)["weights_hash"]


def test_cut_off_and_taken_up_it_trains_on_the_same_rows_to_the_same_weights(stage, cut_off):
    """Eight rows a batch: four new, a group of two again from step 2 on, two of an expert."""
    whole, cut = stage("whole"), stage("cut")
    learn.Trainer(whole).run()
    trained, steps, weights = made_by(whole)
    assert [(s["trained_rows"], s["replayed_rows"], s["expert_rows"]) for s in steps] == [(6, 0, 2), *[(8, 2, 2)] * 4]
    assert [dict(s["statistics"])["mu"] for s in steps] == pytest.approx([0.3] * 5)
    assert steps[1]["grad_norm"] > 0
    assert steps[1]["kl_loss"] > 0
    assert max(r["use_count"] or 0 for r in trained) >= 1
    assert sum(r["is_expert"] for r in trained) == 10

    cut_off(cut.directory, 4, lambda: learn.Trainer(cut).run())
    assert recovery.rewind(cut.directory, print) == 2
    files.remove_leftovers(cut.directory)
    roll(cut)  # what later weights made is made again
    learn.Trainer(cut).run()
    assert made_by(cut) == (trained, steps, weights)
