"""GPU memory of a training stage from the model's size and the settings: what our trainer and the engine allocate.

Every term is counted from our own code (stages/learner/) and DeepSpeed's; c is bytes of a weight (2 or 4), P the
parameters, A the trainable ones (adapter or all), W the ranks, T the tokens of the micro-batch budget, h the width,
L the layers, V the vocabulary. Small things (positions, masks, the allocator's slack) are not counted: USABLE leaves
room for them. benchmarks/gpu_update.md compares the numbers with measured ones.
"""

import math
from dataclasses import dataclass, replace

from ouroboros.pipeline.check.model_size import Layer, Size, Tower
from ouroboros.pipeline.settings.algorithms import facts
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.lora import BLOCK
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.settings.trainer import KERNEL_ENTRIES, Trainer, compiles, leaves_gpu, may_overlap, must_overlap
from ouroboros.pipeline.settings.truncation import most_kept

GIB = 2**30
OF_SET = 4  # bytes of the id of a token that another one was sampled among
OF_SCORED = 25  # the same in the head: id in 64 bits, logit, softmax, their product, two gradients, whether absent
OF_REST = 12  # bytes an entry of the logits without a teacher's likeliest tokens, and of two gradients
USABLE = 0.9  # share of a GPU's memory that an estimate may fill
BUCKET = 500_000_000  # elements per reduce bucket of DeepSpeed
ALONE = 2.2 * GIB  # of one engine in turns with a trainer, besides its share (benchmarks/gpu_families.md)
ASLEEP = 1.2 * GIB  # of an engine besides weights and cache: CUDA context, graphs, workspaces (benchmarks/gpu_path.md)
CONTEXT = 0.6 * GIB  # of a trainer's process besides its tensors: CUDA context, workspaces (benchmarks/gpu_two.md)
NCCL = 1.2 * GIB  # of its buffers, on each GPU of several ranks or of an engine (benchmarks/gpu_two.md)
LIVE = 1_000_000_000  # elements that ZeRO-3 gathers at most (max_live_parameters), and updates at once (sub_group_size)


@dataclass(frozen=True)
class Training:
    """Bytes on one rank's GPU.

    weights, optimizer, gradients: persistent, see `states`. activations: peak of what the forward pass saves and the
    backward pass allocates. bucket: gradients in transfer. step: what the optimizer step allocates on top of weights
    and optimizer, after activations are freed. critic: persistent memory of PPO's critic; its own step never exceeds
    the policy's, which has the output head. gathered: weights of other ranks that ZeRO-3 holds during a pass. kept: of
    gradients and bucket, what ZeRO-3 allocates once and never frees. process: its CUDA context and NCCL's buffers.
    leaves: of the weights, what is in host memory while an engine answers.
    """

    weights: float
    optimizer: float
    gradients: float
    activations: float
    bucket: float
    step: float
    critic: float = 0.0
    gathered: float = 0.0
    kept: float = 0.0
    process: float = 0.0
    leaves: float = 0.0

    @property
    def peak(self) -> float:
        """Returns the larger of the backward pass's peak and the optimizer step's."""
        backward = self.gathered + self.gradients + self.bucket + self.activations
        return self.idle + self.leaves + max(backward - self.kept, self.step)

    @property
    def idle(self) -> float:
        """Returns what remains while an engine uses the same GPU: activations and all other gradients are freed."""
        return self.process + self.weights - self.leaves + self.optimizer + self.critic + self.kept


def training(size: Size, config: Config, element: int) -> Training:
    """Estimates the memory of one trainer rank. config: the stage's settings; element: bytes of a weight.

    weights     c P (with an adapter c (P + A)); under ZeRO-3 that / W, unless offloaded. In 4 bits the N weights of
                linear layers take N / 2, and c N / 64 of scales; one layer at a time is dequantized (activations)
    gathered    under ZeRO-3 c min(P, LIVE), or the largest module, such as a layer's experts
    optimizer   12 A / W, or 6 with adamw8bit: float32 master weights and Adam's two moments; in host memory when
                offloaded
    gradients   c A accumulate until the step (ZeRO-1); c A / W (ZeRO-2, 3); offloaded under these two, a buffer of the
                largest trainable tensor
    bucket      c BUCKET elements, allocated by DeepSpeed for any model size
    kept        under ZeRO-3 the bucket (contiguous_gradients) and gradients, unless these are offloaded
    step        the rank's gradients, flattened, and in float32: (2 c + 4) A / W, the last only when c is not 4; ZeRO-3
                takes LIVE elements at a time; only the gradients when offloaded
    critic      its weights, optimizer and what ZeRO-3 keeps as above, all trainable; a critic of another model counts
                as if it had this size
    """
    settings = config.trainer
    ranks, stage, offload = settings.ranks, settings.zero_stage, settings.offload_optimizer
    own = size.trained / ranks
    held = size.parameters + (size.trained if config.model.lora_configs else 0)
    weights, optimizer, kept = _kept(held, size.trained, settings, config.algorithm.optimizer.state_bytes, element)
    above = activations(size, config, element)
    if at(config, "model.load_in_4bit"):
        weights -= size.linear * (element - 0.5 - element / BLOCK)
        above += element * size.matrix
    gradients = element * (own if stage >= 2 else size.trained)
    if offload and stage >= 2:
        gradients = element * min(size.largest, size.trained)
    at_once = min(own, LIVE) if stage == 3 else own
    single = 0 if element == 4 else 4
    of_step = (0 if kept else element * own) + (element + single) * at_once
    return Training(
        weights=weights, optimizer=optimizer, gradients=gradients, activations=above,
        bucket=element * BUCKET, step=gradients if offload else of_step,
        critic=sum(_kept(size.critic, size.critic, settings, settings.critic.optimizer.state_bytes, element))
        if config.algorithm.has_critic else 0,
        gathered=element * min(held, max(LIVE, size.gathered)) if stage == 3 else 0, kept=kept,
        process=CONTEXT + NCCL * (ranks > 1), leaves=weights - element * size.trained if leaves_gpu(config) else 0,
    )


def recomputes(size: Size, config: Config, element: int, room: float) -> bool:
    """Returns whether layers are recomputed. room: bytes of a GPU that the trainer may fill; decides `auto`."""
    asked = config.trainer.enable_gradient_checkpointing
    return training(size, config, element).peak > room if asked == "auto" else asked


def _kept(parameters: int, trained: int, settings: Trainer, state: float, element: int) -> tuple[float, float, float]:
    """Returns the bytes of weights, of the optimizer's state, and of the gradients and the bucket that ZeRO-3 keeps, of
    one DeepSpeed engine on one rank. state: bytes a trained weight."""
    offload, own = settings.offload_optimizer, trained / settings.ranks
    optimizer = 0 if offload else state * own
    if settings.zero_stage < 3:
        return element * parameters, optimizer, 0
    weights = 0 if settings.offload_param else element * parameters / settings.ranks
    return weights, optimizer, element * (BUCKET + (0 if offload else own))


def with_tower(size: Size, is_trained: bool, images: bool) -> Size:
    """Returns the size of a model in a stage. is_trained: the tower too; images: whether the stage shows it some."""
    size = replace(size, trained=size.parameters) if is_trained else size
    return size if images else replace(size, tower=None)


def activations(size: Size, config: Config, element: int) -> float:
    """Returns the peak bytes of the backward pass above the states: output head or last layer.

    Saved by the forward pass: `layer_tokens` for every layer, or only each layer's input, c h T, when layers are
    recomputed (`auto` counts as not); the last norm, (4 + 2c) h T. On top of that, the head (`head`), or in a layer the
    gradients (`_within`), and the layer itself when it is recomputed. An adapter saves A x of every layer it applies
    to, c rank T; the head is then frozen and has no gradient. Truncated sampling: the ids of what each token was
    sampled among, and in the head their logits. MLPs in parts (tiled_mlp_num_shards) keep no inner value; in the
    backward pass one part has them, those of the activation, and their gradients. A tower is counted as if all tokens
    stood for images, each of which the text's layers compute too; masks as booleans and as what attention adds, for
    rows of the longest length.
    """
    settings, adapters, compiled = config.trainer, config.model.lora_configs, compiles(config.trainer, True)
    shards = settings.tiled_mlp_num_shards
    layers_compiled = compiled and settings.ulysses_sequence_parallel_size == shards == 1
    tokens, recomputed = settings.max_token_len_per_gpu, settings.enable_gradient_checkpointing is True
    kept, backward = tokens * (4 + 2 * element) * size.width, 0.0
    for count, layer in size.layers:
        of_part = layer.tiled / shards if shards > 1 else 0
        layer = replace(layer, inner=layer.inner - layer.tiled) if shards > 1 else layer
        saved = layer_tokens(size, layer, element, settings.attention, layers_compiled)
        saved += sum(element * one.lora_rank * layer.adapted for one in adapters)
        kept += tokens * count * (element * size.width if recomputed else saved)
        within = max(_within(size, layer, element), 3 * element * of_part)
        backward = max(backward, tokens * (within + (saved if recomputed else 0)))
    chunk, own = min(settings.logprob_chunk_tokens, tokens), 0 if adapters else element
    given = not facts(at(config, "algorithm.algorithm_type")).on_rollouts
    sets = most_kept(config) if at(config, "buffer.explorer_input") else 0  # of recorded rows it is not known
    taught = not given and at(config, "algorithm.policy_loss_fn") is not None and config.algorithm.loss.needs_teacher
    whole = given or not (taught or sets or at(config, "model.top_k", -1) > 0)  # the kernel sums over all tokens
    of_head = kernel(size, tokens, own) if compiled and element == 2 and whole else head(size, chunk, own)
    of_head += OF_REST * taught * chunk * size.vocabulary
    found = kept + OF_SET * sets * tokens + max(of_head + OF_SCORED * sets * chunk, backward)
    if size.tower is None:
        return found
    if size.tower.masks:
        found += size.tower.masks * (1 + element) * tokens * min(tokens, config.model.longest)
    of_images = tokens * tower_tokens(size.tower, settings, element)
    return max(found, of_images) if settings.freeze_vision_tower else found + of_images


def tower_tokens(tower: Tower, settings: Trainer, element: int) -> float:
    """Returns the bytes that the tower takes for each token of an image.

    A layer has of each patch two norms, query, key, value and output of its attention, and of its gated MLP gate,
    activation, up and product: (8 + 8c) h + 4c inner. A frozen tower has one layer at once, before the text begins, and
    keeps nothing; a trained one keeps all layers, or of those that are recomputed their inputs and one layer. Pixels
    are in float32 and as a weight.
    """
    pixels = (4 + element) * tower.values
    layer = (8 + 8 * element) * tower.width + 4 * element * tower.inner
    if settings.freeze_vision_tower:
        return tower.patches * (layer + pixels)
    if settings.enable_gradient_checkpointing is True:
        return tower.patches * (tower.layers * element * tower.width + layer + pixels)
    return tower.patches * (tower.layers * layer + pixels)


def _within(size: Size, layer: Layer, element: int) -> float:
    """Returns the gradient bytes per token live at once in a layer's backward pass: of the MLP's inner values, of a
    norm in float32, or of the output of each chosen expert before and after weighting."""
    weighted = 4 if layer.float_experts else element
    return max(element * layer.inner, (16 + element) * size.width, layer.chosen * size.width * (2 * weighted + element))


def layer_tokens(size: Size, layer: Layer, element: int, attention: str = "auto", compiled: bool = False) -> float:
    """Returns the bytes per token that one layer saves for the backward pass.

    Norms: the input in float32, 4, normalised and scaled, 2c, for each normed entry; those of heads 4 + c. Attention:
    query, key, value and output, with key and value repeated for every query head (not by flash_attn), 4c times the
    heads' width, and 4 bytes a head of log-normalizers. MLP: the inner values and what their activation makes of them,
    2c. Experts: the router's probabilities and input in float32; for each chosen expert its input, gate, SiLU, up,
    product and output. A compiled layer keeps no float32 value of a norm and no output of the activation function: 2c
    for each normed entry, 1.5c for each inner one (gate, up, product).
    """
    repeated = size.value_width if size.latent or attention != "flash_attn" else size.key_value_width
    single = 0 if compiled else 4
    norms = (single + 2 * element) * layer.normed + (single + element) * layer.head_normed
    heads = 2 * element * (size.query_width + repeated) + 4 * size.heads
    router = 4 * (layer.experts + size.width) if layer.experts else 0
    chosen = layer.chosen * element * (2 * size.width + 4 * layer.expert_width)
    return norms + heads + (1.5 if compiled else 2) * element * layer.inner + router + chosen


def head(size: Size, chunk: int, element: int) -> float:
    """Returns the peak bytes of the output head's backward pass over a chunk of positions.
    element: bytes of an entry of its own gradient, 0 when the head is frozen.

    Five float32 tensors [chunk, V], 20 bytes an entry: the logits, the gradient that the gather returns, and the
    normalizer's, grad x exp(logits - log_normalizer), with the two it is made of. And the head's own gradient, c V h.
    """
    return 20 * chunk * size.vocabulary + element * size.embedding


def kernel(size: Size, tokens: int, element: int) -> float:
    """Returns the peak bytes of the output head's backward pass by the GPU kernel.

    The logits' gradient in parts of KERNEL_ENTRIES, 2 bytes; that of the hidden states in float32 twice and twice in 2
    bytes, 12 h T; and the head's own, c V h (stages/learner/engine/head_kernel.py).
    """
    return 2 * min(KERNEL_ENTRIES, tokens * size.vocabulary) + 12 * tokens * size.width + element * size.embedding


@dataclass(frozen=True)
class Rollout:
    """Bytes of an engine on each of its GPUs. share: weights and cache. weights: its part of the model.

    token: key/value cache of one token. number: engines that share the GPU.
    """

    share: float
    weights: float
    token: float
    number: int

    @property
    def tokens(self) -> int:
        """Returns the capacity of the key/value cache in tokens (vLLM's profiling overhead is not known here)."""
        return max(math.floor((self.share - self.weights) / max(self.token, 1)), 0)  # Mamba caches no token


def rollout(size: Size, config: Config, element: int, gib: float) -> Rollout:
    """Returns the memory of an engine on each of its GPUs of `gib`: its part of `gpu_memory_utilization`, or weights
    and `kv_cache_mib`; c P / t of it are weights. (Room for an adapter is less than a hundredth of that, and left out.)

    One token's cache: key and value of every layer, 2 c L times the key/value heads of this GPU (at least one) times
    their width; of latent attention the one narrow vector, c L times its width, on each GPU.
    """
    settings, total, whole = config.explorer.rollout_model, gib * GIB, element * size.parameters
    parts, number = settings.tensor_parallel_size, settings.on_gpu(whole, total)
    cached = size.latent or 2 * math.ceil(size.key_value_heads / parts) * size.head_width
    share = settings.gpu_memory_utilization * total / number
    if settings.sizes_cache:
        share = whole / parts + (settings.kv_cache_mib << 20)
    return Rollout(share, whole / parts, element * sum(count for count, _ in size.layers) * cached, number)


def engines(config: Config, total: float, weights: float) -> float:
    """Returns the bytes that engines hold on a GPU of `total`; none those of a server. weights: the model's."""
    settings = config.explorer.rollout_model
    if settings.engine_type == "openai":
        return 0
    return settings.held(weights, total) + sum(besides(config, total, weights).values())


def besides(config: Config, total: float, weights: float) -> dict[str, float]:
    """Returns the bytes of a GPU of `total` that engines hold besides what their settings give them, by their use."""
    parallel = config.explorer.rollout_model.tensor_parallel_size > 1
    return {"log-probs of max_num_seqs sequences": kept_logprobs(config), "buffers of NCCL": NCCL * parallel,
            "an engine that works in turns with a trainer": beyond_share(config, total, weights)}


def beyond_share(config: Config, total: float, weights: float) -> float:
    """Returns the bytes that one vllm engine and the trainer, in turns on a GPU, were measured to hold besides the
    share that the engine measures for itself; several have a reserve for it (workflows/engines/open.py)."""
    return ALONE * (measures_cache(config, total, weights) and config.mode == "colocate" and config.kind.trains)


def measures_cache(config: Config, total: float, weights: float) -> bool:
    """Returns whether vllm sizes its cache by what is free on its GPU when it starts."""
    settings = config.explorer.rollout_model
    return (settings.engine_type == "vllm" and not settings.sizes_cache and settings.on_gpu(weights, total) == 1
            and not may_overlap(config))


def asleep(config: Config, total: float, weights: float) -> float:
    """Returns the bytes that vllm engines on the trainer's GPU of `total` keep asleep. weights: the model's."""
    if at(config, "mode") != "colocate" or not config.kind.engine:
        return 0
    settings = config.explorer.rollout_model
    return ASLEEP * settings.on_gpu(weights, total) if settings.engine_type == "vllm" else 0


def beside(config: Config, total: float, weights: float) -> float:
    """Returns the bytes that engines hold on a GPU of `total` while the trainer works there. weights: the model's."""
    return engines(config, total, weights) if must_overlap(config) else asleep(config, total, weights)


def kept_logprobs(config: Config) -> int:
    """Returns the bytes of sampled log-probs that the engines of a GPU hold besides `gpu_memory_utilization` until
    their requests end (workflows/engines/kept_logprobs.py): 4 for each position of max_num_seqs sequences, which they
    divide among them, two positions more than the longest has."""
    settings = config.explorer.rollout_model
    return 4 * settings.max_num_seqs * (config.model.longest + 2) if settings.engine_type == "vllm" else 0
