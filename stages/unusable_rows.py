"""Sampled rows that will be rejected, found before a run: records that the stage `tasks` cannot use, and conversations
of which the model's chat template leaves something out.

source: in the format of pipeline/check/samples.py.
"""

import json
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ouroboros.operators.features import featured
from ouroboros.operators.formats import MEDIA, look_up, read_records
from ouroboros.operators.juicer import required
from ouroboros.operators.turns import Unusable
from ouroboros.pipeline.check.reading import Sample
from ouroboros.pipeline.check.sources import FEATURE, POOL
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import format_of
from ouroboros.pipeline.store.errors import DataError, ModelError, OuroError
from ouroboros.pipeline.store.harbor import UNSUPPORTED
from ouroboros.pipeline.store.parent import limited_memory
from ouroboros.pipeline.store.pictures import Kept, named
from ouroboros.pipeline.store.records import RawTask

OTHER_TEMPLATE = "Set model.chat_template_path to a template that writes it, or take a model whose template does"


@dataclass
class Written:
    """Tokens of responses, and of prompts with tools, calls or thoughts, as the chat template writes them.

    places: of the rows of these prompts. reasons: places of the rows that the template cannot write, and why. refused:
    those among them that are texts alone. unwritten: those of which another template may write more. begun: what every
    reply to a task begins with.
    """

    prompts: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    responses: list[int] = field(default_factory=list)
    reasons: list[tuple[int, str]] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    unwritten: set[int] = field(default_factory=set)
    begun: str = ""


def wanted(source: dict[str, Any]) -> list[str]:
    """The columns of a source's rows that are looked at."""
    named = {} if source["form"] is None else json.loads(source["form"])
    media = [name for names in MEDIA.values() for name in names]
    return [*source["columns"].values(), *media,
            *(column for key, column in named.items() if key.endswith("_key") and column)]


def judged(source: dict[str, Any], drawn: Sample, lost: list[tuple[int, str]], unwritten: Collection[int] = ()
           ) -> tuple[list[str], list[str]]:
    """(warnings, problems): a line about rejected rows; lost: the place of each in the sample, and why; unwritten: the
    places of those that are as needed, and that the chat template does not write.

    It is a problem where the set will lose more than the share buffer.max_rejected_ratio: counted where all rows were
    read, above twice that share in a sample. Of several files in a set it is a warning, since the others may make up
    for it.
    """
    if not lost:
        return [], []
    count, allowed = len(drawn.rows), source["allowed"]
    first = min(lost, key=lambda one: drawn.places[one[0]])
    remedy = OTHER_TEMPLATE if first[0] in unwritten else f"Correct the file or {source['format_key']}"
    line = (f"{source['key']}: {len(lost)} of {count} sampled rows cannot be used and are rejected "
            f"({drawn.named(at for at, _ in lost)}). The first: {first[1]}. {remedy}; "
            f"a set may lose {allowed:.0%} (buffer.max_rejected_ratio).")
    most = allowed * count * (1 if count == drawn.total else 2)
    return ([], [line]) if source["alone"] and len(lost) > most else ([line], [])


def looked_at(source: dict[str, Any], drawn: Sample, tokenizer, settings: Config,
              shortened: Callable[[RawTask], RawTask]) -> tuple[list[RawTask], Written]:
    """The rows as of `as_read`, and what is `measured` of them once they are shortened; without a tokenizer nothing.
    Raises ModelError for images that the model does not see."""
    with tempfile.TemporaryDirectory() as place:
        images = Kept(Path(place) / "images")
        read = as_read(source, drawn, images)
        if tokenizer is None:
            return read, Written()
        images.write(Path(place))
        sight = _sight(settings.model) if any(row.pictures for row in read) else None

        def expanded(prompt: list[int], row: RawTask) -> list[int]:
            return sight.expanded(prompt, named(row.pictures, Path(place))) if sight and row.pictures else prompt

        return read, measured(tokenizer, list(map(shortened, read)), source, settings, expanded)


def _sight(model):
    """What expands prompts with images; None where the run makes the model."""
    from ouroboros.workflows.protocol.sight import sight_of

    if model.init.enable and not model.init.image_size:
        raise ModelError("tasks have images, and model.init makes a model of text alone; set model.init.image_size.")
    return None if model.init.enable else sight_of(model.model_path)


def as_read(source: dict[str, Any], drawn: Sample, kept: Kept | None = None) -> list[RawTask]:
    """The rows as the stage `tasks` reads them, in their order; none of Harbor tasks (see stages/sampled_rows.py), or
    where all of a file lack a column. kept: where their images are stored."""
    rows, made = drawn.rows, dict[int, RawTask]()
    if source["form"] is None or any(UNSUPPORTED in row for row in rows):
        return []
    try:
        columns = format_of(source["purpose"]).partial(json.loads(source["form"]))
        for file in {file for file, _ in drawn.places}:
            at = [number for number, (other, _) in enumerate(drawn.places) if other == file]
            made |= zip(at, read_records([rows[one] for one in at], columns, source["purpose"], str(file), 0,
                                         kept), strict=True)
    except DataError:  # a column that all sampled rows lack: see `problems`
        return []
    keys = [column for name, column in source["columns"].items() if name.startswith(FEATURE)]
    return [featured(made[at], {key: look_up(row, key) for key in keys}) for at, row in enumerate(rows)]


def unfit(row: RawTask) -> str | None:
    """Why a row is rejected whatever a recipe drops; None where it is not."""
    dropped = None if row.problem else required([{"row": 0, "question": row.question, "answer": row.answer}])[1]
    return dropped[0].reason if dropped else row.problem


def measured(tokenizer, rows: list[RawTask], source: dict[str, Any], settings,
             expanded: Callable[[list[int], RawTask], list[int]] = lambda tokens, row: tokens) -> Written:
    """What the chat template writes of the demonstrations, the pairs and the prompts that are more than texts, as the
    stage that trains on them does. Tasks of texts are not looked at: the stage that samples them ends at one that the
    template refuses. settings: sections model and buffer. expanded: a row's prompt with the tokens of its images."""
    from ouroboros.workflows.protocol.prompts import prompt_tokens, task_texts
    from ouroboros.workflows.template_rows import TemplateRows, Unwritten

    begun = json.loads(source["form"] or "{}").get("reply_prefix") or ""
    made, writes = Written(begun=begun), TemplateRows(tokenizer, settings)
    for place, row in enumerate(rows):
        is_rich = row.messages is not None
        if not is_rich and not _is_shown(row, source):
            continue
        try:
            if row.chosen is None and row.solution is None:
                made.prompts.append(len(expanded(prompt_tokens(tokenizer, [writes.prompt(row) + begun])[0], row)))
                made.places.append(place)
                continue
            if not is_rich and source["whole"]:
                task_texts(tokenizer, [row], settings)
                continue
            layouts = (writes.of_pair(row) if row.chosen is not None else
                       writes.of_demonstration(row, source["every_turn"]))
            lengths = [len(expanded(prompt, row)) for prompt, _, _ in layouts] if is_rich else []
        except (Unusable, DataError) as reason:
            made.reasons.append((place, str(reason)))
            made.refused |= set() if is_rich else {place}
            made.unwritten |= {place} if isinstance(reason, Unwritten) else set()
            continue
        made.prompts += lengths
        made.places += [place] * len(lengths)
        made.responses += [len(response) for _, response, _ in layouts]
    return made


def _is_shown(row: RawTask, source: dict[str, Any]) -> bool:
    """Whether a row of texts is a demonstration or a pair."""
    shows = source["purpose"] == "demonstration" or (
        source["name"] == POOL and (row.solution is not None or row.chosen is not None))
    return shows and row.problem is None and row.question is not None


def tokenizer_of_init(settings, problems: list[str]):
    """The tokenizer of a model that the run makes, with the chat template of the section `model`, if it sets one.

    None, with one more of `problems`, for an unusable template.
    """
    from ouroboros.stages.model import character_tokenizer
    from ouroboros.workflows.protocol.prompts import load_tokenizer

    tokenizer = character_tokenizer(10**6)
    if settings.custom_chat_template is None and settings.chat_template_path is None:
        return tokenizer
    with tempfile.TemporaryDirectory() as directory:  # as the stages read it
        tokenizer.save_pretrained(directory)
        try:
            with limited_memory():
                return load_tokenizer(Path(directory), settings)
        except OuroError as error:
            problems.append(str(error))
            return None
