"""Leakage: finds tasks of an evaluation set that are also in the model's training data.

Tasks are compared by their prompts, ignoring system messages and whitespace; those of environments, which may all ask
the same, by their game and seed, or by their data too.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from ouroboros.pipeline.job.tasksets import HELD
from ouroboros.pipeline.store import files, records, tables


def prompt_of(context: Iterable[dict], question: str, pictures: Iterable[str] | None = None, answer: str | None = None
              ) -> str:
    """The text before the response, the hashes of its images, and what else tells its task from others. answer: the
    truth."""
    said = [" ".join(text.split()) for text in
            [*(turn["content"] for turn in context if turn["role"] != "system"), question]]
    return "\n".join([*said, *(pictures or ()), *_world(answer or "")])


def _world(answer: str) -> list[str]:
    """The game, or the task without lock and settings, of truths that operators/task_packages.py writes."""
    if answer.startswith('{"lock": '):
        return [json.dumps(json.loads(answer)["task"])]
    return [answer] if answer.startswith('{"game": ') else []


def training_prompts(inputs: dict[str, Path]) -> set[str]:
    """The training prompts of an evaluated model, from its own stage and all stages before it.

    inputs: of the evaluating stage. A training stage has the evaluation sets as `held`, so its `tasks` are training
    data.
    """
    own = [inputs["tasks"]] if HELD in inputs else [inputs["trained"]] if "trained" in inputs else []
    found: set[str] = set()
    for curated in dict.fromkeys([*own, *_curated_for(inputs["model"])]):
        rows = tables.read(curated / tables.LOCATIONS["tasks"], records.Task)
        rows = rows.select(["context", "question", "pictures", "answer", "split"]).to_pylist()
        found |= {prompt_of(row["context"], row["question"], row["pictures"], row["answer"])
                  for row in rows if row["split"] != "test"}
    return found


def _curated_for(directory: Path) -> list[Path]:
    """The curated tasks behind a training or exploring stage; empty for a model from outside."""
    if not (directory / "stage.json").exists():
        return []
    inputs = files.read_json(directory / "stage.json")["inputs"]
    own, earlier = ([Path(inputs[role]) for role in roles if role in inputs]
                    for roles in (("tasks",), ("experience", "model")))
    return [*own, *(path for stage in earlier for path in _curated_for(stage))]
