"""Small random models in the shapes of known families, each with its kind of tokenizer and chat template.

Nothing is downloaded: tokenizers are trained on the sums of `sums`, files have the names and keys of the hub's
checkpoints, with what those carry beside the weights (inactive window keys, lists of end tokens, padded vocabularies).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORDS = "Solve: Answer: what is the sum of and plus minus times a question with system user assistant model. zéro ≥ 1"
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")  # of Llama 3

CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
DEFAULT_SYSTEM = ("{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a model.<|im_end|>\n' }}"
                  "{% endif %}")
THINKING = ("{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
            "{{ '<think>\n\n</think>\n\n' }}{% endif %}")
HEADERS = ("{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + "
           "m['content'] + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
           "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
INSTRUCT = ("{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
            "{{ '[INST] ' + m['content'] + ' [/INST]' }}"
            "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] + eos_token }}{% else %}"
            "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}")
TURNS = ("{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
         "{% endif %}{% for m in messages %}{{ '<start_of_turn>' + "
         "('model' if m['role'] == 'assistant' else m['role']) "
         "+ '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}")
ENDS = ("{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}")
PLAIN = ("{% for m in messages %}{{ 'Instruct: ' + m['content'] + '\n' if m['role'] == 'user' else 'Output: ' + "
         "m['content'] + eos_token }}{% endfor %}{% if add_generation_prompt %}Output:{% endif %}")


@dataclass(frozen=True)
class Family:
    """A kind of model. kind: model_type. tokenizer: makes tokenizer.json. names: in tokenizer_config.json. ends: all
    end tokens, as generation_config.json lists them, None for one alone. padding: rows of the embedding that no token
    has. settings: of config.json, over SIZES."""

    kind: str
    tokenizer: Callable[..., Any]
    template: str
    names: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    ends: tuple[str, ...] | None = None
    special: tuple[str, ...] = ()
    padding: int = 0


def sums(count: int = 48) -> list[dict[str, str]]:
    """Questions with the answers to imitate."""
    return [{"question": f"what is {i} plus {i % 7}?", "answer": str(i + i % 7)} for i in range(count)]


def _texts() -> list[str]:
    return [WORDS, *(f"{row['question']} {row['answer']}" for row in sums())]


def byte_level(special: list[str], bos: str | None = None, split: str | None = None):
    """Byte-level BPE as GPT-2 and Qwen have it; with `split` as tiktoken's files are converted (Llama 3): words are
    looked up whole, and `bos` is put before every text that is encoded with special tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=split is not None))
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    parts = [pre_tokenizers.Split(Regex(split), "isolated"), levels] if split else [levels]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(_texts(), trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens(special)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))])
    return tokenizer


def tiktoken_like(special: list[str]):
    return byte_level(special, bos=special[0], split=SPLIT)


def sentencepiece_like(special: list[str], prefix: bool = True):
    """BPE over characters with spaces as U+2581 and unknown ones as bytes, which SentencePiece models become.

    special: unk, bos and eos first. prefix: a text begins with a space of its own (Llama 2, Mistral; not Gemma).
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers

    steps = [normalizers.Prepend("▁")] * prefix + [normalizers.Replace(" ", "▁")]
    training = Tokenizer(models.BPE(unk_token="<unk>"))
    training.normalizer = normalizers.Sequence(steps)
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    training.train_from_iterator(_texts(), trainers.BpeTrainer(
        vocab_size=400, special_tokens=[*special[:3], *bytes_], show_progress=False))
    model = json.loads(training.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = training.normalizer
    strip = [decoders.Strip(" ", 1, 0)] * prefix
    words = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*words, *strip])
    tokenizer.add_special_tokens(special)
    bos = special[1]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))])
    return tokenizer


def without_prefix(special: list[str]):
    return sentencepiece_like(special, prefix=False)


QWEN = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None}
QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA2 = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
          "add_bos_token": True, "add_eos_token": False}
GEMMA = {"tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>",
         "pad_token": "<pad>"}
GEMMA_SPECIAL = ("<unk>", "<bos>", "<eos>", "<pad>", "<start_of_turn>", "<end_of_turn>", "<mask>")
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
         "intermediate_size": 128, "max_position_embeddings": 256, "initializer_range": 0.2}
WINDOW = {"use_sliding_window": False, "sliding_window": 256, "max_window_layers": 1}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1,
           "norm_topk_prob": True}

FAMILIES = {
    "llama": Family("llama", tiktoken_like, HEADERS, {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        {"tie_word_embeddings": False, "rope_theta": 500000.0, "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}},
        ends=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"), special=(
            "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
            "<|eot_id|>")),
    "mistral": Family("mistral", sentencepiece_like, INSTRUCT, LLAMA2, {
        "sliding_window": None, "head_dim": 64, "tie_word_embeddings": False}, special=("<unk>", "<s>", "</s>")),
    "qwen2": Family("qwen2", byte_level, DEFAULT_SYSTEM + CHATML, QWEN, {**WINDOW, "tie_word_embeddings": True},
                    ends=("<|im_end|>", "<|endoftext|>"), special=QWEN_SPECIAL, padding=61),
    "qwen3": Family("qwen3", byte_level, CHATML + THINKING, QWEN, {
        **WINDOW, "sliding_window": None, "head_dim": 64, "tie_word_embeddings": True},
        ends=("<|im_end|>", "<|endoftext|>"), special=QWEN_SPECIAL, padding=40),
    "gemma": Family("gemma", without_prefix, TURNS, GEMMA, {
        "head_dim": 64, "hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu"},
        ends=("<eos>", "<end_of_turn>"), special=GEMMA_SPECIAL),
    "gemma2": Family("gemma2", without_prefix, TURNS, GEMMA, {
        "head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 4096}, ends=("<eos>", "<end_of_turn>"),
        special=GEMMA_SPECIAL),
    "phi": Family("phi", byte_level, PLAIN, {
        "tokenizer_class": "CodeGenTokenizer", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>"}, {
            "num_key_value_heads": 2, "partial_rotary_factor": 0.5, "resid_pdrop": 0.1, "tie_word_embeddings": False},
        special=("<|endoftext|>",), padding=30),
    "phi3": Family("phi3", sentencepiece_like, ENDS, {
        **LLAMA2, "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}, {
            "sliding_window": 255, "tie_word_embeddings": False, "max_position_embeddings": 512, "rope_scaling": {
                "type": "longrope", "short_factor": [1.0] * 8 + [1.1] * 8, "long_factor": [4.0] * 16},
            "original_max_position_embeddings": 256},
        ends=("<|endoftext|>", "<|assistant|>", "<|end|>"), special=(
            "<unk>", "<s>", "</s>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")),
    "qwen3_moe": Family("qwen3_moe", byte_level, CHATML + THINKING, QWEN, {
        **WINDOW, **EXPERTS, "head_dim": 32, "tie_word_embeddings": False}, ends=("<|im_end|>", "<|endoftext|>"),
        special=QWEN_SPECIAL, padding=61),
    "qwen2_moe": Family("qwen2_moe", byte_level, DEFAULT_SYSTEM + CHATML, QWEN, {
        **WINDOW, **EXPERTS, "norm_topk_prob": False, "shared_expert_intermediate_size": 64,
        "tie_word_embeddings": False}, ends=("<|im_end|>", "<|endoftext|>"), special=QWEN_SPECIAL),
    "mixtral": Family("mixtral", sentencepiece_like, INSTRUCT, LLAMA2, {
        "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None, "tie_word_embeddings": False},
        special=("<unk>", "<s>", "</s>")),
}


def make_tokenizer(name: str, directory: Path):
    """Writes the tokenizer of a family with its chat template and end tokens; returns it, of the package tokenizers."""
    family = FAMILIES[name]
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = family.tokenizer(list(family.special))
    tokenizer.save(str(directory / "tokenizer.json"))
    ends = {"eos_token_id": _ends(family, tokenizer), "do_sample": True, "temperature": 0.6, "top_p": 0.9}
    _write(directory / "tokenizer_config.json", {**family.names, "chat_template": family.template})
    _write(directory / "generation_config.json", ends)
    return tokenizer


def make(name: str, directory: Path) -> Path:
    """Makes a model of a family; returns `directory`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    family, tokenizer = FAMILIES[name], make_tokenizer(name, directory)
    bos = family.names["bos_token"]
    torch.manual_seed(1)
    config = AutoConfig.for_model(family.kind, **{
        **SIZES, **family.settings, "vocab_size": tokenizer.get_vocab_size() + family.padding, "pad_token_id": None,
        "eos_token_id": _ends(family, tokenizer), "bos_token_id": bos and tokenizer.token_to_id(bos)})
    AutoModelForCausalLM.from_config(config).float().save_pretrained(directory)
    written = json.loads((directory / "config.json").read_text()) | family.settings
    if "rope_scaling" in written:  # as the hub's files say it; transformers 5 writes rope_parameters
        written |= {"rope_theta": written.pop("rope_parameters")["rope_theta"]}
    _write(directory / "config.json", written)
    make_tokenizer(name, directory)  # the model's own generation_config.json went over it
    return directory


def _ends(family: Family, tokenizer) -> list[int] | int:
    found = [tokenizer.token_to_id(token) for token in family.ends or (family.names["eos_token"],)]
    return found if family.ends else found[0]


def _write(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1))
