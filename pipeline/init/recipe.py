"""Builds a recipe from a data file, its columns and a model: lengths, batches, rates, held-out set."""

import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pipeline.check import samples
from pipeline.check.data_sample import Row, sample
from pipeline.check.model_size import Size, Sizes, question
from pipeline.check.sources import POOL, Source
from pipeline.init.columns import Guess
from pipeline.job.devices import visible_gpus
from pipeline.settings.data import BufferFormat, Format
from pipeline.settings.model import Model
from pipeline.settings.setting import plain
from pipeline.store.data_files import READERS, SPLITS, is_saved_dataset, open_files
from pipeline.store.digests import missing
from pipeline.store.errors import DataError
from pipeline.store.files import TEMPLATES, hash_text, require_plain
from pipeline.store.model_shape import read_config

CONVERTED, HELD_OUT = "data/train.jsonl", "data/test.jsonl"
ROWS = 200  # sampled
SMALL = 20_000_000  # parameters below which a model gets the learning rates of a toy
RATES = {"rft": (5e-4, 1e-6), "sft": (1e-3, 1e-5), "dpo": (2e-4, 5e-7), "cpt": (1e-3, 1e-5)}  # of small models, others
MOST = {"rft": 64, "sft": 64, "dpo": 32, "cpt": 16}  # rows per batch
WORKED = 512  # tokens of a response that may reason before it answers
BRIEF = 64  # the same for a model below SMALL, which cannot reason
SYSTEM = "Solve the problem step by step. End with a line that has nothing but #### and the answer: #### 42"


@dataclass
class Data:
    """rows: a sample. total: approximate count. held_out: the split to evaluate on, if names identify one.
    unused: files of a directory that belong to neither it nor `train`."""

    path: Path
    held_out: str | None
    rows: list[Row]
    total: int
    unused: list[str]


def read(name: str) -> Data:
    """Reads the user's data. Raises DataError if there are no rows, or the files are of another kind."""
    path = Path(os.path.abspath(os.path.expanduser(name)))
    if not os.path.lexists(path):
        raise missing(Path(name), "--from", name)
    path = require_plain(path, f"--from {name}").resolve()
    columns = dict.fromkeys(column for part in sample(path, "train", 1, ()).parts for column in part.columns)
    drawn = sample(path, "train", ROWS, columns)
    if not drawn.rows:
        raise DataError(f"{path} holds no rows; needed one JSON object a line, or rows of Parquet.")
    words = _words(path)
    told = set().union(*words.values())
    held_out = next((split for split in SPLITS[1:] if split in told), None)
    unused = sorted(name for name, of in words.items() if told & {*SPLITS} and not of & {"train", held_out})
    return Data(path, held_out, drawn.rows, drawn.total, unused)


def left_out(guess: Guess, data: Data) -> list[str]:
    """Returns the files beside the training rows that the recipe does not read: demonstrations, pairs and texts have no
    evaluation, and of a single file those in its directory that are named as another split."""
    if data.path.is_dir():
        held = [name for name, words in _words(data.path).items() if data.held_out in words]
        return [*data.unused, *(sorted(held) if guess.kind != "rft" else [])]
    others = {str(f): words for f in sorted(data.path.parent.iterdir()) if f.suffix in READERS and f != data.path
              for words in [set(re.split(r"[^a-z0-9]+", f.name.lower()))]}
    return [name for name, words in others.items() if words & {*SPLITS[1:]}]


def _words(path: Path) -> dict[str, set[str]]:
    """Returns the words in the name of each file of a directory, which may name a split; of a save_to_disk dataset each
    split."""
    if (listed := path / "dataset_dict.json").exists():
        return {split: {split} for split in json.loads(listed.read_text(encoding="utf-8"))["splits"]}
    found = [] if path.is_file() or is_saved_dataset(path) else [f for f in path.rglob("*") if f.suffix in READERS]
    return {name: set(re.split(r"[^a-z0-9]+", name.lower())) for name in (str(f.relative_to(path)) for f in found)}


def files_of(guess: Guess, data: Data, model: Path, project: str) -> dict[str, str]:
    """Returns the files of the project of that name: file name -> text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    said, made = _facts(guess, data, model) | {"project": project}, {}
    if guess.convert:
        made[CONVERTED] = "".join(_converted(guess, data))
    if _is_parted(guess, data):
        made |= _parted(guess, data)
    loader = FileSystemLoader(TEMPLATES / "init" / "own")
    texts = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)
    return made | {name.removesuffix(".j2"): texts.get_template(name).render(said) for name in texts.list_templates()
                   if "reward" not in name or guess.reward == "reward:score"}


def _converted(guess: Guess, data: Data) -> Iterator[str]:
    """Returns the rows as JSON lines. Raises DataError for a row whose structure differs from the sample."""
    every = (row for _, records in open_files(str(data.path), None, "train", "--from") for row in records)
    for number, row in enumerate(every, 1):
        try:
            yield json.dumps(guess.convert(row), ensure_ascii=False) + "\n"
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"--from {data.path}: row {number} has another shape than those that were sampled "
                            f"({type(error).__name__}: {error}). Remove it, or write rows as `messages`.") from error


def _is_parted(guess: Guess, data: Data) -> bool:
    """Returns whether held-out rows get their own file: otherwise the warmup would imitate their solutions."""
    return bool(guess.warmup) and not data.held_out


def _parted(guess: Guess, data: Data) -> dict[str, str]:
    """Splits the rows into two files; equal prompts go to the same one, and a share, chosen by hash, is held out."""
    rows = [row for _, records in open_files(str(data.path), None, "train", "--from") for row in records]
    asked = [json.dumps(_value(row, guess.format["prompt_key"]), default=str) for row in rows]
    order = sorted(set(asked), key=hash_text)
    held = set(order[:max(round(len(order) * _held_share(data)), 1)])
    said = [json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows]
    return {name: "".join(line for prompt, line in zip(asked, said, strict=True) if (prompt in held) == is_held)
            for name, is_held in ((CONVERTED, False), (HELD_OUT, True))}


def _value(row: Row, key: str) -> Any:
    """Returns the value of a row's column, which may be within structs."""
    return row.get(key) if key in row else reduce(lambda value, part: (value or {}).get(part), key.split("."), row)


def _held_share(data: Data) -> float:
    return 0.1 if data.total >= ROWS else 0.2


def _facts(guess: Guess, data: Data, model: Path) -> dict[str, Any]:
    """Returns the variables for the templates."""
    context = read_config(str(model), "--model").get("max_position_embeddings") or 4096
    plain = guess.reward == "accuracy_reward" and "prompt_type" not in guess.format
    system = SYSTEM if plain and context >= 2 * WORKED else None
    prompt, response, size = _measured(guess, data.rows, model, system)
    if guess.kind == "cpt":
        prompt = response = min(context // 2, WORKED)  # plain text is cut into these
    small = size is not None and size.parameters < SMALL
    response = max(response, BRIEF if small else WORKED) if guess.kind == "rft" else response or prompt
    response = min(response, max(context - prompt, context // 4))
    demonstrations = {**{key: value for key, value in guess.format.items() if key.startswith("prompt")},
                      "response_key": guess.warmup}
    shown = [f"{key}: {_quoted(value)}" for key, value in demonstrations.items()]
    columns = (f"{key}: {'null' if value is None else _quoted(value)}" for key, value in guess.format.items())
    return {
        "guess": guess, "data": data, "path": _quoted(_path(guess, data)), "system": system,
        "columns": f"{{{', '.join(columns)}}}", "model": _quoted(model), "context": context, "response": response,
        "parameters": f"{size.parameters / 1e6:,.1f} million parameters" if size else "parameters not counted",
        "prompt": min(prompt, context - response), "lr": f"{RATES[guess.kind][0 if small else 1]:.0e}", "small": small,
        "batch": min(MOST[guess.kind], 2 ** max((data.total // 4).bit_length() - 1, 0)),
        "test_ratio": _held_share(data), "held_out": "test" if _is_parted(guess, data) else data.held_out,
        "warmup_lr": f"{RATES['sft'][0 if small else 1]:.0e}", "warmup_columns": f"{{{', '.join(shown)}}}",
        "mode": "colocate" if len(visible_gpus(None)) == 1 else "both",
    }


def _path(guess: Guess, data: Data) -> str | Path:
    return "data" if _is_parted(guess, data) else CONVERTED if guess.convert else data.path


def _measured(guess: Guess, rows: list[Row], model: Path, system: str | None) -> tuple[int, int, Size | None]:
    """Returns the tokens of the sample's longest prompt and response with the chat template, plus a quarter, and the
    model's size."""
    section = Model(model_path=str(model), max_prompt_tokens=10**9, max_response_tokens=10**9)
    columns = {"prompt_key": guess.format["prompt_key"], "solution_key": guess.demonstrated}
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "rows.jsonl"
        shown = [guess.convert(row) for row in rows] if guess.convert else rows
        file.write_text("".join(json.dumps(row, default=str) + "\n" for row in shown), encoding="utf-8")
        form = json.dumps(plain((Format if guess.kind == "rft" else BufferFormat)(**guess.format)))
        source = Source(POOL, "--from", str(file), "train", "format", tuple(columns.items()), tuple(columns), form=form,
                        purpose="task" if guess.kind == "rft" else "demonstration")
        found = samples.ask({"sources": [] if guess.kind == "cpt" else [source.request()], "rows": ROWS,
                             "model": plain(section), "system_prompt": system, "recipes": [], "operators": [],
                             "models": [question(section)]})
    if found["problems"]:
        raise DataError("\n".join(found["problems"]))
    longest = dict(found["longest"])
    prompt, response = (_rounded(longest.get(f"max_{what}_tokens", 0)) for what in ("prompt", "response"))
    return prompt, response, Sizes(found["sizes"]).of(section)


def _quoted(value: Any) -> str:
    """Quotes a text for use anywhere in YAML."""
    return json.dumps(str(value), ensure_ascii=False)


def _rounded(tokens: int) -> int:
    step = 8 if tokens < 64 else 64
    return -(-tokens * 5 // 4 // step) * step
