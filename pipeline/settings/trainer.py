"""The sections `trainer` and `synchronizer`: how weights are trained, and how they reach the explorer."""

from collections.abc import Iterator
from typing import Any

from ouroboros.pipeline.settings.algorithm import Critic
from ouroboros.pipeline.settings.setting import LIMIT, Section, at, rule, section, setting
from ouroboros.pipeline.settings.train_batch import taken_groups
from ouroboros.pipeline.store.errors import Problem


class ReferenceUpdate(Section):
    """A reference that follows the policy (TR-DPO, arXiv:2404.09656; TRL's sync_ref_model)."""

    acts = "never"
    interval: int | None = setting(None, "train batches between two updates of the reference by the policy; null: it "
                                         "stays the model that the stage begins with", ge=1)
    mix: float = setting(1.0, "share of the policy's weights in an update; the rest are the reference's own", gt=0,
                         le=1)


class Trainer(Section):
    acts = "trainer"
    zero_stage: int = setting(1, "DeepSpeed ZeRO stage", choices=(1, 2, 3), how=True, acts="never")
    ranks: int = setting(1, "number of data-parallel processes (one GPU each)", ge=1, how=True, acts="never")
    max_token_len_per_gpu: int = setting(16384, "micro-batch budget, tokens per rank", ge=1, how=True)
    ulysses_sequence_parallel_size: int = setting(
        1, "ranks that split each micro-batch between them (DeepSpeed Ulysses), which then has as many times "
           "trainer.max_token_len_per_gpu tokens, so that a sequence may; must divide trainer.ranks", ge=1, how=True)
    tiled_mlp_num_shards: int = setting(
        1, "parts of a micro-batch's tokens that an MLP computes one after another, and again in the backward pass "
           "(TiledMLP), so that no inner value of it is kept; layers are not compiled then; 1: at once; not with "
           "zero_stage=3", ge=1, how=True)
    grad_clip: float = setting(1.0, "largest global gradient norm; 0 = no clipping", ge=0)
    save_interval: int = setting(100, "optimizer steps between checkpoints; the last step is always saved",
                                 ge=1, how=True)
    max_checkpoints_to_keep: int | None = setting(2, "number of checkpoints to keep, older ones are deleted; null: all "
                                                     "are kept", ge=1,
                                                  how=True)
    keep_every: int | None = setting(None, "optimizer steps between checkpoints that are kept besides these, so that "
                                           "another run can begin there; null: none", ge=1, how=True)
    attention: str = setting("auto", "packed attention; auto: flash_attn if installed, else varlen on GPU, else padded",
                             choices=("auto", "flash_attn", "varlen", "padded"), how=True)
    packing: str = setting(
        "auto", "how rows go through a model; packed: as one sequence; rows: by the family's own code in transformers, "
        "padded; auto: packed where that is proven to give the same log-probs", choices=("auto", "packed", "rows"),
        how=True, acts="never")
    use_dynamic_bsz: bool = setting(True, "micro-batches are packed to a budget of tokens, never to a number of rows",
                                    choices=(True,), how=True)
    enable_gradient_checkpointing: bool | str = setting(
        "auto", "recompute activations in the backward pass; auto: where without it the estimated memory exceeds the "
        "GPU's", choices=("auto", True, False), how=True)
    compile: bool | str = setting("auto", "torch.compile of decoder layers, and a kernel for the output head; auto: on "
                                  "GPUs; not with zero_stage=3", choices=("auto", True, False), how=True)
    share_prompts: bool | str = setting(
        "auto", "rows that begin with the same tokens (a prompt, a system prompt, turns before a fork) compute them "
        "once in a micro-batch; auto: where that saves more than it costs",
        choices=("auto", True, False), how=True)
    overlap: bool | str = setting(
        "auto", "engines answer while the trainer trains on the same devices (mode=colocate, "
        "synchronizer.sync_offset at least 1); auto: where the estimated memory of both fits the GPUs; otherwise, and "
        "with false, they take turns", choices=("auto", True, False), how=True)
    offload_optimizer: bool = setting(False, "ZeRO-Offload: optimizer states in host memory", how=True)
    ppo_epochs: int = setting(1, "passes over each train batch; with more, ratios to the old log-probs move, which the "
                                 "clip bounds", ge=1)
    ppo_mini_batch_size: int | None = setting(
        None, "rows of one optimizer step, fewer in the last of a pass; learning rate, checkpoints and steps go by "
              "train batches; null: the whole train batch", ge=1)
    shuffle_mini_batches: bool = setting(False, "rows are in their own order in each pass, by the seed; false: "
                                                "in that of the schedule")
    reference_update: ReferenceUpdate = section(ReferenceUpdate)
    freeze_vision_tower: bool = setting(True, "keeps what a model reads images with as it is, and trains the text "
                                              "alone; false: both, without an adapter",
                                        acts="never")
    step_timeout_seconds: float | None = setting(
        None, "time without a sign of life after which the trainer counts as hanging and its stage ends, from the "
              "second step; null: 20 times the median of what it does, at least 120; loading and first steps have "
              "at least 3600", **LIMIT, how=True)
    critic: Critic = section(Critic)
    critic_warmup: int = setting(0, "first optimizer steps, in which only the critic learns (ppo)", ge=0)
    offload_param: bool = setting(False, "parameters in host memory too; zero_stage=3 only", how=True)
    logprob_chunk_tokens: int = setting(4096, "positions per chunk of the output head", ge=1, how=True)

    @rule
    def _offload(self):
        if self.offload_param and self.zero_stage != 3:
            yield Problem("offload_param", f"with zero_stage={self.zero_stage}: only stage 3 partitions the "
                          "parameters and can keep them in host memory.", "Set trainer.zero_stage=3.", found=True)

    @rule
    def _shuffled(self):
        if self.shuffle_mini_batches and self.ppo_mini_batch_size is None:
            yield Problem("shuffle_mini_batches", "without ppo_mini_batch_size the whole train batch is one optimizer "
                          "step, in which the order of rows means nothing.", "Set a size, or false.", found=True)

    @rule
    def _split(self):
        size = self.ulysses_sequence_parallel_size
        if self.ranks % size:
            yield Problem("ulysses_sequence_parallel_size", f"must divide trainer.ranks={self.ranks}.", found=size)
        if size > 1 and self.packing == "rows":
            yield Problem("packing", f"with ulysses_sequence_parallel_size={size}, which splits packed rows.",
                          "Set auto or packed.", found="rows")

    @rule
    def _tiled(self):
        if self.tiled_mlp_num_shards > 1 and self.zero_stage == 3:
            yield Problem("tiled_mlp_num_shards", "with zero_stage=3 the weights of a layer are gathered for the "
                          "layer as a whole, and its MLP is not computed in parts.", "Set 1, or zero_stage=2.",
                          found=self.tiled_mlp_num_shards)

    @rule
    def _compiled(self):
        if self.compile is True and self.zero_stage == 3:
            yield Problem("compile", "with zero_stage=3 nothing is compiled: a compiled layer would not fetch its "
                          "weights.", "Set auto or false.", found=True)


# entries of the logits' gradient that the GPU kernel of the output head keeps at once (the memory estimate counts them)
KERNEL_ENTRIES = 2**28


def compiles(settings: Any, gpu: bool) -> bool:
    """Returns whether a trainer compiles its models. settings: the section `trainer`.

    ZeRO-3 fetches the weights of each submodule by hooks, which a compiled layer would not run.
    """
    return settings.zero_stage < 3 and (gpu if settings.compile == "auto" else settings.compile)


def several_steps(settings: Any) -> bool:
    """Returns whether a train batch may have more than one optimizer step. settings: the section `trainer`."""
    return settings.ppo_epochs > 1 or settings.ppo_mini_batch_size is not None


def attention_of(asked: str, gpu: bool, flash: bool) -> str:
    """Returns the packed attention that runs. asked: trainer.attention. flash: whether flash-attn is installed."""
    if asked != "auto":
        return asked
    return "padded" if not gpu else "flash_attn" if flash else "varlen"


TRAINER_DRIVEN, EXPLORER_DRIVEN = "trainer_driven", "explorer_driven"


def is_driven(config: Any) -> bool:
    """Returns whether weights are handed over when one side says so. config: as for `may_overlap`."""
    return at(config, "synchronizer.sync_style", "fixed") != "fixed"


def runs_ahead(config: Any) -> bool:
    """Returns whether the explorer may make a step while the trainer works. config: as for `may_overlap`."""
    return is_driven(config) or at(config, "synchronizer.sync_offset", 0) > 0


def may_overlap(config: Any) -> bool:
    """Returns whether engines may answer while a trainer on the same devices trains: not where it waits for them.

    config: the settings of a stage, by attribute; those of stages without engines or trainer may lack some.
    """
    return (at(config, "mode") == "colocate" and runs_ahead(config)
            and at(config, "trainer.overlap", False) is not False)


def must_overlap(config: Any) -> bool:
    """Returns whether they do, or their stage ends. config: as for `may_overlap`."""
    return may_overlap(config) and at(config, "trainer.overlap") is True


def compares_routings(config) -> bool:
    """Returns whether the engine of a stage says the experts of each sampled token, of a model that has experts. vLLM
    reserves memory for that, so it does where they are replayed."""
    replays = at(config, "algorithm.enable_router_replay")  # None: no setting of this stage
    if replays is None or not config.kind.is_online:
        return False
    engine = config.explorer.rollout_model.engine_type
    return (replays or engine == "transformers") and (
        config.algorithm.sample_strategy != "mix" and not config.explorer.partial_rollout)


class Synchronizer(Section):
    acts = "never"
    sync_method: str = setting("checkpoint", "weights go through files", choices=("checkpoint",))
    sync_style: str = setting(
        "fixed", "when the explorer gets weights; fixed: by the step numbers alone; trainer_driven: each of its steps "
                 "begins with the newest that the trainer published; explorer_driven: the explorer asks, and gets "
                 "those of the last whole trainer step. With the latter two, rows depend on time",
        choices=("fixed", TRAINER_DRIVEN, EXPLORER_DRIVEN))
    sync_interval: int = setting(1, "trainer steps between two publications of weights; with explorer_driven explorer "
                                    "steps between two requests", ge=1)
    sync_offset: int = setting(0, "explorer steps that the explorer may run ahead of the trainer, with fixed", ge=0)
    max_staleness: int | None = setting(
        None, "trainer steps by which the weights of a new row may be behind when it is trained on, with "
              "trainer_driven and explorer_driven: the explorer waits for newer ones; null: any number", ge=0)
    sync_timeout: float = setting(1200.0, "longest wait for the other side, seconds", **LIMIT, how=True)
    probe_tolerance: float | None = setting(
        None, "largest allowed |engine - trainer| log-prob on the probe; null: in the mean and at the 95th percentile "
              "1e-3 in float32, 0.05 and 0.2 in bfloat16, or four times what rounding changes in the trainer",
        gt=0, how=True)
    publish: str = setting("auto", "what a publication of weights writes; delta: the elements that changed; full: all; "
                                   "auto: deltas in bfloat16, unless more than a fifth of the elements changed",
                           choices=("auto", "delta", "full"), how=True)
    anchor_interval: int = setting(20, "largest number of versions from one that is written whole to the next; sooner "
                                       "where the deltas since it have become larger than it", ge=1, how=True)
    keep: str = setting("last", "versions that stay on disk; last: those that the explorer still needs; anchors: also "
                        "those written whole; all: every one", choices=("last", "anchors", "all"), how=True)


def leaves_gpu(config: Any) -> bool:
    """Returns whether frozen weights in 4 bits leave the trainer's GPU while engines answer there in turns with it.
    config: as for `may_overlap`."""
    return bool(at(config, "model.load_in_4bit") and at(config, "mode") == "colocate" and config.kind.engine
                and not must_overlap(config))


def publishes_deltas(config: Any, dtype: str) -> bool:
    """Returns whether a stage may publish deltas. dtype: of its weights.

    In float32 nearly every element changes in a step; an adapter is small.
    """
    publish = config.synchronizer.publish
    return not config.model.lora_configs and (publish == "delta" or (publish == "auto" and dtype != "float32"))


# ------------------------------------------- rules for an explorer and a trainer that work at once; c: a whole Config


def over_rollout(c) -> Iterator[Problem]:
    """A ratio leaves out whole groups."""
    ratio, asked = c.explorer.over_rollout.ratio, c.buffer.batch_size
    if c.kind.explores and 0 < ratio < 1 and taken_groups(asked, ratio) == asked:
        yield Problem("explorer.over_rollout.ratio", f"is less than one of the buffer.batch_size={asked} tasks of a "
                      f"step: all of them are waited for. Needed 0, or at least {1 / asked:.3g}.", found=ratio)


def partial_rollout(c) -> Iterator[Problem]:
    """Newer weights can come during a step where a trainer works meanwhile, one explorer step or more behind."""
    engine, offset = c.explorer.rollout_model.engine_type, c.synchronizer.sync_offset
    if not c.kind.explores or not c.explorer.partial_rollout:
        return
    if c.mode != "both" and not (c.mode == "colocate" and c.trainer.overlap is True):
        yield Problem("explorer.partial_rollout", f"with mode={c.mode}, where no weights are published during a step.",
                      "Set mode=both, or mode=colocate with trainer.overlap=true, or leave it out.", found=True)
    elif not runs_ahead(c):
        yield Problem("explorer.partial_rollout", f"with synchronizer.sync_offset={offset}: the trainer waits for the "
                      "whole step, so no newer weights come meanwhile.", "Set synchronizer.sync_offset to 1 or more.",
                      found=True)
    elif c.synchronizer.sync_style == EXPLORER_DRIVEN:
        yield Problem("explorer.partial_rollout", f"with synchronizer.sync_style={EXPLORER_DRIVEN}: the explorer "
                      "asks for weights between its steps, so none come during one.", "Set trainer_driven, or leave it "
                      "out.", found=True)
    elif engine == "transformers":
        yield Problem("explorer.partial_rollout", f"with explorer.rollout_model.engine_type={engine}, which computes "
                      "whole batches and cannot interrupt an answer.", "Set vllm.", found=True)


def overlap(c) -> Iterator[Problem]:
    """Engines and a trainer on the same devices work at once where the explorer may run ahead."""
    if c.kind.is_online and c.trainer.overlap is True and not may_overlap(c):
        yield Problem("trainer.overlap", f"with mode={c.mode} and synchronizer.sync_offset="
                      f"{c.synchronizer.sync_offset}: it is for engines on the trainer's devices that may run ahead.",
                      "Set mode=colocate and synchronizer.sync_offset to 1 or more, or leave it out.", found=True)


def syncs(c) -> Iterator[Problem]:
    """Where the step numbers decide, they bound staleness; where one side decides, both work at once."""
    style, bound = c.synchronizer.sync_style, c.synchronizer.max_staleness
    if not c.kind.is_online:
        return
    if not is_driven(c):
        if bound is not None:
            yield Problem("synchronizer.max_staleness", f"with synchronizer.sync_style={style}, by which the step "
                          "numbers say how old rollouts are.", "Leave it out, or set trainer_driven or "
                          "explorer_driven.", found=bound)
        return
    if c.mode != "both" and not (c.mode == "colocate" and c.trainer.overlap is True):
        yield Problem("synchronizer.sync_style", f"with mode={c.mode}, where the two sides may take turns, so neither "
                      "says when.", "Set mode=both, or mode=colocate with trainer.overlap=true, or fixed.", found=style)


RULES = (over_rollout, partial_rollout, overlap, syncs)
