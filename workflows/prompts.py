"""From a task's text to the token ids that a model is prompted with."""

from pathlib import Path

from pipeline.errors import ModelError


def read_tokenizer(model: Path):
    """The tokenizer of a Hugging Face directory. Raises ModelError when it has none."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    except Exception as error:  # a damaged tokenizer.json ends in whatever its reader stumbles over
        raise ModelError(f"{model} has no readable tokenizer: {error}") from error
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # transformers makes an empty one where there are no files
        raise ModelError(f"{model} has no readable tokenizer: only special tokens were found. Are its files there "
                         "(tokenizer.json, or those of its kind)?")
    return tokenizer


def load_tokenizer(model: Path):
    """The tokenizer of a policy. Raises ModelError when there is none, or it has no end-of-sequence token."""
    tokenizer = read_tokenizer(model)
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of {model} has no eos_token; responses could not end. Set it in "
                         "tokenizer_config.json.")
    return tokenizer


def prompt_text(tokenizer, question: str, system_prompt: str | None) -> str:
    """The question through the tokenizer's chat template, generation prompt included; as it is without a template."""
    if not tokenizer.chat_template:
        return f"{system_prompt}\n\n{question}" if system_prompt else question
    messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
    messages.append({"role": "user", "content": question})
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def prompt_tokens(tokenizer, texts: list[str]) -> list[list[int]]:
    """Token ids of prompts that went through `prompt_text`; the template has put in all special tokens there are."""
    return tokenizer(texts, add_special_tokens=not tokenizer.chat_template)["input_ids"] if texts else []


def response_tokens(tokenizer, texts: list[str]) -> list[list[int]]:
    """Token ids of demonstrated responses, each ended by the end-of-sequence token."""
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    return [[*tokens, tokenizer.eos_token_id] for tokens in encoded]
