"""vLLM answers a seeded request alike among any number of others, whatever the length of their prompts."""

import logging
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.store.errors import ConfigError, SyncError
from ouroboros.stages.explorer.weights import probe_difference
from ouroboros.stages.model import character_tokenizer
from ouroboros.workflows.attempts.continued import continuation
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.engines.open import open_engine
from ouroboros.workflows.engines.vllm_engine import VllmEngine
from ouroboros.workflows.protocol.engine import INTERRUPTED, STOP_TEXT, Reply, Request, Stop
from ouroboros.workflows.protocol.outcomes import Sampling
from ouroboros.workflows.single_turn import simple_workflow
from tests.configs import TINY, overridden
from tests.golden.messages import refuses
from tests.workflows.test_guided import asked, assert_all_satisfy

LONGEST, EOS, REPEATS = 512, 1, 8
CASES = ((16, 5, 5), (160, 31, 31), (256, 31, 31),  # 31 does not divide 4096 tokens a step: a prompt would be split
         (1000, 31, 31), (256, 270, 270), (300, 5, 500), (16, 500, 500))
DEFAULT = (160, 31, 31), (300, 5, 500)
SETTINGS = (*TINY, f"model.max_prompt_tokens={LONGEST}", "explorer.rollout_model.engine_type=vllm")


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """opened("key=value", ...): an engine on one tiny model with room for long prompts."""
    from ouroboros.stages.model import work

    model, engines = tmp_path_factory.mktemp("model"), []
    work(Context("toy/one", "model", "tiny", model, overridden(*SETTINGS), {}, logging.getLogger("tests")))

    def make(*overrides: str):
        engines.append(open_engine(model, overridden(*SETTINGS, *overrides), [EOS]))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without a GPU")
def test_kernels_that_only_gpus_have_are_refused(tmp_path):
    with refuses(ConfigError, "batch_invariant"):
        VllmEngine(tmp_path, overridden(*SETTINGS, "explorer.rollout_model.batch_invariant=true"), [EOS], False)


@pytest.fixture(scope="module")
def engine(opened):
    return opened()


def requests(number: int, shortest: int, longest: int, tokens: int = 6) -> list[Request]:
    """Groups of eight with one prompt, the first of each greedy, the others with a seed each."""
    asked = []
    for index in range(number):
        drawn = random.Random(index // REPEATS)
        prompt = [drawn.randint(3, 90) for _ in range(drawn.randint(shortest, longest))]
        asked.append(Request(prompt, tokens, float(index % REPEATS > 0), 1.0, -1, index))
    return asked


def assert_equal(some, others) -> None:
    assert [reply.tokens for reply in some] == [reply.tokens for reply in others]
    for one, other in zip(some, others, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.parametrize(("number", "shortest", "longest"), [
    pytest.param(*case, marks=pytest.mark.slow if case in DEFAULT else pytest.mark.wide) for case in CASES])
def test_any_number_and_length_of_prompts_is_answered_as_a_few_are_alone(engine, number, shortest, longest):
    asked = requests(number, shortest, longest)
    few = slice(0, None, max(number // 8 - 1, 1))
    assert_equal(engine.generate(asked)[few], engine.generate(asked[few]))


def by_the_book(engine, asked):
    """What vLLM's own `generate` answers, in one call. It hands log-probs over where those of further tokens are asked
    for, of the sampled one first."""
    parameters = [engine._parameters(r) for r in asked]
    for one in parameters:
        one.logprobs = 1
    outputs = engine._llm.generate([{"prompt_token_ids": r.prompt_tokens} for r in asked], parameters, use_tqdm=False)
    return [(list(o.outputs[0].token_ids), list(o.outputs[0].logprobs.logprobs)[::2]) for o in outputs]


@pytest.mark.slow
def test_single_turns_are_vllms_own_answers_and_late_requests_change_none(engine):
    """Bit for bit with one call; with requests that join and leave between steps within rounding."""
    asked = requests(64, 5, 31, tokens=24)
    workflows, samplings = zip(*[(simple_workflow, Sampling(r.temperature, 1.0, -1, 31, 24, 63)) for r in asked],
                               strict=True)
    outcomes = roll_out(engine, workflows, [r.prompt_tokens for r in asked], [r.seed for r in asked], samplings)
    assert [(o.trajectory.response_tokens, o.trajectory.logprobs) for o in outcomes] == by_the_book(engine, asked)
    numbers, found = engine.submit(asked[:16]), {}
    cancelled = engine.submit(requests(8, 40, 50, tokens=400))
    for end in range(20, 65, 4):
        found |= engine.advance()
        numbers += engine.submit(asked[end - 4 : end])
    engine.cancel(cancelled)
    while len(found) < len(asked):
        found |= engine.advance()
    assert_equal([found[number] for number in numbers], engine.generate(asked))
    assert not engine._llm.llm_engine.has_unfinished_requests()
    assert engine._llm.reset_prefix_cache(), "a cancelled request kept its place"


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without a GPU")
def test_rows_share_the_whole_blocks_of_a_prompt_on_a_cpu(engine):
    """Of 70 tokens two blocks of 32; vLLM's own default, 128, would share none."""
    asked = [Request(list(range(3, 73)), 2, 1.0, 1.0, -1, seed) for seed in (1, 2)]
    found = [engine._llm.generate([{"prompt_token_ids": one.prompt_tokens}], [engine._parameters(one)], use_tqdm=False)
             for one in asked]
    assert [answer.num_cached_tokens for (answer,) in found] == [0, 64]


@pytest.mark.slow
def test_a_full_cache_is_seen_where_the_concurrency_follows_it(engine, opened):
    small = opened("explorer.rollout_model.kv_cache_mib=1", "explorer.runner_concurrency=auto")
    assert engine.pressure() is None
    small.submit(requests(64, 120, 127, tokens=24))
    seen = []
    while small._llm.llm_engine.has_unfinished_requests():
        small.advance()
        seen.append(small.pressure())
    assert max(one.usage for one in seen) > 0.9
    assert seen[0].preemptions == 0 < seen[-1].preemptions
    assert seen[-1].usage < 0.1


@pytest.mark.slow
def test_interrupted_answers_are_the_beginnings_of_whole_ones_and_go_on_from_there(engine):
    """64 requests of 24 tokens, after seven steps: those that are greedy end as they would have done."""
    asked = requests(64, 5, 31, tokens=24)
    whole, numbers = engine.generate(asked), engine.submit(asked)
    found = {}
    for _ in range(7):
        found |= engine.advance()
    found |= engine.interrupt()
    assert not engine._llm.llm_engine.has_unfinished_requests()
    assert engine._llm.reset_prefix_cache(), "an interrupted request kept its place"
    parts = [found[number] for number in numbers]
    assert {len(part.tokens) for part in parts if part.finish_reason == INTERRUPTED} <= set(range(8))
    assert max(len(part.tokens) for part in parts) >= 6
    assert_equal(parts, [Reply(one.tokens[: len(part.tokens)], one.logprobs[: len(part.tokens)], "")
                         for one, part in zip(whole, parts, strict=True)])
    greedy = [i for i, part in enumerate(parts) if part.finish_reason == INTERRUPTED and asked[i].temperature == 0]
    rests = engine.generate([continuation(asked[i], parts[i].tokens) for i in greedy])
    assert_equal([Reply(parts[i].tokens + rest.tokens, parts[i].logprobs + rest.logprobs, "")
                  for i, rest in zip(greedy, rests, strict=True)], [whole[i] for i in greedy])
    assert len(greedy) > 0
    assert engine.interrupt() == {}


@pytest.mark.slow
def test_a_request_that_waits_for_a_place_has_no_tokens_yet(opened):
    small = opened("explorer.rollout_model.max_num_seqs=2")
    numbers = small.submit(requests(8, 5, 9, tokens=24))
    small.advance()
    found = small.interrupt()
    assert sorted(found) == sorted(numbers)
    assert [found[number].tokens == [] for number in numbers].count(True) >= 6


@pytest.mark.slow
def test_a_cache_too_small_for_all_requests_changes_no_answer(engine, opened, monkeypatch):
    small = opened("explorer.rollout_model.kv_cache_mib=1")
    scheduler = small._llm.llm_engine.engine_core.engine_core.scheduler
    preempt, preempted = scheduler._preempt_request, []
    monkeypatch.setattr(scheduler, "_preempt_request", lambda request, *rest, **named: (
        preempted.append(request.num_output_tokens), preempt(request, *rest, **named)))
    asked = requests(64, 120, 127, tokens=24)  # each needs another block within its answer
    assert_equal(small.generate(asked), engine.generate(asked))
    assert max(preempted) > 0, "no request was interrupted in its answer"


def keeping(asked: list[Request], **bounds) -> list[Request]:
    """Truncated requests, and the same with what their tokens are sampled among."""
    cut = [replace(one, **bounds) for one in asked if one.temperature]
    return cut, [replace(one, keeps=True) for one in cut]


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [{"top_k": 5}, {"top_k": 30, "top_p": 0.4}, {"top_k": 40, "min_p": 0.6}])
def test_our_cut_is_vllms_and_says_what_stays(engine, truncating, bounds):
    """Beside greedy and whole requests, which are as ever; again where the cache is too small for all."""
    asked = requests(64, 120, 127, tokens=24)
    own, ours = keeping(asked, **bounds)
    expected, found = engine.generate(own), truncating.generate([*ours, *asked])
    assert_equal(found, [*expected, *engine.generate(asked)])
    assert all(one.kept is None for one in found[len(ours) :])
    for one in found[: len(ours)]:
        assert one.kept.hold(one.tokens)
        assert len(one.kept.counts) == len(one.tokens)
        assert one.kept.counts.max() <= bounds["top_k"]
    sizes = {int(size) for one in found[: len(ours)] for size in one.kept.counts}
    assert sizes == {5} if len(bounds) == 1 else len(sizes) > 1
    numbers = truncating.submit(ours[:8])
    for _ in range(5):
        truncating.advance()
    begun = truncating.interrupt()
    for number, whole in zip(numbers, found, strict=False):
        some = begun[number]
        assert some.kept == whole.kept.at(np.arange(len(whole.tokens)) < len(some.tokens))


@pytest.fixture(scope="module")
def truncating(opened):
    return opened("model.top_k=40", "explorer.rollout_model.kv_cache_mib=1")


@pytest.mark.slow
def test_a_stop_text_ends_the_reply_that_has_it_and_no_other_makes_text(engine):
    asked, tokenizer = requests(16, 5, 31, tokens=24), character_tokenizer(LONGEST)
    whole = engine.generate(asked)
    texts = [tokenizer.decode(reply.tokens, skip_special_tokens=True) for reply in whole]
    stops = [Stop(("never said", text[4:6]), False) if len(text) > 6 else None for text in texts]
    stopping = [replace(one, stop=stop) for one, stop in zip(asked, stops, strict=True)]
    assert [engine._parameters(one).detokenize for one in stopping] == [stop is not None for stop in stops]
    lengths = [next(end for end in range(25) if stop.texts[1] in tokenizer.decode(
        reply.tokens[:end], skip_special_tokens=True)) if stop else None
        for reply, stop in zip(whole, stops, strict=True)]
    found = engine.generate(stopping)
    assert_equal(found, [Reply(one.tokens[:length], one.logprobs[:length], "")
                         for one, length in zip(whole, lengths, strict=True)])
    assert [one.finish_reason for one in found] == [
        STOP_TEXT if stop else one.finish_reason for one, stop in zip(whole, stops, strict=True)]
    assert sum(stop is not None for stop in stops) > 8


@pytest.mark.slow
def test_log_probs_that_are_not_of_the_sampling_distribution_are_seen_by_the_probe(engine, opened):
    """As they were with `logprobs_mode: raw_logprobs`, and an engine at temperature 1 gave the same in both modes."""
    raw = opened("explorer.rollout_model.extra_engine_args={logprobs_mode: raw_logprobs}")
    sequence = [5, 6, 7, 8]
    (warm,), (plain,), (found,) = (one.likeliest(sequence, heat) for one, heat in (
        (engine, 0.5), (engine, 1.0), (raw, 0.5)))
    reply = next(reply for seed in range(50) if (reply := engine.generate(
        [Request(sequence, 1, 0.5, 1.0, -1, seed)])[0]).tokens[0] in warm)
    assert reply.logprobs == [pytest.approx(warm[reply.tokens[0]], abs=1e-5)]
    best = max(warm, key=warm.get)
    probe = {"tokens": sequence, "logprobs": engine.score([sequence])[0],
             "likeliest": {"temperature": 0.5, "token": best, "logprob": warm[best]}}
    assert probe_difference(engine, {"version": 1, "probe": probe}, "float32", 1e-3) < 1e-4
    assert found[best] == pytest.approx(plain[best], abs=1e-5)
    with pytest.raises(SyncError) as caught:  # with figures of this machine
        probe_difference(raw, {"version": 1, "probe": probe}, "float32", 1e-3)
    assert "synchronizer.probe_tolerance" in str(caught.value)


@pytest.mark.slow
def test_every_reply_of_a_random_model_satisfies_its_schema(engine):
    assert_all_satisfy(engine, character_tokenizer(LONGEST), 2)
    free, guided, dead = engine.generate([asked(None, 3, tokens=9), asked({"enum": ["ab"]}), asked({"enum": ["é"]})])
    assert guided.logprobs == [0.0] * 5  # one text is possible, by one token for each character
    assert free.tokens == engine.generate([asked(None, 3, tokens=9)])[0].tokens
    assert "JSON schema" in dead.reason  # no token of the model is a part of é
