"""Looks at a sample of every data file before anything runs: do its columns exist, do its prompts fit the model?

    python -m stages.preview request.json answer.json

Started by `ouro config check` (pipeline/samples.py). Rows are taken from all over a file without reading all of it;
they go through the model's chat template and tokenizer. Answers with lists of problems, warnings, what could not be
judged here, and facts. It is no stage of the plan: it makes nothing that another reads.
"""

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipeline import files
from pipeline.data_files import READERS, files_of_split, is_saved_dataset, saved_dataset
from pipeline.errors import ConfigError, OuroError, nearest
from pipeline.sources import PAIR

WHOLE = 4 << 20  # bytes up to which a text file is read whole
MOST_FILES = 20  # of a directory
OFTEN = 0.1  # share of over-long rows above which a file is worth a warning

Row = dict[str, Any]


def spread(total: int, count: int) -> list[int]:
    """At most `count` positions below `total`, evenly spread, the first one included."""
    return list(range(total)) if total <= count else [i * total // count for i in range(count)]


def sample_jsonl(path: Path, count: int) -> tuple[list[Row], int]:
    """Up to `count` rows of a jsonl file from all over it, and about how many it has."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        if size <= WHOLE:
            lines = [line for line in file if line.strip()]
            return [_parse(path, lines[i]) for i in spread(len(lines), count)], len(lines)
        chosen = []
        for offset in spread(size, count):
            file.seek(offset)
            if offset:
                file.readline()  # the rest of a line
            chosen.append(next((line for line in file if line.strip()), b""))
    lines = list(dict.fromkeys(filter(None, chosen)))
    return [_parse(path, line) for line in lines], size * len(lines) // max(sum(map(len, lines)), 1)


def _parse(path: Path, line: bytes) -> Row:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} has a line that is no JSON ({error}): {line[:60]!r}") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{path} has a line that is a JSON {type(row).__name__}; needed one object a line.")
    return row


def sample_parquet(path: Path, count: int) -> tuple[list[Row], int]:
    """Up to `count` rows of a Parquet file, from the beginning of row groups all over it, and how many it has."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        groups = spread(file.num_row_groups, count)
        each = -(-count // max(len(groups), 1))
        rows: list[Row] = []
        for group in groups:
            batches = file.iter_batches(batch_size=each, row_groups=[group])
            rows += next(batches).to_pylist() if file.metadata.row_group(group).num_rows else []
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path} is not a readable Parquet file ({error}). Make it again.") from error
    return rows[:count], file.metadata.num_rows


def sample_dataset(path: Path, split: str, count: int) -> tuple[list[Row], int]:
    """Up to `count` rows from all over a dataset of save_to_disk, and how many it has."""
    dataset = saved_dataset(path, split)
    return [dataset[i] for i in spread(len(dataset), count)], len(dataset)


SAMPLERS: dict[str, Callable[[Path, int], tuple[list[Row], int]]] = {".jsonl": sample_jsonl, ".parquet": sample_parquet}


def sample(path: Path, split: str, count: int) -> tuple[list[Row], int]:
    """Up to `count` rows of one source from all over it, and about how many it has.

    Raises DataError or ConfigError when it, or its split, cannot be read.
    """
    if is_saved_dataset(path):
        return sample_dataset(path, split, count)
    found = files_of_split(path, split) if path.is_dir() else [path]
    if found[0].suffix not in SAMPLERS:
        raise ConfigError(f"{path}: needed a {' or '.join(READERS)} file or a directory."
                          f"{nearest(found[0].suffix, READERS)}")
    chosen = [found[i] for i in spread(len(found), MOST_FILES)]
    parts = [SAMPLERS[file.suffix](file, -(-count // len(chosen))) for file in chosen]
    rows = [row for part, _ in parts for row in part]
    return rows, sum(total for _, total in parts) * len(found) // len(chosen)


# ------------------------------------------------------------------------------------------------------ judging


class Preview:
    """Collects what is found in all sources of one request."""

    def __init__(self, request: dict[str, Any]):
        self.request, self.limits = request, request["model"]
        self.found: dict[str, list] = {"problems": [], "warnings": [], "unjudged": [], "facts": []}
        self.tokenizer = self._tokenizer() if request["sources"] else None

    def _tokenizer(self):
        from workflows.prompts import load_tokenizer

        if self.limits["init"]["enable"]:
            from stages.model import character_tokenizer

            return character_tokenizer(10**6)
        path = self.limits["model_path"]
        if not path or not (Path(path) / "config.json").exists():
            self.found["unjudged"].append("lengths of prompts and responses: the model, and so its tokenizer, is not "
                                          "here.")
            return None
        try:
            return load_tokenizer(Path(path), SimpleNamespace(**self.limits))
        except OuroError as error:
            self.found["problems"].append(str(error))
            return None

    def source(self, source: dict[str, Any]) -> None:
        """Judges one source."""
        path = Path(source["path"])
        try:
            rows, total = sample(path, source["split"], self.request["rows"])
        except OuroError as error:
            self.found["problems"].append(f"{source['key']}: {error}")
            return
        if not rows:
            self.found["problems"].append(f"{source['key']}: {path} holds no rows; take it out.")
            return
        absent = list(_absent_columns(source, rows))
        absent += [] if absent else list(_without_pairs(source, rows))
        self.found["warnings"] += [] if absent else list(_without_difference(source, rows))
        self.found["problems"] += absent
        about = "" if len(rows) == total else f", {len(rows):,} of them read"
        fact = f"{path}: {'about ' if about else ''}{total:,} rows{about}"
        if not absent and self.tokenizer is not None:
            fact += "; " + self._lengths(source, rows)
        self.found["facts"].append([source["name"], fact])

    def _lengths(self, source: dict[str, Any], rows: list[Row]) -> str:
        columns = source["columns"]
        prompts = [value_at(row, columns["prompt_key"]) for row in rows]
        given = [prompt for prompt in prompts if prompt not in (None, [], {}) and _text(prompt).strip()]
        empty = len(prompts) - len(given)
        lengths = self._prompt_lengths(given)
        text = "solution_key" not in columns  # to train on whole: cut into pieces, so none is too long
        if not text:
            self._judge(source, "prompts", lengths, "max_prompt_tokens")
        if not given:
            self.found["problems"].append(f"{source['key']}: every sampled prompt (column "
                                          f"'{columns['prompt_key']}') is empty.")
        words = [f"texts of {min(lengths, default=0)} to {max(lengths, default=0)} tokens" if text else
                 _range("prompts", lengths, self.limits["max_prompt_tokens"])] + [f"{empty} empty"] * bool(empty)
        found = [] if text else [value_at(row, columns["solution_key"]) for row in rows]
        shown = [value for value in found if value is not None]
        if shown:
            from workflows.prompts import response_tokens

            responses = [len(tokens) for tokens in response_tokens(self.tokenizer, [_text(s) for s in shown])]
            self._judge(source, "demonstrations", responses, "max_response_tokens")
            words.append(_range("demonstrations", responses, self.limits["max_response_tokens"]))
        return "; ".join(words)

    def _prompt_lengths(self, prompts: list[Any]) -> list[int]:
        """Tokens of each prompt, a text or a conversation, through the chat template."""
        from workflows.prompts import prompt_text, prompt_tokens

        system = self.request["system_prompt"]
        texts = [self.tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True)
                 if _is_conversation(p) and self.tokenizer.chat_template else
                 prompt_text(self.tokenizer, _text(p), system) for p in prompts]
        return [len(tokens) for tokens in prompt_tokens(self.tokenizer, texts)]

    def _judge(self, source: dict[str, Any], what: str, lengths: list[int], limit: str) -> None:
        most = self.limits[limit]
        over = sum(length > most for length in lengths)
        if not over:
            return
        line = (f"{source['key']}: {over} of {len(lengths)} sampled {what} are longer than model.{limit}={most}, the "
                f"longest has {max(lengths)} tokens; they are not trained on. Raise it, or leave such rows out.")
        if over == len(lengths):
            self.found["problems"].append(line)
        elif over > OFTEN * len(lengths):
            self.found["warnings"].append(line)

    def recipes(self) -> None:
        """Judges Data-Juicer operators and their arguments, those of recipes and those written out."""
        if not (self.request["recipes"] or self.request["operators"]):
            return  # Data-Juicer takes a second to import
        from operators import juicer

        made = [(path, partial(juicer.read_recipe, Path(path))) for path in self.request["recipes"]]
        made += [("data_processor.task_pipeline.operators", partial(juicer.inline_recipe, *given))
                 for given in self.request["operators"]]
        for said, recipe in made:
            try:
                self.found["problems"] += [f"{said}: {line}" for line in juicer.problems(recipe())]
            except OuroError as error:
                self.found["problems"].append(str(error))


def _absent_columns(source: dict[str, Any], rows: list[Row]) -> Iterator[str]:
    known = list(dict.fromkeys(name for row in rows for name in names(row)))
    for setting, column in source["columns"].items():
        if setting not in source["optional"] and column not in known:
            yield (f"{source['key']}: {source['path']} has no column '{column}'; found {', '.join(islice(known, 20))}."
                   f"{nearest(column, known)} Set {source['format_key']}.{setting}.")


def _without_pairs(source: dict[str, Any], rows: list[Row]) -> Iterator[str]:
    """The line for a file that is to be read as pairs and has a response of each kind, but never both in one row."""
    columns = [source["columns"][key] for key in PAIR if key in source["columns"]]
    if columns and not any(all(value_at(row, column) is not None for column in columns) for row in rows):
        yield (f"{source['key']}: none of {len(rows)} sampled rows of {source['path']} is a pair: in each of them "
               f"{' or '.join(columns)} is absent or null. To train on pairs, needed both in a row.")


def _without_difference(source: dict[str, Any], rows: list[Row]) -> Iterator[str]:
    """The warning about pairs whose two responses are the same, from which nothing is learnt about either."""
    columns = [source["columns"][key] for key in PAIR if key in source["columns"]]
    found = [[value_at(row, column) for column in columns] for row in rows] if len(columns) == len(PAIR) else []
    pairs = [both for both in found if None not in both]
    same = sum(chosen == rejected for chosen, rejected in pairs)
    if same:
        yield (f"{source['key']}: in {same} of {len(pairs)} sampled pairs ({same / len(pairs):.0%}) of "
               f"{source['path']} {' and '.join(columns)} are the same response: nothing is "
               "preferred there. Take such rows out.")


def names(row: Row, prefix: str = "") -> Iterator[str]:
    """Columns of a row; those within a struct after a dot."""
    for name, value in row.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from names(value, f"{prefix}{name}.")


def value_at(row: Row, column: str) -> Any:
    """What a row has under a (dotted) column; None when it has none."""
    value: Any = row
    for part in [column] if column in row else column.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(turn, dict) and "role" in turn for turn in value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _range(what: str, lengths: list[int], most: int) -> str:
    """`prompts of 3 to 40 tokens (limit 24): 12% over`."""
    if not lengths:
        return f"no {what}"
    over = sum(length > most for length in lengths) / len(lengths)
    return f"{what} of {min(lengths)} to {max(lengths)} tokens (limit {most}): {over:.0%} over"


def main(request: str, answer: str) -> None:
    preview = Preview(files.read_json(Path(request)))
    for source in preview.request["sources"]:
        preview.source(source)
    preview.recipes()
    files.write_json(Path(answer), preview.found)


if __name__ == "__main__":
    main(*sys.argv[1:])
