"""Creates a small random model with a character tokenizer, as a Hugging Face model directory; or, where the section
`model` overrides keys of config.json, the directory of model.model_path with that config.json (input `base`).

Qwen2 architecture (`model.init`), float32, weights drawn from `seed`. One token per printable ASCII character, so a
model of 0.2M parameters can read any English text, digits and operators; other characters are dropped. With
model.init.image_size it is Idefics 3's architecture over Llama's, which reads images too.
"""

import string
from pathlib import Path
from typing import Any

from ouroboros.pipeline.job.context import Context, run_stage
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.pipeline.store.model_shape import CONFIG, json_object, rewritten
from ouroboros.workflows.protocol.hugging_face import import_light, read_config

SPECIAL = ["<pad>", "<eos>", "<unk>"]
CHARACTERS = [c for c in string.printable if c not in "\t\r\x0b\x0c"]
BYTE_LEVEL = {" ": "\u0120", "\n": "\u010a"}  # their spelling in byte-level BPE
PATCH, SHUFFLE = 8, 2  # pixels of a patch's edge; patches of an edge that become one token
OF_IMAGES = ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>",
             *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))]
# The prompt ends with ':'; the response extends to <eos> and is unchanged when another turn follows.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}:{{ message['content'] }}{{ eos_token }}"
    "{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}:{% endif %}"
)
SEEING_TEMPLATE = CHAT_TEMPLATE.replace(
    "{% else %}{{ message['content'] }}", "{% elif message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ '<image>' if part['type'] == 'image' else part['text'] }}"
    "{% endfor %}")


def character_tokenizer(longest: int, sees: bool = False):
    """A byte-level BPE tokenizer without merges, over SPECIAL and CHARACTERS. longest: model_max_length. sees: with the
    tokens of images.

    It uses Qwen2's own class, because transformers loads the tokenizer of any Qwen2 directory with that class and
    replaces the pre-tokenizer (with 5.19, a vocabulary of plain characters lost every space and line end).
    """
    from transformers import Qwen2Tokenizer

    tokens = SPECIAL + [BYTE_LEVEL.get(c, c) for c in CHARACTERS]
    made = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[],
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        chat_template=SEEING_TEMPLATE if sees else CHAT_TEMPLATE,
        model_max_length=longest,
        clean_up_tokenization_spaces=False,
    )
    made.add_tokens(OF_IMAGES if sees else [], special_tokens=True)
    return made


def model_config(init, tokenizer, longest: int):
    """The configuration of the model. init: the section `model.init`. longest: maximum positions."""
    from transformers import Idefics3Config, Qwen2Config

    text = {name: getattr(init, name) for name in (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
        "tie_word_embeddings")}
    text |= {"vocab_size": len(tokenizer), "rope_parameters": {"rope_type": "default", "rope_theta": init.rope_theta},
             "max_position_embeddings": longest, "bos_token_id": None, "use_cache": True}
    shared = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    if not init.image_size:
        return Qwen2Config(**text, **shared)
    tower = {"hidden_size": init.hidden_size, "intermediate_size": 2 * init.hidden_size, "num_hidden_layers": 2,
             "num_attention_heads": init.num_attention_heads, "image_size": init.image_size, "patch_size": PATCH}
    return Idefics3Config(
        text_config={"model_type": "llama", **text, **shared}, vision_config=tower, scale_factor=SHUFFLE,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"), tie_word_embeddings=init.tie_word_embeddings,
        **shared)


def image_processor(init, tokenizer):
    """The processor of a model that reads images: each is scaled to `model.init.image_size`, and not split."""
    from transformers import Idefics3ImageProcessorPil, Idefics3Processor

    edge = {"longest_edge": init.image_size}
    return Idefics3Processor(
        Idefics3ImageProcessorPil(size=edge, max_image_size=edge, do_image_splitting=False), tokenizer,
        image_seq_len=(init.image_size // PATCH // SHUFFLE) ** 2, chat_template=tokenizer.chat_template)


def rewrite(base: Path, model, directory: Path) -> dict[str, Any]:
    """Links the files of the model at `base` into `directory` and writes its config.json, which is returned.

    model: the section. Raises ModelError for a key that the model ignores.
    """
    written = rewritten(str(base), model)
    for file in (one for one in base.rglob("*") if one.is_file() and one != base / CONFIG):
        place = directory / file.relative_to(base)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(file.resolve())
    files.write_json(directory / CONFIG, written)
    read, before = (read_config(place, model.trust_remote_code) for place in (directory, base))
    for key in model.override_config:
        if not hasattr(before, key) and key not in json_object(base / CONFIG, str(base)):
            raise ModelError(f"model.override_config.{key}: {type(read).__name__} has no such key.")
    return written


def work(context: Context) -> None:
    if "base" in context.inputs:
        model = context.config.model
        written = rewrite(Path(context.inputs["base"]).resolve(), model, context.directory)
        context.made |= {"config": {key: written.get(key) for key in model.override_config}}
    else:
        create(context)


def create(context: Context) -> None:
    import torch
    from transformers import Idefics3ForConditionalGeneration, Qwen2ForCausalLM

    init, limits = context.config.model.init, context.config.model
    longest = limits.max_model_len or limits.max_prompt_tokens + limits.max_response_tokens
    tokenizer = character_tokenizer(longest, bool(init.image_size))
    torch.manual_seed(context.config.seed)
    kind = Idefics3ForConditionalGeneration if init.image_size else Qwen2ForCausalLM
    model = kind(model_config(init, tokenizer, longest))
    model.save_pretrained(context.directory)
    (image_processor(init, tokenizer) if init.image_size else tokenizer).save_pretrained(context.directory)
    files.flush_tree(context.directory)
    context.made |= {"parameters": sum(p.numel() for p in model.parameters()), "vocabulary": len(tokenizer)}


def light(context: Context) -> None:
    """`work` without DeepSpeed, which transformers would import, and MLflow with it, to save a model."""
    import sys

    sys.modules["deepspeed"] = None
    import_light()
    work(context)


if __name__ == "__main__":
    run_stage(light, __doc__)
