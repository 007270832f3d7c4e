"""A rollout engine without vLLM: Hugging Face `forward` with a cache, one padded batch at a time.

Same interface and field semantics as the vLLM engine; slower by an order of magnitude. Each request has its own random
generator, so its answer does not depend on the rest of the batch.
"""

import inspect
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from ouroboros.pipeline.settings.config import resolve_dtype
from ouroboros.pipeline.settings.explorer import PROMPT_PIECE
from ouroboros.pipeline.settings.trainer import compares_routings
from ouroboros.pipeline.store.pictures import Picture
from ouroboros.workflows.engines.guided import Masks
from ouroboros.workflows.engines.host_weights import HostWeights
from ouroboros.workflows.protocol.engine import DEAD_END, LIKELIEST, STOP_TEXT, BatchEngine, Failed, Reply, Request
from ouroboros.workflows.protocol.hugging_face import causal_model
from ouroboros.workflows.protocol.kept import Kept, kept_of, truncate
from ouroboros.workflows.protocol.prompts import read_tokenizer

CACHES = ("past_key_values", "cache_params")  # arguments and outputs of transformers' models; the second of Mamba
PADDED = {"torch.float32": 1e-3}  # nats; largest change of a log-prob by padding; other dtypes: 0.1


class TransformersEngine(BatchEngine):
    """A causal LM of a Hugging Face directory, decoded token by token."""

    def __init__(self, model: Path, config, end_tokens: list[int], sleeps: bool, adapter=None):
        import torch

        super().__init__()
        self.with_adapter, self.adapted = adapter is not None, False
        self.version = f"transformers {version('transformers')}"
        self.torch, self.ends = torch, set(end_tokens)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = getattr(torch, resolve_dtype(config.model.dtype, self.device == "cuda"))
        trust = config.model.trust_remote_code
        self.model = causal_model(model, dtype=dtype, trust=trust)
        self.model.to(self.device).eval()
        self.host_weights, self._sight = HostWeights(), None  # of a model that has been shown images
        self._tokenizer, self._masks = read_tokenizer(model, trust), None  # now: a bench deletes the directory
        arguments = inspect.signature(self.model.forward).parameters
        self.cache = next(name for name in CACHES if name in arguments)
        self.pads = self._pads()
        self.routers = self._routers() if compares_routings(config) else None

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        with self.torch.inference_mode():
            if self.pads:
                return self._generate(requests)
            lengths = [len(request.prompt_tokens) for request in requests]
            places = [[i for i, of_one in enumerate(lengths) if of_one == length] for length in sorted({*lengths})]
            replies = {i: reply for some in places
                       for i, reply in zip(some, self._generate([requests[i] for i in some]), strict=True)}
            return [replies[i] for i in range(len(requests))]

    def _routers(self):
        """Those of a model with experts, whose choices are in the replies; None without."""
        from ouroboros.workflows.protocol.routing import Routers

        model = self.model
        while (inner := model.get_decoder()) is not model and inner is not None:
            model = inner
        layers = getattr(model, "layers", None)
        found = layers and Routers(self.model, layers)
        return found if found and found.found else None

    def _pads(self) -> bool:
        """Whether a prompt after padding has the log-probs that it has alone; not so with sparse attention, or with
        the state of some layers."""
        tokens = self.model.get_input_embeddings().num_embeddings
        ids = self.torch.arange(1, 13, device=self.device).repeat(2, 1) % tokens
        mask = self.torch.ones_like(ids)
        ids[1, :7], mask[1, :7] = 0, 0
        with self.torch.inference_mode():
            padded, alone = (self._forward(some, of_them, None).logits[-1, -1].float().log_softmax(-1)
                             for some, of_them in ((ids, mask), (ids[1:, 7:], mask[1:, 7:])))
        return bool((padded - alone).abs().max() < PADDED.get(str(self.model.dtype), 0.1))

    def _forward(self, ids, mask, cache, shift=0):
        """Continues the rows of a cache by new tokens. ids [R, new]; mask [R, all]: 0 where a row is padded. shift: of
        positions after images [R, 1]."""
        positions = _positions(mask)[:, -ids.shape[1] :] + shift
        return self.model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True,
                          **{self.cache: cache})

    def _see(self, ids, mask, pictures: Sequence[Sequence[Picture]]):
        """`_forward` of prompts with images, and the shift of the positions behind them. pictures: of each row; equal
        rows are computed once."""
        from ouroboros.workflows.protocol.sight import sight_of

        self._sight = sight_of(self.model.name_or_path)
        rows = [*zip(map(tuple, ids.tolist()), mask.sum(-1).tolist(), pictures, strict=True)]  # 0 may be no padding
        first: dict[tuple, int] = {}
        for place, row in enumerate(rows):
            first.setdefault(row, place)
        ids, mask = ids[[*first.values()]], mask[[*first.values()]]
        shown = [(row * ids.shape[1], of_row) for row, (*_, of_row) in enumerate(first) if of_row]
        seen = self._sight.seen(self.model, ids.flatten(), _positions(mask).flatten(), shown)
        places, text = self.torch.arange(ids.numel(), device=ids.device).view(ids.shape), self.model.get_decoder()
        given = seen.inputs(places)
        out = text(**given, attention_mask=seen.mask(text.config, places, mask), use_cache=True)
        shift = given["position_ids"].view(-1, *ids.shape).amax((0, 2)) + 1 - mask.sum(-1)
        number = {row: place for place, row in enumerate(first)}
        again = self.torch.tensor([number[row] for row in rows], device=ids.device)
        out[self.cache].reorder_cache(again)
        out["logits"] = self.model.get_output_embeddings()(out.last_hidden_state)[again]
        return out, shift[again][:, None]

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
        replies, kept = [Reply([], [], "length") for _ in requests], [[] for _ in requests]
        masks = [r.schema and self._mask(r.schema) for r in requests]
        pictures, open_rows, cache, shift = [one.pictures for one in requests], set(range(len(requests))), None, 0
        experts: list[list[np.ndarray]] = [[] for _ in requests]
        while open_rows:
            if cache is None and any(pictures):
                out, shift = self._see(ids, mask, pictures)
            else:
                out = self._forward(ids, mask, cache, shift)
            cache, logits = out[self.cache], out.logits[:, -1].float().cpu()
            chosen = torch.zeros(len(requests), 1, dtype=torch.long)
            routed = self.routers and self.routers.last(len(requests)).cpu().numpy().astype(np.uint16)
            for row in sorted(open_rows):
                if masks[row]:
                    last = torch.tensor([replies[row].tokens[-1:] or [0]])
                    logits[row] = masks[row](last, logits[row : row + 1])[0]
                    if logits[row].max() == -torch.inf:
                        replies[row] = Failed(DEAD_END)
                        open_rows.discard(row)
                        continue
                chosen[row] = self._draw(logits[row], requests[row], generators[row], replies[row], kept[row])
                if routed is not None:
                    experts[row].append(routed[row])
                if self._has_stop(requests[row], replies[row]):
                    replies[row].finish_reason = STOP_TEXT
                if replies[row].finish_reason != "length" or len(replies[row].tokens) >= requests[row].max_tokens:
                    open_rows.discard(row)
            ids = chosen.to(self.device)
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], -1)
        for request, reply, sets in zip(requests, replies, kept, strict=True):
            reply.kept = Kept.of(sets) if request.keeps else None
        if self.routers:
            for reply, of_reply in zip(replies, experts, strict=True):
                reply.experts = np.stack(of_reply) if reply.tokens else None
        return replies

    def _mask(self, schema: str):
        if self._masks is None:
            size = self.model.get_output_embeddings().out_features
            self._masks = Masks(self._tokenizer, size, sorted(self.ends))
        return self._masks.of(schema)

    def _draw(self, logits, request: Request, generator, reply: Reply, kept: list[np.ndarray]) -> int:
        """Appends one token and its log-prob under the sampling distribution, and to `kept` what it was sampled among;
        returns the token."""
        torch = self.torch
        if request.temperature == 0:
            token, logprobs = int(logits.argmax()), logits.log_softmax(-1)
        else:
            logprobs, ids = _truncated(torch, logits / request.temperature, request)
            token = int(torch.multinomial(logprobs.exp(), 1, generator=generator))
            if request.keeps:
                kept.append(np.sort(ids.numpy()))
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
        return [found for tokens in sequences for found in self.probe(tokens)]

    def prompt_logprobs(self, sequences: Sequence[list[int]], count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        return [self._likeliest_at(tokens, count) for tokens in sequences]

    def _likeliest_at(self, tokens: list[int], count: int) -> tuple[np.ndarray, np.ndarray]:
        """In pieces, as vLLM, so that few logits are held; whole where a layer has a state, which a piece may lose."""
        ids, places, cache, found = self.torch.tensor([tokens], device=self.device), len(tokens) - 1, None, []
        size = PROMPT_PIECE if self.pads else places
        for begin in range(0, places, size):
            end = min(begin + size, places)
            with self.torch.inference_mode():
                out = self._forward(ids[:, begin:end], self.torch.ones_like(ids[:, :end]), cache)
                cache, logprobs = out[self.cache], out.logits[0].float().log_softmax(-1)
                at_each = self.torch.cat([ids[0, begin + 1 : end + 1, None], logprobs.topk(count).indices], 1)
                found.append((at_each.int(), logprobs.gather(1, at_each)))
        return tuple(self.torch.cat(parts).cpu().numpy() for parts in zip(*found, strict=True))

    def probe(self, sequence: list[int], pictures: tuple[Picture, ...] = ()) -> list[list[float]]:
        logprobs = self._logits(sequence, pictures)[:-1].log_softmax(-1)
        targets = self.torch.tensor(sequence[1:], device=self.device)
        return [logprobs.gather(-1, targets[:, None])[:, 0].tolist()]

    def _logits(self, sequence: list[int], pictures: tuple[Picture, ...]):
        """Those after each token of a sequence [L, V]."""
        ids = self.torch.tensor([sequence], device=self.device)
        with self.torch.inference_mode():
            if pictures:
                return self._see(ids, self.torch.ones_like(ids), [pictures])[0].logits[0].float()
            return self.model(input_ids=ids).logits[0].float()

    def likeliest(self, sequence: list[int], temperature: float, pictures: tuple[Picture, ...] = ()
                  ) -> list[dict[int, float]]:
        logits = self._logits(sequence, pictures)[-1]
        found = (logits / temperature).log_softmax(-1).topk(min(LIKELIEST, len(logits)))
        return [dict(zip(found.indices.tolist(), found.values.tolist(), strict=True))]

    def load_weights(self, directory: Path) -> None:
        if self.with_adapter:
            self._load_adapter(directory)
            return
        with self.host_weights.verified(directory) as tensors:
            if self.model.state_dict().keys() - tensors.keys():  # files name experts and towers otherwise
                read = type(self.model).from_pretrained(None, config=self.model.config, state_dict=tensors,
                                                        dtype=self.model.dtype)
                tensors = read.state_dict()
            if self._sight and self._other_tower(tensors):
                self._sight.forget()
            self.model.load_state_dict(tensors, strict=True)

    def _other_tower(self, tensors: dict) -> bool:
        """Whether new weights differ from those held in what is not the text."""
        text = {id(one) for part in (self.model.get_decoder(), self.model.get_output_embeddings())
                for one in part.parameters()}
        return any(not self.torch.equal(held, tensors[name].to(held.device))
                   for name, held in self.model.named_parameters() if id(held) not in text)

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


def _positions(mask):
    """Of tokens [R, L] by a mask, 0 where a row is padded before it."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def _truncated(torch, logits, request: Request):
    """Log-probs [V] over the tokens that stay, and their ids. logits: [V], over the temperature."""
    if request.top_k <= 0 and request.top_p == 1 and request.min_p == 0:
        return logits.log_softmax(-1), None
    top_k = min(request.top_k, len(logits)) if request.top_k > 0 else len(logits)
    bounds = (torch.tensor([bound]) for bound in (top_k, request.top_p, request.min_p))
    ids, counts = kept_of(logits[None], top_k, *bounds)
    return truncate(logits[None], ids, counts)[0].log_softmax(-1), ids[0, : counts[0]]
