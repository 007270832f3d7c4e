"""Weights that the explorer brings into its engine: loaded once, proved, and waited for."""

import math

import pytest

from ouroboros.pipeline.store import checkpoints, files, hashes, tables, versions
from ouroboros.pipeline.store.errors import StageError, SyncError
from ouroboros.pipeline.store.pictures import Kept, named, pixels
from ouroboros.stages.explorer.weights import Weights, probe_difference
from ouroboros.workflows.engines.scripted_engine import ScriptedEngine
from tests.golden.messages import refuses
from tests.pictures import png

MANIFEST = {"version": 3, "probe": {"tokens": [1, 2, 3], "logprobs": [-1.0, -2.0]}}


class Scores:
    """An engine, or several, that gives these log-probs for any sequence."""

    def __init__(self, *logprobs, others=()):
        self.logprobs = [list(logprobs), *others]

    def probe(self, sequence):
        return self.logprobs

    def likeliest(self, sequence, temperature):
        assert (sequence, temperature) == ([1, 2, 3], 0.5)
        return [{7: -0.5, 8: -1.5}, {8: -0.75, 9: -3.0}][: len(self.logprobs)]


def test_proving_returns_the_largest_difference():
    assert probe_difference(Scores(-1.0, -2.0), MANIFEST, "float32", 1e-3) == 0.0
    assert probe_difference(Scores(-1.25, -2.5), MANIFEST, "float32", 0.5) == 0.5  # exactly what is allowed


def test_the_images_of_a_probe_are_found_where_the_tasks_are_now(tmp_path):
    class Seeing(Scores):
        def probe(self, sequence, pictures):
            assert pictures == named(["a", "b"], tmp_path)
            return self.logprobs

    manifest = {"version": 3, "probe": MANIFEST["probe"] | {"pictures": ["a", "b"]}}
    assert probe_difference(Seeing(-1.0, -2.0), manifest, "float32", 0.5, tmp_path) == 0.0


def test_the_images_of_a_probe_outlive_the_explorer_step_that_has_them(tmp_path):
    """A resumed stage may make it again while it loads the version, and agents show others then."""
    class Seeing(Scores):
        def probe(self, sequence, pictures):
            assert [pixels(one).size for one in pictures] == [(13, 9)]
            return self.logprobs

    kept, shown = Kept(tmp_path / ".shown-1"), tables.step_file(tmp_path, "shown", 1)
    kept.write(tmp_path, 1, [name := kept.keep(png(13, 9))])
    probe = MANIFEST["probe"] | {"pictures": [name]}
    place = versions.publish(tmp_path, 3, lambda place: {"hash": ""}, probe, str(shown))
    hashes.remove(shown)
    manifest = files.read_json(place / files.MANIFEST)
    assert probe_difference(Seeing(-1.0, -2.0), manifest, "float32", 0.5, tmp_path, place) == 0.0


TWENTY = {"version": 3, "probe": {"tokens": [*range(21)], "logprobs": [-1.0] * 20}}


@pytest.mark.parametrize(("dtype", "rounding", "far", "refused"), [
    ("bfloat16", None, [0.04] * 20, False),
    ("bfloat16", None, [0.06] * 20, True),  # in the mean: allowed 0.05
    ("bfloat16", (0.02, 0.1), [0.06] * 20, False),  # 4 times what rounding changes: 0.08 and 0.4
    ("bfloat16", None, [0.0] * 19 + [0.9], False),  # mean 0.045, percentile 0.045
    ("bfloat16", None, [0.0] * 18 + [0.4] * 2, True),  # percentile 0.4
    ("bfloat16", (0.02, 0.1), [0.0] * 18 + [0.4] * 2, False), ("bfloat16", (0.02, 0.1), [0.0] * 18 + [0.5] * 2, True),
    ("float32", None, [0.0009] * 20, False), ("float32", None, [0.0011] * 20, True),
    ("float32", (1e-6, 1e-6), [0.0011] * 20, True)])
def test_what_is_allowed_follows_the_precision_and_what_rounding_changes(dtype, rounding, far, refused):
    manifest = {"version": 3, "probe": TWENTY["probe"] | ({"rounding": rounding} if rounding else {})}
    scores = Scores(*(-1.0 - one for one in far))
    if refused:
        with pytest.raises(SyncError):
            probe_difference(scores, manifest, dtype)
    else:
        assert probe_difference(scores, manifest, dtype) == pytest.approx(max(far))


@pytest.mark.parametrize("logprobs", [(-1.0, -2.6), (-1.0, math.nan), (math.nan, math.nan), (-math.inf, -2.0)])
def test_weights_that_do_not_answer_like_the_trainer_stop_the_run(logprobs):
    with refuses(SyncError, "3 were", "0.5 at most (synchronizer."):
        probe_difference(Scores(*logprobs), MANIFEST, "float32", 0.5)


@pytest.mark.parametrize(("token", "logprob", "difference"), [(7, -0.5, 0.0), (7, -1.25, 0.375), (8, -0.5, 0.5)])
def test_the_token_after_the_probe_is_proved_as_it_is_sampled(token, logprob, difference):
    """At temperature 0.5, where differences of logits count twice: 0.75 is 0.375, and 1.0 is 0.5."""
    last = {"temperature": 0.5, "token": token, "logprob": logprob}
    manifest = {"version": 3, "probe": MANIFEST["probe"] | {"likeliest": last}}
    assert probe_difference(Scores(-1.0, -2.0), manifest, "float32", 0.5) == difference
    if difference:
        with pytest.raises(SyncError):
            probe_difference(Scores(-1.0, -2.0), manifest, "float32", 0.9 * difference)


@pytest.mark.parametrize("tolerance", [None, 0.5])
def test_a_likeliest_token_whose_log_prob_is_no_number_stops_the_run(tolerance):
    last = {"temperature": 0.5, "token": 7, "logprob": math.nan}
    manifest = {"version": 3, "probe": MANIFEST["probe"] | {"likeliest": last}}
    with pytest.raises(SyncError):
        probe_difference(Scores(-1.0, -2.0), manifest, "float32", tolerance)


def test_so_it_is_by_every_engine_and_a_token_that_one_does_not_find_likely_stops_the_run():
    last = {"temperature": 0.5, "token": 8, "logprob": -1.0}
    manifest = {"version": 3, "probe": MANIFEST["probe"] | {"likeliest": last}}
    two = Scores(-1.0, -2.0, others=[[-1.0, -2.0]])
    assert probe_difference(two, manifest, "float32", 0.5) == 0.25  # of 0.5 and 0.25
    last["token"] = 7
    with refuses(SyncError, "1 of 2"):
        probe_difference(Scores(-1.0, -2.0, others=[[-1.0, -2.0]]), manifest, "float32", 0.5)


def test_every_engine_is_proved_and_the_worst_is_what_is_recorded():
    assert probe_difference(Scores(-1.0, -2.0, others=[[-1.0, -2.25]]), MANIFEST, "float32", 0.5) == 0.25
    with refuses(SyncError, "2 of 3", "0.75 at most"):
        probe_difference(Scores(-1.0, -2.0, others=[[-1.0, -2.25], [-1.75, -2.0]]), MANIFEST, "float32", 0.5)


def test_a_trainer_whose_probe_is_no_number_stops_the_run():
    broken = {"version": 3, "probe": {"tokens": [1, 2, 3], "logprobs": [-1.0, math.nan]}}
    with pytest.raises(SyncError):
        probe_difference(Scores(-1.0, -2.0), broken, "float32", 0.5)


def nothing() -> None:
    """There is no work in the background that could fail."""


def publish(stage, version, logprobs=(-1.0, -1.0)):
    def export(directory):
        (directory / checkpoints.WEIGHTS).write_text(f"weights {version}")

    versions.publish(stage, version, export, {"tokens": [1, 2, 3], "logprobs": list(logprobs)})


def test_weights_are_brought_once_and_again_after_sleep(tmp_path, context_of):
    loaded = []
    engine = ScriptedEngine(None, context_of(tmp_path).config, [1], False)
    engine.load_weights = loaded.append
    weights = Weights(context_of(tmp_path), engine)
    publish(tmp_path, 0)
    publish(tmp_path, 1)
    for version in (0, 0, 1):
        weights.update_to(version, nothing)
    assert [d.name for d in loaded] == ["version=000000", "version=000001"]
    assert weights.hash == files.hash_text("weights 1")
    weights.update_to(1, nothing)
    assert (weights.wait_seconds, weights.sync_seconds, weights.difference) == (0.0, 0.0, None)
    weights.sleep()
    weights.update_to(1, nothing)
    assert len(loaded) == 3
    assert weights.difference == 0.0


def test_weights_that_never_come_end_in_an_error_that_says_so(tmp_path, context_of):
    context = context_of(tmp_path)
    context.config.synchronizer.sync_timeout = 0.01
    with refuses(StageError, "2 of", "version=000002", "trainer.log"):
        Weights(context, ScriptedEngine(None, context.config, [1], False)).update_to(2, nothing)


def test_weights_that_are_gone_once_the_trainer_has_passed_them_are_not_waited_for(tmp_path, context_of, monkeypatch):
    context = context_of(tmp_path)
    context.config.synchronizer.sync_timeout = 60.0
    made = tables.step_file(tmp_path, "steps", 3)
    made.parent.mkdir()
    made.touch()
    monkeypatch.setattr("ouroboros.stages.explorer.weights.SETTLED_SECONDS", 0.02)
    with refuses(SyncError, "version=000002"):
        Weights(context, ScriptedEngine(None, context.config, [1], False)).update_to(2, nothing)
