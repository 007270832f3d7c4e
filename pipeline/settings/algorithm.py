"""The section `algorithm`, and the settings of PPO's critic: part of the schema in pipeline/settings/config.py."""

from functools import cached_property
from operator import attrgetter
from typing import Any

from ouroboros.pipeline.settings import algorithms, declared
from ouroboros.pipeline.settings.setting import Section, rule, section, setting
from ouroboros.pipeline.store.errors import Problem

KL_ESTIMATORS, ADVANTAGES = tuple(declared.KL_ESTIMATORS), tuple(declared.ADVANTAGES)
POLICY_LOSSES, SAMPLE_STRATEGIES = tuple(declared.POLICY_LOSSES), tuple(declared.SAMPLE_STRATEGIES)


class Optimizer(Section):
    """AdamW (Loshchilov & Hutter, 2019), its moments in 32 or 8 bits, or Muon (Jordan et al., 2024) for matrices."""

    optimizer_type: str = setting(
        "adamw", "adamw8bit keeps AdamW's moments in 8 bits, 2 bytes a weight instead of 8 (Dettmers et al., 2022); "
                 "muon takes orthogonalised momentum for the matrices of layers, and AdamW for embeddings, output head "
                 "and vectors, both with lr, and needs trainer.zero_stage 1 or 2 without offload_optimizer",
        choices=("adamw", "adamw8bit", "muon"), acts="never")
    # bytes a trained weight: its float32 copy and two moments, which adamw8bit has in codes, with two scales a block
    state_bytes = cached_property(lambda self: 6 + 8 / 256 if self.optimizer_type == "adamw8bit" else 12)
    fused: bool | None = setting(None, "AdamW as one kernel, in muon too; null: on GPUs; adamw8bit has none")
    lr: float = setting(1e-6, "peak learning rate; at 0 nothing is learned", ge=0, le=1)
    betas: list[float] = setting([0.9, 0.999], "decay rates of the first and second moment")
    eps: float = setting(1e-8, "constant added to AdamW's denominator", gt=0)
    weight_decay: float = setting(0.01, "decoupled weight decay", ge=0)
    lr_scheduler_type: str = setting("constant", "shape of the learning rate after the warmup; wsd stays at lr and "
                                                 "falls at the end",
                                     choices=("constant", "cosine", "linear", "wsd"))
    lr_warmup_steps: int = setting(0, "optimizer steps of linear warmup from 0", ge=0)
    lr_warmup_steps_ratio: float = setting(0.0, "optimizer steps of linear warmup as a share of all steps, rounded up; "
                                                "instead of lr_warmup_steps",
                                           ge=0, le=1)
    lr_decay_steps: int = setting(0, "number of last optimizer steps, in which wsd falls", ge=0)
    lr_decay_steps_ratio: float = setting(0.1, "last optimizer steps, in which wsd falls, as a share of all steps; "
                                               "lr_decay_steps takes precedence",
                                          ge=0, le=1)
    min_lr_ratio: float = setting(0.0, "learning rate that cosine, linear and wsd would reach one step after the last, "
                                       "as a share of lr", ge=0, le=1)

    @rule
    def _decay_rates(self):
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            yield Problem("betas", "needed two numbers, at least 0 and less than 1.", found=self.betas)

    @rule
    def _one_kernel(self):
        if self.fused and self.optimizer_type == "adamw8bit":
            yield Problem("fused", "with optimizer_type=adamw8bit, which has no such kernel.", "Set null.", found=True)

    @rule
    def _warmup(self):
        if self.lr_warmup_steps and self.lr_warmup_steps_ratio:
            yield Problem("lr_warmup_steps", f"excludes lr_warmup_steps_ratio={self.lr_warmup_steps_ratio}.",
                          "Set one to 0.", found=self.lr_warmup_steps)


class CriticOptimizer(Optimizer):
    lr: float = setting(1e-5, "peak learning rate; at 0 nothing is learned", ge=0, le=1)


class Critic(Section):
    """PPO's value model; only algorithm_type=ppo has one."""

    cliprange_value: float = setting(0.5, "largest distance by which a value may move from the one that the step began "
                                          "with", gt=0)
    optimizer: CriticOptimizer = section(CriticOptimizer)


class RolloutCorrection(Section):
    """Weights for what the engine sampled with other probabilities than the trainer's (operators/correction.py)."""

    level: str | None = setting(None, "whether the importance weight, trainer over engine, is of a token or of a whole "
                                      "response; null: the algorithm's own (none in opmd, asymre and rec, which are "
                                      "made for rows of other policies), else token; but none where the loss's ratio "
                                      "is to the rollout's log-probs (topr, m2po, decoupled_ppo; any loss that takes "
                                      "old_logprobs with bypass_old_logprobs=true), since it spans the gap already, "
                                      "or in forward_kl_topk, which reads no sampled token. Rows of an expert have "
                                      "weight 1",
                                choices=("none", "token", "sequence"))
    mode: str = setting("truncate", "what happens to an importance weight above the threshold",
                        choices=("truncate", "mask"))
    threshold: float = setting(2.0, "largest importance weight, trainer / engine probability, that counts in full",
                               ge=1)


class RolloutRejection(Section):
    """Rollouts left out of the loss where trainer and engine are too far apart (operators/correction.py).

    Bounds by veRL's names: of a token, or of a whole response by the sum, the mean or the largest of its tokens.
    """

    token_k1: list[float] | None = setting(None, "[low, high] of engine / trainer probability of a token; null: no "
                                                 "bound")
    token_k2: float | None = setting(None, "largest half squared log ratio of a token; null: no bound", gt=0)
    token_k3: float | None = setting(None, "largest k3 (ratio - 1 - log ratio) of a token; null: no bound", gt=0)
    seq_sum_k1: list[float] | None = setting(None, "[low, high] of engine / trainer probability of a response; null: "
                                                   "no bound")
    seq_sum_k2: float | None = setting(None, "largest sum of k2 over a response; null: no bound", gt=0)
    seq_sum_k3: float | None = setting(None, "largest sum of k3 over a response; null: no bound", gt=0)
    seq_mean_k1: list[float] | None = setting(None, "[low, high] of the geometric mean of engine / trainer probability "
                                                    "over a response; null: no bound")
    seq_mean_k2: float | None = setting(None, "largest mean of k2 over a response; null: no bound", gt=0)
    seq_mean_k3: float | None = setting(None, "largest mean of k3 over a response; null: no bound", gt=0)
    seq_max_k2: float | None = setting(None, "largest k2 of a token, beyond which its response is left out; null: no "
                                             "bound", gt=0)
    seq_max_k3: float | None = setting(None, "largest k3 of a token, beyond which its response is left out; null: no "
                                             "bound", gt=0)

    @rule
    def _bounds(self):
        for name in ("token_k1", "seq_sum_k1", "seq_mean_k1"):
            if (pair := getattr(self, name)) is not None and not (len(pair) == 2 and 0 < pair[0] <= pair[1]):
                yield Problem(name, "needed two numbers above 0, the lower one first.", found=pair)

    @property
    def bounds(self) -> dict[str, float | list[float]]:
        """Those that are set, by name."""
        return {name: value for name, value in self if value is not None}


class Algorithm(Section):
    """What is trained, and its parts. Null: the algorithm's own, from conf/algorithm/<algorithm_type>.yaml."""

    acts = "trainer"
    algorithm_type: str = setting("grpo", "name in conf/algorithm/, which fills what is null here, or "
                                  "package.module:Class of your own (docs/add-an-algorithm.md)",
                                  choices=algorithms.names, meant=algorithms.meant, own=True, acts="never")
    repeat_times: int | None = setting(None, "rollouts per task, a group; null: the algorithm's own", ge=1,
                                       acts="never")
    max_resample_rounds: int | None = setting(
        None, "rounds of fresh tasks, in a step, for groups that teach nothing because all their responses are equally "
              "good; 0: they stay in the batch; null: the algorithm's own, 0 where it has none", ge=0, acts="explorer")
    resample_metric: str | None = setting(
        None, "what the responses of a group are equal by; null: accuracy where the reward function gives one, else "
              "reward", choices=("accuracy", "reward"), acts="explorer")
    greedy_baseline: bool | None = setting(None, "one greedy response to each task besides the sampled ones, never "
                                                 "trained: column baseline_reward of its group, which remax needs; "
                                                 "null: the algorithm's own", acts="explorer")
    sample_strategy: str | None = setting(
        None, "which rows a train batch is made of: default: those of the schedule, in its order; mix: rows of an "
        "expert besides them; staleness_control: without those that are too old; null: the algorithm's own, else "
        "default", choices=SAMPLE_STRATEGIES, acts="never")
    sample_strategy_args: dict[str, Any] = setting({}, "arguments of sample_strategy, merged over its own defaults",
                                                   acts="never")
    reward_weights: dict[str, float] = setting(
        {}, "factors of components of the reward, by name, in what advantages see; 1 for all others; tables and "
            "resample_metric keep the plain sum")
    advantage_fn: str | None = setting(None, "name in operators/advantages; null: the algorithm's own",
                                       names=ADVANTAGES)
    advantage_fn_args: dict[str, Any] = setting({}, "arguments of advantage_fn, merged over its own defaults")
    policy_loss_fn: str | None = setting(None, "name in operators/losses; null: the algorithm's own",
                                         names=POLICY_LOSSES)
    policy_loss_fn_args: dict[str, Any] = setting({}, "arguments of policy_loss_fn, merged over its own defaults")
    loss_agg_mode: str | None = setting(
        None, "how the loss of tokens becomes one number, over the whole train batch; null: the algorithm's "
        "own, else as the policy loss's paper has it; seq-mean-token-sum-norm divides by model.max_response_tokens",
        choices=tuple(declared.AGGREGATIONS))
    kl_loss_fn: str | None = setting(
        None, "KL to the reference, the model that the stage begins with, as a part of the loss; name in "
        "operators/kl.py; null: the algorithm's own", names=KL_ESTIMATORS)
    kl_loss_fn_args: dict[str, Any] = setting(
        {}, "arguments of kl_loss_fn; kl_coef 0.001; adaptive false: true steers it towards target_kl, nats a token, "
            "over `horizon` rows")
    kl_penalty_fn: str | None = setting(None, "KL to the reference that is subtracted from the reward before the "
                                              "advantage is computed; name in operators/kl.py; null: the algorithm's "
                                              "own",
                                        names=KL_ESTIMATORS)
    kl_penalty_fn_args: dict[str, Any] = setting({}, "arguments of kl_penalty_fn, the same as those of kl_loss_fn")
    entropy_loss_fn: str | None = setting(None, "entropy bonus; name in operators/entropy.py",
                                          names=tuple(declared.ENTROPY_LOSSES))
    entropy_loss_fn_args: dict[str, Any] = setting({}, "arguments of entropy_loss_fn; entropy_coef 0.0; the entropy is "
                                                       "reported in any case")
    bypass_old_logprobs: bool = setting(True, "old log-probs of the loss: true: the rollout's; false: scored by the "
                                              "trainer before the step, one forward more; the ratio of a loss "
                                              "is then 1 at the first update of a train batch, which is the only one "
                                              "without trainer.ppo_epochs or ppo_mini_batch_size")
    rollout_correction: RolloutCorrection = section(RolloutCorrection)
    rollout_rejection: RolloutRejection = section(RolloutRejection)
    top_entropy_quantile: float = setting(
        1.0, "share of the tokens of rollouts that teach, those of the highest entropy in the batch of an optimizer "
             "step (0.2: the 80/20 rule); below 1 a forward more", gt=0, le=1)
    mask_truncated_completions: bool = setting(
        False, "attempts whose last reply was cut at its longest length have no part in the loss; they are rewarded "
               "and compared as ever")
    enable_router_replay: bool = setting(
        False, "the trainer computes each sampled token with the experts that the engine gave it to, of a model with "
               "experts; mode=both or colocate", acts="never")
    optimizer: Optimizer = section(Optimizer)

    @cached_property
    def facts(self) -> algorithms.Facts:
        """Returns what its type declares."""
        return algorithms.facts(self.algorithm_type)

    data, on_rollouts, on_pairs, on_given_tokens, scores_responses = (
        property(attrgetter(f"facts.{name}")) for name in algorithms.Facts._fields)

    @cached_property
    def advantage(self) -> type[declared.Advantage]:
        """Returns what the advantage declares; a user's function: nothing."""
        return declared.ADVANTAGES.get(self.advantage_fn or "", declared.Advantage)

    @cached_property
    def loss(self) -> type[declared.Loss]:
        """Returns what the policy loss declares; a user's function: nothing."""
        return declared.POLICY_LOSSES.get(self.policy_loss_fn or "", declared.Loss)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Returns columns that are computed for the advantage: values, teacher_logprobs, entropies,
        mean_scores, baseline_reward."""
        own = algorithms.own_class(vars(self).get("algorithm_type"))
        return (*self.advantage.reads, *getattr(own, "reads", ()))

    has_critic = cached_property(lambda self: "values" in self.reads)
    has_teacher = cached_property(lambda self: "teacher_logprobs" in self.reads)
