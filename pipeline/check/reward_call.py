"""Calls reward functions of the user and operators on experience before a run: faults are found before a warmup.

Each runs in a separate process (stages/own_code.py) without a GPU. A call that exceeds the time limit is killed
together with its child processes. The row is a real one of the set; its truth (or demonstration) is the response, and
then replies that answer nothing (stages/judged_rows.py).
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ouroboros.pipeline.check.sources import POOL, rewards, sources, tasksets
from ouroboros.pipeline.check.user_code import WAIT, own_code
from ouroboros.pipeline.job.context import ending, environment
from ouroboros.pipeline.settings import secrets
from ouroboros.pipeline.settings.arguments.experience import asks_models
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import reward_functions, train_places
from ouroboros.pipeline.settings.reward_rules import components_of
from ouroboros.pipeline.settings.row_columns import asked_columns
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.digests import nothing_at
from ouroboros.pipeline.store.errors import Problem

OPERATORS = "data_processor.experience_pipeline.operators"
GENERATOR = "data_processor.task_pipeline.generator"  # and generator_args
LIMIT = 10  # seconds per call; imports before it have own_code.WAIT


def call_rewards(stages: list[Config], known: str, add: Callable[[str, list[str], str], None]
                 ) -> list[tuple[str, str]]:
    """Returns facts (function, sentence) on one call of each reward function.

    stages: their settings. known: the text of known problems; functions quoted there, and those whose rows come from a
    source named there, are not called. add: receives lines and their list (`problems`, `warnings`, `unjudged`), without
    a stage's name in front.
    """
    asked = {json.dumps(question, sort_keys=True): question for settings in stages for question in _questions(settings)
             if not any(one in known for one in (f"'{question['name']}'", question["source_key"],
                                                 GENERATOR if question.get("generator") else question["source_key"]))}
    facts, said = [], set()
    for text, question in asked.items():
        to, words, *warned = call_once(text)
        for place, line in ((to, words), *(("warnings", one) for one in warned)):
            same = (question["name"], line.partition(", for the row")[0])
            if place == "facts":
                facts.append((question["name"], line))
            elif same not in said:
                said.add(same)
                name = question["name"] if "operators" in question else f"'{question['name']}'"
                add("", [Problem(name, line)], place)
    return facts


def _questions(settings: Config) -> Iterator[dict[str, Any]]:
    """Builds the requests for stages/own_code.py: of a stage's reward functions, and of its operators on experience."""
    explorer, pool = settings.buffer.explorer_input, settings.data_processor.task_pipeline
    operators = settings.data_processor.experience_pipeline.operators
    if settings.kind.makes_experience and operators and not asks_models(operators):
        parts = [components_of(one, explorer, place) for place, one in train_places(explorer)]
        yield {"name": OPERATORS, "source_key": OPERATORS, "operators": operators,
               "env_vars": settings.explorer.env_vars, "components": None if None in parts else sorted({
                   name for part in parts for name in part})}
    there = [source for source in sources(settings) if not nothing_at(source.path)]
    for place, one in tasksets(settings):
        key = f"buffer.explorer_input.{place}.path" if one.path else f"data_processor.task_pipeline.{POOL}"
        source = next((s for s in there if s.key == key or s.key.startswith(f"{key}.")), None)
        of_pool = {} if one.path else {"generator": pool.generator, "generator_args": pool.generator_args}
        named = reward_functions(one, explorer)
        for name in named:
            if ":" in name and (place.startswith("eval_") or rewards(settings)):
                yield {"name": name, "alone": len(named) == 1, "source_key": source.label if source else key,
                       "arguments": one.reward_fn_args, "source": source and source.request(), "seed": settings.seed,
                       "columns": asked_columns(one, explorer, place),
                       "format": plain(one.format if one.path else pool.format), **of_pool,
                       "system_prompt": explorer.system_prompt, "env_vars": settings.explorer.env_vars}


@cache
def call_once(text: str) -> tuple[str, ...]:
    """Makes one call, asked as JSON; returns `problems`, `warnings`, `unjudged` or `facts`, the text for it, and
    further warnings."""
    question = json.loads(text)
    variables = environment(secrets.reveal(question["env_vars"]))
    with tempfile.TemporaryDirectory() as directory:
        asked, answer, log = (Path(directory) / name for name in ("request.json", "answer.json", "log"))
        files.write_json(asked, question)
        with own_code(["--call", str(asked), str(answer)], log, variables | {"CUDA_VISIBLE_DEVICES": ""}) as process:
            limit = _wait(process, answer)
        if limit:
            return "warnings", (f"had not answered after {limit} s, when it was called with one row; it was ended. A "
                                "run waits for it without end: correct it, or set explorer.max_timeout.")
        if answer.exists() and (found := files.read_json(answer, kind=list)):
            if found[0] == "problems" and "cuda" in found[1].lower():  # none is visible to this call
                return "unjudged", found[1]
            return tuple(found)
        how = ": ".join([ending(process.returncode), *log.read_text(errors="replace").strip().splitlines()[-1:]])
        if not answer.exists():  # no row could be read
            return "unjudged", f"was not called: the checking process {how}"
        return "problems", f"was called with a row; the process {how}"


def _wait(process: subprocess.Popen, answer: Path) -> int | None:
    """Waits for a process; returns the time limit if it was exceeded."""
    begin, limit = time.monotonic(), WAIT
    while process.poll() is None:
        if limit == WAIT and answer.exists():  # the import is done and the call begins
            begin, limit = time.monotonic(), LIMIT
        if time.monotonic() - begin > limit:
            return limit
        time.sleep(0.02)
    return None
