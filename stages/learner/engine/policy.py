"""The model in training: log-probs of chosen tokens, without materialising the full logits.

`Policy` wraps a Hugging Face causal LM. Its forward takes one packed micro-batch and returns log-prob and entropy at
each action token. The output head runs over chunks of positions, each recomputed in the backward pass, so logits exist
for `chunk` positions at a time: at a vocabulary of 150k and 32k tokens that is 2.4 GiB instead of 20. On GPUs a kernel
replaces it where it can (head_kernel.py); both are part of `trainer.compile`.
"""

import inspect
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ouroboros.pipeline.settings import config
from ouroboros.pipeline.settings.trainer import compiles
from ouroboros.pipeline.store.architecture import DOES, SCALES, text_part, unpacked, untrainable, windowed
from ouroboros.pipeline.store.checkpoints import WEIGHTS
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.pipeline.store.recurrence import recurrent_layers
from ouroboros.stages.learner.engine import attention, recurrent
from ouroboros.stages.learner.engine.compiled import GRAPHS
from ouroboros.stages.learner.engine.sharing import Segments
from ouroboros.stages.learner.engine.snapshot import Written, write_weights
from ouroboros.stages.learner.engine.tiled import tile
from ouroboros.stages.learner.engine.ulysses import Sequence
from ouroboros.stages.learner.engine.way import Way, choose, decoder, hidden_states, places, set_packed
from ouroboros.workflows.protocol.hugging_face import CAPPED, causal_model, set_exact_attention
from ouroboros.workflows.protocol.routing import Routers
from ouroboros.workflows.protocol.sight import Shown, sight_of

HEAD = "lm_head.weight"
CAP = "final_logit_softcapping"
NOTHING = -1e30  # logit of no token; finite, as infinity times a probability of 0 is not 0
SHARED = 160 * 1024  # bytes of a block of threads that the GPU kernel of the output head needs


class Likeliest(NamedTuple):
    """The `count` tokens of highest probability among the ids below `among`."""

    count: int
    among: int


class Deterministic(nn.Module):
    """Base of what is trained. Its model draws no random numbers, so that it is the one that the engine samples from.

    Dropout and the noise of routers are off outside of training mode, and all modules stay outside of it. Layers alone
    are in it, as transformers recomputes the activations of no others; the dropout that they do themselves is 0 (OPT).
    """

    def train(self, mode: bool = True):
        from transformers.modeling_layers import GradientCheckpointingLayer

        super().train(False)
        for module in self.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.training = mode
                vars(module).update({name: 0.0 for name, value in vars(module).items()
                                     if "drop" in name and isinstance(value, float)})
        self.training = mode
        return self


class MeanScores:
    """Asks a forward for the mean of p (H + log p) over each token's distribution [N] too, H its entropy and p a
    token's probability: to first order a step that makes a token likelier changes H by this mean less its own."""


class Policy(Deterministic):
    """A causal LM that scores tokens."""

    def __init__(self, model: nn.Module, way: Way, temperature: float, chunk: int, compiled: bool = False,
                 factor: float = 1.0, cap: float | None = None, routers: Routers | None = None, replays: bool = False):
        """chunk: positions of a chunk. factor, cap: of the model's own logits, cap * tanh(factor * W h / cap).
        routers: of a model with experts, to compare their choices with the engine's; replays: to make them the same."""
        super().__init__()
        self.model = model
        self.way = way
        self.factor, self.cap = factor, cap
        self.routers, self.replays = routers, replays
        self.trains_tower = False  # of the images
        self.always_sees = False  # whether each forward runs the tower once, as ranks that share its weights must
        self.differing: Tensor | None = None  # of the last forward with experts, as Routers.differing
        self.temperature = temperature
        self.chunk = chunk
        self.fused = compiled and no_kernel(model) is None
        self.score = GRAPHS.compile(self._score) if compiled else self._score
        self.train()

    def forward(
        self, input_ids: Tensor, positions: Tensor, segments: Segments, source: Tensor, targets: Tensor,
        temperature: float | Tensor | None = None, entropy_gradient: bool = False, experts: Tensor | None = None,
        kept: Tensor | None = None, ids: Tensor | Likeliest | MeanScores | None = None, pictures: Shown = ()
    ) -> tuple[Tensor, ...]:
        """input_ids, positions [T]; source, targets [N] -> log-probs, entropy [N], and with ids `_tops` or the means.

        Log-probs are float32, of softmax(logits / temperature), as the rollout engine samples; temperature: None: the
        model's; a tensor: of each token [N], 0: the model's. Entropy is in nats; its gradient costs memory and time, so
        it has one only with `entropy_gradient`.
        experts: of the engine at `source` [N, layers, choices]. kept: the tokens that each was sampled among [N, K], -1
        behind the last: log-prob and entropy are of the distribution over these; all -1: over all. ids: tokens whose
        log-probs are asked for besides the targets' [N, K], or which to find. pictures: of rows, by where these begin.
        """
        part = self.way.part(source, len(input_ids))
        experts = None if experts is None else experts[part.own]
        routed = self._route(segments, part.places, experts) if self.routers else None
        seen = sight_of(self.model.name_or_path).seen(
            self.model, input_ids, positions, pictures, self.trains_tower, self.always_sees) if (
                pictures or self.always_sees) else None
        states = hidden_states(decoder(self.model), input_ids, positions, segments, self.way, seen)
        chosen = states.index_select(0, part.places)  # [places] would add the gradients of a shared token in bfloat16
        if routed is not None:
            self.differing = part.whole(self.routers.differing(routed, experts))
        if isinstance(temperature, Tensor):
            temperature = torch.where(temperature > 0, temperature, self.temperature)[part.own]
        kept = None if kept is None else kept[part.own]
        ids = ids[part.own] if isinstance(ids, Tensor) else ids
        return tuple(map(part.whole, self._scores(chosen, targets[part.own], temperature, entropy_gradient, kept, ids)))

    def _scores(self, chosen: Tensor, targets: Tensor, temperature: float | Tensor | None, entropy_gradient: bool,
                kept: Tensor | None, ids: Tensor | Likeliest | MeanScores | None) -> tuple[Tensor, ...]:
        """chosen: hidden states [n, width] -> as `forward`, of `targets` [n]. The GPU kernel has one temperature
        for all, and sums over all tokens; others go by chunks."""
        divisor = (self.temperature if temperature is None else temperature) / self.factor
        fused = self.fused and chosen.dtype == torch.bfloat16  # not in the proof (stages/learner/separation.py)
        if fused and len(targets) and not isinstance(divisor, Tensor) and kept is ids is None:
            from ouroboros.stages.learner.engine.head_kernel import Score

            return Score.apply(chosen, self.model.get_output_embeddings().weight, targets, divisor, entropy_gradient)
        score = self.score if kept is ids is None else self._score  # their number differs from batch to batch
        if len(targets) <= self.chunk:  # a single chunk: recomputing would save no memory
            return score(divisor, entropy_gradient, chosen, targets, kept, ids)
        hidden = chosen.split(self.chunk)
        divisors = divisor.split(self.chunk) if isinstance(divisor, Tensor) else [divisor] * len(hidden)
        sets = [None] * len(hidden) if kept is None else kept.split(self.chunk)
        asked = ids.split(self.chunk) if isinstance(ids, Tensor) else [ids] * len(hidden)
        parts = [
            checkpoint(partial(score, d, entropy_gradient), h, t, k, i, use_reentrant=False)
            for d, h, t, k, i in zip(divisors, hidden, targets.split(self.chunk), sets, asked, strict=True)
        ]
        return tuple(map(torch.cat, zip(*parts, strict=True)))

    def _route(self, segments: Segments, source: Tensor, experts: Tensor | None) -> Tensor | None:
        """Prepares the routers for a forward and its backward pass; returns where `source` is for them."""
        self.routers.free()
        if experts is None:
            return None
        routed = places(segments, source, self.way)
        if self.replays:
            self.routers.give(routed, experts)
        return routed

    def _score(self, divisor: float | Tensor, entropy_gradient: bool, hidden: Tensor, targets: Tensor,
               kept: Tensor | None = None, ids: Tensor | Likeliest | MeanScores | None = None) -> tuple[Tensor, ...]:
        """hidden [n, width], targets [n] -> log-probs [n], entropy [n], `_tops` or the means. divisor: temperature
        / the logits' factor, one for all or [n]. kept: [n, K], ids: as in `forward`."""
        logits = self.scaled(self.model.get_output_embeddings()(hidden), divisor)
        found = _sampled(logits, targets, kept, entropy_gradient)
        if isinstance(ids, MeanScores):
            logprobs = _among(logits, kept).log_softmax(-1)
            return *found, ((2.0 * logprobs).exp() * (found[1][:, None] + logprobs)).sum(-1)
        return found if ids is None else (*found, *_tops(logits, kept, ids))
    def scaled(self, logits: Tensor, divisor: float | Tensor) -> Tensor:
        """Logits over the temperature, float32. logits: W h. divisor: temperature / the logits' factor."""
        divisor = divisor[:, None] if isinstance(divisor, Tensor) else divisor
        logits = logits.float() / divisor
        if self.cap is None:
            return logits
        bound = self.cap / (divisor * self.factor)
        return bound * (logits / bound).tanh()


def _sampled(logits: Tensor, targets: Tensor, kept: Tensor | None, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    """Log-probs of targets [n] and entropy [n] by logits [n, V], over what was kept [n, K]."""
    if kept is None:
        return _normalized(logits, targets, logits, entropy_gradient)
    absent, whole = kept < 0, kept[:, 0] < 0
    among = logits.gather(-1, kept.long().clamp(min=0)).masked_fill(absent & ~whole[:, None], NOTHING)
    found = _normalized(logits, targets, among, entropy_gradient)
    if not whole.any():
        return found
    return tuple(torch.where(whole, every, some) for every, some in zip(
        _normalized(logits, targets, logits, entropy_gradient), found, strict=True))


def _tops(logits: Tensor, kept: Tensor | None, ids: Tensor | Likeliest) -> tuple[Tensor, Tensor]:
    """Ids [n, K], the likeliest first, -1 behind the last; log-probs [n, K + 1] of them and, last, of all other tokens
    together, summed by themselves, as 1 minus the likely ones' would be rounded away; `NOTHING` of no token."""
    logits = _among(logits, kept)
    if isinstance(ids, Likeliest):
        logits = logits[:, : ids.among]
        values, found = logits.topk(min(ids.count, logits.shape[1]))
        ids = found.masked_fill(values <= NOTHING / 2, -1)
    places = torch.where(ids < 0, ids[:, :1], ids)
    likely = logits.gather(1, places).masked_fill(ids < 0, NOTHING)
    rest = logits.scatter(1, places, NOTHING).logsumexp(-1, keepdim=True)
    return ids, torch.cat([likely, rest], dim=1) - logits.logsumexp(-1, keepdim=True)


def _among(logits: Tensor, kept: Tensor | None) -> Tensor:
    """Logits [n, V] with `NOTHING` for tokens that were not kept [n, K]."""
    if kept is None:
        return logits
    places, whole = torch.where(kept < 0, kept[:, :1], kept).long().clamp(min=0), kept[:, :1] < 0
    stays = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, places, True)
    return logits.masked_fill(~(stays | whole), NOTHING)


def _normalized(logits: Tensor, targets: Tensor, among: Tensor, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    """Log-probs of targets [n], by logits [n, V], among tokens with the logits `among` [n, K]; entropy of these [n]."""
    log_normalizer = among.logsumexp(-1)
    logprobs = logits.gather(-1, targets[:, None])[:, 0] - log_normalizer
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = log_normalizer - (among.softmax(-1) * among).sum(-1)
    return logprobs, entropy


def load(path: Path, device: str, dtype: torch.dtype, settings, temperature: float, longest: int,
         trust: bool = False, compares: bool = False, replays: bool = False,
         sequence: Sequence | None = None) -> Policy:
    """The model of a Hugging Face directory, ready to train. Raises the errors of `read`.

    settings: the `trainer` section. trust: model.trust_remote_code. compares, replays: the routings of a model with
    experts. Master weights are float32; DeepSpeed keeps the working copy in `dtype`.
    """
    model, way = read(path, device, dtype, settings, longest, trust=trust, sequence=sequence)
    text, routers = model.config.get_text_config(), _routers(model, way, path, replays) if compares else None
    if routers is None:  # the choices of compiled layers are not seen
        compile_layers(model, way, settings, device)
    way.share = way.share and not replays  # rows with one prefix have their own routings in it
    made = Policy(model, way, temperature, settings.logprob_chunk_tokens, compiles(settings, device != "cpu"),
                  logit_factor(text), getattr(text, CAP, None), routers, replays)
    made.trains_tower = not settings.freeze_vision_tower
    return made


def logit_factor(config) -> float:
    """What a model's own forward multiplies its logits by. config: of its text, as transformers has it."""
    said = {key: getattr(config, key, None) for key in SCALES}
    return (said["logit_scale"] or 1.0) * (said["lm_head_multiplier"] or 1.0) / (said["logits_scaling"] or 1.0)


def no_kernel(model: nn.Module) -> str | None:
    """Why the GPU kernel cannot compute the output head of a causal LM; None if it can."""
    head = model.get_output_embeddings()
    if not torch.cuda.is_available():
        return "it needs a GPU"
    if torch.cuda.get_device_properties(torch.cuda.current_device()).shared_memory_per_block_optin < SHARED:
        return f"it needs {SHARED // 1024} KiB of shared memory"
    if getattr(model.config.get_text_config(), CAP, None):
        return f"{CAP} caps the logits"
    if type(head) is not nn.Linear or head.bias is not None:
        return "the output head is no plain matrix product"
    if head.weight.dtype != torch.bfloat16 or head.in_features % 8:
        return "it multiplies bfloat16, in rows of a multiple of 8"
    return None


def read(path: Path, device: str, dtype: torch.dtype, settings, longest: int, headless: bool = False,
         trust: bool = False, sequence: Sequence | None = None) -> tuple[nn.Module, Way]:
    """A causal LM, not compiled, and the way in which rows go through it.

    settings: the `trainer` section. longest: length of the longest sequence. headless: the output head may be absent.
    trust: model.trust_remote_code. sequence: of ranks that share micro-batches. Raises ModelError when the model cannot
    be read, or when its attention is of an unsupported kind.
    """
    attention.register()
    model = causal_model(path, dtype=dtype, headless=headless, trust=trust)
    said = model.config.to_dict()
    if problem := untrainable(said, longest):
        raise ModelError(f"{path}: {problem}")
    if model.get_output_embeddings() is None or decoder(model) is None:
        raise ModelError(f"{path}: {type(model).__name__} of transformers has no output head over a decoder of its "
                         "own, which the trainer calls apart; needed a causal language model, as Llama or Qwen.")
    obstacle = unpacked(said, longest, DOES[attention.choose(settings.attention, device)])
    if not obstacle and not (_asks_for_attention(model) and model.base_model_prefix == "model"
                             and hasattr(model, "lm_head")):
        obstacle = f"{type(model).__name__} of transformers has no replaceable attention"
    layers = recurrent.layers_of(decoder(model)) if recurrent_layers(text_part(said)) else []
    if not obstacle and recurrent_layers(text_part(said)):
        obstacle = recurrent.obstacle(layers, settings.zero_stage, sequence is not None)
    if obstacle and settings.packing == "packed":
        raise ModelError(f"{path}: trainer.packing=packed, and {obstacle}. Set trainer.packing=auto or rows.")
    way = choose(model, settings, device, obstacle, layers, sequence)
    if way.share and device != "cpu" and (windowed(text_part(said), longest) or text_part(said).get(CAPPED)):
        way.share = False  # the kernels of continued segments have neither windows nor caps
    if sick := next((name for name, weight in model.named_parameters() if not _is_finite(weight.detach())), None):
        raise ModelError(f"{path}: {sick} has values that are NaN or infinite; needed finite weights. Take another "
                         "checkpoint, or fetch the model again.")
    if settings.freeze_vision_tower:
        _freeze_towers(model)
    if settings.tiled_mlp_num_shards > 1:
        tile(decoder(model), settings.tiled_mlp_num_shards)
    if settings.enable_gradient_checkpointing is True:  # "auto" is resolved before (stages/recompute.py)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, way


def compile_layers(model: nn.Module, way: Way, settings, device: str) -> None:
    """Compiles the layers of a model of `read` where that is done. settings: the `trainer` section."""
    tiled = settings.tiled_mlp_num_shards > 1  # a graph could keep what the parts are computed again for
    if compiles(settings, device != "cpu") and way.packed and not (way.sequence or way.recurrent or tiled):
        text = decoder(model)  # a tower's attention would be unrolled over the images of each micro-batch
        GRAPHS.compile_layers(model if text is None else text)


def _routers(model: nn.Module, way: Way, path: Path, replays: bool) -> Routers | None:
    """The routers of a model. Raises ModelError where there are none to replay."""
    layers = getattr(decoder(model), "layers", None)
    if way.packed:
        set_exact_attention(model)
    found = Routers(model, layers) if isinstance(layers, nn.ModuleList) else None
    if way.packed:
        set_packed(model, way.packed)
    if found and found.found:
        return found
    if replays:
        raise ModelError(f"{path}: algorithm.enable_router_replay=true, and in the layers of {type(model).__name__} no "
                         "router is found that takes the experts with the highest scores. Set it to false.")
    return None


def _asks_for_attention(model: nn.Module) -> bool:
    """Whether the code of a model takes the function of its attention from those that are registered."""
    return model._supports_attention_backend or "ALL_ATTENTION_FUNCTIONS" in inspect.getsource(
        sys.modules[type(model).__module__])


def _freeze_towers(model: nn.Module) -> None:
    """Leaves the text of a model to train. Towers of images and sound stay as they are."""
    text = {*decoder(model).parameters(), *model.get_output_embeddings().parameters()}
    for parameter in model.parameters():
        if parameter not in text:
            parameter.requires_grad_(False)


def _is_finite(weight: Tensor) -> bool:
    """Whether all elements are finite, in one pass without a copy."""
    return not weight.numel() or all(bound.isfinite() for bound in weight.aminmax())


def resolve_dtype(name: str, device: str) -> torch.dtype:
    """`model.dtype`: auto is bfloat16 on GPU and float32 on CPU."""
    return getattr(torch, config.resolve_dtype(name, device != "cpu"))


def saved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a checkpoint that are no parameters: no step changes them (DeepSeek V3's routing bias, Gemma 4's
    scalar of a layer), but a model read without them computes something else."""
    saved = model.state_dict(keep_vars=True).keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}


def is_tied(model: nn.Module) -> bool:
    """Whether the output head of a causal LM is its embedding."""
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight


def file_tensors(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a weight file for full weights [name -> tensor] in host memory, the tied output head included.

    vLLM keeps a packed copy of the head on some devices and refreshes it only when the head is in the file. Experts are
    one tensor per layer in memory; in the file each expert has its own, under the model's original names.
    """
    from transformers.core_model_loading import revert_weight_conversion

    embedding = next(name for name, parameter in model.named_parameters()
                     if parameter is model.get_input_embeddings().weight)
    tensors = {name: tensor.contiguous() for name, tensor in revert_weight_conversion(model, state).items()}
    if is_tied(model) and HEAD not in tensors and embedding in state:
        tensors[HEAD] = state[embedding].contiguous()
    return tensors


def export(state: dict[str, Tensor], model: nn.Module, path: Path) -> Written:
    """Writes full weights [name -> tensor] as `model.safetensors`, a tied output head once, as transformers does."""
    tensors = file_tensors({name: tensor.detach().to("cpu") for name, tensor in state.items()}, model)
    if is_tied(model):
        tensors.pop(HEAD, None)  # vLLM's Gemma 2 has no place for it
    return write_weights(tensors, path / WEIGHTS)
