"""The experts that engine and trainer give tokens to: said by the engine, compared and replayed by the trainer."""

import json

import numpy as np
import pytest
import torch

from ouroboros.pipeline.store import records, routings, tables
from ouroboros.pipeline.store.errors import ModelError, StageError
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.packing import pack
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.objective import Objective
from ouroboros.stages.learner.separation import prove_policy
from ouroboros.workflows.attempts import recording
from ouroboros.workflows.engines.transformers_engine import TransformersEngine
from ouroboros.workflows.protocol.engine import Request
from tests import families, zoo
from tests.configs import TINY, overridden
from tests.factories import TEXT
from tests.golden.messages import refuses
from tests.learner import routed
from tests.learner.test_ranks import trained

GRPO = ("algorithm.algorithm_type=grpo", "model.max_prompt_tokens=24", "model.max_response_tokens=40",
        "trainer.share_prompts=true")
REPLAY = "algorithm.enable_router_replay=true"
PROMPTS = [[7, 8, 9, 10, 11, 12], [7, 8, 9, 10, 11, 12], [30, 31, 32], [40, 41, 42, 43, 44, 45, 46, 47]]


def sampled(path, config) -> list[Row]:
    """Rows of one rollout to each prompt."""
    engine = TransformersEngine(path, config, [], False)
    replies = engine.generate([Request(prompt, 20, 1.0, 1.0, -1, seed) for seed, prompt in enumerate(PROMPTS)])
    columns = {"is_expert": False}
    return [Row(f"r{i}", prompt + reply.tokens, len(prompt), [1] * len(reply.tokens),
                {"advantages": [1.0, -1.0][i % 2], "rollout_logprobs": reply.logprobs, "old_logprobs": reply.logprobs,
                 **columns}, experts=reply.experts)
            for i, (prompt, reply) in enumerate(zip(PROMPTS, replies, strict=True))]


def model_of(path, family: str) -> None:
    families.make(family, path)
    zoo.make_tokenizer("qwen3", path)


def gap(rows: list[Row], scored: list[np.ndarray]) -> float:
    return np.mean([np.abs(found - row.of_actions("rollout_logprobs")).mean()
                    for found, row in zip(scored, rows, strict=True)])


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_the_engines_experts_are_those_of_the_trainer_in_float32(tmp_path, process, family):
    """Packed, by rows, and in layers before which none has experts."""
    model_of(tmp_path, family)
    config = overridden(*TINY, *GRPO)
    rows = sampled(tmp_path, config)
    assert [row.experts.shape for row in rows] == [(20, 4, 2)] * 4
    result = Actor(tmp_path, config, process).step(rows, Objective(config), 1e-4, 1, update=False)
    assert result.statistics["routed_differently"] == 0.0
    assert gap(rows, result.logprobs) < 1e-5


@pytest.mark.parametrize("recomputes", [False, True])
def test_other_experts_are_counted_and_replayed(tmp_path, process, recomputes):
    """Of 4 rows with 20 tokens and 4 layers each, one token has other experts in the last layer: 1 / 320."""
    model_of(tmp_path, "qwen3_moe")
    words = (*TINY, *GRPO, f"trainer.enable_gradient_checkpointing={str(recomputes).lower()}")
    rows = sampled(tmp_path, overridden(*words))
    rows[1].experts[5, 3] = [e for e in range(4) if e not in rows[1].experts[5, 3]]
    losses = {}
    for replay in (False, True):
        config = overridden(*words, *([REPLAY] if replay else []))
        actor = Actor(tmp_path, config, process)
        result = actor.step(rows, Objective(config), 1e-3, 1)
        assert result.statistics["routed_differently"] == pytest.approx(1 / 320)
        losses[replay] = [np.abs(found - row.of_actions("rollout_logprobs")) for found, row in zip(
            result.logprobs, rows, strict=True)]
        assert np.isfinite(result.grad_norm)
    assert all(row.max() < 1e-5 for row in losses[False])
    assert losses[True][1][:5].max() < 1e-5  # before it, and in other rows, nothing changes
    assert losses[True][1][5] > 1e-3
    assert max(losses[True][i].max() for i in (0, 2, 3)) < 1e-5


def test_gradients_go_through_the_replayed_experts(tmp_path, process):
    """The same with their activations recomputed: the same gradient."""
    model_of(tmp_path, "qwen3_moe")
    norms = []
    for recomputes in (False, True):
        config = overridden(*TINY, *GRPO, REPLAY, f"trainer.enable_gradient_checkpointing={str(recomputes).lower()}")
        rows = sampled(tmp_path, config)
        for row in rows:
            row.experts = (row.experts + 1) % 4
        norms.append(Actor(tmp_path, config, process).step(rows, Objective(config), 1e-3, 1).grad_norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert norms[0] > 0


def test_bfloat16_engines_of_a_mixture_are_as_near_as_those_of_a_dense_model(tmp_path, process):
    """Replay takes away what experts add to the rounding of a dense model."""
    found = {}
    for family in ("qwen3", "qwen3_moe"):
        (tmp_path / family).mkdir()
        model_of(tmp_path / family, family)
        for words in ((), (REPLAY,)) if family == "qwen3_moe" else ((),):
            config = overridden(*TINY, *GRPO, "model.dtype=bfloat16", *words)
            rows = sampled(tmp_path / family, config)
            result = Actor(tmp_path / family, config, process).step(rows, Objective(config), 0.0, 1, update=False)
            found[family, *words] = gap(rows, result.logprobs)
            assert ("routed_differently" in result.statistics) == (family == "qwen3_moe")
    assert found["qwen3_moe", REPLAY] < 2 * found["qwen3",]


def test_a_mixture_in_bfloat16_is_proven_with_the_experts_of_its_own_forward(tmp_path, process, monkeypatch):
    """Packed, some of 32 experts change places by rounding, which says nothing of rows."""
    monkeypatch.setitem(families.SHAPES, "qwen3_moe", {"num_experts": 32, "num_local_experts": 32})
    model_of(tmp_path, "qwen3_moe")
    config = overridden(*TINY, *GRPO, "model.dtype=bfloat16")
    actor = Actor(tmp_path, config, process)
    prove_policy(actor, config, TEXT)
    assert actor.way.name == "packed"


@pytest.mark.parametrize(("family", "settings"), [
    pytest.param("qwen3_moe", ("trainer.zero_stage=3",), marks=pytest.mark.slow),
    pytest.param("qwen3_moe", (), marks=pytest.mark.wide),
    pytest.param("qwen3_moe", ("trainer.packing=rows", "trainer.enable_gradient_checkpointing=true"),
                 marks=pytest.mark.wide),
    pytest.param("granitemoehybrid", ("trainer.zero_stage=3",), marks=pytest.mark.wide),  # by rows; alone packed
    pytest.param("granitemoehybrid", (), marks=pytest.mark.wide)])
def test_two_ranks_replay_the_same(tmp_path, process, family, settings):
    families.make(family, tmp_path)
    alone = routed.train(tmp_path, process)
    assert min(alone["differing"]) > 0.5  # replaying changes what is computed
    found = trained(tmp_path, tmp_path / "seen.json", 2, settings, "tests.learner.routed")
    for name in ("losses", "norms", "differing"):
        assert found[name] == pytest.approx(alone[name], rel=1e-3, abs=1e-5), name
    for ours, theirs in zip(found["scores"], alone["scores"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-3)


def test_a_row_that_acts_without_a_routing_ends_a_step_that_replays(tmp_path, process):
    families.make("qwen3_moe", tmp_path)
    config = overridden(*TINY, *routed.GIVEN)
    actor, some = Actor(tmp_path, config, process), routed.rows()
    some[2].experts = None
    with refuses(StageError, "enable_router_replay"):
        actor.step(some, Objective(config), 1e-3, 1)


def test_a_rank_whose_rows_do_not_act_sums_what_the_others_do(tmp_path, process, monkeypatch):
    """Sums over ranks need the same statistics on each. Of two ranks, the second has the shorter row."""
    families.make("qwen3_moe", tmp_path)
    monkeypatch.setattr(Process, "pack", lambda self, rows, budget, *given, **named:
                        pack(rows, budget, 1, 2, *given, **named))
    config, some = overridden(*TINY, *routed.GIVEN), routed.rows()[3:5]
    for one in some:
        one.columns |= {"old_logprobs": -1.0, "rollout_logprobs": -1.0}
    result = Actor(tmp_path, config, process).step(some, Objective(config), 1e-3, 1, update=False)
    assert result.statistics["routed_differently"] == 0.0


def test_the_journal_keeps_routings():
    experts = np.array([[[0, 300], [65535, 7]], [[1, 2], [3, 4]], [[9, 8], [7, 6]]])
    kept = json.loads(json.dumps(recording._text(experts, recording.NARROW)))
    assert recording._array(*kept, recording.NARROW).tolist() == experts.tolist()


def test_a_model_without_experts_has_nothing_to_replay(tmp_path, process):
    model_of(tmp_path, "qwen3")
    with refuses(ModelError, "enable_router_replay"):
        Actor(tmp_path, overridden(*TINY, *GRPO, REPLAY), process)


def test_rows_share_no_prompt_where_their_routings_are_replayed(tmp_path, process):
    model_of(tmp_path, "qwen3_moe")
    assert Actor(tmp_path, overridden(*TINY, *GRPO), process).way.share
    assert not Actor(tmp_path, overridden(*TINY, *GRPO, REPLAY), process).way.share


def test_routings_are_kept_until_no_step_needs_them(tmp_path):
    experts = np.arange(24).reshape(3, 4, 2)
    for step in (1, 2, 3):
        routings.write(tmp_path, step, {f"{step}/a/0": experts + 300 * (step == 2)})
        tables.write(tables.step_file(tmp_path, "experience", step), records.Experience, [])
    (found,) = routings.read(tmp_path, 2).values()
    np.testing.assert_array_equal(found, experts + 300)
    assert (routings.read(tmp_path, 1)["1/a/0"].dtype, found.dtype) == (np.uint8, np.uint16)
    routings.forget_before(tmp_path, 3)
    assert [len(routings.read(tmp_path, step)) for step in (1, 2, 3)] == [0, 0, 1]


def test_experts_follow_the_action_tokens_of_a_micro_batch():
    rows = [Row("a", [1, 2, 3, 4], 2, [0, 1], experts=np.array([[[0, 1]]])),
            Row("b", [5, 6, 7], 1, [1, 1], experts=np.array([[[2, 3]], [[1, 3]]]))]
    (micro,) = pack(rows, 9, 0, 1, experts=True)
    assert micro.source.tolist() == [2, 4, 5]
    assert micro.experts.tolist() == [[[0, 1]], [[2, 3]], [[1, 3]]]
    assert pack(rows, 9, 0, 1)[0].experts is None
    assert isinstance(micro.inputs(torch.device("cpu"))["experts"], torch.Tensor)
