"""Sizes counted on torch's meta device: against numbers by hand, real models of each family, and real adapters."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from ouroboros.pipeline.check.model_size import Layer, Size, Sizes, Tower, counted, question
from ouroboros.pipeline.settings.model import Model
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.stages import model_size
from ouroboros.stages.learner.engine.adapter import inject
from ouroboros.stages.model_size import build, main, measure, overridden_problem, problem_of, sizes
from ouroboros.workflows.protocol.hugging_face import causal_model
from tests import families, zoo
from tests.configs import composed, lora
from tests.golden.messages import wording
from tests.sizes import LARGE, QWEN2, QWEN2_7B, SMALL

LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}
QWEN3 = {**QWEN2, "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
         "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072}
TINY = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
        "intermediate_size": 48, "vocab_size": 100, "num_experts_per_tok": 2}
DEEPSEEK = {**TINY, "model_type": "deepseek_v3", "n_routed_experts": 6, "n_shared_experts": 2, "kv_lora_rank": 12,
            "moe_intermediate_size": 20, "first_k_dense_replace": 1, "q_lora_rank": 10, "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4, "v_head_dim": 6}


def meta(config: dict):
    given = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **given))


def test_sizes_are_those_worked_out_by_hand():
    assert measure(meta(QWEN2)) == SMALL
    assert measure(meta(QWEN2_7B)) == LARGE


@pytest.mark.parametrize(("config", "billions"), [  # by their cards
    (LLAMA, 8.03), (QWEN3, 0.596),
    ({**LLAMA, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}, 46.7),
    ({**QWEN3, "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
      "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
      "tie_word_embeddings": False}, 30.5),
    ({"model_type": "deepseek_v3"}, 671.0)])
def test_published_models_have_the_size_of_their_cards(config, billions):
    assert measure(meta(config)).parameters / 1e9 == pytest.approx(billions, rel=0.002)


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_a_model_and_its_adapter_have_the_parameters_that_are_counted(family, tmp_path):
    """Of the weights as they are loaded, and of our adapter in them."""
    directory, adapter = zoo.make(family, tmp_path), lora(lora_rank=3)
    model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True)
    size = measure(build(str(directory)), adapter)
    assert size.parameters == sum(p.numel() for p in model.parameters())
    assert size.critic == sum(p.numel() for p in model.model.parameters()) + 64 + 1
    inject(model, directory, adapter, 1)
    assert size.trained == sum(p.numel() for p in model.parameters() if p.requires_grad)
    adapted = sum(name.endswith("lora_A") for name, _ in model.named_modules())
    assert sum(count * layer.adapted for count, layer in size.layers) == adapted


@pytest.mark.parametrize(("family", "heads"), [("qwen3_vl", 2), ("mamba2", 0)])
def test_a_model_with_a_tower_or_without_attention_is_counted(family, heads, tmp_path):
    families.make(family, tmp_path)
    size = measure(build(str(tmp_path)))
    assert size.parameters == sum(one.numel() for one in load_file(tmp_path / "model.safetensors").values())
    assert (size.heads, size.tied, size.trained < size.parameters) == (heads, False, family == "qwen3_vl")


@pytest.mark.parametrize(("family", "tower"), [
    ("qwen2_5_vl", Tower(4, 1, 32, 32, 1176)), ("qwen3_5", Tower(4, 1, 32, 32, 1176)),
    ("internvl", Tower(4, 1, 32, 32, 588)), ("gemma3", Tower(4, 1, 32, 32, 588, 2)), ("mistral3", None)])
def test_a_tower_that_reads_the_images_of_tasks_is_counted(family, tower):
    """Qwen merges 2 x 2 patches, InternVL half of each edge; Gemma's 4 tokens stand for 56 / 14 squared. A patch has
    3 x 14 x 14 numbers, Qwen's twice; Gemma's layers are of two kinds."""
    assert model_size._tower(families.config(family)) == tower


def test_a_checkpoint_without_the_tensors_of_its_tower_is_a_problem(tmp_path):
    families.make("qwen3_vl", tmp_path)
    file = tmp_path / "model.safetensors"
    assert problem_of(str(tmp_path)) is None
    save_file({name: one for name, one in load_file(file).items() if ".visual." not in name}, file, {"format": "pt"})
    problem_of.cache_clear()
    assert "model.visual." in problem_of(str(tmp_path))


def test_kernels_that_do_not_import_are_a_warning(tmp_path, monkeypatch):
    (tmp_path / "causal_conv1d.py").write_text("raise OSError('undefined symbol: _ZN3c10')")
    monkeypatch.syspath_prepend(tmp_path)
    families.config("lfm2").save_pretrained(tmp_path)
    found = {"problems": [], "warnings": [], "unjudged": []}
    sizes([json.dumps([str(tmp_path), None, False])] * 2, found)
    assert [("causal_conv1d" in line, "_ZN3c10" in line) for line in found["warnings"]] == [(True, True)]


def test_sizes_are_kept_until_the_models_files_change(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.pycache_prefix", str(tmp_path / "kept"))
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    place = tmp_path / "model"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(QWEN2))
    asked, counts = json.dumps([str(place), None, False]), []
    monkeypatch.setattr(model_size, "build", lambda *given: counts.append(given) or meta(QWEN2))

    def asked_again() -> dict:
        found = {"problems": [], "warnings": [], "unjudged": []}
        return json.loads(json.dumps(sizes([asked], found)))

    assert asked_again() == asked_again() != {}
    assert len(counts) == 1
    (place / "config.json").write_text(json.dumps(QWEN2 | {"vocab_size": 7}))
    asked_again()
    assert len(counts) == 2


def test_layers_of_a_mixture_with_latent_attention():
    """One dense layer: norms 2 x 32, latent 10 + 12; gate and up 2 x 48. Three with 6 experts 20 wide, of which a token
    takes 2, and a shared MLP of 2 x 20. Heads of 8 + 4; the cache keeps 12 + 4. A layer's experts are 2 x 3 x 32 x 20 x
    6 = 11,520 in one module."""
    size = measure(meta(DEEPSEEK))
    assert size.layers == ((1, Layer(86, 96, tiled=96)), (3, Layer(86, 80, experts=6, chosen=2, expert_width=20,
                                                               float_experts=True, tiled=80)))
    assert (size.head_width, size.value_width, size.latent, size.gathered) == (12, 24, 16, 11_520)


def test_norms_of_heads_are_counted_over_all_heads():
    (_, layer), = measure(meta(QWEN3)).layers
    assert (layer.normed, layer.head_normed) == (2048, 16 * 128 + 8 * 128)


@pytest.mark.parametrize(("adapter", "count"), [
    # 896 wide, keys and values 128, MLP 4864; rank 3 x (inputs + outputs), 24 layers
    ({}, 24 * 3 * (2 * 1792 + 2 * 1024 + 3 * 5760)),
    ({"target_modules": ["q_proj", "down_proj"]}, 24 * 3 * (1792 + 5760)),
    ({"exclude_modules": ["gate_proj", "up_proj", "down_proj"]}, 24 * 3 * (2 * 1792 + 2 * 1024))])
def test_parameters_of_an_adapter(adapter, count):
    assert measure(meta(QWEN2), lora(lora_rank=3, **adapter)).trained == count


def test_the_command_answers_for_each_model_and_lists_what_it_cannot_count(tmp_path):
    """A created model as the stage `model` makes it; an adapter of a layer that is not there; no language model."""
    section = composed().model
    (tmp_path / "qwen").mkdir()
    (tmp_path / "vit").mkdir()
    (tmp_path / "qwen" / "config.json").write_text(json.dumps(QWEN2))
    (tmp_path / "vit" / "config.json").write_text(json.dumps({"model_type": "vit"}))
    qwen, vit = (Model(model_path=str(tmp_path / name)) for name in ("qwen", "vit"))
    asked = [question(section), question(qwen), question(qwen, [lora(target_modules=["q_prj"])]), question(vit)]
    (tmp_path / "request.json").write_text(json.dumps({"models": asked}))
    main(str(tmp_path / "request.json"), str(tmp_path / "answer.json"))
    found = json.loads((tmp_path / "answer.json").read_text())
    (problem,), (unjudged,) = found["problems"], found["unjudged"]
    wording(problem, "target_modules", "'q_prj'", "'q_proj'")
    wording(unjudged, "GPU", f"{tmp_path}/vit")
    assert found["warnings"] == counted([])["warnings"] == []  # `ouro run` reads these of a machine with a GPU
    read = Sizes(found["sizes"])
    assert read.of(qwen) == SMALL
    assert read.of(vit) is None
    made = read.of(section)
    assert isinstance(made, Size)
    assert made.vocabulary == 99


@pytest.mark.parametrize("config", [
    *(QWEN2 | changed for changed in (
        {"hidden_act": "nope"}, {"rope_parameters": {"rope_theta": "x"}}, {"dtype": 3},
        {"layer_types": ["full_attention"]}, {"layer_types": ["linear_attention"] * 24},
        {"rope_parameters": {"rope_type": 3}}, {"rope_parameters": {"rope_type": "zzz"}},
        {"rope_scaling": {"rope_type": "yarn", "factor": "4"}})), {"model_type": "whisper"}])  # has an encoder too
def test_a_model_that_transformers_cannot_build_is_a_problem(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = {"problems": [], "unjudged": []}
    assert sizes([question(Model(model_path=str(tmp_path)))], found) == {}
    assert [str(tmp_path) in line for line in found["problems"]] == [True]
    assert found["unjudged"] == []


@pytest.mark.parametrize(("changes", "words"), [
    ({"vocab_size": 50}, "embed_tokens"), ({"nope": 1}, "nope"), ({"attention_dropout": 0.1}, None), ({}, None)])
def test_what_is_overridden_is_read_and_fits_the_weights(tiny_model, changes, words):
    found = overridden_problem(tiny_model, Model(model_path=str(tiny_model), override_config=changes))
    assert found is None if words is None else found.startswith("model.override_config") and words in found


LAYER_1 = "model.layers.1."


@pytest.mark.parametrize(("edit", "config", "named"), [
    (lambda held: {name: one for name, one in held.items() if "layers.0" not in name}, {},
     "model.layers.0.input_layernorm.weight"),
    (lambda held: {f"transformer.{name}": one for name, one in held.items()}, {},
     "model.embed_tokens.weight"),
    (lambda held: held, {"tie_word_embeddings": False}, "lm_head.weight"),
    (lambda held: held, {"intermediate_size": 17}, "model.layers.0.mlp"),
    (lambda held: held | {LAYER_1 + "mlp.up_proj.weight": torch.ones(3)}, {"num_hidden_layers": 1, "layer_types": None},
     LAYER_1),
    (lambda held: held, {"model_type": "llama"}, "q_proj.bias"),
    (lambda held: held | {"lm_head.weight": 2 * held["model.embed_tokens.weight"]}, {}, "tie_word_embeddings"),
    (lambda held: {"x": torch.ones(3)}, {"architectures": ["Qwen2ForSequenceClassification"]}, "missing"),
    (lambda held: held, {}, None),
    (lambda held: held | {"lm_head.weight": held["model.embed_tokens.weight"].clone()}, {}, None),
    (lambda held: held | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)}, {}, None),
    (lambda held: held | {"mtp.fc.weight": torch.ones(3), "model.layers.7.eh_proj.weight": torch.ones(3),
                          "model.layers.7.mlp.up_proj.weight": torch.ones(3)}, {}, None),
    (lambda held: {name.removeprefix("model."): one for name, one in held.items()}, {}, None),
    (lambda held: held, {"pad_token_id": 10**6}, "Padding_idx")])
def test_weights_that_are_not_those_of_the_config_are_refused(tiny_model, tmp_path, edit, config, named):
    """Transformers would draw what is missing at random, and leave out what is too much."""
    save_file(edit(load_file(tiny_model / "model.safetensors")), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(json.loads((tiny_model / "config.json").read_text()) | config))
    found = problem_of(str(tmp_path))
    asked = {"problems": [], "warnings": [], "unjudged": []}
    sizes([json.dumps([str(tmp_path), None, False])], asked)
    assert (len(asked["problems"]), asked["unjudged"]) == (bool(found), [])
    assert (found is None) if named is None else (named in (found or ""))
    if named and not config.get("architectures"):
        with pytest.raises(ModelError):
            causal_model(tmp_path)
    assert named != "lm_head.weight" or causal_model(tmp_path, headless=True)


def test_the_model_that_a_run_creates_has_the_parameters_that_are_counted(tiny_model):
    init = plain(composed().model.init) | {"num_hidden_layers": 2, "num_key_value_heads": 1}
    model = AutoModelForCausalLM.from_pretrained(tiny_model, local_files_only=True)
    assert measure(build(init)).parameters == sum(p.numel() for p in model.parameters())
