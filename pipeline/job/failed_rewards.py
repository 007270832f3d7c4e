"""Reward functions that raised in another stage of the same run, since it was launched: a stage that would call one
does not start, and its error names where to look."""

import re
from pathlib import Path
from typing import Any

from ouroboros.pipeline.job.error_file import NAME, recorded_error
from ouroboros.pipeline.settings.explorer import rewarded
from ouroboros.pipeline.settings.kinds import KINDS
from ouroboros.pipeline.store import files

NOT_STARTED = "not started"


def failed_reward(stage: Path, spec: dict[str, Any]) -> str:
    """Returns why a stage would fail as another did; empty if none did. spec: the content of its stage.json."""
    plan = Path(spec["root"], "runs", spec["run"], "plan.json")
    own = _functions(spec)
    others = [Path(row["directory"]) for row in files.read_json(plan)["stages"]] if own and plan.exists() else []
    for other in others:
        error = other / NAME
        if other.name == stage.name or not error.exists() or error.stat().st_mtime_ns < plan.stat().st_mtime_ns:
            continue  # its error is of an earlier launch
        words = recorded_error(other) or ""
        if words.startswith(NOT_STARTED):
            continue  # it never called the function
        for name in sorted(own & _functions(files.read_json(other / "stage.json"))):
            if re.search(rf"(?<![\w.]){name.rpartition(':')[2]} raised ", words):
                return f"{NOT_STARTED}, since the reward function {name} has failed in stage {other.name}:\n{words}"
    return ""


def _functions(spec: dict[str, Any]) -> set[str]:
    """Returns the user's reward functions that a stage calls."""
    found = [names for names, _ in rewarded(KINDS[spec["kind"]], spec["config"])]
    return {name for names in found for name in ([names] if isinstance(names, str) else names) if ":" in name}
