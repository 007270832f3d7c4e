"""Publishes the policy's weights to the explorer: whole, or as a delta against the version before.

Rank 0 keeps the last version in host memory (page-locked with a GPU) where deltas are published; comparing, hashing
and writing run in threads.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.syncs import Unasked
from ouroboros.pipeline.settings.trainer import publishes_deltas
from ouroboros.pipeline.store import checkpoints, tables, tensor_files, versions
from ouroboros.pipeline.store.pictures import Picture
from ouroboros.pipeline.store.tensor_files import Stored
from ouroboros.pipeline.store.versions import Positions
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.engine import policy
from ouroboros.stages.learner.engine.snapshot import stored
from ouroboros.stages.learner.engine.way import decoder
from ouroboros.stages.learner.separation import apart, rounded_again

LARGEST_SHARE = 0.2  # of the elements, changed: with more, `auto` writes the whole weights
ALIGNED = 64  # bytes: where a tensor begins in a buffer


class Publishing:
    """Writes the versions of one stage."""

    def __init__(self, context: Context, actor: Actor, syncs: Unasked):
        """syncs: when an explorer is handed weights."""
        self.syncs, self.published = syncs, -1  # the last version
        self.context, self.actor, self.settings = context, actor, context.config.synchronizer
        dtype = policy.resolve_dtype(context.config.model.dtype, actor.process.device.type)
        self.deltas = publishes_deltas(context.config, str(dtype).removeprefix("torch."))
        self._buffers: list[Tensor] = []  # this version's and the last one's
        self._last: dict[str, Stored] = {}
        self._base: tuple[int, str] = 0, ""  # version and hash of the last
        self._since, self._bytes = 0, 0  # versions and bytes of deltas since a full one

    def hand_over(self, version: int, tokens: list[int], pictures: tuple[Picture, ...] = ()) -> None:
        """Publishes the weights as `version`, unless they are, and answers an explorer that asked for them.
        Collective."""
        if version != self.published:
            self.publish(version, tokens, pictures)
            self.published = version
        if self.actor.process.rank == 0:
            self.syncs.answer(version)

    def publish(self, version: int, tokens: list[int], pictures: tuple[Picture, ...] = ()) -> None:
        """Publishes the weights as `version`, with their log-probs of `tokens`, which verify that they were loaded.
        pictures: in them. Collective."""
        probe = self._probe(tokens, pictures)
        if pictures:
            probe["pictures"] = [one.hash for one in pictures]
        state = self.actor.trainable_state()
        self.actor.make_room()
        if state is not None:
            export = self.actor.write_adapter if self.actor.adapter else partial(self._write, version)
            shown = next((one.file for one in pictures if Path(one.file).name != tables.LOCATIONS["pictures"]), None)
            versions.publish(self.context.directory, version, partial(export, state), probe, shown)

    def _probe(self, tokens: list[int], pictures: tuple[Picture, ...]) -> dict[str, Any]:
        """Log-probs of the tokens at temperature 1, by how much another rounding changes them below float32, and the
        log-prob of the likeliest token after them at the temperature of sampling. The latter (rank 0's) from the last
        hidden state: the policy scores tokens that are given."""
        module, states = self.actor.zero.module, []
        hook = decoder(module.model).register_forward_hook(lambda _, __, found: states.append(found.last_hidden_state))
        try:
            probe: dict[str, Any] = {"tokens": tokens, "logprobs": self.actor.score(tokens, pictures)}
        finally:
            hook.remove()
        if module.model.dtype != torch.float32:
            with rounded_again(getattr(decoder(module.model), "layers", ())):
                probe["rounding"] = apart(np.array(self.actor.score(tokens, pictures)), np.array(probe["logprobs"]))
        part = module.way.part(torch.tensor([len(tokens) - 1], device=states[0].device), len(tokens))
        last = part.whole(states[0][0][part.places])[0]
        head = self.actor.zero.full_state(module.model.get_output_embeddings().named_parameters())
        if head is not None:
            with torch.no_grad():
                logits = functional.linear(last.to(head["weight"].device), **head)
                logprobs = module.scaled(logits, module.temperature / module.factor).log_softmax(-1)
            token = int(logprobs.argmax())
            probe["likeliest"] = {"temperature": module.temperature, "token": token, "logprob": float(logprobs[token])}
        return probe

    def _write(self, version: int, state: dict[str, Tensor], directory: Path) -> dict[str, Any]:
        """Writes the weights into a directory; returns entries of its manifest."""
        new = stored(self._for_file(state))
        changed = self._changed(new)
        if changed is None:
            tensor_files.write(directory / checkpoints.WEIGHTS, new)
        else:
            versions.write_delta(directory / versions.DELTA, new, changed)
        found = tensor_files.hashes_of(new)
        base = None if changed is None else list(self._base)
        twice = [policy.HEAD] if policy.is_tied(self.actor.zero.module.model) and policy.HEAD in new else []
        entries = {"hash": versions.root(new, found, twice), "tensors": found, "twice": twice, "base": base}
        if self.deltas:
            self._last, self._base = new, (version, entries["hash"])
            self._since, self._bytes = (0, 0) if changed is None else (
                self._since + 1, self._bytes + versions.delta_bytes(new, changed))
        return entries

    def forget(self) -> None:
        """Releases the memory of the last versions: none is published after them."""
        self._buffers, self._last = [], {}

    def _changed(self, new: dict[str, Stored]) -> Positions | None:
        """The elements that differ from the last version; None if the weights are to be written whole."""
        whole, elements = sum(one.data.nbytes for one in new.values()), sum(len(one.words) for one in new.values())
        if not self._last or self._since + 1 >= self.settings.anchor_interval or self._bytes > whole:
            return None
        changed = versions.changes(self._last, new)
        if self.settings.publish == "auto" and sum(map(len, changed.values())) > LARGEST_SHARE * elements:
            return None
        return changed

    def _for_file(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a weight file in host memory, by name; in a buffer if they are compared with later ones."""
        state = {name: tensor.detach() for name, tensor in state.items()}
        if self.deltas or self.actor.process.device.type == "cuda":
            state = self._copied(state)
        return policy.file_tensors(state, self.actor.zero.module.model)

    def _copied(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        sizes = {name: -(-tensor.nbytes // ALIGNED) * ALIGNED for name, tensor in state.items()}
        if not self._buffers:
            gpu, total = self.actor.process.device.type == "cuda", sum(sizes.values())
            self._buffers = [torch.empty(total, dtype=torch.uint8, pin_memory=gpu) for _ in range(1 + self.deltas)]
        self._buffers.reverse()
        made, begin = {}, 0
        for name, tensor in state.items():
            place = self._buffers[0][begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            made[name] = place.copy_(tensor, non_blocking=True)
            begin += sizes[name]
        if self.actor.process.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        return made
