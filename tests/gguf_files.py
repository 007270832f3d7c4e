"""A GGUF file of some kB: a random Llama of one layer over characters, quantized."""

from pathlib import Path

from ouroboros.stages.model import BYTE_LEVEL, CHARACTERS, SPECIAL

WIDTH, HEADS, INNER = 64, 2, 96
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}:{% endif %}"


def write(file: Path, kind: str = "Q8_0", template: str | None = TEMPLATE, tokens: bool = True, parts: int = 1,
          architecture: str = "llama", without: str = "") -> Path:
    """Writes the file and returns it. kind: type of its matrices. without: a tensor to leave out."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(file, architecture)
    vocabulary = [*SPECIAL, *(BYTE_LEVEL.get(c, c) for c in CHARACTERS), "ab", "<|endoftext|>"]  # of GPT-2's class
    for name, value in {"context_length": 256, "embedding_length": WIDTH, "block_count": 1,
                        "feed_forward_length": INNER, "head_count": HEADS, "head_count_kv": HEADS,
                        "layer_norm_rms_eps": 1e-5, "rope_freq_base": 1e4, "vocab_size": len(vocabulary)}.items():
        getattr(writer, f"add_{name}")(value)
    if parts > 1:
        writer.add_uint16("split.count", parts)
    if tokens:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(vocabulary)
        writer.add_token_merges(["a b"])
        writer.add_token_types([3] * len(SPECIAL) + [1] * (len(CHARACTERS) + 1) + [3])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(1)
        writer.add_pad_token_id(0)
        writer.add_unk_token_id(2)
    if template is not None:
        writer.add_chat_template(template)
    drawn, block = np.random.default_rng(1), "blk.0."
    shapes = {"token_embd": (len(vocabulary), WIDTH), block + "ffn_down": (WIDTH, INNER),
              **{f"{block}ffn_{name}": (INNER, WIDTH) for name in ("gate", "up")},
              **{f"{block}attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}}
    norms = dict.fromkeys((block + "attn_norm", block + "ffn_norm", "output_norm"), (WIDTH,))
    for name, shape in (shapes | norms).items():
        values, quantized = drawn.normal(0, 0.1, shape).astype(np.float32), gguf.GGMLQuantizationType[kind]
        if name in norms:
            writer.add_tensor(f"{name}.weight", 1 + values)
        elif name == without:
            continue
        elif kind == "I8":
            writer.add_tensor(f"{name}.weight", values.astype(np.int8))
        else:
            writer.add_tensor(f"{name}.weight", gguf.quantize(values, quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
