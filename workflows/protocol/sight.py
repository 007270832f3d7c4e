"""How a model reads images: the tokens that stand for one, its features, and where these are among the tokens.

Trainer and transformers engine give the text's model embeddings, in which the features of images take the place of the
tokens that stand for them. Each image is processed by itself: what it becomes depends on no other one. A family of
models is a class of FAMILIES.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from ouroboros.pipeline.store.errors import DataError, ModelError
from ouroboros.pipeline.store.files import read_json
from ouroboros.pipeline.store.lazy import Tensor, torch
from ouroboros.pipeline.store.pictures import Broken, Picture, pixels
from ouroboros.workflows.protocol.hugging_face import import_transformers, read_config

MOST_BYTES = 256 << 20  # of features that are kept
MOST_READ = 16384  # images whose tokens are kept
MARKS = ("image_token_id", "image_token_index", "boi_token_index", "video_token_id")  # of config.json, with Gemma 3's
TYPED = "a text has a token that stands for an image or a video; needed texts without it"

Shown = Sequence[tuple[int, Sequence[Picture]]]  # where a row begins among flat tokens, and its images
Inputs = dict[str, Tensor]  # of `get_image_features`, for one image


class Seen(NamedTuple):
    """What the text's model gets of flat tokens [T] with images. embeddings: [T, width]. positions: [T], or [3, T] with
    those of time, height and width. stands: [T], whether a token stands for a feature. deep: what is added to the
    outputs of the first layers there, each [features, width]. blocks: [T], the number of the image whose tokens attend
    to one another in both directions, -1 elsewhere; None: attention is causal throughout."""

    embeddings: Tensor
    positions: Tensor
    stands: Tensor
    deep: Sequence[Tensor]
    blocks: Tensor | None

    def inputs(self, places: Tensor, inside: Tensor | None = None) -> dict[str, Any]:
        """Arguments of its forward for rows of flat places [R, L]. inside: [R, L], false for padding."""
        given = {"inputs_embeds": self.embeddings[places], "position_ids": self.positions[..., places]}
        if self.deep:
            stands = self.stands[places] if inside is None else self.stands[places] & inside
            given |= {"visual_pos_masks": stands, "deepstack_visual_embeds": self.deep}
        return given

    def mask(self, text, places: Tensor, inside: Tensor | None) -> Tensor | dict[str, Tensor] | None:
        """The attention mask of rows of flat places in transformers. text: the configuration of the text's model.
        inside: [R, L] int64, 0 for padding."""
        if self.blocks is None:
            return inside
        from transformers.models.gemma3.modeling_gemma3 import create_masks_for_vision_model

        blocks = self.blocks[places]
        return create_masks_for_vision_model(
            text, self.embeddings[places], inside, None, self.positions[places],
            blocks if inside is None else blocks.masked_fill(inside == 0, -1))


class Tiles:
    """Tiles of one size and tokens around them, with the positions of a text; the tokens of an image attend to those
    before them alone (Idefics 3, InternVL)."""

    both_ways = False

    def __init__(self, model: Path, config):
        self._processor = import_transformers().AutoProcessor.from_pretrained(model, local_files_only=True)
        self.mark, self.stands = self._processor.image_token_id, config.image_token_id
        self.counts = getattr(self._processor.image_processor, "do_image_splitting", True)

    def processed(self, image) -> tuple[list[int], Inputs]:
        made = self._processor(text=[self._processor.image_token], images=[[image]], add_special_tokens=False,
                               return_tensors="pt")
        inputs = {"pixel_values": made["pixel_values"].flatten(0, -4)}
        if "pixel_attention_mask" in made:
            inputs["pixel_attention_mask"] = made["pixel_attention_mask"].flatten(0, -3)
        return made["input_ids"][0].tolist(), inputs

    def features(self, model: torch.nn.Module, images: Sequence[Inputs]) -> list[Tensor]:
        whole = {name: torch.cat([one[name] for one in images]) for name in images[0]}
        if "pixel_attention_mask" in whole:  # of prompts with as many tiles, here one
            whole = {name: part[None] for name, part in whole.items()}
        tiles = model.get_image_features(**whole).pooler_output
        return [part.flatten(0, 1)[None] for part in tiles.split([len(one["pixel_values"]) for one in images])]

    def grid(self, inputs: Inputs) -> None:
        return None

    def joined(self, tokens: list[int]) -> list[int]:
        """A prompt in which images were put, with the tokens that its processor makes of the whole."""
        return tokens


class Gemma3(Tiles):
    """Tokens of an image attend to one another in both directions. Its mark in a prompt is another token than those
    that stand for its features, and the line breaks around these join those of the text."""

    both_ways = True

    def __init__(self, model: Path, config):
        super().__init__(model, config)
        self._breaks = {token for text, token in self._processor.tokenizer.get_vocab().items() if not text.strip("\n")}

    def joined(self, tokens: list[int]) -> list[int]:
        read = self._processor.tokenizer
        made: list[int] = []
        for breaks, run in groupby(tokens, self._breaks.__contains__):
            ids = [*run]
            made += read(read.decode(ids), add_special_tokens=False)["input_ids"] if breaks else ids
        return made


class QwenVL:
    """A token for each square of merged patches, with its row and column as positions (M-RoPE); Qwen3-VL adds features
    of the tower's inner layers to the text's first ones."""

    both_ways, joined = False, Tiles.joined

    def __init__(self, model: Path, config):
        self._processor = import_transformers().AutoImageProcessor.from_pretrained(model, local_files_only=True)
        self._merged, self.mark = config.vision_config.spatial_merge_size, config.image_token_id
        self.stands, self.counts = self.mark, True

    def processed(self, image) -> tuple[list[int], Inputs]:
        made = self._processor(images=[image], return_tensors="pt")
        inputs = {name: made[name] for name in ("pixel_values", "image_grid_thw")}
        rows, columns = self.grid(inputs)
        return [self.mark] * (rows * columns), inputs

    def features(self, model: torch.nn.Module, images: Sequence[Inputs]) -> list[Tensor]:
        made = model.get_image_features(**{name: torch.cat([one[name] for one in images]) for name in images[0]})
        return [torch.stack(layers) for layers in
                zip(made.pooler_output, *(getattr(made, "deepstack_features", None) or ()), strict=True)]

    def grid(self, inputs: Inputs) -> tuple[int, int]:
        _, rows, columns = inputs["image_grid_thw"][0].tolist()
        return rows // self._merged, columns // self._merged


FAMILIES = {"idefics3": Tiles, "internvl": Tiles, "gemma3": Gemma3, "qwen2_5_vl": QwenVL, "qwen3_vl": QwenVL,
            "qwen3_5": QwenVL}  # by model_type


def patches(config) -> float | None:
    """How many patches of its tower a token of an image stands for; None of a model that is shown no images."""
    if config.model_type not in FAMILIES:
        return None
    tower, edge = config.vision_config, getattr(config, "scale_factor", None)
    if config.model_type == "gemma3":
        return (tower.image_size // tower.patch_size) ** 2 / config.mm_tokens_per_image
    return (edge or getattr(tower, "spatial_merge_size", None) or 1 / config.downsample_ratio) ** 2


class Sight:
    """The processor of a model that reads images."""

    def __init__(self, model: Path):
        """Raises ModelError for a model whose images are not supported, or whose processor cannot be read."""
        config = read_config(model)
        if config.model_type not in FAMILIES:
            raise ModelError(f"{model}: images are not shown to {config.model_type} models; needed a model of "
                             f"{', '.join(FAMILIES)} (the first SmolVLM is an idefics3), or tasks and agents without "
                             "images.")
        try:
            self._family = FAMILIES[config.model_type](model, config)
        except (OSError, ValueError, ImportError) as error:
            advice = "" if isinstance(error, ImportError) else (
                " Copy preprocessor_config.json and processor_config.json of the model that it was made from.")
            raise ModelError(f"there are images, and {model} has no processor of images that can be read "
                             f"({' '.join(str(error).split())[:200]}).{advice}") from error
        self.counts = self._family.counts  # whether a processor tells the tiles or patches of an image that is not cut
        self.mark = self._family.mark  # of an image in a prompt, before it is expanded
        self.stands = self._family.stands  # for a feature, after
        self._typed = (marks(model) | {self.stands}) - {self.mark}  # in no prompt before it is expanded
        self._looked_up = lru_cache(MOST_READ)(self._look_up)
        self._known: OrderedDict[tuple, Tensor] = OrderedDict()  # features by image, type and device, the last used
        self._bytes, self._lock = 0, threading.Lock()  # of the processor: an endpoint looks tokens up in a thread

    def tokens(self, picture: Picture) -> list[int]:
        """Those that stand for an image."""
        return self._looked_up(picture)[0]

    def _look_up(self, picture: Picture) -> tuple[list[int], tuple[int, int] | None]:
        """The tokens of an image, and their rows and columns, if it has these."""
        tokens, inputs = self.processed(picture)
        return tokens, self._family.grid(inputs)

    def sampled(self, tokens: Sequence[int], pictures: Sequence[Picture]) -> bool:
        """Whether a token that stands for a feature is of none of the images that are among the tokens."""
        return list(tokens).count(self.stands) != sum(self.tokens(one).count(self.stands) for one in pictures)

    def processed(self, picture: Picture) -> tuple[list[int], Inputs]:
        """The tokens that stand for an image, and its inputs of `get_image_features`: up to tens of MB, and so not
        kept, unlike the features made of them."""
        image = pixels(picture)
        try:
            with self._lock:
                return self._family.processed(image)
        except (ValueError, TypeError, RuntimeError) as error:
            raise Broken(f"an image of {image.width} x {image.height} pixels that the model's processor refuses: "
                         f"{error}") from error

    @cached_property
    def _blank(self) -> Inputs:
        """Those of a small white image; of tiles the first alone."""
        from PIL import Image
        inputs = self._family.processed(Image.new("RGB", (56, 56), "white"))[1]
        return inputs if self._family.grid(inputs) else {name: part[:1] for name, part in inputs.items()}

    def expanded(self, tokens: Sequence[int], pictures: Sequence[Picture]) -> list[int]:
        """A prompt with the tokens of its images in place of marks. Raises DataError where there are not as many, or
        where its text has another token that stands for an image or a video."""
        if not self._typed.isdisjoint(tokens):
            raise DataError(TYPED)
        if (found := list(tokens).count(self.mark)) != len(pictures):
            raise DataError(f"{len(pictures)} images, and the prompt has {found} tokens for them; needed as many: does "
                            "its text have such a token, or does the chat template not write images?")
        images = iter(pictures)
        made = [one for token in tokens for one in (self.tokens(next(images)) if token == self.mark else (token,))]
        return self._family.joined(made) if pictures else made

    def collapsed(self, tokens: Sequence[int], pictures: Sequence[Picture]) -> list[int]:
        """The prompt before it was `expanded`, which vLLM expands itself. tokens: with a response, or without; pictures
        behind them do not count."""
        made, begin = [], 0
        for picture in pictures:
            stands = self.tokens(picture)
            place = next((at for at in range(begin, len(tokens)) if tokens[at : at + len(stands)] == stands), None)
            if place is None:
                break
            made += [*tokens[begin:place], self.mark]
            begin = place + len(stands)
        return made + list(tokens[begin:])

    def seen(self, model: torch.nn.Module, ids: Tensor, positions: Tensor, shown: Shown, trains: bool = False,
             always: bool = False) -> Seen:
        """Flat tokens [T] with features in place of the tokens that stand for images: of each row the first such ones,
        as a model may also have sampled the token. positions: [T], of a text, 0 where a row begins. trains: features
        are computed anew, with a gradient. always: the tower runs once, for text on a blank image of no weight."""
        embedded = model.get_input_embeddings()(ids)
        pictures = list(dict.fromkeys(one for _, of_row in shown for one in of_row))
        if trains or always:
            with torch.set_grad_enabled(trains and torch.is_grad_enabled()):
                made = self._made(model, pictures or [None], embedded)
            if not pictures:
                return Seen(embedded + 0 * made[0].sum(), positions, torch.zeros_like(ids, dtype=torch.bool), (), None)
            features = dict(zip(pictures, made, strict=True))
        else:
            features = self._features(model, pictures, embedded)
        images = [features[one] for _, of_row in shown for one in of_row]
        rows = [begin + (ids[begin:] == self.stands).nonzero()[: sum(features[one].shape[1] for one in of_row), 0]
                for begin, of_row in shown]
        places, (first, *deep) = torch.cat(rows), torch.cat(images, 1)
        for places_of_row, (_, of_row) in zip(rows, shown, strict=True):
            positions = self._placed(positions, places_of_row, [self._looked_up(one)[1] for one in of_row])
        stands = torch.zeros_like(ids, dtype=torch.bool).index_fill_(0, places, True)
        blocks = (stands & ~stands.roll(1)).cumsum(0).where(stands, -1) if self._family.both_ways else None
        return Seen(embedded.index_put((places,), first), positions, stands, deep, blocks)

    def _placed(self, positions: Tensor, places: Tensor, grids: Sequence[tuple[int, int] | None]) -> Tensor:
        """Positions [T] or [3, T] with those of a row's images. places: [n], where their features are."""
        if None in grids:
            return positions
        made = positions.expand(3, -1).clone()
        ends = (made[0, places[0] + 1 :] == 0).nonzero()  # where the next row begins
        end = int(places[0] + 1 + ends[0]) if len(ends) else made.shape[1]
        at = 0
        for rows, columns in grids:
            begin, count = int(places[at]), rows * columns
            steps = torch.arange(count, device=made.device)
            made[:, begin : begin + count] = made[:, begin, None] + torch.stack([
                0 * steps, steps // columns, steps % columns])
            made[:, begin + count : end] += max(rows, columns) - count
            at += count
        return made

    def forget(self) -> None:
        """Drops all features, which are of other weights of what reads images."""
        self._known.clear()
        self._bytes = 0

    def _made(self, model: torch.nn.Module, pictures: Sequence[Picture | None], like: Tensor) -> list[Tensor]:
        """None: a blank image."""
        found = (self.processed(one)[1] if one else self._blank for one in pictures)
        inputs = [{name: part.to(like.device) for name, part in one.items()} for one in found]
        return [part.to(like.dtype) for part in self._family.features(model, inputs)]

    def _features(self, model: torch.nn.Module, pictures: Iterable[Picture], like: Tensor) -> dict[Picture, Tensor]:
        """The features [1 + deep, n, width] of each image, which are computed once, without a gradient."""
        keys = {one: (one, like.dtype, like.device) for one in pictures}
        if new := [one for one, key in keys.items() if key not in self._known]:
            with torch.no_grad():
                made = self._made(model, new, like)
            for one, part in zip(new, made, strict=True):
                self._known[keys[one]] = part.clone()
                self._bytes += part.nbytes
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


@lru_cache(8)
def marks(model: Path) -> set[int]:
    """Tokens that stand for images and videos in prompts of a Hugging Face directory; none of a model of text."""
    found = read_json(model / "config.json") if (model / "config.json").is_file() else {}
    return {found[name] for name in MARKS if isinstance(found.get(name), int)}


def with_images(tokenizer, tokens: list[list[int]], shown: Sequence[Sequence[Picture]],
                alive: Callable[[], None] | None) -> tuple[list[list[int]], dict[int, str]]:
    """Prompts with the tokens of their images, and by place why one has none. Without any image no processor is read.
    alive: called for each prompt."""
    reasons: dict[int, str] = {}
    if not any(shown):
        typed = marks(Path(tokenizer.name_or_path))
        return tokens, {place: TYPED for place, prompt in enumerate(tokens) if not typed.isdisjoint(prompt)}
    made, sight = list(tokens), sight_of(tokenizer.name_or_path)
    for place, (prompt, pictures) in enumerate(zip(tokens, shown, strict=True)):
        if alive:
            alive()
        try:
            made[place] = sight.expanded(prompt, pictures)
        except DataError as reason:
            reasons[place] = str(reason)
    return made, reasons
