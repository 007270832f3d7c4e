"""What the learner minimises, in plain Python, a token at a time, as the papers write it, to check gradients against.

Nothing here shares code with `operators`. An objective is a function

    objective(t, new, held, batch, **arguments) -> (loss of token t, the branch that it took)

new: [N] log-probs that the gradient is taken by. held: [N] the same log-probs, as constants: whatever a paper does not
differentiate (a stop-gradient, an indicator, a weight) reads these. Arguments have the names and the defaults that the
configuration has. So a central difference moves `new` alone, and a stop-gradient in the wrong place shows.
"""

import math
from dataclasses import dataclass


@dataclass
class Batch:
    """N tokens in rows; rows 2k and 2k + 1 are a pair. rows: the tokens of each row; row: [N] the row of each token."""

    rows: list[list[int]]
    row: list[int]
    old: list[float]
    prox: list[float]
    ref: list[float]
    advantages: list[float]
    is_expert: list[bool]
    step: int

    def mean(self, t: int, values) -> float:
        """Of values(j) over the tokens j of the row of token t."""
        tokens = self.rows[self.row[t]]
        return sum(values(j) for j in tokens) / len(tokens)


def differences(function, point: list[float], step: float = 1e-5) -> list[float]:
    """The gradient of function(point) by central differences."""
    found = []
    for i in range(len(point)):
        ahead, behind = ([x + sign * step * (i == j) for j, x in enumerate(point)] for sign in (1, -1))
        found.append((function(ahead) - function(behind)) / (2 * step))
    return found


def bounded(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def surrogate(ratio: float, a: float, low: float, high: float, most: float = math.inf) -> tuple[float, str]:
    """-min(ratio A, clip(ratio) A), the dual clip where A < 0."""
    free, clipped = ratio * a, bounded(ratio, 1 - low, 1 + high) * a
    if a < 0 and min(free, clipped) < most * a:
        return -most * a, "dual"
    if clipped < free:
        return -clipped, "above" if ratio > 1 else "below"
    return -free, "free"


# ------------------------------------------------------------------------------------------------- clipped ratios


def ppo(t, new, held, b, clip_range=0.2, clip_range_low=None, clip_range_high=None, clip_ratio_c: float | None = 3.0,
        enable_sequence_masking=False, delta_sequence_masking=0.1, fallback_to_policy_gradient=False):
    old = held if fallback_to_policy_gradient else b.old
    low = clip_range if clip_range_low is None else clip_range_low
    high = clip_range if clip_range_high is None else clip_range_high
    if enable_sequence_masking and b.advantages[t] < 0 and b.mean(t, lambda j: old[j] - held[j]) > (
            delta_sequence_masking):
        return 0.0, "masked"
    most = math.inf if clip_ratio_c is None else clip_ratio_c
    return surrogate(math.exp(new[t] - old[t]), b.advantages[t], low, high, most)


def covariance(t, held, b) -> float:
    return (b.advantages[t] - sum(b.advantages) / len(held)) * (held[t] - sum(held) / len(held))


def clip_cov(t, new, held, b, clip_range=0.2, clip_range_low=None, clip_range_high=None, clip_cov_ratio=1.0,
             clip_cov_lb=1.0, clip_cov_ub=5.0):
    """All tokens between the bounds."""
    low = clip_range if clip_range_low is None else clip_range_low
    high = clip_range if clip_range_high is None else clip_range_high
    loss, branch = surrogate(math.exp(new[t] - b.old[t]), b.advantages[t], low, high)
    if branch == "free" and clip_cov_lb < covariance(t, held, b) < clip_cov_ub:
        return 0.0, "left-out"
    return loss, branch


def kl_cov(t, new, held, b, kl_cov_ratio=2e-4, ppo_kl_coef=1.0):
    count = max(1, int(kl_cov_ratio * len(held)))
    largest = sorted(range(len(held)), key=lambda j: -covariance(j, held, b))[:count]
    change = new[t] - b.old[t]
    term = ppo_kl_coef * abs(change) if t in largest else 0.0
    return -b.advantages[t] * math.exp(change) + term, "held" if t in largest else "free"


def decoupled_ppo(t, new, held, b, clip_range=0.2, behave_weight_cap=math.inf):
    weight = math.exp(b.prox[t] - b.old[t])
    loss, branch = surrogate(math.exp(new[t] - b.prox[t]), b.advantages[t], clip_range, clip_range)
    return min(weight, behave_weight_cap) * loss, "capped" if weight > behave_weight_cap else branch


def gmpo(t, new, held, b, clip_range=0.4, clip_range_low=None, clip_range_high=None):
    low = clip_range if clip_range_low is None else clip_range_low
    high = clip_range if clip_range_high is None else clip_range_high

    def clipped(j):
        change = new[j] - b.old[j]
        return min(change, high) if b.advantages[j] > 0 else max(change, -low)

    change = new[t] - b.old[t]
    branch = "free" if clipped(t) == change else "above" if change > 0 else "below"
    return -b.mean(t, lambda j: b.advantages[j]) * math.exp(b.mean(t, clipped)), branch


def dppo_tv(t, new, held, b, clip_range=0.15, clip_range_low=None, clip_range_high=None, clip_ratio_c=20.0):
    moved = math.exp(held[t]) - math.exp(b.old[t])
    return divergence(t, new, held, b, moved * (1 if b.advantages[t] > 0 else -1), clip_range, clip_range_low,
                      clip_range_high, clip_ratio_c)


def dppo_kl(t, new, held, b, clip_range=0.05, clip_range_low=None, clip_range_high=None, clip_ratio_c=20.0):
    p, q = math.exp(held[t]), min(math.exp(b.old[t]), 1.0)  # log-probs of the inputs may be above 0
    far = q * (b.old[t] - held[t]) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))
    far = far if (p > q) == (b.advantages[t] > 0) else -far
    return divergence(t, new, held, b, far, clip_range, clip_range_low, clip_range_high, clip_ratio_c)


def divergence(t, new, held, b, moved, both, low, high, most):
    """moved: away from the sampling policy in the direction of A."""
    bound = high if b.advantages[t] > 0 else low
    if moved > (both if bound is None else bound):
        return 0.0, "far"
    ratio = math.exp(held[t] - b.old[t])
    return -b.advantages[t] * min(ratio, most) * new[t], "cut" if ratio > most else "free"


def gspo(t, new, held, b, clip_range_low=3e-4, clip_range_high=4e-4):
    ratio = math.prod(math.exp(new[j] - b.old[j]) for j in b.rows[b.row[t]]) ** (1 / len(b.rows[b.row[t]]))
    return surrogate(ratio, b.mean(t, lambda j: b.advantages[j]), clip_range_low, clip_range_high)


def gspo_token(t, new, held, b, clip_range_low=3e-4, clip_range_high=4e-4):
    ratio = math.exp(b.mean(t, lambda j: held[j] - b.old[j])) * math.exp(new[t]) / math.exp(held[t])
    return surrogate(ratio, b.advantages[t], clip_range_low, clip_range_high)


def luspo(t, new, held, b, clip_range_low=2e-3, clip_range_high=2.5e-3):
    return gspo(t, new, held, b, clip_range_low, clip_range_high)


def vespo(t, new, held, b, vespo_k_pos=2.0, vespo_lambda_pos=3.0, vespo_k_neg=3.0, vespo_lambda_neg=2.0):
    ratio = math.prod(math.exp(held[j] - b.old[j]) for j in b.rows[b.row[t]])
    a = b.advantages[t]
    k, decay = (vespo_k_pos, vespo_lambda_pos) if a >= 0 else (vespo_k_neg, vespo_lambda_neg)
    return -ratio**k * math.exp(decay * (1 - ratio)) * a * new[t], "up" if a >= 0 else "down"


def sapo(t, new, held, b, tau_pos=1.0, tau_neg=1.05):
    a = b.advantages[t]
    tau = tau_pos if a > 0 else tau_neg
    return -a * 4 / tau * sigmoid(tau * (math.exp(new[t] - b.old[t]) - 1)), "up" if a > 0 else "down"


def importance_sampling(t, new, held, b):
    return -b.advantages[t] * math.exp(new[t] - b.old[t]), "free"


def m2po(t, new, held, b, m2_threshold=0.04, level="sequence"):
    """The largest second moment of the tokens that PPO could clip is dropped, again and again."""
    compared = range(len(held)) if level == "batch" else b.rows[b.row[t]]
    moments = {j: (held[j] - b.old[j]) ** 2 for j in compared if b.advantages[j] * (held[j] - b.old[j]) > 0}
    while moments and sum(moments.values()) / len(moments) > m2_threshold:
        largest = max(moments, key=moments.get)
        del moments[largest]
        if largest == t:
            return 0.0, "dropped"
    return importance_sampling(t, new, held, b)


def sppo(t, new, held, b, epsilon=0.3):
    if not 1 / (1 + epsilon) <= math.exp(held[t] - b.old[t]) <= 1 + epsilon:
        return 0.0, "outside"
    return -b.advantages[t] * (new[t] - b.old[t]), "inside"


# ------------------------------------------------------------------------------------------------- weighted log-probs


def opmd(t, new, held, b, tau=1.0):
    return -b.advantages[t] * new[t] / (1 + tau), "free"


def topr(t, new, held, b, advantage_threshold=0.0, level="sequence"):
    a, tokens = b.advantages[t], b.rows[b.row[t]] if level == "sequence" else [t]
    if a > advantage_threshold:
        return -a * new[t], "success"
    ratio = math.prod(math.exp(held[j] - b.old[j]) for j in tokens)
    return -min(ratio, 1.0) * a * new[t], "tapered" if ratio < 1 else "whole"


def cispo(t, new, held, b, clip_range_low=1.0, clip_range_high=0.28, enable_mask_clip=False, mask_clip_range_low=1.0,
          mask_clip_range_high=0.28):
    ratio, a = math.exp(held[t] - b.old[t]), b.advantages[t]
    beyond = ratio > 1 + mask_clip_range_high if a > 0 else ratio < 1 - mask_clip_range_low
    if enable_mask_clip and beyond:
        return 0.0, "masked"
    weight = bounded(ratio, 1 - clip_range_low, 1 + clip_range_high)
    return -weight * a * new[t], "free" if weight == ratio else "above" if ratio > 1 else "below"


def rec(t, new, held, b, epsilon_low=0.2, epsilon_high=0.2, epsilon_low_prime=0.6, epsilon_high_prime=2.0,
        clip_mode="none", weight="none", regularizer="none", regularizer_coef=0.0, temp=1.0):
    a, token = b.advantages[t], math.exp(held[t] - b.old[t])
    row = math.exp(b.mean(t, lambda j: held[j] - b.old[j]))
    x = row if clip_mode == "gspo-one-side" else token
    one_side = x <= 1 + epsilon_high if a > 0 else x >= 1 - epsilon_low
    two_side = 1 - epsilon_low <= x <= 1 + epsilon_high
    returning = x <= 1 - epsilon_low_prime if a > 0 else x >= 1 + epsilon_high_prime
    taught = {"none": True, "two-side": two_side, "one-side": one_side, "gspo-one-side": one_side,
              "ring": two_side or returning}[clip_mode]
    factor = {"none": 1.0, "importance_sampling": token, "gspo_importance_sampling": row,
              "advantage": math.exp(a / temp)}[weight]
    term = {"none": 0.0, "k2": (new[t] - b.old[t]) ** 2, "forward-kl": -new[t]}[regularizer]
    branch = "dropped" if not taught else "returning" if clip_mode == "ring" and returning else "taught"
    return -a * factor * new[t] * taught + regularizer_coef * term, branch


# ------------------------------------------------------------------------------- demonstrations, mixtures, preferences


def sft(t, new, held, b):
    return -new[t], "free"


def sft_is(t, new, held, b):
    return -math.exp(held[t]) * new[t], "free"


def sft_phi(t, new, held, b, cutoff_prob=1.0):
    p = math.exp(held[t])
    return -p * (1 - p) * min(new[t], math.log(cutoff_prob)), "known" if p > cutoff_prob else "free"


def mix(t, new, held, b, mu=0.1, clip_range=0.2):
    if b.is_expert[t]:
        return -mu * new[t], "expert"
    loss, branch = ppo(t, new, held, b, clip_range)
    return (1 - mu) * loss, branch


def mix_chord(t, new, held, b, mu_warmup_steps=0, mu_decay_steps=0, mu_peak=0.1, mu_valley=0.1,
              enable_phi_function=True, cutoff_prob=1.0):
    if b.step < mu_warmup_steps:
        mu = mu_peak * b.step / mu_warmup_steps
    elif b.step < mu_warmup_steps + mu_decay_steps:
        angle = math.pi * (b.step - mu_warmup_steps) / mu_decay_steps
        mu = mu_valley + (mu_peak - mu_valley) * (1 + math.cos(angle)) / 2
    else:
        mu = mu_valley
    if b.is_expert[t] and enable_phi_function:
        return mu * sft_phi(t, new, held, b, cutoff_prob)[0], "expert"
    return mix(t, new, held, b, mu)


def log_ratio(new, b, row: int) -> float:
    """log(pi / ref) of a whole response."""
    return sum(new[j] - b.ref[j] for j in b.rows[row])


def margin(t, new, b) -> float:
    pair = b.row[t] // 2
    return log_ratio(new, b, 2 * pair) - log_ratio(new, b, 2 * pair + 1)


def likelihood(t, new, b) -> float:
    """Of the chosen response, over the ten tokens of four."""
    return -sum(new[j] for j in b.rows[pair_of(t, b)[0]]) / 2.5


def cpo(t, new, held, b, beta=0.1, label_smoothing=0.0, cpo_alpha=1.0):
    chosen, rejected = (sum(new[j] for j in b.rows[row]) for row in pair_of(t, b))
    p = sigmoid(beta * (chosen - rejected))
    smoothed = (1 - label_smoothing) * math.log(p) + label_smoothing * math.log(1 - p)
    return cpo_alpha * likelihood(t, new, b) - smoothed, "pair"


def dpo(t, new, held, b, beta=0.1, loss_type="sigmoid", loss_weights=(1.0,), label_smoothing=0.0):
    if loss_type == ["nca_pair", "sft"]:
        p, q = (sigmoid(beta * log_ratio(new, b, row)) for row in pair_of(t, b))
        apart = -math.log(p) - math.log(1 - p) / 2 - math.log(1 - q) / 2
        return loss_weights[0] * apart + loss_weights[1] * likelihood(t, new, b), "both"
    far = beta * margin(t, new, b)
    if loss_type == "hinge":
        return max(0.0, 1 - far), "beyond" if far > 1 else "pair"
    right, wrong = -math.log(sigmoid(far)), -math.log(sigmoid(-far))
    if loss_type == "robust":
        return ((1 - label_smoothing) * right - label_smoothing * wrong) / (1 - 2 * label_smoothing), "pair"
    return (1 - label_smoothing) * right + label_smoothing * wrong, "pair"


def ipo(t, new, held, b, beta=0.1, length_normalized=False):
    if not length_normalized:
        return (margin(t, new, b) - 1 / (2 * beta)) ** 2, "pair"
    chosen, rejected = (log_ratio(new, b, row) / len(b.rows[row]) for row in pair_of(t, b))
    return (chosen - rejected - 1 / (2 * beta)) ** 2, "pair"


def pair_of(t, b) -> tuple[int, int]:
    first = b.row[t] // 2 * 2
    return first, first + 1


def simpo(t, new, held, b, beta=2.0, simpo_gamma=1.0, label_smoothing=0.0):
    chosen, rejected = (sum(new[j] for j in b.rows[row]) / len(b.rows[row]) for row in pair_of(t, b))
    likely = sigmoid(beta * (chosen - rejected) - simpo_gamma)
    return -(1 - label_smoothing) * math.log(likely) - label_smoothing * math.log(1 - likely), "pair"


def orpo(t, new, held, b, beta=0.1):
    chosen, rejected = (math.exp(sum(new[j] for j in b.rows[row]) / len(b.rows[row])) for row in pair_of(t, b))
    odds = chosen / (1 - chosen) / (rejected / (1 - rejected))
    return -math.log(chosen) - beta * math.log(sigmoid(math.log(odds))), "pair"


def kto(t, new, held, b, beta=0.1, desirable_weight=1.0, undesirable_weight=1.0, reference_point=0.0):
    gap = beta * (log_ratio(new, b, b.row[t]) - reference_point)
    if b.row[t] % 2 == 0:
        return desirable_weight * (1 - sigmoid(gap)), "chosen"
    return undesirable_weight * (1 - sigmoid(-gap)), "rejected"


def reward_model(t, new, held, b, center_rewards_coefficient=0.0):
    """A row's score is the sum of its numbers; its margin that of the absolute advantages of the chosen row."""
    chosen, rejected = (sum(new[j] for j in b.rows[row]) for row in pair_of(t, b))
    wanted = sum(abs(b.advantages[j]) for j in b.rows[pair_of(t, b)[0]])
    return (-math.log(sigmoid(chosen - rejected - wanted))
            + center_rewards_coefficient * (chosen + rejected) ** 2), "pair"


def forward_kl_topk(t, new, held, b, top_k=64):
    """Of a token and the rest, whose log odds are twice the token's number."""
    p, q = sigmoid(2 * b.ref[t]), sigmoid(2 * new[t])
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)), "free"


# ------------------------------------------------------------------------------------------- KL, entropy, values


def k1(t, new, held, b):
    return new[t] - b.ref[t], "free"


def k2(t, new, held, b):
    return (new[t] - b.ref[t]) ** 2 / 2, "free"


def k3(t, new, held, b):
    ratio = math.exp(b.ref[t]) / math.exp(new[t])
    return ratio - 1 - math.log(ratio), "free"


def low_var_kl(t, new, held, b):
    kl = k3(t, new, held, b)[0]
    return min(kl, 10.0), "free" if kl < 10 else "far"


def absolute(t, new, held, b):
    return abs(new[t] - b.ref[t]), "above" if new[t] > b.ref[t] else "below"


def corrected_k3(t, new, held, b):
    ratio = math.exp(new[t] - b.old[t])
    return min(ratio, 2.0) * k3(t, new, held, b)[0], "free" if ratio < 2 else "above"


def nothing(t, new, held, b):
    return 0.0, "free"


def entropy_bonus(t, new, held, b, entropy_coef=0.0):
    """new: the entropy of each token."""
    return -entropy_coef * new[t], "free"


def entropy_of_rollouts(t, new, held, b, entropy_coef=0.0):
    return (0.0, "expert") if b.is_expert[t] else entropy_bonus(t, new, held, b, entropy_coef)


def value_loss(value: float, old: float, wanted: float, cliprange: float) -> tuple[float, str]:
    """Of PPO's critic."""
    free, near = (value - wanted) ** 2, (bounded(value, old - cliprange, old + cliprange) - wanted) ** 2
    moved = "near" if abs(value - old) < cliprange else "far"
    return max(free, near) / 2, "clipped" if near > free else moved


POLICY = {"cispo": cispo, "clip_cov": clip_cov, "kl_cov": kl_cov, "cpo": cpo,
          "decoupled_ppo": decoupled_ppo, "dpo": dpo,
          "dppo_kl": dppo_kl, "dppo_tv": dppo_tv, "forward_kl_topk": forward_kl_topk,
          "gmpo": gmpo, "gspo": gspo, "gspo_token": gspo_token, "orpo": orpo, "simpo": simpo,
          "importance_sampling": importance_sampling, "ipo": ipo, "kto": kto, "luspo": luspo, "m2po": m2po, "mix": mix,
          "mix_chord": mix_chord, "opmd": opmd, "ppo": ppo, "rec": rec, "sapo": sapo, "sft": sft, "sft_is": sft_is,
          "sft_phi": sft_phi, "reward_model": reward_model, "sppo": sppo, "topr": topr, "vespo": vespo}
KL = {"abs": absolute, "corrected_k3": corrected_k3, "k1": k1, "k2": k2, "k3": k3, "low_var_kl": low_var_kl,
      "none": nothing}
ENTROPY = {"default": entropy_bonus, "mix": entropy_of_rollouts, "none": nothing}
