"""Whether the classes of transformers for an architecture let the trainer pack rows, read from their source.

The trainer packs rows of several sequences into one: it replaces the attention (transformers' attention interface) and
calls decoder (`model.model`) and output head (`lm_head`) by themselves. Architectures whose classes predate this
interface (GPT-2, GPT-NeoX, Falcon, BLOOM, StableLM) cannot be trained so. The source is read, not imported: that would
take torch.
"""

import importlib.util
import re
from functools import cache
from pathlib import Path

TRAITS = {  # what the file of an architecture has when its classes have the trait
    "no replaceable attention": re.compile(r"^    _supports_attention_backend = True", re.M),
    "no decoder of the name `model`": re.compile(r'^    base_model_prefix = "model"', re.M),
    "no output head of the name `lm_head`": re.compile(r"self\.lm_head = "),
}


@cache
def unpackable(model_type: str) -> str | None:
    """Returns why the trainer cannot pack rows for an architecture, or None; also None for one that transformers has
    no file of that name for, which the trainer judges by its class."""
    source = _source(model_type.replace("-", "_").removesuffix("_text"))
    lacking = [lack for lack, pattern in TRAITS.items() if source and not pattern.search(source)]
    if not lacking:
        return None
    return (f"the classes of transformers for {model_type} have {' and '.join(lacking)}, so rows cannot be packed; "
            "needed an architecture of Llama's kind (llama, mistral, qwen2, qwen3, gemma, phi3, mixtral, …).")


def _source(name: str) -> str | None:
    package = importlib.util.find_spec("transformers")
    if package is None or package.origin is None or not name.isidentifier():
        return None
    file = Path(package.origin).parent / "models" / name / f"modeling_{name}.py"
    return file.read_text(encoding="utf-8") if file.is_file() else None
