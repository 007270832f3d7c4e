"""The packed policy against plain transformers, row by row, and against itself in chunks."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ouroboros.pipeline.store.errors import ConfigError, ModelError
from ouroboros.stages.learner.engine import attention, policy
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.kernels import broken
from ouroboros.stages.learner.engine.packing import pack
from ouroboros.stages.learner.engine.sharing import Segments
from ouroboros.stages.learner.engine.way import Way
from ouroboros.workflows.protocol.kept import Kept
from tests import families, zoo
from tests.configs import composed
from tests.golden.messages import refuses
from tests.objectives import differences


def trainer(chunk=4096, checkpointing=False):
    return SimpleNamespace(attention="padded", enable_gradient_checkpointing=checkpointing, logprob_chunk_tokens=chunk,
                           compile="auto", zero_stage=1, share_prompts="auto", packing="auto", tiled_mlp_num_shards=1,
                           freeze_vision_tower=True)


def rows():
    """Lengths 23, 2, 40, 7 and 40, random tokens, some not the policy's own."""
    made, source = [], torch.Generator().manual_seed(3)
    for index, (prompt, response) in enumerate(((11, 12), (1, 1), (30, 10), (2, 5), (8, 32))):
        tokens = torch.randint(3, 99, (prompt + response,), generator=source).tolist()
        mask = [int(i % 3 != 1) for i in range(response)]
        made.append(Row(f"r{index}", tokens, prompt, mask))
    return made


def score(learner, micro, **options):
    return learner(**micro.inputs(torch.device("cpu")), **options)


def plain(path, row, temperature):
    """Log-probs and entropy of a row's action tokens by a forward of transformers alone."""
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", local_files_only=True).eval()
    with torch.inference_mode():
        logprobs = (model(torch.tensor([row.tokens])).logits[0] / temperature).log_softmax(-1)
    acts = [i + row.prompt_length for i, act in enumerate(row.mask) if act]
    before, targets = logprobs[[i - 1 for i in acts]], torch.tensor([row.tokens[i] for i in acts])
    return before.gather(-1, targets[:, None])[:, 0], -(before.exp() * before).sum(-1)


@pytest.mark.parametrize("chunk", [4096, 7])
def test_the_change_of_entropy_that_is_expected_is_asked_for_besides(tiny_model, chunk):
    """The mean of p (H + log p) over the vocabulary of 99 tokens, each asked for as the target."""
    learner, some = policy.load(tiny_model, "cpu", torch.float32, trainer(chunk), 0.7, 64), rows()
    (micro,) = pack(some, 1000, 0, 1)
    with torch.no_grad():
        _, entropy, means = score(learner, micro, ids=policy.MeanScores())
        given = micro.inputs(torch.device("cpu"))
        whole = torch.stack([learner(**given | {"targets": torch.full_like(given["targets"], token)})[0]
                             for token in range(99)], dim=1)
    torch.testing.assert_close(means, (whole.exp().square() * (entropy[:, None] + whole)).sum(-1), atol=1e-5, rtol=0)


def truncated(path, row, kept, temperature=0.7):
    """Log-probs and entropy of a row's action tokens in float64, of softmax over what each was sampled among."""
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", local_files_only=True,
                                                 dtype=torch.float64).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([row.tokens])).logits[0] / temperature
    acts = [i + row.prompt_length for i, act in enumerate(row.mask) if act]
    found = []
    for place, ids in zip(acts, kept, strict=True):
        among = logits[place - 1][ids].log_softmax(-1)
        found.append((among[ids.tolist().index(row.tokens[place])], -(among.exp() * among).sum()))
    return (torch.stack(values).float() for values in zip(*found, strict=True))


def drawn(row, source):
    """For each action token 1 to 9 ids that it was sampled among, itself one of them."""
    acts = [row.tokens[i + row.prompt_length] for i, act in enumerate(row.mask) if act]
    return [np.unique([token, *source.integers(3, 99, source.integers(0, 9))]) for token in acts]


@pytest.mark.parametrize(("chunk", "packing"), [(4096, "packed"), (7, "packed"), (7, "rows")])
def test_truncated_rows_are_scored_over_what_they_were_sampled_among(tiny_model, chunk, packing):
    """Row 1 is of the whole vocabulary; the gradient of a truncated row reaches no other token of the head."""
    settings = trainer(chunk)
    settings.packing = packing
    learner = policy.load(tiny_model, "cpu", torch.float32, settings, 0.7, 64)
    batch, source = rows(), np.random.default_rng(0)
    kept = [None if index == 1 else drawn(row, source) for index, row in enumerate(batch)]
    for row, sets in zip(batch, kept, strict=True):
        row.kept = sets and Kept.of(sets)
    (micro,) = pack(batch, 1000, 0, 1, fill=learner.way.fill)
    logprobs, entropy = score(learner, micro, entropy_gradient=True)
    for index, (row, sets) in enumerate(zip(batch, kept, strict=True)):
        expected, uncertain = truncated(tiny_model, row, sets) if sets else plain(tiny_model, row, 0.7)
        torch.testing.assert_close(logprobs[micro.row_of == index].detach(), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(entropy[micro.row_of == index].detach(), uncertain, atol=1e-4, rtol=0)
    head = learner.model.get_output_embeddings().weight
    (reached,) = torch.autograd.grad((logprobs + entropy)[micro.row_of == 0].sum(), head)
    others = np.setdiff1d(np.arange(len(head)), np.concatenate(kept[0]))
    assert reached.isfinite().all()
    if not learner.model.config.tie_word_embeddings:
        assert (reached[torch.from_numpy(others)] == 0).all()


@pytest.mark.parametrize("chunk", [4096, 7])
def test_each_row_is_scored_at_its_own_temperature(tiny_model, chunk):
    """Rows 0 and 3 at that of the model, 0.7; the gradient of a row is that of the row alone. Two query heads share one
    key/value head in this model."""
    learner = policy.load(tiny_model, "cpu", torch.float32, trainer(chunk), 0.7, 64)
    batch, temperatures = rows(), (None, 1.3, 0.4, None, 1.0)
    for row, temperature in zip(batch, temperatures, strict=True):
        row.temperature = temperature
    (micro,) = pack(batch, 1000, 0, 1)
    logprobs, entropy = score(learner, micro)
    for index, (row, temperature) in enumerate(zip(batch, temperatures, strict=True)):
        expected, uncertain = plain(tiny_model, row, temperature or 0.7)
        torch.testing.assert_close(logprobs[micro.row_of == index].detach(), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(entropy[micro.row_of == index], uncertain, atol=1e-4, rtol=0)
    head = learner.model.get_output_embeddings().weight
    (together,) = torch.autograd.grad(logprobs[micro.row_of == 2].sum(), head)
    alone, (one,) = policy.load(tiny_model, "cpu", torch.float32, trainer(), 0.4, 64), pack(rows()[2:3], 1000, 0, 1)
    (apart,) = torch.autograd.grad(score(alone, one)[0].sum(), alone.model.get_output_embeddings().weight)
    torch.testing.assert_close(together, apart, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_chunks_of_the_head_change_neither_log_probs_nor_gradients(tiny_model, chunk, checkpointing):
    (micro,) = pack(rows(), 1000, 0, 1)
    assert len(micro.targets) > 16
    found = []
    for settings in (trainer(), trainer(chunk, checkpointing)):
        learner = policy.load(tiny_model, "cpu", torch.float32, settings, 0.7, 64)
        logprobs, entropy = score(learner, micro)
        (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
        found.append((logprobs, entropy, {name: p.grad for name, p in learner.named_parameters()}))
    (logprobs, entropy, gradients), (in_chunks, entropy_in_chunks, gradients_in_chunks) = found
    torch.testing.assert_close(in_chunks, logprobs, atol=1e-6, rtol=0)
    torch.testing.assert_close(entropy_in_chunks, entropy, atol=1e-5, rtol=0)
    assert not entropy.requires_grad
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradients_in_chunks[name], gradient, atol=2e-5, rtol=1e-4)


class Bigram(torch.nn.Module):
    base_model_prefix = "model"

    """Its logits of the next token are its weights [5, 5] of the last one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.model, self.lm_head = Table(), torch.nn.Identity()

    def get_output_embeddings(self):
        return self.lm_head

    def get_decoder(self):
        return None


class Table(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Embedding(5, 5).weight

    def forward(self, input_ids, **_):
        return SimpleNamespace(last_hidden_state=self.weight[input_ids])


@pytest.mark.parametrize("chunk", [2, 100])
def test_log_probs_and_entropy_have_the_gradients_of_their_definitions(chunk):
    """Central differences in plain Python of 2 log p(target) - 3 H over five states, at temperature 0.7."""
    learner = policy.Policy(Bigram(), Way("padded"), 0.7, chunk)
    states, targets, table = [0, 1, 2, 3, 4], [1, 2, 3, 4, 0], learner.model.model.weight
    (micro,) = pack([Row("r", [*states, 0], 1, [1] * 5)], 10, 0, 1)

    def wanted(flat):
        total = 0.0
        for state, target in zip(states, targets, strict=True):
            weights = [math.exp(x / 0.7) for x in flat[5 * state : 5 * state + 5]]
            p = [weight / sum(weights) for weight in weights]
            total += 2 * math.log(p[target]) + 3 * sum(x * math.log(x) for x in p)
        return total

    logprobs, entropy = score(learner, micro, entropy_gradient=True)
    (found,) = torch.autograd.grad((2 * logprobs - 3 * entropy).sum(), table)
    assert found.flatten().tolist() == pytest.approx(differences(wanted, table.flatten().tolist()), abs=1e-5)


def test_exported_weights_are_the_files_that_were_read(tiny_model, tmp_path):
    learner = policy.load(tiny_model, "cpu", torch.float32, trainer(), 1.0, 64)
    policy.export(dict(learner.model.named_parameters()), learner.model, tmp_path)
    exported, original = load_file(tmp_path / "model.safetensors"), load_file(tiny_model / "model.safetensors")
    assert exported.keys() == original.keys()
    assert all(torch.equal(exported[name], value) for name, value in original.items())
    published = policy.file_tensors(dict(learner.model.named_parameters()), learner.model)
    assert torch.equal(published["lm_head.weight"], original["model.embed_tokens.weight"])  # as an engine wants it


def test_a_directory_that_is_no_model_is_named(tmp_path):
    for content in ("{}", '{"model_type": "unheard_of"}'):
        (tmp_path / "config.json").write_text(content)
        with refuses(ModelError, tmp_path):
            policy.load(tmp_path, "cpu", torch.float32, trainer(), 1.0, 64)


def test_attention_that_ours_does_not_do_is_not_packed(tmp_path):
    """vLLM does it, so packed rows would be scored as no engine samples them."""
    families.make("llama4_text", tmp_path)
    assert policy.load(tmp_path, "cpu", torch.float32, trainer(), 1.0, 64).way.packed is None
    settings = SimpleNamespace(**vars(trainer()) | {"packing": "packed"})
    with refuses(ModelError, "packing=packed"):
        policy.load(tmp_path, "cpu", torch.float32, settings, 1.0, 64)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "qwen2_moe"])
def test_experts_are_exported_one_by_one_as_they_were_read(tmp_path, family):
    zoo.make(family, tmp_path)
    learner = policy.load(tmp_path, "cpu", torch.float32, trainer(), 1.0, 64)
    (tmp_path / "out").mkdir()
    policy.export(dict(learner.model.named_parameters()), learner.model, tmp_path / "out")
    exported, original = load_file(tmp_path / "out/model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert exported.keys() == original.keys()
    assert sum("experts.3." in name for name in exported) == 2 * 3  # two layers, three matrices
    assert all(torch.equal(exported[name], value) for name, value in original.items())


NOISY = {  # what draws random numbers in transformers' training mode
    "phi": {"resid_pdrop": 0.3, "embd_pdrop": 0.3, "attention_dropout": 0.3},
    "opt": {"dropout": 0.3, "attention_dropout": 0.3, "layerdrop": 0.5, "ffn_dim": 64, "word_embed_proj_dim": 32},
    "mixtral": {"router_jitter_noise": 0.3, "attention_dropout": 0.3, "num_local_experts": 4},
    "phimoe": {"router_jitter_noise": 0.3, "input_jitter_noise": 0.3, "num_local_experts": 4},
    "persimmon": {"hidden_dropout": 0.3, "attention_dropout": 0.3},
}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", NOISY)
def test_training_draws_no_random_numbers(tmp_path, family, checkpointing):
    """Dropout, dropped layers and the noise of routers: training would score other models than the engine samples."""
    from transformers import AutoConfig

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
             "intermediate_size": 64, "vocab_size": 99, "max_position_embeddings": 64, "bos_token_id": 1,
             "eos_token_id": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes | NOISY[family])).save_pretrained(tmp_path)
    learner = policy.load(tmp_path, "cpu", torch.float32, trainer(checkpointing=checkpointing), 1.0, 64)
    assert learner.training
    (micro,) = pack(rows(), 1000, 0, 1)
    before = torch.get_rng_state()
    logprobs = score(learner, micro)[0]
    logprobs.sum().backward()
    assert torch.equal(before, torch.get_rng_state())
    for index, row in enumerate(rows()):
        torch.testing.assert_close(logprobs[micro.row_of == index], plain(tmp_path, row, 1.0)[0], atol=1e-4, rtol=0)
    learner.eval()
    learner.train()
    assert torch.equal(score(learner, micro)[0], logprobs)


def test_layers_alone_are_in_training_mode_because_transformers_recomputes_those(tmp_path):
    zoo.make("phi", tmp_path)
    learner = policy.load(tmp_path, "cpu", torch.float32, trainer(checkpointing=True), 1.0, 64)
    inside = {type(module).__name__ for module in learner.modules() if module.training}
    assert inside == {"Policy", "PhiDecoderLayer"}


def test_types():
    assert policy.resolve_dtype("auto", "cpu") == torch.float32
    assert policy.resolve_dtype("auto", "cuda") == torch.bfloat16
    assert policy.resolve_dtype("bfloat16", "cpu") == torch.bfloat16


@pytest.mark.parametrize(("heads", "key_value_heads", "of_values"), [(4, 4, 8), (4, 2, 8), (4, 1, 8), (4, 4, 5)])
def test_padded_attention_is_causal_attention_within_each_row(heads, key_value_heads, of_values):
    """Against softmax(q k' / sqrt(d)) v written out, one row and one head at a time; values may be narrower."""
    torch.manual_seed(0)
    lengths, width = [3, 1, 5], 8
    query = torch.randn(1, heads, 9, width)
    key, value = (torch.randn(1, key_value_heads, 9, size) for size in (width, of_values))
    segments = Segments(np.array([0, 3, 4, 9], np.int32), np.array([-1, -1, -1]))
    places = attention.layout(segments, torch.device("cpu"), "padded")
    found, _ = attention.padded(None, query, key, value, None, scaling=width**-0.5, **places)
    assert found.shape == (1, 9, heads, of_values)
    begin = 0
    for length in lengths:
        here = slice(begin, begin + length)
        for head in range(heads):
            group = head // (heads // key_value_heads)  # heads 0 and 1 read key/value head 0, and so on
            scores = query[0, head, here] @ key[0, group, here].T / width**0.5
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
            torch.testing.assert_close(found[0, here, head], scores.softmax(-1) @ value[0, group, here])
        begin += length


@pytest.mark.parametrize("name", attention.ATTENTIONS)
def test_a_model_is_read_with_each_attention(tmp_path, monkeypatch, name):
    """transformers takes a name that contains "flash" for one of its own kernels, and does not find it."""
    monkeypatch.setattr(attention, "choose", lambda *_: name)
    zoo.make("qwen2", tmp_path)
    settings = composed().trainer.merged({"attention": name, "enable_gradient_checkpointing": False})
    assert policy.read(tmp_path, "cpu", torch.float32, settings, 64)[1].packed == name


def test_a_package_of_kernels_that_does_not_import_is_told(tmp_path, monkeypatch):
    (tmp_path / "built_for_another.py").write_text("raise OSError('undefined symbol: _ZN3c10')")
    monkeypatch.syspath_prepend(tmp_path)
    assert "undefined symbol" in broken("built_for_another")
    assert broken("not_there_at_all")
    assert broken("numpy") is None


def test_what_cannot_run_here_is_refused(monkeypatch):
    monkeypatch.setattr(attention, "broken", lambda name: "it does not import")
    assert attention.choose("auto", "cpu") == "padded"
    assert attention.choose("auto", "cuda") == "varlen"
    assert attention.choose("padded", "cuda") == "padded"
    with refuses(ConfigError, "trainer.attention=flash_attn"):
        attention.choose("flash_attn", "cuda")
    with refuses(ConfigError, "trainer.attention=varlen", "GPU"):
        attention.choose("varlen", "cpu")
    monkeypatch.setattr(attention, "broken", lambda name: None)
    assert attention.choose("auto", "cuda") == "flash_attn"
