"""Builds a recipe from a data file, its columns and a model: lengths, batches, rates, held-out set."""

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from ouroboros.commands.init.columns import ALLOWED, Guess
from ouroboros.commands.init.data import CONVERTED, ROWS, Data, held_share, is_parted, is_rewritten, written
from ouroboros.pipeline.check import samples
from ouroboros.pipeline.check.engine import cpu_problem
from ouroboros.pipeline.check.machine import gpus_here, memory_here
from ouroboros.pipeline.check.memory import GIB
from ouroboros.pipeline.check.model_size import Size, Sizes, question
from ouroboros.pipeline.check.sources import POOL, Source
from ouroboros.pipeline.check.times import token_seconds
from ouroboros.pipeline.settings.data import format_of
from ouroboros.pipeline.settings.model import Model, resolve_dtype
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.files import TEMPLATES
from ouroboros.pipeline.store.model_engine import engine_problem
from ouroboros.pipeline.store.model_shape import plain_config

SMALL, MIDDLE = 20_000_000, 300_000_000  # parameters below which a model learns at the first, the second of RATES
RATES = {"rft": (5e-4, 2e-5, 1e-6), "sft": (1e-3, 5e-5, 1e-5), "dpo": (2e-4, 1e-6, 5e-7), "cpt": (1e-3, 1e-4, 1e-5)}
MOST, LEAST = {"rft": 64, "sft": 64, "dpo": 32, "cpt": 16}, 8  # rows of a batch
STEPS, PASSES = (100, 300), 20  # steps of a run that are aimed at; most passes over the rows
ENGINE_SHARE = 0.3  # of a GPU on which a rank trains meanwhile
WORKED = 512  # tokens of a response that may reason before it answers
REPEATS = 8  # responses to each task
HOUR, FEWEST = 3600, 50  # seconds of a first run on a CPU; steps for which responses and batches are made smaller
BRIEF = 64  # the same for a model below SMALL, which cannot reason, and the least for any
OUTLIER = 4  # times the length of nearly all rows: longer ones do not set the limits
SYSTEM = "Solve the problem step by step. End with a line that has nothing but #### and the answer: #### 42"
OF_CHOICE = "Solve the problem step by step. End with a line that has nothing but #### and the letter: #### B"


def files_of(guess: Guess, data: Data, model: Path, named: str, project: str, directory: Path) -> dict[str, str]:
    """Returns the files of the project of that name: file name -> text. Adds a note on rows that are left out.

    model: its directory. named: as the recipe names it. directory: of the project, from which paths are written."""
    made = written(guess, data)
    rewritten = made[CONVERTED] if is_rewritten(guess, data) else None
    path = _path(guess, data)
    said = facts(guess, data, Model(model_path=str(model)), rewritten) | {
        "project": project, "model": _quoted(named),
        "path": _quoted(relative(path, directory) if path is data.path else path)}
    return made | rendered(guess, said)


def relative(path: str | Path, directory: Path) -> str:
    """Returns a path as a file in `directory` names it."""
    return os.path.relpath(Path(path).resolve(), directory.resolve())


def rendered(guess: Guess, said: dict[str, Any]) -> dict[str, str]:
    """Returns the files made of templates: file name -> text. said: of `facts`, and project, model, path."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(TEMPLATES / "init" / "own")
    texts = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)
    texts.filters["on_one_line"] = on_one_line
    return {name.removesuffix(".j2"): texts.get_template(name).render(said) for name in texts.list_templates()
            if "reward" not in name or guess.reward == "reward:score"}


def facts(guess: Guess, data: Data, model: Model, rewritten: str | None = None) -> dict[str, Any]:
    """Returns what data and model decide of a recipe, with reasons, as variables of the template.

    model: its section, on this machine. rewritten: the training rows, where they are not those of the file."""
    shape = plain_config(model) or {}
    context = shape.get("max_position_embeddings") or 4096
    plain = guess.reward == "accuracy_reward" and "prompt_type" not in guess.format
    system = (OF_CHOICE if guess.is_choice else SYSTEM) if plain and context >= 2 * WORKED else None
    prompt, response, size = _measured(guess, data, model, system, rewritten)
    if guess.kind == "cpt":
        prompt = response = min(context // 2, WORKED)  # plain text is cut into these
    small = size is not None and size.parameters < SMALL
    longest = response
    response, why = _response(guess, response, small) if guess.kind == "rft" else (response or prompt, "")
    rate = sum(size is None or size.parameters >= least for least in (SMALL, MIDDLE))
    share, gpus, transformers = held_share(data), gpus_here(), _samples_by_transformers(guess, shape, context)
    rows = data.total if guess.kind != "rft" or data.held_out else round(data.total * (1 - share))
    batch, epochs, steps = _steps(guess, rows)
    response = min(response, max(context - prompt, context // 4))
    most, warmup, is_cut = STEPS[1] if guess.kind == "rft" else steps, None, False
    if size and not gpus:
        least = max(longest, BRIEF if small or not guess.reasons else WORKED // 4) if guess.kind == "rft" else response
        fits = _on_cpu(guess, size.parameters, min(prompt, context - response), response, min(least, response), batch)
        if is_cut := fits[:2] != (response, batch) or fits[2] < min(steps, most) or (
                bool(guess.warmup) and fits[3] < rows // batch):
            why = why if fits[0] == response else "for a run of an hour on this CPU; more where replies are to reason"
            response, batch, fit, warmup = fits
            most = min(fit, STEPS[1]) if guess.kind == "rft" else fit
            batch, epochs, steps = _steps(guess, rows, batch)
            warmup = min(warmup, max(rows // batch, 1))  # one pass
            guess.notes.append("shortened towards a first run of an hour on this CPU, evaluations not counted: "
                               f"{min(steps, most)} steps of {batch} rows, responses of at most {response} tokens; "
                               "raise them with more time")
    demonstrations = {**{key: value for key, value in guess.format.items() if key.startswith("prompt")},
                      "response_key": guess.warmup}
    shown = [f"{key}: {_quoted(value)}" for key, value in demonstrations.items()]
    columns = (f"{key}: {'null' if value is None else _quoted(value)}" for key, value in guess.format.items())
    return {
        "guess": guess, "data": data, "system": system,
        "columns": f"{{{', '.join(columns)}}}", "context": context, "response": response, "response_is": why,
        "parameters": f"{size.parameters / 1e6:,.1f} million parameters" if size else "parameters not counted",
        "prompt": min(prompt, context - response), "prompt_is": _said_of_prompts(guess, prompt <= context - response),
        "lr": f"{RATES[guess.kind][rate]:.0e}", "small": small,
        "batch": batch, "epochs": epochs, "steps": steps, "most": most, "rows": rows,
        "is_cut": is_cut, "repeats": REPEATS, "warmup_steps": warmup if guess.warmup and is_cut else None,
        "test_ratio": share,
        "held_out": "test" if _path(guess, data) == "data" else data.held_out,
        "warmup_lr": f"{RATES['sft'][rate]:.0e}", "warmup_columns": f"{{{', '.join(shown)}}}",
        "mode": "colocate" if gpus else "both", "gpus": gpus,
        "transformers": transformers, "engine_share": ENGINE_SHARE,
        "ahead": bool(guess.reward and gpus > 1 and not transformers and _holds_engine_and_trainer(size)),
    }


def _holds_engine_and_trainer(size: Size | None) -> bool:
    """Returns whether ENGINE_SHARE of each GPU has room for 16-bit weights and as large a cache; True where the model's
    size or the GPUs' is not known."""
    weights = 2 * size.parameters / GIB if size else 0
    return all(2 * weights <= ENGINE_SHARE * gib for gib in memory_here())


def _response(guess: Guess, longest: int, small: bool) -> tuple[int, str]:
    """Returns the limit on tokens of a response to a task, and why. longest: of the answers, with a quarter."""
    if small:
        return max(longest, BRIEF), f"the longest answer, at least {BRIEF}: a model of this size cannot reason"
    if guess.reasons:
        return max(longest, WORKED), "room to reason before the answer"
    return max(4 * longest, BRIEF), f"four times the longest answer, at least {BRIEF}; more where replies are to reason"


def _on_cpu(guess: Guess, parameters: int, prompt: int, response: int, least: int, batch: int
            ) -> tuple[int, int, int, int]:
    """Returns tokens of a response, at least `least`, rows of a batch, steps, and steps of a warmup, that this machine
    computes within HOUR: shorter responses, then smaller batches before fewer than FEWEST steps."""
    rft, parts = guess.kind == "rft", (3 / 4, 1 / 4) if guess.warmup else (1, 0)  # of the hour
    room, shown = (HOUR * part / token_seconds(parameters, samples) for part, samples in zip(
        parts, (rft, False), strict=True))
    each = REPEATS if rft else 2 if guess.kind == "dpo" else 1  # sequences of a row
    while room < FEWEST * batch * each * (prompt + response) and (response > least or batch > (2 if rft else LEAST)):
        response, batch = (max(response // 2, least), batch) if response > least else (response, batch // 2)
    tokens = batch * (prompt + response)
    return response, batch, max(int(room / (each * tokens)), 1), max(int(shown / tokens), 1)


def _steps(guess: Guess, rows: int, most: int | None = None) -> tuple[int, int, int]:
    """Returns rows of a batch, at most `most`, passes over the rows and the steps that they make: a smaller batch
    before more than two passes."""
    batch = min(most or MOST[guess.kind], 2 ** max((rows // 4).bit_length() - 1, 0))
    while batch > LEAST and 2 * rows < STEPS[0] * batch:
        batch //= 2
    epochs = min(max(math.ceil(STEPS[0] * batch / rows), 1), PASSES)
    return batch, epochs, max(epochs * rows // batch, 1)


def _said_of_prompts(guess: Guess, fits: bool) -> str:
    """Returns what the recipe says of the limit on prompts. fits: whether the model has room for it."""
    if guess.kind == "cpt":
        return "with max_response_tokens the length of a piece of text"
    room = "the longest of nearly all sampled prompts and a quarter" if fits else "as many as the model has room for"
    return f"{room}; longer ones are not trained on"


def _samples_by_transformers(guess: Guess, config: dict[str, Any], context: int) -> bool:
    """Returns whether vLLM cannot run the model here, so that transformers samples; adds a note."""
    gpus = bool(gpus_here())
    dtype = resolve_dtype("auto", gpus)
    problem = engine_problem(config, context) or (None if gpus else cpu_problem(config, dtype, {}))
    if problem and guess.reward:
        guess.notes.append(f"the engine is transformers: {problem.needed}")
    return bool(problem and guess.reward)


def _path(guess: Guess, data: Data) -> str | Path:
    has_two = is_parted(guess, data) or (guess.kind == "rft" and data.held_out)
    return data.path if not is_rewritten(guess, data) and not is_parted(guess, data) else (
        "data" if has_two else CONVERTED)


def _measured(guess: Guess, data: Data, model: Model, system: str | None, rewritten: str | None
              ) -> tuple[int, int, Size | None]:
    """Returns the tokens of the sample's longest prompt and response with the chat template, plus a quarter, and the
    model's size. A few rows that are far longer than all others are left over the limit, with a note."""
    section = model.model_copy(update={"max_prompt_tokens": 10**9, "max_response_tokens": 10**9})
    columns = {"prompt_key": guess.format["prompt_key"], "solution_key": guess.demonstrated}
    with tempfile.TemporaryDirectory() as directory:
        file = data.path if rewritten is None else Path(directory) / Path(CONVERTED).name
        if rewritten is not None:
            file.write_text(rewritten, encoding="utf-8")
        purpose = "task" if guess.kind == "rft" else "demonstration"
        form = json.dumps(plain(format_of(purpose)(**guess.format)))
        source = Source(POOL, "--from", str(file), "train", "format", tuple(columns.items()), tuple(columns), form=form,
                        purpose=purpose, allowed=ALLOWED)
        found = samples.ask({"sources": [] if guess.kind == "cpt" else [source.request()], "rows": ROWS,
                             "model": plain(section), "system_prompt": system, "recipes": [], "operators": [],
                             "models": [question(section)]})
    if found["problems"]:
        raise DataError("\n".join(found["problems"]))
    measured = {limit: (*lengths, row if rewritten is None else "") for limit, *lengths, row in found["longest"]}
    prompt, response = (_limit(guess, what, *measured.get(f"max_{what}_tokens", (0, 0, "")))
                        for what in ("prompt", "response"))
    return prompt, response, Sizes(found["sizes"]).of(section)


def _limit(guess: Guess, what: str, longest: int, usual: int, row: str) -> int:
    """usual: the length that at most a twentieth of the rows exceed. row: which one is the longest, where it is known.
    """
    if longest <= OUTLIER * max(usual, 1):
        return _rounded(longest)
    guess.notes.append(f"{what}s: 95% have at most {usual:,} tokens, the longest {longest:,}{row and f' ({row})'}; "
                       f"longer ones than model.max_{what}_tokens={_rounded(usual)} are not trained on")
    return _rounded(usual)


def _quoted(value: Any) -> str:
    """Quotes a text for use anywhere in YAML."""
    return json.dumps(str(value), ensure_ascii=not str(value).isprintable())


def on_one_line(text: str) -> str:
    """Returns a text for a comment: quoted if it has characters that would end it, or that YAML does not allow."""
    return text if text.isprintable() else repr(text)


def _rounded(tokens: int) -> int:
    step = 8 if tokens < 64 else 64
    return -(-tokens * 5 // 4 // step) * step
