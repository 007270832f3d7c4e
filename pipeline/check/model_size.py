"""Sizes of models, as the preview process (stages/model_size.py) counts them on torch's meta device.

This process imports neither torch nor transformers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ouroboros.pipeline.check import samples
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.explorer import AuxiliaryModel
from ouroboros.pipeline.settings.model import Lora, Model
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store.digests import StageModel, resolve
from ouroboros.pipeline.store.model_shape import plain_config


@dataclass(frozen=True)
class Layer:
    """What equal decoder layers save of a token, in entries, without the attention, which is the same in all layers.

    normed: by norms of the whole width (and of latent attention's narrow vectors). head_normed: by norms of query and
    key heads. inner: outputs of the widening linear layers of the MLP that every token takes, 2 x its width when gated.
    experts, chosen, expert_width: number of experts, of those that a token takes, width of each; 0 without experts.
    float_experts: outputs of experts are weighted in float32. adapted: linear layers with an adapter. tiled: those of
    `inner` that MLPs as Llama's have, which can be computed in parts of the tokens.
    """

    normed: int
    inner: int
    head_normed: int = 0
    experts: int = 0
    chosen: int = 0
    expert_width: int = 0
    float_experts: bool = False
    adapted: int = 0
    tiled: int = 0


@dataclass(frozen=True)
class Tower:
    """What reads images. patches: of an image for each token of the text that stands for it. layers: their number.
    width: of a patch in them, inner: of their MLP. values: numbers of a patch's pixels. masks: of the text's attention,
    kinds that are tensors, as tokens of an image attend to later ones."""

    patches: float
    layers: int
    width: int
    inner: int
    values: int = 0
    masks: int = 0


@dataclass(frozen=True)
class Size:
    """Parameters and widths of a causal language model.

    trained: parameters of its adapter, or all. critic: all parameters with a head of width 1 and a bias for the output
    head. embedding: of the input embedding. largest: of the largest tensor. gathered: of the largest module, which
    ZeRO-3 gathers at once. width: of the residual stream. query_width, value_width: of all heads; value_width is the
    input of the output projection. latent: cache entries per token and layer of latent attention; 0 for key and value.
    layers: (count, layer), equal ones together. tower: of a model that is shown images. linear: weights of the linear
    layers of the text below its output head, matrix: of the largest of these. unheld: why its layers are not held in 4
    bits; empty: they can be.
    """

    parameters: int
    trained: int
    critic: int
    embedding: int
    tied: bool
    largest: int
    gathered: int
    vocabulary: int
    width: int
    heads: int
    key_value_heads: int
    head_width: int
    value_width: int
    layers: tuple[tuple[int, Layer], ...]
    latent: int = 0
    tower: Tower | None = None
    linear: int = 0
    matrix: int = 0
    unheld: str = ""

    @property
    def query_width(self) -> int:
        return self.heads * self.head_width

    @property
    def key_value_width(self) -> int:
        return self.key_value_heads * self.head_width

    @classmethod
    def read(cls, found: dict[str, Any]) -> "Size":
        """Returns the size from its form in JSON (dataclasses.asdict)."""
        tower = found.get("tower") and Tower(**found["tower"])
        layers = tuple((count, Layer(**layer)) for count, layer in found["layers"])
        return cls(**found | {"layers": layers, "tower": tower})


class Sizes:
    """The sizes of the models of a run, each looked up by the section `model` that names it, and by its adapter.

    starts: of each stage, the section `model` that names its initial model.
    """

    def __init__(self, found: dict[str, dict] | None = None, starts: Mapping[str, Model] | None = None):
        self.found, self.starts = {asked: Size.read(size) for asked, size in (found or {}).items()}, starts or {}

    def of(self, model: Model, adapters: list[Lora] | None = None) -> Size | None:
        """Returns the size of a model with the first of `adapters`; None when it was not counted."""
        return self.found.get(question(model, adapters))


def named(auxiliary: AuxiliaryModel, starts: Mapping[str, Model]) -> Model:
    """Returns the section `model` that names an auxiliary model, or what the stage begins with that makes it."""
    if isinstance(auxiliary.model_path, StageModel):
        return starts[auxiliary.model_path]
    return Model.model_construct(model_path=auxiliary.model_path)


def question(model: Model, adapters: list[Lora] | None = None) -> str:
    """Returns what the preview process is asked about a model: [directory or settings of model.init, adapter,
    model.trust_remote_code]."""
    source = plain(model.init) if model.init.enable else str(resolve(model.model_path or ""))
    adapter = plain(adapters[0].but("path", None)) if adapters else None
    return json.dumps([source, adapter, not model.init.enable and model.trust_remote_code], sort_keys=True)


def questions(stages: dict[str, Config], starts: dict[str, Model], teachers: dict[str, Model | None]) -> list[str]:
    """Returns the questions about the models of a run that it creates, or that are on this machine.

    stages: name -> settings. starts, teachers: the sections `model` that name a stage's initial model and its teacher.
    """
    models = [(starts[name], settings.model.lora_configs) for name, settings in stages.items()]
    models += [(model, None) for model in teachers.values() if model]
    models += [(named(one, starts), None) for settings in stages.values() for one in settings.explorer.auxiliary_models]
    return sorted({question(*one) for one in models if plain_config(one[0])})


def counted(asked: list[str]) -> dict[str, Any]:
    """Returns the sizes of these models, counted by a separate process, and its `problems`,
    `warnings` and `unjudged`."""
    return _counted(tuple(asked)) if asked else {"sizes": {}, "problems": [], "warnings": [], "unjudged": []}


@cache
def _counted(asked: tuple[str, ...]) -> dict[str, Any]:
    return samples.ask({"models": asked}, "ouroboros.stages.model_size")
