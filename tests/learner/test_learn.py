"""The training loop around a learner that learns nothing: what it leaves behind, and in which order."""

import contextlib
import errno
import os
import signal
import threading
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ouroboros.pipeline.job.ending import Ending, Stopped
from ouroboros.pipeline.job.syncs import Unasked
from ouroboros.pipeline.job.waiting import wait_for
from ouroboros.pipeline.store import checkpoints, files, records, recovery, tables, tensor_files
from ouroboros.pipeline.store.errors import ModelError, StageError
from ouroboros.stages import device_sharing, learn
from ouroboros.stages.learner import saving
from ouroboros.stages.learner.actor import Result
from ouroboros.stages.learner.engine.budget import Budget
from ouroboros.stages.learner.engine.snapshot import Part
from ouroboros.stages.learner.engine.way import Way
from tests.configs import TINY
from tests.factories import row
from tests.golden.messages import refuses


def write_steps(path, state):
    if path.name == checkpoints.WEIGHTS:
        one = tensor_files.Stored("F16", (1,), np.float16([state["steps"]]).view(np.uint8))
        return path, tensor_files.write_hashed(path, {"w": one})
    path.write_text(str(state["steps"]))
    return None


class StandIn:
    """An actor whose weights are the number of steps it has made; it is its own DeepSpeed engine."""

    ways = Way("padded")

    def __init__(self, model, config, process, temperature, keep_initial):
        self.steps, self.rates, self.zero, self.module = 0, [], self, torch.nn.Linear(1, 1)
        self.process, self.budget = process, Budget(config.trainer.max_token_len_per_gpu)
        self.way = self.ways

    def make_room(self):
        pass

    def step(self, rows, objective, lr, number, update):
        self.steps += 1
        self.rates.append(lr)
        scores = [np.zeros(sum(r.mask), np.float32) for r in rows]
        return Result(1.0, 2.0, lr, None, {"entropy": 0.5, "kl": 0.0, "clip_fraction": 0.0}, 7, scores)

    def score(self, tokens):
        return [-1.0] * (len(tokens) - 1)

    def save(self, directory):
        paths = directory / "model" / checkpoints.WEIGHTS, directory / "state"
        return [Part({"steps": self.steps}, partial(write_steps, path)) for path in paths]

    def load(self, directory):
        self.steps = int((directory / "state").read_text())

    def release_cache(self):
        """It has none."""

    def peak_memory_gib(self):
        return None


class Alone:
    """A process group of one."""

    rank, ranks, device = 0, 1, torch.device("cpu")

    @classmethod
    def start(cls, seed, rendezvous, split):
        return cls()

    def barrier(self):
        """Nobody to wait for."""

    stop = barrier


@pytest.fixture
def stage(tmp_path, tiny_model, context_of, monkeypatch):
    """An sft stage of five steps, with a checkpoint after 2, 4 and the last."""
    monkeypatch.setattr(learn, "Actor", StandIn)
    monkeypatch.setattr(learn, "Process", Alone)
    monkeypatch.setattr(learn, "prove_policy", lambda *_: None)  # it has no rows to pack
    rows = [row(records.Task, task_id=f"t{i}", split="sft", question=f"{i}", solution="1") for i in range(4)]
    tables.write(tmp_path / "curate" / "tasks.parquet", records.Task, rows)
    settings = ("algorithm.algorithm_type=sft", "algorithm.optimizer.lr_scheduler_type=linear", "buffer.batch_size=2",
                "algorithm.optimizer.lr=1.0", "algorithm.optimizer.lr_warmup_steps=0", "buffer.total_steps=5",
                "algorithm.optimizer.min_lr_ratio=0.0", "trainer.save_interval=2", "trainer.max_checkpoints_to_keep=2")
    return context_of(tmp_path / "sft", *TINY, *settings, tasks=tmp_path / "curate", model=tiny_model)


def test_engines_are_admitted_before_the_proof_where_the_memory_suffices(stage, monkeypatch):
    """Not with a teacher, nor when the stage resumes: an engine may then answer and sleep before the trainer is
    ready."""
    seen = []
    monkeypatch.setattr(learn, "prove_policy", lambda *_: seen.append((stage.directory / "total.json").exists()))
    for early in (False, True, True):
        monkeypatch.setattr(device_sharing, "opens_early", lambda *_, early=early: early)
        trainer = learn.Trainer(stage)
        (stage.directory / "total.json").unlink(missing_ok=True)
    stage.inputs["teacher"] = stage.inputs["model"]
    learn.Trainer(stage)
    del stage.inputs["teacher"]
    trainer.run()
    (stage.directory / "total.json").unlink()
    learn.Trainer(stage)
    assert seen == [False, True, True, False, False]


def test_every_step_leaves_a_row_and_some_a_checkpoint(stage):
    trainer = learn.Trainer(stage)
    trainer.run()
    assert files.read_json(stage.directory / "total.json") == {"total_steps": 5, "overlap": False, "count": 4}
    assert tables.steps_present(stage.directory, "steps") == [1, 2, 3, 4, 5]
    assert checkpoints.complete_checkpoints(stage.directory) == [4, 5]  # 2 was deleted
    assert trainer.actor.rates == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    last = checkpoints.checkpoint_directory(stage.directory, 5)
    manifest = files.read_json(last / files.MANIFEST)
    assert manifest.pop("files").keys() >= {"state", "model/model.safetensors", "model/config.json"}
    assert manifest == {"step": 5, "weights_hash": checkpoints.weights_hash(last / "model"), "zero_stage": 1,
                        "packing": "packed", "state": {"kl_loss_fn": 0.001, "kl_penalty_fn": 0.001},
                        "token_budget": {"configured": 4096, "tokens": 4096}}
    assert files.read_json(last / "model" / "config.json")["dtype"] == "float16"  # as written
    assert [p.name for p in (stage.directory / "checkpoints").glob(".*")] == []
    step = tables.read(tables.step_file(stage.directory, "steps", 2), records.Step).to_pylist()[0]
    assert (step["lr"], step["trained_rows"], step["trained_tokens"], step["grad_norm"]) == (0.8, 2, 7, 2.0)
    first = tables.read(tables.step_file(stage.directory, "steps", 1), records.Step).to_pylist()[0]
    assert [name for name, _ in first["start"]] == ["trainer: imports", "trainer: weights and their proof"]
    assert step["start"] is None
    parts = step["train_seconds"] + step["train_other_seconds"] + step["train_wait_seconds"]
    assert parts == pytest.approx(step["seconds"], abs=1e-3)  # nothing was published


@pytest.mark.parametrize("broken", [3, 4, 5])
def test_cut_off_anywhere_and_resumed_it_leaves_what_an_unbroken_run_leaves(stage, cut_off, broken):
    """The row of a step must be there before its checkpoint is: a resumed stage never writes it again."""
    cut_off(stage.directory, broken, lambda: learn.Trainer(stage).run())
    went_on = {3: 2, 4: 2, 5: 4}[broken]
    assert recovery.rewind(stage.directory, print) == went_on
    files.remove_leftovers(stage.directory)
    trainer = learn.Trainer(stage)
    assert trainer.step_done == trainer.actor.steps == went_on
    trainer.run()
    assert tables.steps_present(stage.directory, "steps") == [1, 2, 3, 4, 5]
    assert checkpoints.complete_checkpoints(stage.directory) == [4, 5]
    assert trainer.actor.rates == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2][went_on:])


@pytest.mark.parametrize(("former", "now", "setting", "way_out"), [
    ("packed", "packed", "auto", None), ("packed", "rows", "auto", "delete the stage directory"),
    ("packed", "rows", "rows", "packed or auto"), ("rows", "packed", "packed", "rows or auto")])
def test_rows_go_as_those_of_the_checkpoint_or_the_error_has_the_way_out(stage, cut_off, monkeypatch, former, now,
                                                                         setting, way_out):
    ways, asked = {"packed": Way("padded"), "rows": Way(None)}, []
    monkeypatch.setattr(StandIn, "ways", ways[former])
    cut_off(stage.directory, 3, lambda: learn.Trainer(stage).run())
    monkeypatch.setattr(learn, "prove_policy", lambda *given: asked.append(given[-1]))
    monkeypatch.setattr(StandIn, "ways", ways[now])
    stage.config.trainer.packing = setting
    with refuses(ModelError, f"with trainer.packing={former}", way_out) if way_out else contextlib.nullcontext():
        assert learn.Trainer(stage).step_done == 2
    assert asked == [former]


def ask_in_step(stage, monkeypatch, step, seconds_ago=0.0):
    """A signal arrives while this step is made."""
    learned = StandIn.step

    def asked(self, rows, objective, lr, number, update):
        if number == step and stage.ending.stopped is None:
            stage.ending.stopped, stage.ending.began = Stopped(signal.SIGTERM), time.monotonic() - seconds_ago
        return learned(self, rows, objective, lr, number, update)

    monkeypatch.setattr(StandIn, "step", asked)


@pytest.mark.parametrize(("step", "there"), [(1, [1]), (2, [2]), (3, [2, 3]), (4, [2, 4])])
def test_asked_to_end_it_saves_the_step_that_it_makes_and_goes_on_there(stage, monkeypatch, step, there):
    ask_in_step(stage, monkeypatch, step)
    with refuses(Stopped, "SIGTERM", step):
        learn.Trainer(stage).run()
    assert checkpoints.complete_checkpoints(stage.directory) == there
    assert recovery.rewind(stage.directory, print) == step
    stage.ending = Ending()
    trainer = learn.Trainer(stage)
    trainer.run()
    assert tables.steps_present(stage.directory, "steps") == [1, 2, 3, 4, 5]
    assert checkpoints.complete_checkpoints(stage.directory) == [4, 5]
    assert trainer.actor.rates == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2][step:])


def test_an_extra_checkpoint_displaces_no_other_one(stage, monkeypatch):
    """Of steps 2, 3 (asked to end), 4 the stage keeps 2 and 4, as undisturbed."""
    ask_in_step(stage, monkeypatch, 3)
    with pytest.raises(Stopped):
        learn.Trainer(stage).run()
    stage.ending = Ending()
    ask_in_step(stage, monkeypatch, 4)
    with pytest.raises(Stopped):
        learn.Trainer(stage).run()
    assert checkpoints.complete_checkpoints(stage.directory) == [2, 4]


def test_a_checkpoint_that_takes_longer_than_what_is_left_is_not_begun(stage, monkeypatch):
    """One takes 5 s; 57 of the 60 s of log.grace_seconds are over."""
    ask_in_step(stage, monkeypatch, 3, seconds_ago=57.0)
    trainer = learn.Trainer(stage)
    trainer.deadline.save_seconds = 5.0
    with refuses(Stopped, "3 is", "takes 5.0 s", "2 is"):
        trainer.run()
    assert checkpoints.complete_checkpoints(stage.directory) == [2]


def test_the_time_limit_of_a_job_is_near_a_step_and_two_checkpoints_before_it():
    """The slowest step 7 s, twice the slowest checkpoint of 4 s, 5 s to end: 20 s."""
    deadline = saving.Deadline()
    for checkpoint, step in ((4.0, 7.0), (3.0, 1.0)):
        deadline.saved(checkpoint)
        deadline.stepped(step)
    for left, near in ((19.0, True), (21.0, False)):
        deadline.ends_at = time.time() + left
        assert deadline.is_near is near


def test_asked_to_end_in_its_last_step_it_completes(stage, monkeypatch):
    ask_in_step(stage, monkeypatch, 5)
    learn.Trainer(stage).run()
    assert checkpoints.complete_checkpoints(stage.directory) == [4, 5]


def test_a_finished_stage_has_nothing_left_to_do(stage):
    learn.Trainer(stage).run()
    trainer = learn.Trainer(stage)
    trainer.run()
    assert trainer.actor.rates == []


def test_a_resumed_stage_keeps_the_halved_token_budget(stage, cut_off):
    def halved():
        trainer = learn.Trainer(stage)
        trainer.actor.budget.tokens = 2048
        trainer.run()

    cut_off(stage.directory, 5, halved)
    assert learn.Trainer(stage).actor.budget.tokens == 2048
    stage.config.trainer.max_token_len_per_gpu = 3000
    assert learn.Trainer(stage).actor.budget.tokens == 3000


def test_a_stage_goes_on_with_the_zero_stage_it_began_with(stage, monkeypatch):
    learn.Trainer(stage).run()
    stage.config.trainer.zero_stage = 3
    with refuses(ModelError, "step=000005", "trainer.zero_stage=1", "is 3"):
        learn.Trainer(stage)


def test_a_file_that_could_not_be_written_ends_the_wait_for_rollouts(stage):
    """The explorer may be waiting for the very weights that this trainer will not make any more."""
    trainer = learn.Trainer(stage)

    def fail():
        raise OSError("No space left on device")

    trainer.writer.start(fail)
    with refuses(OSError, "No space left"):
        wait_for(stage.directory / "never", 10, "", stage.directory, trainer._check)


def test_a_trainer_that_ends_stops_waiting_for_its_next_batch(stage):
    trainer = learn.Trainer(stage)
    trainer.ended = True
    with refuses(StageError, "the trainer ended"):
        wait_for(stage.directory / "never", 10, "", stage.directory, trainer._check)


class Slow:
    """Writes a checkpoint's files of one step only once `may_go_on` is set, or fails then."""

    def __init__(self, monkeypatch, step, error=None):
        self.may_go_on, self.step, self.error, self.write = threading.Event(), step, error, write_steps
        monkeypatch.setitem(globals(), "write_steps", self)

    def __call__(self, path, state):
        if state["steps"] == self.step:
            assert self.may_go_on.wait(30)
            if self.error:
                raise self.error
        return self.write(path, state)


def go_on_in_step(monkeypatch, slow, step):
    """Lets the checkpoint be written as soon as this step is made."""
    learned = StandIn.step

    def then(self, rows, objective, lr, number, update):
        if number == step:
            slow.may_go_on.set()
        return learned(self, rows, objective, lr, number, update)

    monkeypatch.setattr(StandIn, "step", then)


def test_a_checkpoint_is_written_beside_the_next_steps_with_the_state_of_its_own(stage, monkeypatch):
    go_on_in_step(monkeypatch, Slow(monkeypatch, 2), 4)  # deadlocks if step 3 or 4 waited for it
    trainer = learn.Trainer(stage)
    trainer.run()
    assert checkpoints.complete_checkpoints(stage.directory) == [4, 5]
    assert trainer.deadline.save_seconds > 0.0


def test_a_step_that_fails_leaves_the_checkpoint_that_is_being_written(stage, monkeypatch):
    slow = Slow(monkeypatch, 4)

    def fails(self, rows, objective, lr, number, update, learned=StandIn.step):
        if number == 5:
            threading.Timer(0.3, slow.may_go_on.set).start()
            raise ValueError("of a loss")
        return learned(self, rows, objective, lr, number, update)

    monkeypatch.setattr(StandIn, "step", fails)
    with refuses(ValueError, "of a loss"):
        learn.Trainer(stage).run()
    assert checkpoints.complete_checkpoints(stage.directory) == [2, 4]


def test_a_checkpoint_that_cannot_be_written_ends_the_stage_at_the_next_step_and_leaves_nothing(stage, monkeypatch):
    slow = Slow(monkeypatch, 4, OSError(errno.ENOSPC, "No space left on device"))
    go_on_in_step(monkeypatch, slow, 5)
    with refuses(OSError, "device"):
        learn.Trainer(stage).run()
    assert checkpoints.complete_checkpoints(stage.directory) == [2]
    assert [p.name for p in (stage.directory / "checkpoints").iterdir()] == ["step=000002"]
    assert recovery.rewind(stage.directory, print) == 2


@pytest.mark.parametrize(("how", "name", "code", "kept"), [
    ("flush_tree", ".step=000004.tmp", errno.ENOSPC, 1), ("flush_tree", ".step=000004.tmp", errno.ENOENT, 1),
    ("flush_to_disk", "steps", errno.EIO, 0)])
def test_a_checkpoint_that_does_not_reach_the_disk_ends_the_stage_and_displaces_none(
        stage, monkeypatch, how, name, code, kept):
    """Nor where its files are gone though all ranks have written theirs, nor one whose rows have no names there."""
    failures, flushed = [OSError(code, os.strerror(code))], getattr(files, how)

    def flush(path):
        if path.name == name and failures:
            raise failures.pop()
        flushed(path)

    monkeypatch.setattr(files, how, flush)
    with refuses(OSError, os.strerror(code)):
        learn.Trainer(stage).run()
    assert [p.name for p in (stage.directory / "checkpoints").iterdir()] == ["step=000002"][:kept]


def test_a_checkpoint_waits_for_the_files_of_all_ranks(stage):
    first, second = made = [learn.Trainer(stage).saving for _ in range(2)]
    for rank, one in enumerate(made):
        one.process = SimpleNamespace(rank=rank, ranks=2, barrier=lambda: None)
        one.take(2)
    first.start(2)
    time.sleep(0.1)
    assert checkpoints.complete_checkpoints(stage.directory) == []
    second.start(2)
    for one in made[::-1]:
        one.finish()
    assert [p.name for p in (stage.directory / "checkpoints").iterdir()] == ["step=000002"]


def test_an_ending_waits_for_the_checkpoint_in_progress(stage, monkeypatch):
    """Asked to end while step 3 is made, and step 2 is still being saved: both are saved."""
    slow = Slow(monkeypatch, 2)
    go_on_in_step(monkeypatch, slow, 3)
    ask_in_step(stage, monkeypatch, 3)
    with refuses(Stopped, "3 is"):
        learn.Trainer(stage).run()
    assert checkpoints.complete_checkpoints(stage.directory) == [2, 3]


def test_a_checkpoint_does_not_precede_the_rows_of_its_step(stage, monkeypatch):
    trainer, write = learn.Trainer(stage), tables.write

    def later(path, *arguments):
        if path == tables.step_file(stage.directory, "steps", 4):
            time.sleep(0.3)
            assert checkpoints.complete_checkpoints(stage.directory) == [2]
        write(path, *arguments)

    monkeypatch.setattr(tables, "write", later)
    trainer.run()
    assert checkpoints.complete_checkpoints(stage.directory) == [4, 5]


def test_without_memory_for_a_copy_a_checkpoint_is_written_before_the_next_step(stage, monkeypatch):
    monkeypatch.setattr("ouroboros.stages.learner.saving.copied", lambda parts: None)
    learn.Trainer(stage).run()
    assert checkpoints.complete_checkpoints(stage.directory) == [4, 5]


class Asking(Unasked):
    """An explorer that asks for the weights of these steps, or later ones, one after another."""

    asks = True

    def __init__(self, *least):
        self.least, self.answered = [*least], threading.Event()

    def is_asked(self, step):
        return bool(self.least) and step >= self.least[0]


def test_an_explorer_that_asks_is_answered_after_a_step_and_while_its_rows_are_waited_for(stage):
    """It asks for step 2, and again for step 3, before it writes the rows of step 4."""
    trainer, asking, handed = learn.Trainer(stage), Asking(2, 3), []
    cut = trainer.source.cut

    def rows_of(step):
        assert step < 4 or asking.answered.wait(20)
        return cut(step)

    def hand_over(version, tokens, pictures=()):
        handed.append((version, trainer.actor.steps))
        asking.least.pop(0)
        if not asking.least:
            asking.answered.set()

    trainer.syncs, trainer.source.cut, trainer.publishing.hand_over = asking, rows_of, hand_over
    trainer.run()
    assert handed == [(2, 2), (3, 3)]
    assert tables.steps_present(stage.directory, "steps") == [1, 2, 3, 4, 5]
