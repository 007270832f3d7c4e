"""A rollout engine without vLLM: Hugging Face `forward` with a cache, one padded batch at a time.

Same interface and field semantics as the vLLM engine; slower by an order of magnitude. Each request has its own random
generator, so its answer does not depend on the rest of the batch.
"""

from collections.abc import Sequence
from pathlib import Path

from pipeline.settings.config import resolve_dtype
from workflows.engines.engine import DEAD_END, LIKELIEST, STOP_TEXT, BatchEngine, Failed, Reply, Request
from workflows.engines.guided import Masks
from workflows.engines.host_weights import HostWeights
from workflows.engines.hugging_face import causal_model, import_transformers
from workflows.prompts import read_tokenizer


class TransformersEngine(BatchEngine):
    """A causal LM of a Hugging Face directory, decoded token by token."""

    def __init__(self, model: Path, config, end_tokens: list[int], sleeps: bool, adapter=None):
        import torch

        super().__init__()
        transformers = import_transformers()
        self.with_adapter, self.adapted = adapter is not None, False
        self.version = f"transformers {transformers.__version__}"
        self.torch, self.ends = torch, set(end_tokens)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = getattr(torch, resolve_dtype(config.model.dtype, self.device == "cuda"))
        self.model = causal_model(model, dtype=dtype)
        self.model.to(self.device).eval()
        self.host_weights = HostWeights()
        self._tokenizer, self._masks = read_tokenizer(model), None  # now: a bench deletes the directory

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        with self.torch.inference_mode():
            return self._generate(requests)

    def _generate(self, requests: Sequence[Request]) -> list[Reply]:
        torch = self.torch
        longest = max(len(r.prompt_tokens) for r in requests)
        ids = torch.zeros(len(requests), longest, dtype=torch.long)
        mask = torch.zeros(len(requests), longest, dtype=torch.long)
        for row, request in enumerate(requests):  # left padding, so that all rows continue at the same position
            ids[row, longest - len(request.prompt_tokens) :] = torch.tensor(request.prompt_tokens)
            mask[row, longest - len(request.prompt_tokens) :] = 1
        ids, mask = ids.to(self.device), mask.to(self.device)
        generators = [torch.Generator().manual_seed(r.seed) for r in requests]
        replies = [Reply([], [], "length") for _ in requests]
        masks = [r.schema and self._mask(r.schema) for r in requests]
        open_rows, cache = set(range(len(requests))), None
        while open_rows:
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            out = self.model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
            cache, logits = out.past_key_values, out.logits[:, -1].float().cpu()
            chosen = torch.zeros(len(requests), 1, dtype=torch.long)
            for row in sorted(open_rows):
                if masks[row]:
                    last = torch.tensor([replies[row].tokens[-1:] or [0]])
                    logits[row] = masks[row](last, logits[row : row + 1])[0]
                    if logits[row].max() == -torch.inf:
                        replies[row] = Failed(DEAD_END)
                        open_rows.discard(row)
                        continue
                chosen[row] = self._draw(logits[row], requests[row], generators[row], replies[row])
                if self._has_stop(requests[row], replies[row]):
                    replies[row].finish_reason = STOP_TEXT
                if replies[row].finish_reason != "length" or len(replies[row].tokens) >= requests[row].max_tokens:
                    open_rows.discard(row)
            ids = chosen.to(self.device)
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], -1)
        return replies

    def _mask(self, schema: str):
        if self._masks is None:
            size = self.model.get_output_embeddings().out_features
            self._masks = Masks(self._tokenizer, size, sorted(self.ends))
        return self._masks.of(schema)

    def _draw(self, logits, request: Request, generator, reply: Reply) -> int:
        """Appends one token and its log-prob under the sampling distribution; returns the token."""
        torch = self.torch
        if request.temperature == 0:
            token, logprobs = int(logits.argmax()), logits.log_softmax(-1)
        else:
            logprobs = _restrict(torch, (logits / request.temperature).log_softmax(-1), request)
            token = int(torch.multinomial(logprobs.exp(), 1, generator=generator))
        reply.tokens.append(token)
        reply.logprobs.append(float(logprobs[token]))
        reply.finish_reason = "stop" if token in self.ends else "length"
        return token

    def _has_stop(self, request: Request, reply: Reply) -> bool:
        """Whether one of the request's texts is in the reply, which no end token ends."""
        if request.stop is None or reply.finish_reason == "stop":
            return False
        text = self._tokenizer.decode(reply.tokens, skip_special_tokens=not request.stop.special)
        return any(stop in text for stop in request.stop.texts)

    def score(self, sequences: Sequence[list[int]]) -> list[list[float]]:
        """Log-prob of every token after the first, at temperature 1."""
        torch, found = self.torch, []
        with torch.inference_mode():
            for tokens in sequences:
                ids = torch.tensor([tokens], device=self.device)
                logprobs = self.model(ids).logits[0, :-1].float().log_softmax(-1)
                found.append(logprobs.gather(-1, ids[0, 1:, None])[:, 0].tolist())
        return found

    def probe(self, sequence: list[int]) -> list[list[float]]:
        return self.score([sequence])

    def likeliest(self, sequence: list[int], temperature: float) -> list[dict[int, float]]:
        with self.torch.inference_mode():
            logits = self.model(self.torch.tensor([sequence], device=self.device)).logits[0, -1].float()
        found = (logits / temperature).log_softmax(-1).topk(min(LIKELIEST, len(logits)))
        return [dict(zip(found.indices.tolist(), found.values.tolist(), strict=True))]

    def load_weights(self, directory: Path) -> None:
        if self.with_adapter:
            self._load_adapter(directory)
            return
        with self.host_weights.verified(directory) as tensors:
            self.model.load_state_dict(tensors, strict=True)

    def _load_adapter(self, directory: Path) -> None:
        from peft import PeftModel

        base = self.model.unload() if self.adapted else self.model
        self.model = PeftModel.from_pretrained(base, directory, autocast_adapter_dtype=False).eval()
        self.adapted = True

    def sleep(self) -> None:
        self.model.to("cpu")

    def wake(self) -> None:
        self.model.to(self.device)

    def close(self) -> None:
        del self.model


def _restrict(torch, logprobs, request: Request):
    """Top-k, then nucleus sampling (Holtzman et al. 2020), renormalised over the remaining tokens."""
    if request.top_k > 0:
        least = logprobs.topk(min(request.top_k, len(logprobs))).values[-1]
        logprobs = logprobs.masked_fill(logprobs < least, -torch.inf).log_softmax(-1)
    if request.top_p < 1:
        ordered, index = logprobs.exp().sort(descending=True)
        beyond = index[ordered.cumsum(0) - ordered >= request.top_p]  # the first token that crosses top_p is kept
        logprobs = logprobs.index_fill(0, beyond, -torch.inf).log_softmax(-1)
    return logprobs
