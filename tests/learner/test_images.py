"""Rows with images: tokens of the model's processor, log-probs and gradients of transformers alone, replies."""

import gc
import json
import weakref
from shutil import copy, copytree
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store import records
from ouroboros.pipeline.store.errors import DataError, ModelError
from ouroboros.pipeline.store.pictures import Kept, named, pixels
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.engine import policy
from ouroboros.stages.learner.engine.adapter import inject
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.packing import Fill, pack
from ouroboros.stages.learner.objective import Objective
from ouroboros.workflows.demonstrations import demonstrations, pairs
from ouroboros.workflows.engines.transformers_engine import TransformersEngine
from ouroboros.workflows.protocol.engine import Request
from ouroboros.workflows.protocol.hugging_face import causal_model, read_config
from ouroboros.workflows.protocol.sight import FAMILIES, Sight, with_images
from tests import factories, families
from tests.configs import TINY, lora, overridden
from tests.golden.messages import refuses
from tests.learner.ranks import DPO
from tests.pictures import png

SIZES = [(8, 8), (13, 9), (90, 57), (30, 170), (8, 8)]
CPU = torch.device("cpu")
TOWERS = ("vision", "connector", "visual", "projector")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pictures")
    kept = Kept(directory / ".pictures.tmp")
    names = [kept.keep(png(*size, seed=number)) for number, size in enumerate(SIZES)]
    kept.write(directory)
    return named(names, directory)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, seeing_model, tmp_path_factory):
    """A model of each family; images of Qwen's have one to 24 tokens, of InternVL's up to 5 tiles of 4."""
    if request.param == "idefics3":
        return seeing_model
    return families.seeing(request.param, tmp_path_factory.mktemp("families") / request.param, seeing_model)


@pytest.fixture(scope="module")
def sight(model):
    return Sight(model)


@pytest.fixture(scope="module")
def rows(pictures, sight, model):
    """Rows with 1 to 4 images, one of text alone, and the first one with another image. The second has sampled the
    token that stands for features."""
    source, made = np.random.default_rng(0), []
    for count in range(1, 5):
        prompt = [20 + count, 21, *(token for _ in range(count) for token in (sight.mark, 30))]
        prompt = sight.expanded(prompt, pictures[:count])
        reply = source.integers(3, 90, 5 + count).tolist()
        made.append(Row(f"{count}", prompt + reply, len(prompt), [1] * len(reply), pictures=pictures[:count]))
    if "seeing" in model.name:  # the others' own forward takes each such token for one of an image
        made[1].tokens[made[1].prompt_length + 1] = sight.stands
    other = Row("other", made[0].tokens, made[0].prompt_length, made[0].mask, pictures=pictures[4:])
    return [*made, Row("text", [5, 6, 7, 8, 9, 10], 3, [1, 1, 1]), other]


def alone(model, sight, row: Row) -> torch.Tensor:
    """Log-probs of a row's reply by transformers' own forward, in which features replace the tokens of the prompt."""
    ids = torch.tensor([row.tokens])
    if model.config.model_type != "idefics3":
        inputs = [sight.processed(one)[1] for one in row.pictures]
        whole = {name: torch.cat([one[name] for one in inputs]) for name in inputs[0]} if inputs else {}
        types = {"gemma3": "token_type_ids", "internvl": None}.get(model.config.model_type, "mm_token_type_ids")
        logits = model(ids, **whole, **({types: (ids == sight.stands).int()} if types else {})).logits
        return logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[row.prompt_length - 1 :, 0]
    embedded = model.get_input_embeddings()(ids)
    if row.pictures:
        inputs = [sight.processed(one)[1] for one in row.pictures]
        features = model.get_image_features(torch.cat([one["pixel_values"] for one in inputs])[None]).pooler_output
        places = (ids[0, : row.prompt_length] == sight.stands).nonzero()[:, 0]
        embedded = embedded.index_put((torch.tensor(0), places), features.flatten(0, 1).to(embedded.dtype))
    logprobs = model(inputs_embeds=embedded).logits[0, :-1].log_softmax(-1)
    return logprobs.gather(-1, ids[0, 1:, None])[row.prompt_length - 1 :, 0]


@pytest.mark.parametrize("packing", ["packed", "rows"])
def test_the_trainer_computes_what_transformers_does(model, sight, rows, packing):
    """In float64; the trainer's log-probs are rounded to float32."""
    settings = Config().trainer.model_copy(update={"packing": packing, "compile": False})
    trained = policy.load(model, "cpu", torch.float64, settings, 1.0, 256)
    plain = causal_model(model, dtype=torch.float64)
    found, loss = {}, torch.zeros(())
    for micro in pack(rows, 200, 0, 1, fill=trained.way.fill):
        logprobs, _ = trained(**micro.inputs(CPU))
        found |= micro.by_row(logprobs)
        loss = loss + logprobs.sum()
    exact = [alone(plain, sight, row) for row in rows]
    assert trained.way.name == packing
    for number, expected in enumerate(exact):
        assert found[number] == pytest.approx(expected.detach().numpy(), abs=2e-6)
    assert np.abs(found[0] - found[5]).max() > 1e-3  # of equal tokens and other images
    loss.backward()
    torch.cat(exact).sum().backward()
    gradients = {name: one.grad for name, one in plain.named_parameters() if one.grad is not None}
    own = {name: one.grad for name, one in trained.model.named_parameters() if one.grad is not None}
    assert {name for name in gradients if not any(part in name for part in TOWERS)} == own.keys()
    for name, gradient in own.items():
        assert torch.allclose(gradient, gradients[name], atol=1e-4)


def test_a_trained_tower_has_the_gradients_of_transformers_and_its_features_are_not_kept(model, sight, rows):
    settings = Config().trainer.model_copy(update={"compile": False, "freeze_vision_tower": False})
    trained = policy.load(model, "cpu", torch.float64, settings, 1.0, 256)
    plain = causal_model(model, dtype=torch.float64)
    (micro,) = pack(rows[:4], 600, 0, 1, fill=trained.way.fill)
    trained(**micro.inputs(CPU))[0].sum().backward()
    torch.cat([alone(plain, sight, row) for row in rows[:4]]).sum().backward()
    gradients = {name: one.grad for name, one in plain.named_parameters() if one.grad is not None}
    own = {name: one.grad for name, one in trained.model.named_parameters() if one.grad is not None}
    assert any(part in name for name in own for part in TOWERS)
    assert own.keys() == gradients.keys()
    for name, gradient in own.items():
        assert torch.allclose(gradient, gradients[name], atol=1e-4, rtol=1e-4)
    before = trained(**micro.inputs(CPU))[0].detach()
    with torch.no_grad():
        for name, one in trained.model.named_parameters():
            if any(part in name for part in TOWERS):
                one.mul_(1.5)
    assert (trained(**micro.inputs(CPU))[0].detach() - before).abs().max() > 1e-3


@pytest.mark.parametrize("stage", [1, 2])
def test_a_step_on_pairs_with_images_moves_the_text_alone(seeing_model, process, pictures, stage):
    """DPO, under ZeRO: the first loss is log 2, and the next one lower."""
    sight, made = Sight(seeing_model), []
    for number, picture in enumerate(pictures[:4]):
        prompt = sight.expanded([20 + number, sight.mark, 30], [picture])
        columns = {"is_expert": False, "chosen_tokens": 2.0}
        made += [Row(f"{number} {reply}", [*prompt, *reply], len(prompt), [1, 1], dict(columns),
                     pictures=(picture,)) for reply in ([5, 6], [7, 8])]
    config = overridden(*TINY, *DPO, f"trainer.zero_stage={stage}", "trainer.share_prompts=true")
    actor = Actor(seeing_model, config, process)
    before = {name: one.detach().clone() for name, one in actor.zero.module.model.named_parameters()}
    for row, values in zip(made, actor.score_rows(made), strict=True):
        row.columns["ref_logprobs"] = row.spread(values)
    first, second = (actor.step(made, Objective(config), 1e-3, number).loss for number in (1, 2))
    assert first == pytest.approx(np.log(2), abs=1e-5)
    assert second < first - 1e-3
    moved = {name for name, one in actor.zero.module.model.named_parameters() if not one.equal(before[name])}
    assert {name for name in before if not any(part in name for part in TOWERS)} == moved


def test_an_adapter_is_in_the_text_alone(model):
    trained = policy.load(model, "cpu", torch.float32, Config().trainer, 1.0, 256)
    inject(trained.model, model, lora(lora_rank=2), 0)
    learns = [name for name, one in trained.model.named_parameters() if one.requires_grad]
    assert learns
    assert not [name for name in learns if ".lora_" not in name or any(part in name for part in TOWERS)]


def test_an_engine_forgets_features_of_another_tower(model, rows, tmp_path, monkeypatch):
    """Those of a tower that stays are kept."""
    engine, row, made = TransformersEngine(model, Config(), [1], False), rows[0], causal_model(model)
    engine.probe(row.tokens, row.pictures)
    computed, whole = [], Sight._made
    monkeypatch.setattr(Sight, "_made", lambda *given: computed.append(1) or whole(*given))
    for changes_tower in (False, True):
        for name, one in made.named_parameters():
            if any(part in name for part in TOWERS) == changes_tower:
                one.data.mul_(1.5)
        directory = tmp_path / f"{changes_tower}"
        copytree(model, directory)
        made.save_pretrained(directory)
        engine.load_weights(directory)
        found = engine.probe(row.tokens, row.pictures)
        assert len(computed) == changes_tower
        computed.clear()
        fresh = TransformersEngine(directory, Config(), [1], False)
        assert found[0] == pytest.approx(fresh.probe(row.tokens, row.pictures)[0], abs=1e-5)
        computed.clear()


def test_rows_share_a_prompt_with_its_images_and_no_other(model, rows):
    first, other = rows[1], rows[5]
    cut = Row("cut", first.tokens[:-1], first.prompt_length, first.mask[:-1], pictures=first.pictures)
    again = Row("again", [*first.tokens[:-2], 9, 8], first.prompt_length, first.mask, pictures=first.pictures)
    asks = Row("asks", [7, *first.tokens[1:]], first.prompt_length, first.mask, pictures=first.pictures)
    every = [other, first, rows[0], cut, again, asks]
    (flat,), (shared,) = (pack(every, 800, 0, 1, fill=fill) for fill in (Fill.FLAT, Fill.SHARED))
    assert len(flat.input_ids) - len(shared.input_ids) == len(cut.tokens) + len(again.tokens) - 2
    assert len(shared.pictures) == 4
    trained = policy.load(model, "cpu", torch.float64, Config().trainer.model_copy(update={"compile": False}), 1.0, 256)
    if trained.way.recurrent:
        pytest.skip("layers with a state share no prompts")
    found, expected = (micro.by_row(trained(**micro.inputs(CPU))[0]) for micro in (shared, flat))
    for place, logprobs in expected.items():
        assert found[place] == pytest.approx(logprobs, abs=2e-6)


def test_replies_have_the_log_probs_of_the_trainer(model, rows):
    """In float32, prompts of different lengths padded together."""
    engine = TransformersEngine(model, Config(), [1], False)
    requests = [Request(row.tokens[: row.prompt_length], 6, 1.0, 1.0, -1, seed, pictures=row.pictures)
                for seed, row in enumerate(rows)]
    replies = engine.generate(requests)
    trained = policy.load(model, "cpu", torch.float32, Config().trainer, 1.0, 256)
    sampled = [Row(row.id, request.prompt_tokens + reply.tokens, row.prompt_length, [1] * len(reply.tokens),
                   pictures=row.pictures) for row, request, reply in zip(rows, requests, replies, strict=True)]
    with torch.no_grad():
        (micro,) = pack(sampled, 400, 0, 1, fill=trained.way.fill)
        found = micro.by_row(trained(**micro.inputs(CPU))[0])
    for number, reply in enumerate(replies):
        assert found[number] == pytest.approx(reply.logprobs, abs=1e-4)
    (probed,) = engine.probe(sampled[3].tokens, rows[3].pictures)
    assert probed[rows[3].prompt_length - 1 :] == pytest.approx(replies[3].logprobs, abs=1e-4)


def test_a_token_of_an_image_that_a_text_has_is_no_prompt_also_where_no_task_has_images(model, sight, tmp_path):
    seeing, reading = (SimpleNamespace(name_or_path=str(place)) for place in (model, tmp_path))
    prompts = [[5, 6], [5, sight.mark, 6]]
    tokens, reasons = with_images(seeing, prompts, [(), ()], None)
    assert (tokens, list(reasons)) == (prompts, [1])
    assert with_images(reading, prompts, [(), ()], None) == (prompts, {})


def test_a_prompt_that_begins_with_the_token_of_padding_is_another_one(seeing_model, pictures):
    engine, prompt = TransformersEngine(seeing_model, Config(), [1], False), Sight(seeing_model).tokens(pictures[0])
    asked = [Request(tokens, 3, 1.0, 1.0, -1, 0, pictures=pictures[:1]) for tokens in ([0, *prompt, 30], [*prompt, 30])]
    together, alone = engine.generate(asked), [engine.generate([one])[0] for one in asked]
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    assert np.concatenate([one.logprobs for one in together]) == pytest.approx(
        np.concatenate([one.logprobs for one in alone]), abs=1e-5)


def test_prompts_are_expanded_as_the_processor_does_it(seeing_model, pictures):
    from transformers import AutoProcessor

    sight, processor = Sight(seeing_model), AutoProcessor.from_pretrained(seeing_model)
    prompt = "See <image> and <image>, or\n<image>:"
    tokens = processor.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    whole = processor(text=[prompt], images=[[*map(pixels, pictures[:3])]], add_special_tokens=False)["input_ids"][0]
    assert sight.expanded(tokens, pictures[:3]) == whole
    assert sight.collapsed([*whole, sight.mark, 7], pictures[:3]) == [*tokens, sight.mark, 7]
    with refuses(DataError, "2", "3"):
        sight.expanded(tokens, pictures[:2])


def test_line_breaks_around_images_of_gemma_join_those_of_the_text(seeing_model, pictures, tmp_path):
    families.config("gemma3").save_pretrained(tmp_path)
    gemma = families.processor("gemma3", seeing_model)
    gemma.save_pretrained(tmp_path)
    prompt = "user\n<boi>\n\n\n<boi>see\n\n"
    sight, tokens = Sight(tmp_path), gemma.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    whole = gemma(text=[prompt], images=[[*map(pixels, pictures[:2])]], add_special_tokens=False)["input_ids"][0]
    assert sight.expanded(tokens, pictures[:2]) == whole
    assert sight.expanded(tokens[:4], ()) == tokens[:4]
    assert whole[4] == gemma.tokenizer.convert_tokens_to_ids("\n\n\n")  # one before the mark, two that come with it


def test_tokens_are_counted_once_and_no_pixels_are_kept(seeing_model, pictures, monkeypatch):
    sight, made = Sight(seeing_model), []
    processed = sight.processed

    def watched(picture):
        found = processed(picture)
        made.append(weakref.ref(found[1]["pixel_values"]))
        return found

    monkeypatch.setattr(sight, "processed", watched)
    assert sight.tokens(pictures[0]) == sight.tokens(pictures[0])
    gc.collect()
    assert [one() for one in made] == [None]


def test_each_prompt_is_a_sign_of_life_and_one_of_too_few_images_has_none(model, sight, pictures):
    tokenizer, calls = SimpleNamespace(name_or_path=str(model)), []
    made, reasons = with_images(tokenizer, [[sight.mark], [sight.mark], [5]], [pictures[:1], (), ()],
                                lambda: calls.append(1))
    assert (made[0], made[2], [*reasons], len(calls)) == (sight.tokens(pictures[0]), [5], [1], 3)


@pytest.mark.parametrize("is_shown", [False, True])
def test_prompts_with_typed_tokens_of_images_or_videos_are_refused(model, sight, pictures, is_shown):
    """Whether or not another prompt has an image, and before the token of an image."""
    tokenizer = SimpleNamespace(name_or_path=str(model))
    video = getattr(read_config(model), "video_token_id", sight.mark)
    prompts = [[5], [20, sight.mark], [sight.stands], [7, video]]
    shown = [()] * 4
    if is_shown:
        prompts.append([20, sight.mark])
        shown.append(pictures[:1])
    _, reasons = with_images(tokenizer, prompts, shown, None)
    assert [*reasons] == [1, 2, 3]
    for typed in {sight.stands, video} - {sight.mark}:
        with pytest.raises(DataError):
            sight.expanded([20, typed, sight.mark, 30], pictures[:1])


def test_demonstrations_and_pairs_with_typed_tokens_are_refused_without_images_too(seeing_model):
    tokenizer, config = AutoTokenizer.from_pretrained(seeing_model), overridden(*TINY)
    tasks = [factories.row(records.Task, question=text, solution="7", chosen="7", rejected="8")
             for text in ("See 1", "See <image>")]
    for made in (demonstrations(tokenizer, tasks, config, False), pairs(tokenizer, tasks, config)):
        assert [isinstance(one, str) for one in made] == [False, True]


def test_later_turns_and_responses_with_typed_tokens_are_refused(seeing_model):
    tokenizer, config = AutoTokenizer.from_pretrained(seeing_model), overridden(*TINY)
    talks = [[{"role": role, "content": text} for role, text in zip(("user", "assistant") * 2, texts, strict=True)]
             for texts in ("1234", ("1", "2", "<image>", "4"), ("1", "<image>", "3", "4"))]
    tasks = [factories.row(records.Task, question="3", context=talk[:-1], messages=json.dumps({"messages": talk}))
             for talk in talks]
    assert [isinstance(one, str) for one in demonstrations(tokenizer, tasks, config, True)] == [False, True, True]
    pair = factories.row(records.Task, question="1", chosen="7", rejected="<image>")
    assert isinstance(pairs(tokenizer, [pair], config)[0], str)


def test_models_that_are_shown_no_images_are_named(tiny_model):
    with refuses(ModelError, "qwen2"):
        Sight(tiny_model)


def test_a_model_whose_processor_is_missing_is_named(seeing_model, tmp_path):
    """As `save_pretrained` of a model and its tokenizer leave a directory."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        copy(seeing_model / name, tmp_path)
    with pytest.raises(ModelError, match=str(tmp_path)):
        Sight(tmp_path)
