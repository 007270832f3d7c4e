"""Builds a recipe from a data file, its columns and a model: lengths, batches, rates, held-out set."""

import json
import tempfile
from pathlib import Path
from typing import Any

from ouroboros.commands.init.columns import ALLOWED, Guess
from ouroboros.commands.init.data import CONVERTED, ROWS, Data, held_share, is_parted, is_rewritten, written
from ouroboros.pipeline.check import samples
from ouroboros.pipeline.check.engine import cpu_problem
from ouroboros.pipeline.check.machine import gpus_here
from ouroboros.pipeline.check.model_size import Size, Sizes, question
from ouroboros.pipeline.check.sources import POOL, Source
from ouroboros.pipeline.settings.data import format_of
from ouroboros.pipeline.settings.model import Model, resolve_dtype
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.files import TEMPLATES
from ouroboros.pipeline.store.model_engine import engine_problem
from ouroboros.pipeline.store.model_shape import read_config

SMALL = 20_000_000  # parameters below which a model gets the learning rates of a toy
RATES = {"rft": (5e-4, 1e-6), "sft": (1e-3, 1e-5), "dpo": (2e-4, 5e-7), "cpt": (1e-3, 1e-5)}  # of small models, others
MOST = {"rft": 64, "sft": 64, "dpo": 32, "cpt": 16}  # rows per batch
WORKED = 512  # tokens of a response that may reason before it answers
BRIEF = 64  # the same for a model below SMALL, which cannot reason
OUTLIER = 4  # times the length of nearly all rows: longer ones do not set the limits
SYSTEM = "Solve the problem step by step. End with a line that has nothing but #### and the answer: #### 42"
OF_CHOICE = "Solve the problem step by step. End with a line that has nothing but #### and the letter: #### B"


def files_of(guess: Guess, data: Data, model: Path, named: str, project: str) -> dict[str, str]:
    """Returns the files of the project of that name: file name -> text. Adds a note on rows that are left out.

    model: its directory. named: as the recipe names it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = written(guess, data)
    rewritten = made[CONVERTED] if is_rewritten(guess, data) else None
    said = _facts(guess, data, model, rewritten) | {"project": project, "model": _quoted(named)}
    loader = FileSystemLoader(TEMPLATES / "init" / "own")
    texts = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)
    return made | {name.removesuffix(".j2"): texts.get_template(name).render(said) for name in texts.list_templates()
                   if "reward" not in name or guess.reward == "reward:score"}


def _facts(guess: Guess, data: Data, model: Path, rewritten: str | None) -> dict[str, Any]:
    """Returns the variables for the templates. rewritten: the training rows, where they are not those of the file."""
    context = read_config(str(model), "--model").get("max_position_embeddings") or 4096
    plain = guess.reward == "accuracy_reward" and "prompt_type" not in guess.format
    system = (OF_CHOICE if guess.is_choice else SYSTEM) if plain and context >= 2 * WORKED else None
    prompt, response, size = _measured(guess, data, model, system, rewritten)
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
        "columns": f"{{{', '.join(columns)}}}", "context": context, "response": response,
        "parameters": f"{size.parameters / 1e6:,.1f} million parameters" if size else "parameters not counted",
        "prompt": min(prompt, context - response), "prompt_is": _said_of_prompts(guess, prompt <= context - response),
        "lr": f"{RATES[guess.kind][0 if small else 1]:.0e}", "small": small,
        "batch": min(MOST[guess.kind], 2 ** max((data.total // 4).bit_length() - 1, 0)),
        "test_ratio": held_share(data),
        "held_out": "test" if _path(guess, data) == "data" else data.held_out,
        "warmup_lr": f"{RATES['sft'][0 if small else 1]:.0e}", "warmup_columns": f"{{{', '.join(shown)}}}",
        "mode": "colocate" if gpus_here() == 1 else "both",
        "transformers": _samples_by_transformers(guess, model, context),
    }


def _said_of_prompts(guess: Guess, fits: bool) -> str:
    """Returns what the recipe says of the limit on prompts. fits: whether the model has room for it."""
    if guess.kind == "cpt":
        return "with max_response_tokens the length of a piece of text"
    room = "the longest of nearly all sampled prompts and a quarter" if fits else "as many as the model has room for"
    return f"{room}; longer ones are not trained on"


def _samples_by_transformers(guess: Guess, model: Path, context: int) -> bool:
    """Returns whether vLLM cannot run the model here, so that transformers samples; adds a note."""
    config, gpus = read_config(str(model), "--model"), bool(gpus_here())
    dtype = resolve_dtype("auto", gpus)
    problem = engine_problem(config, context) or (None if gpus else cpu_problem(config, dtype, {}))
    if problem and guess.reward:
        guess.notes.append(f"the engine is transformers: {problem.needed}")
    return bool(problem and guess.reward)


def _path(guess: Guess, data: Data) -> str | Path:
    has_two = is_parted(guess, data) or (guess.kind == "rft" and data.held_out)
    return data.path if not is_rewritten(guess, data) and not is_parted(guess, data) else (
        "data" if has_two else CONVERTED)


def _measured(guess: Guess, data: Data, model: Path, system: str | None, rewritten: str | None
              ) -> tuple[int, int, Size | None]:
    """Returns the tokens of the sample's longest prompt and response with the chat template, plus a quarter, and the
    model's size. A few rows that are far longer than all others are left over the limit, with a note."""
    section = Model(model_path=str(model), max_prompt_tokens=10**9, max_response_tokens=10**9)
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
    measured = {limit: lengths for limit, *lengths in found["longest"]}
    prompt, response = (_limit(guess, what, *measured.get(f"max_{what}_tokens", (0, 0)))
                        for what in ("prompt", "response"))
    return prompt, response, Sizes(found["sizes"]).of(section)


def _limit(guess: Guess, what: str, longest: int, usual: int) -> int:
    """usual: the length that at most a twentieth of the rows exceed."""
    if longest <= OUTLIER * max(usual, 1):
        return _rounded(longest)
    guess.notes.append(f"{what}s: 95% have at most {usual:,} tokens, the longest {longest:,}; longer ones than "
                       f"model.max_{what}_tokens={_rounded(usual)} are not trained on")
    return _rounded(usual)


def _quoted(value: Any) -> str:
    """Quotes a text for use anywhere in YAML."""
    return json.dumps(str(value), ensure_ascii=False)


def _rounded(tokens: int) -> int:
    step = 8 if tokens < 64 else 64
    return -(-tokens * 5 // 4 // step) * step
