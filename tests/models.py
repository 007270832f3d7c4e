"""Small models that only tests need."""

import json
import math
import struct
from pathlib import Path

from ouroboros.stages.model import character_tokenizer

JOINED = "{% for m in messages %}{{ m['content'] }}{% endfor %}{{ eos_token }}"  # the turns as they are, and <eos>


def classifier(directory: Path, num_labels: int = 1, chat_template: str | None = JOINED, seed: int = 5) -> Path:
    """Makes a random Qwen2 sequence classifier over characters, with positions for 80 tokens; returns `directory`."""
    import torch
    from transformers import Qwen2Config, Qwen2ForSequenceClassification

    tokenizer = character_tokenizer(80)
    torch.manual_seed(seed)
    model = Qwen2ForSequenceClassification(Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=64, max_position_embeddings=80, num_labels=num_labels, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None))
    torch.nn.init.normal_(model.score.weight)  # the library's own start is so small that scores hardly differ
    model.save_pretrained(directory)
    tokenizer.chat_template = chat_template
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        (directory / name).unlink(missing_ok=True)
    tokenizer.save_pretrained(directory)
    return directory


def safetensors(shapes: dict[str, list[int]]) -> bytes:
    """A safetensors file of equal numbers in float32. shapes: of each tensor."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"\x3c" * end
