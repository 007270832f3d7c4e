"""Counts a model's parameters and widths on torch's meta device, where tensors have shapes and no memory.

    python -m ouroboros.stages.model_size request.json answer.json

The model is the one that the trainer loads: transformers builds it from config.json, and our adapter is put into it.
Called by the preview of the data (stages/preview.py); `ouro run` starts it alone, where a GPU's memory is known.
pipeline/check/model_size.py reads the result. Not a stage of the plan: no stage reads its output.
"""

import importlib.util
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from ouroboros.pipeline.check.model_size import Layer, Size, Tower
from ouroboros.pipeline.settings.model import Init, Lora
from ouroboros.pipeline.store import files, kept
from ouroboros.pipeline.store.definitions import sources
from ouroboros.pipeline.store.errors import ModelError, OuroError
from ouroboros.pipeline.store.light_imports import import_transformers_light
from ouroboros.pipeline.store.model_shape import CONFIG
from ouroboros.pipeline.store.packable import unpackable
from ouroboros.workflows.protocol.hugging_face import check_weights, model_class, read_config

HEAD_NORMS = ("q_norm", "k_norm")
OWN_DTYPE = ("qwen2_moe", "qwen3_moe")  # model_type: outputs of experts are weighted in the model's dtype


def sizes(asked: list[str], found: dict[str, Any]) -> dict[str, dict]:
    """Returns question -> size of each model; problems and uncounted models go into the lists of `found`.

    Where there was nothing to say of any, they are not counted again while the files of the models stay as they are."""
    version = kept.version(*map(str, sources(files.HOME)))
    known, said = kept.answers(__file__, version), sum(map(len, found.values()))
    states = {text: _state(text) for text in asked}
    made = {text: size for text, state in states.items() if (size := known.get(state) or _size(text, found))}
    new = {states[text]: size for text, size in made.items()}
    if not new.keys() <= known.keys() and sum(map(len, found.values())) == said:
        kept.keep(__file__, version, known | new)
    return made


def _state(question: str) -> str:
    """Returns a question with the names, sizes and times of the model's files."""
    named = json.loads(question)[0]
    read = sorted(Path(named).resolve().iterdir()) if isinstance(named, str) and Path(named).is_dir() else []
    return f"{json.loads(question)[bool(read):]} {kept.stamps(filter(Path.exists, read))}"


def _size(question: str, found: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the size of one model; None where it is not counted."""
    from safetensors import SafetensorError

    named, adapter, trust = json.loads(question)
    try:
        model = build(named, trust)
        if isinstance(named, str) and (wrong := problem_of(named, trust)) not in found["problems"]:
            found["problems"] += filter(None, [wrong])
        found["warnings"] += [line for line in unusable_kernels(model, named) if line not in found["warnings"]]
        return asdict(measure(model, adapter and Lora.partial(adapter)))
    except OuroError as error:
        found["problems"].append(str(error))
    except SafetensorError:  # of a file that other checks name
        return None
    except Exception as error:  # transformers raises arbitrary errors on the config.json of another architecture
        found["unjudged"].append(f"GPU memory and disk: the parameters of {named} are not counted, as transformers "
                                 "builds no causal language model with a list of layers from its config.json "
                                 f"({type(error).__name__}: {str(error).partition(chr(10))[0]}).")
    return None


def unusable_kernels(model, named: str | dict[str, Any]) -> Iterator[str]:
    """Warns of installed packages of kernels for a model's layers that do not import: transformers does without."""
    from ouroboros.stages.learner.engine.kernels import broken
    from ouroboros.stages.learner.engine.recurrent import packages

    own = [module for module in model.modules() if type(module).__module__.startswith("transformers.models.")]
    for package in packages(own) if isinstance(named, str) else ():
        if importlib.util.find_spec(package) and (why := broken(package)):
            yield (f"model.model_path={named}: kernels of its layers are in the package {package}, and {why}: these "
                   "layers are computed in plain PyTorch, on a GPU many times slower. Install it for this torch.")


@cache
def problem_of(named: str, trust: bool = False) -> str | None:
    """Returns why the weights of a directory do not fit its config.json, or None."""
    try:
        check_weights(Path(named), trust)
    except ModelError as error:
        return str(error)
    return None


def overridden_problem(base: Path, model) -> str | None:
    """Returns why the model at `base` does not read what the section `model` overrides, or its weights do not fit
    that."""
    from ouroboros.stages.model import rewrite

    if not model.rewrites:
        return None
    with tempfile.TemporaryDirectory() as made:
        try:
            rewrite(base.resolve(), model, Path(made))
            wrong = problem_of(made, model.trust_remote_code)
        except OuroError as error:
            wrong = str(error)
    key = "model.override_config"
    return wrong and f"{key}: {wrong.replace(made, str(base)).removeprefix(f'{key}.')}"


def build(named: str | dict[str, Any], trust: bool = False):
    """The model on the meta device. named: a Hugging Face directory, or the settings of model.init. trust:
    model.trust_remote_code."""
    import_transformers_light()
    import torch

    if isinstance(named, dict):
        from ouroboros.stages.model import character_tokenizer, model_config

        init = Init.partial(named)
        config = model_config(init, character_tokenizer(1, bool(init.image_size)), 1)
    else:
        config = read_config(named, trust)
        if config.is_encoder_decoder:  # by the default of its kind, too, where config.json does not say so
            raise ModelError(f"{named}: {config.model_type} has an encoder and a decoder; needed a decoder alone, "
                             "as Llama or Qwen.")
    try:
        with torch.device("meta"):
            return model_class(config).from_config(config, trust_remote_code=trust)
    except ImportError as error:  # of a package that this architecture alone needs
        raise ModelError(f"{named}: the code of {config.model_type} in transformers needs a package that is not "
                         f"installed: {' '.join(str(error).split())}") from error
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        if isinstance(named, dict) or unpackable(config.model_type):
            raise
        raise ModelError(f"{named}: transformers builds no model from its {CONFIG} ({type(error).__name__}: "
                         f"{str(error).partition(chr(10))[0]}). Fetch it again.") from error


def measure(model, adapter: Lora | None = None) -> Size:
    """The size of a causal language model, and of an adapter (an element of model.lora_configs) put into it, in place.

    Raises ModelError when the adapter names a layer that the model lacks.
    """
    import torch

    from ouroboros.stages.learner.engine.quantized import unheld
    from ouroboros.stages.learner.engine.way import decoder

    config, embedding, transformer = model.config.get_text_config(), model.get_input_embeddings().weight, decoder(model)
    output = model.get_output_embeddings()
    tied = output is not None and output.weight is embedding
    width, rank = config.hidden_size, getattr(config, "kv_lora_rank", None)
    differ = getattr(config, "is_heterogeneous", False)  # since transformers 5.19
    each = [_heads(one, width) for one in (config.per_layer_config if differ else [config])]
    heads, head = (max(numbers) for numbers in list(zip(*each, strict=True))[:2])
    key_value = max(-(-shared * own // max(head, 1)) for _, own, shared in each)  # of the widest
    if rank:  # latent attention: a head has a part with positions and one without
        head = config.qk_nope_head_dim + config.qk_rope_head_dim
    parts = [module for module in model.modules() if not isinstance(module, torch.nn.ModuleList)]
    size = Size(
        parameters=_count(model),
        trained=_count(transformer) + (0 if tied or output is None else _count(output)),
        critic=_count(transformer) + width + 1,
        embedding=embedding.numel(), tied=tied,
        largest=max(p.numel() for p in model.parameters()),
        gathered=max(sum(p.numel() for p in part.parameters(recurse=False)) for part in parts),
        vocabulary=embedding.shape[0], width=width, heads=heads, key_value_heads=key_value, head_width=head,
        value_width=heads * (config.v_head_dim if rank else head), layers=(),
        latent=rank + config.qk_rope_head_dim if rank else 0, tower=_tower(model.config))
    layers = [_layer(layer, config, size) for layer in transformer.layers]
    linear = [0, *(one.weight.numel() for one in transformer.modules() if isinstance(one, torch.nn.Linear))]
    size = replace(size, linear=sum(linear), matrix=max(linear), unheld=unheld(model))
    if adapter:
        from ouroboros.stages.learner.engine.adapter import inject

        with torch.device("meta"):
            inject(model, Path(), adapter, 0)
        size = replace(size, trained=sum(p.numel() for p in model.parameters() if p.requires_grad))
        layers = [replace(layer, adapted=sum(name.endswith(".lora_A") for name, _ in module.named_modules()))
                  for layer, module in zip(layers, transformer.layers, strict=True)]
    return replace(size, layers=tuple((count, layer) for layer, count in Counter(layers).items()))


def _heads(config, width: int) -> tuple[int, int, int]:
    """The number of query heads, the width of each, and the number of key/value heads. config: of a text or layer."""
    heads = getattr(config, "num_attention_heads", 0)  # Mamba: none
    return (heads, getattr(config, "head_dim", None) or width // max(heads, 1),
            getattr(config, "num_key_value_heads", None) or heads)


def _tower(config) -> Tower | None:
    """What reads the images that the model is shown. config: of the whole model."""
    from ouroboros.workflows.protocol.sight import patches

    if (each := patches(config)) is None:
        return None
    found = config.vision_config
    edge = found.patch_size if isinstance(found.patch_size, int) else max(found.patch_size)
    layers = getattr(config.get_text_config(), "layer_types", None) or [""]
    return Tower(each, getattr(found, "num_hidden_layers", None) or found.depth, found.hidden_size,
                 found.intermediate_size, 3 * edge**2 * getattr(found, "temporal_patch_size", 1),
                 len({*layers}) if config.model_type == "gemma3" else 0)


def _count(module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _layer(layer, config, size: Size) -> Layer:
    from torch import nn

    from ouroboros.stages.learner.engine.tiled import gated

    modules = dict(layer.named_modules())
    norms = {name: sum(p.numel() for key, p in module.named_parameters() if key == "weight")
             for name, module in modules.items() if type(module).__name__.endswith("Norm")}
    of_heads = [name for name in norms if name.endswith(HEAD_NORMS)]
    mlps: dict[str, list[int]] = {}  # module -> outputs of its linear layers, in order; the last one narrows
    for name, module in modules.items():
        if isinstance(module, nn.Linear) and not {"self_attn", "experts"} & set(name.split(".")):
            mlps.setdefault(name.rpartition(".")[0], []).append(module.out_features)
    found = Layer(normed=sum(count for name, count in norms.items() if name not in of_heads),
                  inner=sum(sum(outputs[:-1]) for outputs in mlps.values()),
                  tiled=sum(sum(outputs[:-1]) for name, outputs in mlps.items() if gated(modules[name])),
                  head_normed=size.query_width + size.key_value_width if of_heads else 0)
    experts = next((module for name, module in modules.items() if name.rpartition(".")[2] == "experts"), None)
    if experts is None:
        return found
    count = len(experts) if isinstance(experts, nn.ModuleList) else next(experts.parameters()).shape[0]
    return replace(found, experts=count, chosen=getattr(config, "num_experts_per_tok", 0) or config.top_k_experts,
                   expert_width=_count(experts) // (3 * size.width * count),
                   float_experts=config.model_type not in OWN_DTYPE)


def main(request: str, answer: str) -> None:
    found: dict[str, Any] = {"problems": [], "warnings": [], "unjudged": []}
    counted = sizes(files.read_json(Path(request))["models"], found)
    files.write_json(Path(answer), found | {"sizes": counted})


if __name__ == "__main__":
    main(*sys.argv[1:])
