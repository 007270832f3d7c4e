"""A row of the page with all that is known of it: tokens, group, turns, calls, truth, and the steps that trained it."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ouroboros.commands.web import rollouts
from ouroboros.commands.web.rollouts import Address
from ouroboros.pipeline.results.thumbnails import thumbnails
from ouroboros.pipeline.results.view import Node, View
from ouroboros.pipeline.store import files, tables

EDGE = 400  # pixels of an image's longer side
IMAGES = 24  # of a row that are shown


def of_row(run: View, stage: Node, table: str, at: Address) -> dict[str, Any]:
    """Returns `address`, `row` (its columns without lists), `group`, `task`, `images` of its prompt (as in
    thumbnails.py, the first IMAGES) and how many these are, where there is a tokenizer `pieces` (the texts of its
    response tokens), and of `experience` `tokens` (of `signals`), `trained`, `curated`, `attempt`.
    Raises QueryError for an absent row."""
    row, place = rollouts.row(stage.directory, table, at), stage.directory
    task = _task(run, row["task_id"])
    pictures = ((task or {}).get("pictures") if row.get("pictures") is None else row["pictures"]) or []
    found = {"address": str(at), "row": _short(row), "group": rollouts.group(place, table, row), "task": task,
             "images": thumbnails(pictures[:IMAGES], [one.directory for one in run.stages], EDGE, at.step),
             "image_count": len(pictures)}
    if table == "experience":
        trains = row["status"] == "ok" and (place / "trained").is_dir()  # another stage may train on what this one made
        replays = not stage.kind.explores or _replays(place)
        trained = rollouts.trained_on(place, row["experience_id"], at.step, replays) if trains else []
        found |= {"tokens": signals(row, trained[-1] if trained else None),
                  "trained": [_short(one) for one in trained] if (place / "trained").is_dir() else None,
                  "curated": rollouts.curated(place, row["experience_id"], at.step),
                  "attempt": rollouts.attempt(place, row["experience_id"], at.step)}
    if (tokenizer := tokenizer_of(place)) is not None:
        found["pieces"] = pieces(tokenizer, row["response_tokens"])
    return found


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """A row without its lists, which have an entry for each token or more."""
    return {name: value for name, value in row.items() if not isinstance(value, list)}


def _replays(stage: Path) -> bool:
    config = files.read_json(stage / "stage.json")["config"]
    buffer = config.get("buffer", {}).get("trainer_input", {}).get("experience_buffer", {})
    return bool(buffer.get("replay_buffer", {}).get("enable"))


def _task(run: View, task_id: str) -> dict[str, Any] | None:
    """The row of `tasks` that a stage of the run curated; None where none has it (rows of `ouro serve`)."""
    paths = (one.directory / tables.LOCATIONS["tasks"] for one in run.stages)
    question = "SELECT * EXCLUDE (file_row_number, place) FROM rows WHERE task_id = ? LIMIT 1"
    for path in filter(Path.exists, paths):
        with tables.blamed(path.parent):
            if rows := rollouts.ask([path], question, [task_id]):
                return rows[0]
    return None


BEFORE = 4  # tokens that are decoded with one: a letter may have as many
PARTIAL = "\ufffd"  # what a decoder gives for a part of a letter


def pieces(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """Returns the text of each token. Of tokens that share a letter the last one has it, the others are empty.

    The joined pieces are what the tokenizer decodes, but for spaces at the very beginning.
    """
    made, held = [], 0  # held: tokens without a text yet
    for at in range(len(tokens)):
        begin = max(at - held - BEFORE, 0)
        before = tokenizer.decode(tokens[begin : at - held], skip_special_tokens=False)
        until = tokenizer.decode(tokens[begin : at + 1], skip_special_tokens=False)
        if until.endswith(PARTIAL) and held < BEFORE:
            made.append("")
            held += 1
        else:
            made.append(until[len(before):])
            held = 0
    return made


def tokenizer_of(stage: Path) -> Any | None:
    """Returns the tokenizer of the model that a stage rolled out; None where its directory has no tokenizer.json."""
    for place in _models(stage):
        if (file := place / "tokenizer.json").is_file():
            return _opened(file, file.stat().st_mtime_ns)
    return None


def _models(stage: Path) -> list[Path]:
    found = [stage / "model"]
    if (spec := stage / "stage.json").exists():
        inputs = files.read_json(spec)["inputs"]
        made = stage.parent.parent / inputs["model"] if "model" in inputs else None  # next to `store/`
        found += [made, made / "model"] if made else []
    return found


@lru_cache(maxsize=4)
def _opened(file: Path, changed: int) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(file))


def signals(row: Mapping[str, Any], trained: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Returns what is known of each response token: `id`, `mask` (1: the policy's own), `logprob` of the sampling
    policy; of the policy's own, once trained on, `train_logprob`, `entropy` in nats (None from earlier releases),
    `advantage`, and `mismatch`, the sampling policy's log-prob less that of the training pass.

    row: of `experience`. trained: its row of `trained`, whose lists have an entry for each of the policy's own tokens.
    """
    tokens, masks = row["response_tokens"], row["action_mask"]
    versions = row.get("weights_versions") or [None] * len(tokens)
    if trained and len(trained["train_logprobs"]) != sum(masks):  # mask_truncated_completions leaves the row out
        trained = None
    found, acts = [], 0
    for at, (token, mask, logprob) in enumerate(zip(tokens, masks, row["rollout_logprobs"], strict=True)):
        one = {"id": token, "mask": mask, "logprob": logprob, "version": versions[at]}
        if mask and trained:
            own = trained["advantages"]
            one["train_logprob"] = after = trained["train_logprobs"][acts]
            one["entropy"] = trained["entropies"] and trained["entropies"][acts]
            one["advantage"] = trained["advantage"] if own is None else own[acts]
            one["mismatch"] = None if None in (after, logprob) else logprob - after
        acts += mask
        found.append(one)
    return found
