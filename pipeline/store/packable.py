"""Whether the classes of transformers for an architecture let the trainer pack rows, read from their source.

The trainer packs rows of several sequences into one: it replaces the attention (transformers' attention interface) and
calls decoder (`model.model`) and output head (`lm_head`) by themselves. Architectures whose classes predate this
interface (GPT-2, GPT-NeoX, Falcon, BLOOM, StableLM) cannot be packed, nor those that hand the attention what the
trainer's does not compute (chosen keys, their own mask, on a GPU sinks): their rows go through transformers' own
code. The source is read, not imported: that would take torch.
"""

import importlib.util
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path

TRAITS = {  # what the file of an architecture has when its classes have the trait
    "no replaceable attention": re.compile(r"\bALL_ATTENTION_FUNCTIONS\b"),
    "no decoder of the name `model`": re.compile(r'^    base_model_prefix = "model"', re.M),
    "no output head of the name `lm_head`": re.compile(r"self\.lm_head = "),
}
SINKS = "attention sinks"
UNDONE = {  # what the file of an architecture has when its classes need of the attention what the trainer's lacks
    SINKS: re.compile(r"^ +s_aux=self\.", re.M),
    "attention to chosen keys": re.compile(r"^ +(?:block_)?indices=\w+,", re.M),
    "a mask of its own": re.compile(r"^ +attention_mask=attn_mask,", re.M),
}
CAUSAL = re.compile(r"^MODEL_FOR_(?:CAUSAL_LM|IMAGE_TEXT_TO_TEXT)_MAPPING_NAMES = .*?^\)", re.M | re.S)


@cache
def unpackable(model_type: str, sinks: bool = False) -> str | None:
    """Returns why the trainer cannot pack rows for an architecture, or None; also None for one whose classes are in no
    file of that name, which the trainer judges by its class. sinks: packed attention has them."""
    source = _source(family_directory(model_type))
    lacking = [lack for lack, pattern in TRAITS.items() if source and not pattern.search(source)]
    undone = [what for what, pattern in UNDONE.items() if source and pattern.search(source)
              and not (sinks and what == SINKS)]
    if not lacking and not undone:
        return None
    has = f"have {' and '.join(lacking)}" if lacking else (
        f"need {' and '.join(undone)}, which packed attention does not do")
    return f"the classes of transformers for {model_type} {has}"


@cache
def reads_both_ways(model_type: str) -> bool:
    """Returns whether an architecture attends to later tokens too, unless its `is_decoder` is set."""
    return "add `is_decoder" in (_source(model_type.replace("-", "_")) or "") or model_type in ("xlnet", "xlm")


@cache
def unknown_type(model_type: str) -> str | None:
    """Returns that transformers has no causal language model of this kind, or None."""
    known = _types()
    if not known or model_type in known:
        return None
    return (f"transformers {version('transformers')} has no causal language model of model_type {model_type}; needed "
            "one that it has, such as llama, mistral, qwen2 or qwen3.")


@cache
def _types() -> frozenset[str]:
    """Returns every model_type that transformers has a causal language model of, alone or with a tower for images."""
    listed = [found.group() for found in CAUSAL.finditer(transformers_file("auto", "modeling_auto.py") or "")]
    return frozenset(re.findall(r'^ +\("([^"]+)", ', "".join(listed), re.M))


def family_directory(model_type: str) -> str:
    """Returns the directory of transformers' models where a family is looked for."""
    return model_type.replace("-", "_").removesuffix("_text")


def _source(name: str) -> str | None:
    return transformers_file(name, f"modeling_{name}.py") if name.isidentifier() else None


def transformers_file(directory: str, name: str) -> str | None:
    """Returns the text of a file of transformers' models, or None."""
    package = importlib.util.find_spec("transformers")
    if package is None or package.origin is None:
        return None
    file = Path(package.origin).parent / "models" / directory / name
    return file.read_text(encoding="utf-8") if file.is_file() else None
