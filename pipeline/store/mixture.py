"""Parameters of mixture-of-experts layers and latent attention, from config.json.

Shapes are those of the modules that transformers builds (modeling_<model_type>.py, 5.19), which the trainer trains; a
test compares the counts with its own. Parts that only other programs have (DeepSeek-V3's extra layers for predicting
several tokens, and the correction of its router, a buffer) are excluded.
"""

from dataclasses import dataclass
from typing import Any

QWEN_EXPERTS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step")
DEEPSEEK = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts", "kv_lora_rank",
            "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
NEEDED = {  # model_type -> additional keys that its config.json must have
    "mixtral": ("num_local_experts", "num_experts_per_tok"),
    "qwen2_moe": (*QWEN_EXPERTS, "shared_expert_intermediate_size"),
    "qwen3_moe": QWEN_EXPERTS,
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
}
OTHERS = ("q_lora_rank", "first_k_dense_replace")  # integers that may be 0, the first null
QWEN_ABSENT = {"decoder_sparse_step": 1}
ABSENT = {  # defaults of transformers for absent keys (configuration_<model_type>.py)
    "qwen2_moe": QWEN_ABSENT, "qwen3_moe": QWEN_ABSENT,
    "deepseek_v2": {"first_k_dense_replace": 0},
    "deepseek_v3": {"first_k_dense_replace": 3, "num_experts_per_tok": 8},
}


@dataclass(frozen=True)
class Experts:
    """Replacement of the MLP in some layers: a router and `count` gated MLPs, of which a token uses `chosen`.

    layers: number with experts. width: of each expert. shared_width: of the MLP applied to every token, 0 without one.
    shared_gate: that one has its own weight for each token (Qwen2). float_weights: the router's weights are float32,
    and so are expert outputs after weighting. float_input: the router's input is float32 too.
    """

    layers: int
    count: int
    chosen: int
    width: int
    shared_width: int = 0
    shared_gate: bool = False
    float_weights: bool = False
    float_input: bool = False

    def held(self, width: int) -> int:
        """Returns the expert parameters of a layer, two tensors of one module. width: of the residual stream."""
        return 3 * width * self.width * self.count

    def parameters(self, width: int) -> int:
        """Returns the parameters that replace a layer's MLP: a router row per expert, the experts, the shared part."""
        return width * self.count + self.held(width) + 3 * width * self.shared_width + width * self.shared_gate


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): key and value derive from one narrow vector.

    query_rank: width of the narrow vector for queries, 0 where they are projected directly. rank: the same for key and
    value. rotary: width of the position-dependent part of each query and of the key shared by all heads. plain: width
    of the other part. value: width of a head's value.
    """

    query_rank: int
    rank: int
    rotary: int
    plain: int
    value: int

    @property
    def cached(self) -> int:
        """Returns the cache entries per token and layer: the narrow vector and the shared key."""
        return self.rank + self.rotary

    @property
    def norms(self) -> int:
        """Returns the normalized entries per token, and the parameters that scale them."""
        return self.query_rank + self.rank

    def linear(self, width: int, heads: int) -> dict[str, tuple[int, int]]:
        """Maps linear layers of the attention to (inputs, outputs). width: of the residual stream."""
        query = heads * (self.plain + self.rotary)
        way = ({"q_a_proj": (width, self.query_rank), "q_b_proj": (self.query_rank, query)} if self.query_rank else
               {"q_proj": (width, query)})
        return {**way, "kv_a_proj_with_mqa": (width, self.cached),
                "kv_b_proj": (self.rank, heads * (self.plain + self.value)), "o_proj": (heads * self.value, width)}


def experts_of(kind: str, config: dict[str, Any]) -> Experts | None:
    """Returns the experts of a `model_type` model; None when it has none. config: with all keys of NEEDED and ABSENT.

    Qwen: every `decoder_sparse_step`-th layer except `mlp_only_layers` (counted from 0); DeepSeek: all except the first
    `first_k_dense_replace`, with `n_shared_experts` as one MLP; Mixtral: all, `intermediate_size` wide.
    """
    layers = config["num_hidden_layers"]
    if kind == "mixtral":
        return Experts(layers, config["num_local_experts"], config["num_experts_per_tok"], config["intermediate_size"],
                       float_weights=True)
    if kind in ("qwen2_moe", "qwen3_moe"):
        dense = config.get("mlp_only_layers") or ()
        have = sum((i + 1) % config["decoder_sparse_step"] == 0 and i not in dense for i in range(layers))
        shared = config["shared_expert_intermediate_size"] if kind == "qwen2_moe" else 0
        return Experts(have, config["num_experts"], config["num_experts_per_tok"], config["moe_intermediate_size"],
                       shared, kind == "qwen2_moe")
    if kind in ("deepseek_v2", "deepseek_v3"):
        width = config["moe_intermediate_size"]
        return Experts(max(layers - config["first_k_dense_replace"], 0), config["n_routed_experts"],
                       config["num_experts_per_tok"], width, width * config["n_shared_experts"], float_weights=True,
                       float_input=True)
    return None


def latent_of(kind: str, config: dict[str, Any]) -> Latent | None:
    """Returns the latent attention of a `model_type` model; None when it uses another attention."""
    if kind not in ("deepseek_v2", "deepseek_v3"):
        return None
    return Latent(config.get("q_lora_rank") or 0, config["kv_lora_rank"], config["qk_rope_head_dim"],
                  config["qk_nope_head_dim"], config["v_head_dim"])
