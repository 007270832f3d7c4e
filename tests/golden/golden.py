"""Makes the golden files, and what the tests compare with them.

    python -m tests.golden.golden        writes them again, after a change that is meant
"""

import hashlib
import json
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from ouroboros.pipeline.check import explain
from ouroboros.pipeline.check.judge import compose, judged
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.project_imports import bare

HERE = Path(__file__).parent
WHOLE = ("countdown",)  # of these every setting of every stage is kept, of the others a digest


def plan_of(overrides: list[str], whole: bool) -> dict[str, Any]:
    """The stages of a composition: kind, inputs by name, the settings of the identity and those of stage.json.

    Without `whole` a stage is its kind and one digest. No file or model is read, so that none need be there.
    """
    used: dict[str, dict] = {}

    def identity(content: dict) -> str:
        made = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
        used[made[:8]] = content
        return made

    config = compose(overrides)
    with mock.patch.object(files, "hash_json", identity), mock.patch.multiple(
            "ouroboros.pipeline.plan.identity", digests=_unread, digest_input=_unread), mock.patch(
            "ouroboros.pipeline.plan.plan._model_directory", _unread):
        stages = make_plan(config).stages
    names = {stage.directory: stage.name for stage in stages}
    shown = explain.show(config)
    notes = [line for line in shown.splitlines() if line.startswith("#")]
    settings = {"notes": notes, "settings": yaml.safe_load(shown)}
    made = {stage.name: {"kind": stage.kind, "inputs": {role: names.get(d, d) for role, d in stage.inputs.items()},
                         "waits": [names[d] for d in stage.waits], "identity": used[stage.identity]["settings"],
                         "stage.json": _renamed(stage.specification()["config"], names)} for stage in stages}
    settings, made = bare(settings), bare(made)  # names of modules as identities have them
    if whole:
        return {"overrides": overrides, "show": settings, "stages": made}
    return {"overrides": overrides, "show": _digest(settings),
            "stages": {name: f"{stage['kind']} {_digest(stage)}" for name, stage in made.items()}}


def _renamed(value: Any, names: dict[str, str]) -> Any:
    """Settings with the names of stages for their directories, whose hashes change with code."""
    if isinstance(value, dict):
        return {key: _renamed(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [_renamed(one, names) for one in value]
    return names.get(value, value) if isinstance(value, str) else value


def problems_of(overrides: list[str]) -> list[dict[str, Any]]:
    """What is wrong with a configuration: the parts of every problem but its words, sorted."""
    found = (problem.parts() for problem in judged(overrides)[1])
    return sorted(({name: part[name] for name in ("key", "found", "stages", "file", "line") if name in part}
                   for part in found), key=str)


def shipped() -> list[str]:
    """The names of the recipes in conf/."""
    return sorted(path.stem for path in (files.CONF / "recipe").glob("*.yaml"))


def _unread(path: Any, *_: Any, **__: Any) -> Any:
    """A path, in place of what lies there."""
    return path


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def read(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def write(name: str, value: Any) -> None:
    (HERE / f"{name}.json").write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    recipes = {f"recipe={name}": {"overrides": [f"recipe={name}"]} for name in shipped() if name not in WHOLE}
    write("plans", {name: plan_of(one["overrides"], name in WHOLE) for name, one in (read("plans") | recipes).items()})
    write("broken", [{"overrides": one["overrides"], "problems": problems_of(one["overrides"])}
                     for one in read("broken")])
