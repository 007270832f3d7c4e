"""How a model reads images: the tokens that stand for one, its features, and where these are among the tokens.

Trainer and transformers engine give the text's model embeddings, in which the features of images take the place of the
tokens that stand for them. Each image is processed by itself: what it becomes depends on no other one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from ouroboros.pipeline.store.errors import DataError, ModelError
from ouroboros.pipeline.store.lazy import Tensor, torch
from ouroboros.pipeline.store.pictures import Picture, pixels
from ouroboros.workflows.protocol.hugging_face import import_transformers, read_config

KINDS = ("idefics3",)  # whose positions are those of a text, and whose image tokens attend to those before them alone
MOST_BYTES = 256 << 20  # of features that are kept

Shown = Sequence[tuple[int, Sequence[Picture]]]  # where a row begins among flat tokens, and its images


class Sight:
    """The processor of a model that reads images."""

    def __init__(self, model: Path):
        """Raises ModelError for a model whose images are not supported."""
        kind = read_config(model).model_type
        if kind not in KINDS:
            raise ModelError(f"{model}: tasks have images, which are not shown to {kind} models; needed a model of "
                             f"{', '.join(KINDS)} (the first SmolVLM is one), or tasks without images.")
        self._processor = import_transformers().AutoProcessor.from_pretrained(model, local_files_only=True)
        self.mark = self._processor.image_token_id  # in a prompt before it is expanded; stands for a feature after
        self._tokens: dict[Picture, list[int]] = {}
        self._known: OrderedDict[tuple, Tensor] = OrderedDict()  # features by image, type and device, the last used
        self._bytes = 0

    @property
    def tiles(self) -> bool:
        """Whether a large image is cut into tiles."""
        return self._processor.image_processor.do_image_splitting

    def tokens(self, picture: Picture) -> list[int]:
        """Those that stand for an image."""
        if picture not in self._tokens:
            self._tokens[picture] = self.processed(picture)[0]
        return self._tokens[picture]

    def processed(self, picture: Picture) -> tuple[list[int], dict[str, Tensor]]:
        """The tokens that stand for an image, and its inputs of `get_image_features`: up to tens of MB,
        and so not kept, unlike the features made of them."""
        made = self._processor(text=[self._processor.image_token], images=[[pixels(picture)]],
                               add_special_tokens=False, return_tensors="pt")
        return made["input_ids"][0].tolist(), {name: made[name] for name in ("pixel_values", "pixel_attention_mask")}

    def expanded(self, tokens: Sequence[int], pictures: Sequence[Picture]) -> list[int]:
        """A prompt with the tokens of its images in place of marks. Raises DataError where there are not as many."""
        if (marks := list(tokens).count(self.mark)) != len(pictures):
            raise DataError(f"{len(pictures)} images, and the prompt has {marks} tokens for them; needed as many: does "
                            "its text have such a token, or does the chat template not write images?")
        images = iter(pictures)
        return [one for token in tokens
                for one in (self.tokens(next(images)) if token == self.mark else (token,))]

    def collapsed(self, tokens: Sequence[int], pictures: Sequence[Picture]) -> list[int]:
        """The prompt before it was `expanded`, which vLLM expands itself. tokens: with a response, or without."""
        made, begin = [], 0
        for picture in pictures:
            stands = self.tokens(picture)
            place = next(at for at in range(begin, len(tokens)) if tokens[at : at + len(stands)] == stands)
            made += [*tokens[begin:place], self.mark]
            begin = place + len(stands)
        return made + list(tokens[begin:])

    def embeddings(self, model: torch.nn.Module, ids: Tensor, shown: Shown) -> Tensor:
        """Embeddings [T, width] of flat tokens [T] with features in place of the tokens that stand for images: of each
        row the first such ones, as a model may also have sampled the token."""
        found, places, wanted = model.get_input_embeddings()(ids), [], []
        features = self._features(model, dict.fromkeys(one for _, of_row in shown for one in of_row), found)
        for begin, of_row in shown:
            wanted += [features[one] for one in of_row]
            count = sum(len(features[one]) for one in of_row)
            places.append(begin + (ids[begin:] == self.mark).nonzero()[:count, 0])
        return found.index_put((torch.cat(places),), torch.cat(wanted))

    def _features(self, model: torch.nn.Module, pictures: Iterable[Picture], like: Tensor) -> dict[Picture, Tensor]:
        """The features [n, width] of each image. Towers are frozen: these have no gradient, and are computed once."""
        keys = {one: (one, like.dtype, like.device) for one in pictures}
        if new := [one for one, key in keys.items() if key not in self._known]:
            inputs = [self.processed(one)[1] for one in new]
            whole = {name: torch.cat([one[name] for one in inputs], 1).to(like.device) for name in inputs[0]}
            with torch.no_grad():
                tiles = model.get_image_features(**whole).pooler_output.to(like.dtype)
            for one, part in zip(new, tiles.split([one["pixel_values"].shape[1] for one in inputs]), strict=True):
                self._known[keys[one]] = part.flatten(0, 1).clone()
            self._bytes += tiles.nbytes
        found = {}
        for one, key in keys.items():
            self._known.move_to_end(key)
            found[one] = self._known[key]
        while self._bytes > MOST_BYTES:
            self._bytes -= self._known.popitem(last=False)[1].nbytes
        return found


@lru_cache(2)
def sight_of(model: str) -> Sight:
    """The sight of a Hugging Face directory. Raises ModelError as `Sight`."""
    return Sight(Path(model))


def with_images(tokenizer, tokens: list[list[int]], shown: Sequence[Sequence[Picture]],
                alive: Callable[[], None] | None) -> tuple[list[list[int]], dict[int, str]]:
    """Prompts with the tokens of their images, and by place why one has none. Without any image nothing is read.
    alive: called for each prompt."""
    reasons: dict[int, str] = {}
    if not any(shown):
        return tokens, reasons
    made, sight = list(tokens), sight_of(tokenizer.name_or_path)
    for place, (prompt, pictures) in enumerate(zip(tokens, shown, strict=True)):
        if alive:
            alive()
        try:
            made[place] = sight.expanded(prompt, pictures)
        except DataError as reason:
            reasons[place] = str(reason)
    return made, reasons
