"""What the trainer publishes, and that an engine which takes deltas holds the trainer's weights."""

import numpy as np
import pytest
import torch

from ouroboros.pipeline.job.syncs import Unasked
from ouroboros.pipeline.store import checkpoints, files, tensor_files, versions
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.engine import policy
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.publishing import Publishing
from ouroboros.workflows.engines.open import open_engine
from tests.configs import TINY
from tests.golden.messages import refuses

TOKENS = [5, 6, 7, 8]


@pytest.fixture
def publishing(tmp_path, tiny_model, process, context_of):
    """publishing("key=value", ...): for a new actor with the tiny model."""
    def make(*settings):
        context = context_of(tmp_path, *TINY, *settings)
        return Publishing(context, Actor(tiny_model, context.config, process), Unasked())
    return make


def change(publishing, share):
    """Changes this share of the elements of every weight matrix."""
    with torch.no_grad():
        for parameter in publishing.actor.zero.module.parameters():
            flat = parameter.view(-1)
            flat[: int(share * len(flat))] += 0.5


def published(publishing, version):
    directory = versions.version_directory(publishing.context.directory, version)
    manifest = files.read_json(directory / files.MANIFEST)
    return "delta" if manifest["base"] else "full", {path.name for path in directory.iterdir()} - {files.MANIFEST}


DELTA, FULL = ("delta", {versions.DELTA}), ("full", {checkpoints.WEIGHTS})


def kinds(publishing, shares):
    """What is published after each of these changes."""
    found = []
    for version, share in enumerate(shares):
        change(publishing, share)
        publishing.publish(version, TOKENS)
        found.append(published(publishing, version))
    return found


@pytest.mark.parametrize(("given", "shares", "expected"), [
    (("model.dtype=bfloat16",), (0, 0.1, 0.19, 0.25, 0.1), [FULL, DELTA, DELTA, FULL, DELTA]),
    (("model.dtype=bfloat16", "synchronizer.publish=delta"), (0, 0.25, 0.05), [FULL, DELTA, DELTA]),
    (("model.dtype=bfloat16", "synchronizer.publish=full"), (0, 0.1), [FULL, FULL]),
    (("model.dtype=float32",), (0, 0.1), [FULL, FULL]),
    (("model.dtype=float32", "synchronizer.publish=delta"), (0, 0.1), [FULL, DELTA]),
    (("synchronizer.publish=delta", "synchronizer.anchor_interval=3"), (0.1,) * 7,
     [FULL, DELTA, DELTA, FULL, DELTA, DELTA, FULL]),
    (("synchronizer.publish=delta", "synchronizer.anchor_interval=1"), (0.1,) * 2, [FULL, FULL]),
    # 8 bytes for 3 of 10 elements, of 4 bytes each: two deltas are larger than the whole
    (("model.dtype=float32", "synchronizer.publish=delta"), (0.3,) * 4, [FULL, DELTA, DELTA, FULL])])
def test_deltas_are_published_where_they_are_worth_it(publishing, given, shares, expected):
    assert kinds(publishing(*given), shares) == expected


def test_the_first_version_of_a_resumed_trainer_is_whole(publishing):
    settings = ("model.dtype=bfloat16",)
    assert kinds(publishing(*settings), (0, 0.1)) == [FULL, DELTA]
    assert kinds(publishing(*settings), (0, 0.1)) == [FULL, DELTA]


def test_a_published_version_has_the_hash_of_the_same_weights_in_a_checkpoint(publishing, tmp_path):
    """The tiny model's head is its embedding: an engine gets both, a checkpoint has it once."""
    one = publishing()
    one.publish(0, TOKENS)
    directory = versions.version_directory(one.context.directory, 0)
    manifest = files.read_json(directory / files.MANIFEST)
    model = one.actor.zero.module.model
    policy.export(dict(model.named_parameters()), model, tmp_path)
    checkpoint = tensor_files.read(tmp_path / checkpoints.WEIGHTS)
    assert tensor_files.read(directory / checkpoints.WEIGHTS).keys() - checkpoint.keys() == {*manifest["twice"]}
    assert manifest["twice"] == [policy.HEAD]
    assert versions.hash_of(checkpoint) == manifest["hash"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_that_takes_deltas_holds_the_weights_of_the_trainer(publishing, tiny_model, dtype):
    one = publishing(f"model.dtype={dtype}", "synchronizer.publish=delta", "trainer.zero_stage=1")
    config = one.context.config
    engine = open_engine(tiny_model, config.but("explorer.rollout_model", config.explorer.rollout_model.merged(
        {"engine_type": "transformers"})), [1])
    for version, share in enumerate((0, 0.1, 0.05)):
        change(one, share)
        one.publish(version, TOKENS)
        directory = versions.version_directory(one.context.directory, version)
        engine.load_weights(directory)
        trained = dict(one.actor.zero.module.model.named_parameters())
        held = dict(engine.model.named_parameters())
        assert all(torch.equal(held[name], tensor) for name, tensor in trained.items())
    files.remove_tree(versions.version_directory(one.context.directory, 0))
    engine.load_weights(directory)  # it holds them
    other = open_engine(tiny_model, config.but("explorer.rollout_model", config.explorer.rollout_model.merged(
        {"engine_type": "transformers"})), [1])
    with refuses(ModelError, "version=000000", "version=000001"):
        other.load_weights(directory)


def test_the_published_probe_is_of_these_weights(publishing):
    """The token after it is the likeliest, by the pass that training makes, at the temperature of sampling."""
    one = publishing("model.dtype=float32", "model.temperature=0.5")
    one.actor.zero.module.temperature = 0.5
    one.publish(3, TOKENS)
    probe = files.read_json(versions.version_directory(one.context.directory, 3) / files.MANIFEST)["probe"]
    last = probe.pop("likeliest")
    assert probe == {"tokens": TOKENS, "logprobs": one.actor.score(TOKENS)}
    found = [one.actor.score_rows([Row("one", [*TOKENS, token], len(TOKENS), [1])])[0][0] for token in range(99)]
    assert (last["temperature"], last["token"]) == (0.5, int(np.argmax(found)))
    assert last["logprob"] == pytest.approx(max(found), abs=1e-5)
