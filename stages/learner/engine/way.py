"""How the rows of a micro-batch go through a model (`trainer.packing`).

packed  one flat sequence without padding, with attention of ours that keeps rows apart (attention.py)
rows    the family's own forward in transformers over rows that are padded behind their end, so that windows, sinks,
        capped scores, linear attention, state spaces and convolutions are the family's own code

A position of a causal model depends on the tokens before it alone, so padding behind a row changes nothing. Where the
code of a family does not keep to that, each row is a separate forward.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ouroboros.pipeline.store.errors import ModelError
from ouroboros.stages.learner.engine import attention
from ouroboros.stages.learner.engine.packing import Fill
from ouroboros.stages.learner.engine.recurrent import Recurrent
from ouroboros.stages.learner.engine.sharing import Segments
from ouroboros.stages.learner.engine.ulysses import Part, Sequence, Whole
from ouroboros.workflows.protocol.hugging_face import set_exact_attention
from ouroboros.workflows.protocol.sight import Seen


@dataclass
class Way:
    """packed: the name of our attention (attention.REGISTERED); None: by rows. share: packed rows share prefixes;
    every: also where that costs more; unshared: why they do not, for the log. single: each row is a separate forward.
    why: rows are not packed, unproved: not compared in float32, both for the log.
    recurrent: layers with a state. sequence: the ranks that share a micro-batch."""

    packed: str | None
    share: bool = False
    every: bool = False
    unshared: str = ""
    single: bool = False
    why: str = ""
    unproved: str = ""
    recurrent: Recurrent | None = None
    sequence: Sequence | None = None

    @property
    def name(self) -> str:
        return "packed" if self.packed else "rows"

    @property
    def fill(self) -> Fill:
        if self.packed:
            cheapest = Fill.GATHERED if self.packed == "padded" else Fill.CHEAPEST
            return Fill.FLAT if not self.share else Fill.SHARED if self.every else cheapest
        return Fill.SINGLE if self.single else Fill.PADDED

    def by_rows(self, model: nn.Module, why: str) -> None:
        """From now on rows go through the model's own forward. Raises ModelError where ranks share packed rows."""
        if self.sequence:
            raise ModelError(f"{model.config.name_or_path}: trainer.ulysses_sequence_parallel_size="
                             f"{self.sequence.size} splits packed rows, and these are not packed, because {why}. Set "
                             "it to 1.")
        self.packed, self.why = None, why
        set_exact_attention(model)

    def part(self, source: Tensor, tokens: int) -> Part | Whole:
        """What this rank scores of the flat positions `source` [N] of a micro-batch of `tokens`."""
        return self.sequence.part(source, tokens) if self.sequence else Whole(source)

    def __str__(self) -> str:
        said = (f"rows are not packed (trainer.packing), because {self.why}" if not self.packed else
                "rows are packed into one sequence (trainer.packing)")
        return said + (
            "; they share prefixes (trainer.share_prompts)" * bool(self.packed and self.share)
            + f"; they share no prefixes (trainer.share_prompts), because {self.unshared}" * bool(self.unshared)
            + "; each is a separate forward, because padding changes them" * self.single
            + f"; what they compute was not compared in float32, because {self.unproved}" * bool(self.unproved))


def choose(model: nn.Module, settings, device: str, obstacle: str | None, recurrent: list[nn.Module],
           sequence: Sequence | None = None) -> Way:
    """The way of a model of transformers, whose attention is set accordingly.

    settings: the section `trainer`. obstacle: why its layers cannot be packed. recurrent: those with a state.
    """
    way = Way(attention.choose(settings.attention, device), settings.share_prompts is not False,
              settings.share_prompts is True, sequence=sequence)
    if settings.packing == "rows":
        way.by_rows(model, "it is rows")
    elif obstacle:
        way.by_rows(model, obstacle)
    else:
        name = set_packed(model, way.packed)
        if recurrent:
            way.recurrent, way.share = Recurrent(decoder(model).config, name, recurrent), False
    return way


def set_packed(model: nn.Module, packed: str) -> str:
    """Sets one of our attentions in the text of a model, whose towers keep theirs; returns its registered name."""
    name = attention.REGISTERED[packed]
    (decoder(model) or model).set_attn_implementation(name)
    return name


def decoder(model: nn.Module) -> nn.Module | None:
    """The part of a causal LM under its output head, of a model that reads images too that of its text; None if it has
    no such part."""
    found = model.get_decoder()
    if found is None or found is model:
        found = getattr(model, model.base_model_prefix, None) or getattr(model, "model", None)
    elif found.get_output_embeddings() is not None:  # Llama 4: a causal LM within the whole
        found = decoder(found)
    return found if isinstance(found, nn.Module) and found is not model else None


def places(segments: Segments, source: Tensor, way: Way) -> Tensor:
    """Where flat positions [N] are among the tokens of the model's forward."""
    if way.packed:
        return source
    return torch.from_numpy(attention.padded_places(segments)[1]).to(source.device)[source]


def hidden_states(transformer: nn.Module, input_ids: Tensor, positions: Tensor, segments: Segments, way: Way,
                  seen: Seen | None = None) -> Tensor:
    """The last hidden states of a flat micro-batch [T, width], or those of this rank. input_ids, positions: [T].
    seen: of rows with images; not where ranks share the micro-batch."""
    if way.packed:
        if way.sequence:
            input_ids, positions, segments = way.sequence.pad(input_ids, positions, segments)
            input_ids, positions = way.sequence.own(input_ids), way.sequence.own(positions)
        places = attention.layout(segments, input_ids.device, way.packed, seen and seen.blocks)
        places |= {"sequence": way.sequence}
        if way.recurrent:
            places |= way.recurrent.place(segments, input_ids.device)
        given = {"input_ids": input_ids[None], "position_ids": positions[None]} if seen is None else (
            seen.inputs(torch.arange(len(input_ids), device=input_ids.device)[None]))
        return transformer(**given, use_cache=False, **places).last_hidden_state[0]
    gather, scatter = (torch.from_numpy(places).to(input_ids.device) for places in attention.padded_places(segments))
    lengths = torch.from_numpy(segments.lengths).to(input_ids.device)
    inside = torch.arange(gather.shape[1], device=input_ids.device) < lengths[:, None]
    mask = None if bool(inside.all()) else inside.long()
    given = {"input_ids": input_ids[gather]} if seen is None else seen.inputs(gather, inside)
    mask = mask if seen is None else seen.mask(transformer.config, gather, mask)
    hidden = transformer(**given, attention_mask=mask, use_cache=False).last_hidden_state
    return hidden.flatten(0, 1).index_select(0, scatter)
