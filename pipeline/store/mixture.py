"""What models with experts or latent attention have in place of a dense layer's MLP and attention, from config.json.

Shapes are those of the modules that transformers builds (modeling_<model_type>.py, 5.19), which the trainer trains; a
test compares the counts with its own. Parts that only other programs have (DeepSeek-V3's extra layers for predicting
several tokens, and the correction of its router, a buffer) are not among them.
"""

from dataclasses import dataclass
from typing import Any

QWEN_EXPERTS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step")
DEEPSEEK = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts", "kv_lora_rank",
            "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
NEEDED = {  # model_type -> what its config.json must say beside what a dense one does
    "mixtral": ("num_local_experts", "num_experts_per_tok"),
    "qwen2_moe": (*QWEN_EXPERTS, "shared_expert_intermediate_size"),
    "qwen3_moe": QWEN_EXPERTS,
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
}
OTHERS = ("q_lora_rank", "first_k_dense_replace")  # whole numbers that may be 0, the first null
QWEN_ABSENT = {"decoder_sparse_step": 1}
ABSENT = {  # what transformers takes where a config.json does not say (configuration_<model_type>.py)
    "qwen2_moe": QWEN_ABSENT, "qwen3_moe": QWEN_ABSENT,
    "deepseek_v2": {"first_k_dense_replace": 0},
    "deepseek_v3": {"first_k_dense_replace": 3, "num_experts_per_tok": 8},
}


@dataclass(frozen=True)
class Experts:
    """What stands in place of the MLP in some layers: a router, and `count` gated MLPs; a token takes `chosen`.

    layers: that have it. width: of each expert. shared_width: of the MLP that every token takes besides, 0 without
    one. shared_gate: that one has a weight of its own for each token (Qwen2). float_weights: the router's weights are
    float32, and with them what an expert gives, once weighed. float_input: so is what the router reads.
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
        """Parameters of the experts of a layer, which are two tensors of one module. width: of the residual stream."""
        return 3 * width * self.width * self.count

    def parameters(self, width: int) -> int:
        """Parameters in place of a layer's MLP: the router's row for each expert, the experts, what is shared."""
        return width * self.count + self.held(width) + 3 * width * self.shared_width + width * self.shared_gate


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): key and value made of one narrow vector.

    query_rank: of the narrow vector that queries are made of, 0 where they are made at once. rank: of that of key and
    value. rotary: width of the part of each query, and of the one key for all heads, that knows the position. plain:
    width of the other part. value: width of a head's value.
    """

    query_rank: int
    rank: int
    rotary: int
    plain: int
    value: int

    @property
    def cached(self) -> int:
        """Entries of a token in a layer's cache: the narrow vector and the shared key."""
        return self.rank + self.rotary

    @property
    def norms(self) -> int:
        """Entries of a token that are normalised, and parameters that scale them."""
        return self.query_rank + self.rank

    def linear(self, width: int, heads: int) -> dict[str, tuple[int, int]]:
        """Name of a linear layer of the attention -> (inputs, outputs). width: of the residual stream."""
        query = heads * (self.plain + self.rotary)
        way = ({"q_a_proj": (width, self.query_rank), "q_b_proj": (self.query_rank, query)} if self.query_rank else
               {"q_proj": (width, query)})
        return {**way, "kv_a_proj_with_mqa": (width, self.cached),
                "kv_b_proj": (self.rank, heads * (self.plain + self.value)), "o_proj": (heads * self.value, width)}


def experts_of(kind: str, config: dict[str, Any]) -> Experts | None:
    """The experts of a model of `model_type` kind; None when it has none. config: with all that NEEDED and ABSENT name.

    Qwen: every `decoder_sparse_step`-th layer but those of `mlp_only_layers` (counted from 0); DeepSeek: all but the
    first `first_k_dense_replace`, with `n_shared_experts` as one MLP; Mixtral: all, `intermediate_size` wide.
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
    """The latent attention of a model of `model_type` kind; None when its attention is another."""
    if kind not in ("deepseek_v2", "deepseek_v3"):
        return None
    return Latent(config.get("q_lora_rank") or 0, config["kv_lora_rank"], config["qk_rope_head_dim"],
                  config["qk_nope_head_dim"], config["v_head_dim"])
