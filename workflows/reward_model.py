"""A scalar reward model: a sequence classifier with one label that scores conversations.

Equivalent to veRL's `reward_model.enable`. The conversation is rendered by the reward model's own chat template and
tokenizer, independent of the policy's (Ouyang et al. 2022, section 3.5, for reward models with a scalar head).
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ouroboros.pipeline.settings.config import resolve_dtype
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.workflows.protocol.hugging_face import read_config, scalar_classifier
from ouroboros.workflows.protocol.prompts import read_tokenizer


class RewardModel:
    """Replicas of one classifier, each on its own device; every batch is scored by one of them."""

    def __init__(self, directory: Path, settings, devices: Sequence[str], trust: bool = False):
        """settings: an element of explorer.auxiliary_models. devices: torch's names, one per replica. trust:
        model.trust_remote_code.

        Raises ModelError when the directory has no classifier with one label, or no usable tokenizer.
        """
        self.tokenizer = _conversation_tokenizer(directory, trust)
        dtype = resolve_dtype(settings.dtype, devices[0] != "cpu")
        self.copies = [scalar_classifier(directory, dtype, trust).to(device).eval() for device in devices]
        config = self.copies[0].config
        self.padding = _padding(directory, config, self.tokenizer)
        for copy in self.copies:
            copy.config.pad_token_id = self.padding
        self.longest = _longest(directory, settings.max_model_len, getattr(config, "max_position_embeddings", None))
        self.budget = settings.max_token_len

    def score(self, prompts: Sequence[list[dict]], responses: Sequence[str]) -> list[float | str]:
        """The score of each response, or the reason why it has none. prompts: messages {role, content}."""
        found: list[float | str] = []
        conversations: list[list[int]] = []
        for prompt, response in zip(prompts, responses, strict=True):
            tokens = self._tokens([*prompt, {"role": "assistant", "content": response}])
            found.append(tokens if isinstance(tokens, str) else 0.0)
            conversations.append([] if isinstance(tokens, str) else tokens)
        rows = [row for row, tokens in enumerate(conversations) if tokens]
        for row, value in zip(rows, self._forward([conversations[row] for row in rows]), strict=True):
            found[row] = value
        return found

    def _tokens(self, messages: list[dict]) -> list[int] | str:
        tokens = conversation_tokens(self.tokenizer, messages)
        if isinstance(tokens, list) and self.longest and len(tokens) > self.longest:
            return (f"a conversation of {len(tokens)} tokens; the reward model scores at most {self.longest} "
                    "(explorer.auxiliary_models.N.max_model_len, or what it has positions for)")
        return tokens

    def _forward(self, conversations: list[list[int]]) -> list[float]:
        """Scores of token ids [L] each, in order. Padded batches, assigned to replicas round-robin."""
        parts = batches([len(tokens) for tokens in conversations], self.budget)
        scores = [0.0] * len(conversations)

        def work(which: int) -> None:
            for rows in parts[which :: len(self.copies)]:
                values = self._batch(self.copies[which], [conversations[row] for row in rows])
                for row, value in zip(rows, values, strict=True):
                    scores[row] = value

        with ThreadPoolExecutor(len(self.copies)) as pool:
            list(pool.map(work, range(len(self.copies))))
        return scores

    def _batch(self, model, conversations: list[list[int]]) -> list[float]:
        import torch

        longest = max(map(len, conversations))
        ids = torch.full((len(conversations), longest), self.padding)
        mask = torch.zeros_like(ids)
        for row, tokens in enumerate(conversations):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        with torch.inference_mode():
            logits = model(ids.to(model.device), attention_mask=mask.to(model.device)).logits  # [B, 1]
        return logits[:, 0].float().tolist()


def conversation_tokens(tokenizer, messages: list[dict]) -> list[int] | str:
    """The token ids of a whole conversation {role, content}, as a reward model is trained on and asked; or why not."""
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception as error:  # the model's own template may reject a conversation (a system message, say)
        return f"the chat template of the reward model refused the conversation: {error}"
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]  # special ones are already in the template's text
    return tokens if tokens else "an empty conversation: the chat template of the reward model left nothing of it"


def padding_or_end(directory: Path, tokenizer, trust: bool) -> int:
    """The padding token of a model that becomes a reward model: its own, else what ends its responses. trust:
    model.trust_remote_code. Raises ModelError without either."""
    config = read_config(directory, trust)
    for token in (config.get_text_config().pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return token
    raise ModelError(f"{directory} has neither a padding token nor one that ends a response, and a reward model scores "
                     "the last token that is not padding. Set pad_token_id in its config.json.")


def batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices in batches of at most `budget` padded tokens, longest first; longer ones alone."""
    made: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if made and (len(made[-1]) + 1) * lengths[made[-1][0]] <= budget:
            made[-1].append(index)
        else:
            made.append([index])
    return made


def _conversation_tokenizer(directory: Path, trust: bool):
    tokenizer = read_tokenizer(directory, trust)
    if not tokenizer.chat_template:
        raise ModelError(f"the tokenizer of the reward model {directory} has no chat_template: nothing says how it "
                         "wants question and response joined. Set it in tokenizer_config.json.")
    return tokenizer


def _padding(directory: Path, config, tokenizer) -> int:
    """The padding token, by which the classifier finds the last token of every row to score."""
    for token in (config.pad_token_id, tokenizer.pad_token_id):
        if token is not None:
            return token
    raise ModelError(f"the reward model {directory} has no padding token, so it cannot tell where a row of a batch "
                     "ends. Set pad_token_id in its config.json.")


def _longest(directory: Path, wanted: int | None, positions: int | None) -> int | None:
    """Length in tokens of the longest conversation; None without a limit."""
    if wanted and positions and wanted > positions:
        raise ModelError(f"explorer.auxiliary_models.N.max_model_len={wanted}: {directory} has positions for "
                         f"{positions} tokens.")
    return wanted or positions
