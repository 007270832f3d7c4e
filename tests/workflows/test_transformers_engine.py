"""The engine for machines without vLLM, on a tiny random model: seeds, log-probs, top-p and top-k."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from ouroboros.pipeline.store.errors import ModelError
from ouroboros.stages.learner.engine import policy
from ouroboros.stages.learner.engine.adapter import inject
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.packing import pack
from ouroboros.workflows.engines.open import open_engine
from ouroboros.workflows.engines.transformers_engine import TransformersEngine, _truncated
from ouroboros.workflows.protocol.engine import STOP_TEXT, Request, Stop
from ouroboros.workflows.protocol.prompts import load_tokenizer, prompt_text, prompt_tokens
from tests.configs import lora
from tests.golden.messages import refuses


def ask(prompt, seed, temperature=1.0, top_p=1.0, top_k=-1, tokens=8):
    return Request(prompt, tokens, temperature, top_p, top_k, seed)


PROMPTS = [[10, 20, 30], [40], [11, 12, 13, 14, 15, 16, 17, 18], [50, 60]]


def test_an_answer_depends_on_its_own_seed_and_not_on_the_batch(engine):
    requests = [ask(prompt, seed) for seed, prompt in enumerate(PROMPTS)]
    together = engine.generate(requests)
    alone = [engine.generate([request])[0] for request in requests]
    backwards = engine.generate(requests[::-1])[::-1]
    assert [r.tokens for r in together] == [r.tokens for r in alone] == [r.tokens for r in backwards]
    for a, b in zip(together, alone, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)
    assert engine.generate([ask(PROMPTS[0], 77)])[0].tokens != together[0].tokens
    assert engine.generate([]) == []


def test_log_probs_are_those_of_scoring_the_same_tokens(engine):
    for prompt, reply in zip(PROMPTS, engine.generate([ask(p, 3) for p in PROMPTS]), strict=True):
        scored = engine.score([prompt + reply.tokens])[0][len(prompt) - 1 :]
        assert reply.logprobs == pytest.approx(scored, abs=1e-5)


def test_temperature_is_in_the_log_probs(engine, tiny_model):
    """At temperature 0.5 the distribution is softmax(2 logits)."""
    (reply,) = engine.generate([ask(PROMPTS[0], 1, temperature=0.5, tokens=1)])
    with torch.inference_mode():
        logits = engine.model(torch.tensor([PROMPTS[0]])).logits[0, -1]
    assert reply.logprobs[0] == pytest.approx((2 * logits).log_softmax(-1)[reply.tokens[0]].item(), abs=1e-5)


def test_the_likeliest_tokens_have_the_log_probs_of_replies(engine):
    """At temperature 0.5; as many samples as it takes to draw one of the twenty."""
    (found,) = engine.likeliest(PROMPTS[0], 0.5)
    assert len(found) == 20
    replies = engine.generate([ask(PROMPTS[0], seed, temperature=0.5, tokens=1) for seed in range(30)])
    drawn = {reply.tokens[0]: reply.logprobs[0] for reply in replies if reply.tokens[0] in found}
    assert drawn
    assert {token: found[token] for token in drawn} == pytest.approx(drawn, abs=1e-5)


def test_greedy_is_the_likeliest_token(engine):
    (reply,) = engine.generate([ask(PROMPTS[2], 5, temperature=0.0, tokens=4)])
    with torch.inference_mode():
        logits = engine.model(torch.tensor([PROMPTS[2] + reply.tokens])).logits[0, len(PROMPTS[2]) - 1 : -1]
    assert reply.tokens == logits.argmax(-1).tolist()[: len(reply.tokens)]


def test_an_answer_ends_with_the_token_that_completes_a_stop_text(engine, tokenizer):
    """One token a character, and none for special tokens."""
    asked = [one for one in (ask(PROMPTS[0], seed, tokens=20) for seed in range(16))
             if len(engine.generate([replace(one, max_tokens=9)])[0].tokens) == 9]
    whole = engine.generate(asked)
    texts = [tokenizer.decode(reply.tokens, skip_special_tokens=True) for reply in whole]
    stops = [Stop(("never said", text[3:5]), False) for text in texts]
    found = engine.generate([replace(one, stop=stop) for one, stop in zip(asked, stops, strict=True)])
    for reply, whole_reply, text, stop in zip(found, whole, texts, stops, strict=True):
        said = tokenizer.decode(reply.tokens, skip_special_tokens=True)
        assert said == text[: text.find(stop.texts[1]) + 2]
        assert reply.tokens == whole_reply.tokens[: len(reply.tokens)]
        assert reply.logprobs == pytest.approx(whole_reply.logprobs[: len(reply.tokens)], abs=1e-5)
        assert reply.finish_reason == STOP_TEXT
    unsaid = [replace(one, stop=Stop(("never said",), False)) for one in asked]
    assert engine.generate(unsaid) == whole


def test_an_answer_ends_at_the_end_token_or_at_the_limit(engine, tokenizer):
    replies = engine.generate([ask([10], seed, tokens=20) for seed in range(64)])  # eos: chance 1/99 a token
    assert {r.finish_reason for r in replies} == {"stop", "length"}
    for reply in replies:
        assert (tokenizer.eos_token_id in reply.tokens) == (reply.finish_reason == "stop")
        assert tokenizer.eos_token_id not in reply.tokens[:-1]
        assert reply.finish_reason == "stop" or len(reply.tokens) == 20


def restricted(top_p=1.0, top_k=-1, min_p=0.0):
    """Probabilities 1/2 1/4 1/8 1/8, in another order, after the bound."""
    logits = torch.tensor([0.125, 0.5, 0.125, 0.25]).log()
    asked = replace(ask([1], 0, top_p=top_p, top_k=top_k), min_p=min_p)
    return _truncated(torch, logits, asked)[0].exp().tolist()


@pytest.mark.parametrize(("bounds", "expected"), [
    ({}, [1 / 8, 1 / 2, 1 / 8, 1 / 4]), ({"top_k": 0}, [1 / 8, 1 / 2, 1 / 8, 1 / 4]), ({"top_k": 1}, [0, 1, 0, 0]),
    ({"top_k": 2}, [0, 2 / 3, 0, 1 / 3]), ({"top_k": 9}, [1 / 8, 1 / 2, 1 / 8, 1 / 4]), ({"top_p": 0.3}, [0, 1, 0, 0]),
    ({"top_p": 0.6}, [0, 2 / 3, 0, 1 / 3]), ({"top_p": 0.75}, [0, 2 / 3, 0, 1 / 3]),
    ({"top_k": 2, "top_p": 0.6}, [0, 1, 0, 0]),  # of 2/3 and 1/3 the first is over 0.6 already
    ({"min_p": 0.3}, [0, 2 / 3, 0, 1 / 3]), ({"min_p": 0.5, "top_p": 0.6}, [0, 1, 0, 0]),  # 1/4 is half of 1/2
    ({"min_p": 1.0}, [0, 1, 0, 0])])
def test_bounds_keep_the_likeliest_and_renormalise(bounds, expected):
    assert restricted(**bounds) == pytest.approx(expected)


def test_log_probs_under_a_bound_are_of_the_renormalised_distribution(engine):
    replies = engine.generate([ask(PROMPTS[0], seed, top_k=2, tokens=1) for seed in range(40)])
    found = {r.tokens[0]: r.logprobs[0] for r in replies}
    assert len(found) == 2
    assert sum(map(math.exp, found.values())) == pytest.approx(1.0, abs=1e-5)


def test_a_reply_says_what_its_tokens_were_sampled_among(engine):
    """Of the five likeliest those that make 0.9 of their probability, by transformers' own logits."""
    asked = [replace(ask(prompt, seed, top_k=5, top_p=0.9), keeps=True) for seed, prompt in enumerate(PROMPTS)]
    for prompt, reply in zip(PROMPTS, engine.generate(asked), strict=True):
        with torch.inference_mode():
            logits = engine.model(torch.tensor([prompt + reply.tokens])).logits[0, len(prompt) - 1 : -1].double()
        for place, (kept, logprob) in enumerate(zip(reply.kept.sets(), reply.logprobs, strict=True)):
            five = logits[place].topk(5)
            before = five.values.softmax(-1).cumsum(-1) - five.values.softmax(-1)
            assert kept.tolist() == sorted(five.indices[before < 0.9].tolist())
            among = logits[place][torch.from_numpy(kept).long()].logsumexp(-1)
            assert logprob == pytest.approx((logits[place][reply.tokens[place]] - among).item(), abs=1e-5)
    assert engine.generate([ask(PROMPTS[0], 1, top_k=5)])[0].kept is None


def test_ratios_before_an_update_are_one_over_what_was_kept_alone(engine, tiny_model, tiny_settings):
    learner = policy.load(tiny_model, "cpu", torch.float32, tiny_settings().trainer, 1.0, 64)
    asked = [replace(ask(PROMPTS[seed % 4], seed, top_k=20, top_p=0.9, tokens=24), keeps=True) for seed in range(64)]
    replies = engine.generate(asked)
    rows = [Row(str(one.seed), one.prompt_tokens + reply.tokens, len(one.prompt_tokens), [1] * len(reply.tokens),
                kept=reply.kept) for one, reply in zip(asked, replies, strict=True)]
    sampled = torch.tensor([logprob for reply in replies for logprob in reply.logprobs])
    outside = []
    for given in (rows, [replace(row, kept=None) for row in rows]):
        (micro,) = pack(given, 10_000, 0, 1)
        with torch.no_grad():
            ratios = (learner(**micro.inputs(torch.device("cpu")))[0] - sampled).exp()
        outside.append(((ratios < 0.9) | (ratios > 1.1)).float().mean().item())
    assert outside[0] == 0
    assert outside[1] > 0.99


def test_new_weights_change_the_answers_and_the_old_ones_bring_them_back(engine, tiny_model, tmp_path):
    before = engine.score([PROMPTS[2]])[0]
    state = {name: value * 0.5 for name, value in engine.model.named_parameters()}
    policy.export(state, engine.model, tmp_path)
    engine.load_weights(tmp_path)
    assert engine.score([PROMPTS[2]])[0] != pytest.approx(before, abs=1e-3)
    engine.sleep()
    engine.wake()
    policy.export({name: value * 2 for name, value in engine.model.named_parameters()}, engine.model, tmp_path)
    engine.load_weights(tmp_path)
    assert engine.score([PROMPTS[2]])[0] == pytest.approx(before, abs=1e-5)
    assert isinstance(engine, TransformersEngine)
    assert engine.version.startswith("transformers ")


def test_the_chat_template_ends_the_prompt(tokenizer):
    assert prompt_text(tokenizer, "3 5 = 8", None) == "3 5 = 8:"
    assert prompt_text(tokenizer, "3 5 = 8", "Add. ") == "Add. 3 5 = 8:"
    (tokens,) = prompt_tokens(tokenizer, ["3 5:"])
    assert len(tokens) == 4  # one a character, nothing around
    assert tokenizer.decode(tokens) == "3 5:"


def test_a_response_decodes_to_its_text(tokenizer):
    (tokens,) = prompt_tokens(tokenizer, ["5-3\n~"])
    assert tokenizer.decode(tokens) == "5-3\n~"
    assert prompt_tokens(tokenizer, ["ü"]) == [[]]  # it has no such character


@pytest.mark.parametrize("content", [None, "{", "{}", '{"version": "1.0", "model": 3}'])
def test_a_directory_without_a_readable_tokenizer_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with refuses(ModelError, tmp_path):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"eos_token": "<eos>"', '"eos_token": null'))
    with refuses(ModelError, "has no eos_token;", "tokenizer_config.json"):
        load_tokenizer(tmp_path)


def test_an_adapter_is_exchanged_beside_the_model(tiny_model, tiny_settings, tokenizer, tmp_path):
    """The first changes nothing; each later one answers as trained, whatever was loaded before it."""
    settings = lora(lora_rank=4, lora_alpha=8)
    engine = open_engine(tiny_model, tiny_settings(), [tokenizer.eos_token_id], adapter=settings)
    tokens, base = list(range(5, 30)), AutoModelForCausalLM.from_pretrained(tiny_model, local_files_only=True)
    plain = engine.score([tokens])[0]
    adapter = inject(base, tiny_model, settings, 1)
    learning = {name: p for name, p in base.named_parameters() if p.requires_grad}
    for version, scale in enumerate((0.0, 0.3, 0.1)):
        for parameter in learning.values():
            torch.nn.init.normal_(parameter, std=scale)
        directory = tmp_path / str(version)
        directory.mkdir()
        adapter.write(learning, directory)
        engine.load_weights(directory)
        with torch.no_grad():
            scores = base(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        expected = scores.gather(-1, torch.tensor(tokens)[1:, None])[:, 0].tolist()
        assert engine.score([tokens])[0] == pytest.approx(expected, abs=1e-5)
        assert (engine.score([tokens])[0] == pytest.approx(plain, abs=1e-5)) == (version == 0)
