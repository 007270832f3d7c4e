"""The steps that a stage takes of one that differs in its rewards alone: a reward function, its arguments or the
answers of tasks were corrected, and the stored responses are rewarded again instead of sampled.

The functions run in a process (stages/rewarded_again.py, by the code of mode=score): first those of the donor, by which
its first rows must come out as they are stored, or the reward is not a function of the response. Trainer steps are
taken up to the first that reads an explorer step of which any row is rewarded otherwise. Explorer steps behind it, by
weights of the taken steps, keep their responses and have their new rewards, unless rewards decide what is explored.
Evaluations of these weights have new rewards too, where their samples have all that is rewarded.
"""

import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ouroboros.pipeline.job import trunks
from ouroboros.pipeline.job.schedule import measures
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.reward_rules import unrepeatable
from ouroboros.pipeline.store import files, launch
from ouroboros.pipeline.store.errors import OuroError

TEMPORARY = ".rewarded.tmp"
TRIED = 50  # rows that the functions of the donor reward again, in whole explorer steps
MOST = 3  # donors that are tried


def find(stage: Path, spec: Mapping[str, Any], config: Any, log: logging.Logger) -> trunks.Donor | None:
    """Returns what a stage without a checkpoint takes of the donor that gives the most steps; the log has why others
    give nothing. Rows with new rewards are below TEMPORARY of the stage, which the caller deletes."""
    settings = spec.get("trunk", {}).get("unrewarded")
    donors = trunks.listed(stage, settings) if settings and not trunks.begun(stage) else []
    if donors and (words := unrepeatable(config)):
        log.info("nothing is taken from %s, which differs in its rewards alone: %s", donors[0][1].name, words)
        return None
    best = None
    for reached, place in donors[:MOST]:
        if best and reached <= best.step:
            break
        log.info("the responses of %s are rewarded again", place.name)
        try:
            found = _offered(stage, place, spec, config, log)
        except (OuroError, FileNotFoundError) as error:
            found = str(error)
        if isinstance(found, trunks.Donor):
            best = max(best or found, found, key=lambda one: one.step)
        else:
            log.info("nothing is taken from %s: %s", place.name, found)
    if best is None:
        shutil.rmtree(stage / TEMPORARY, ignore_errors=True)
    return best


def ask(donor: Path, spec: Mapping[str, Any], out: Path, rows: int | None = None, whole: bool = False
        ) -> dict[str, Any]:
    """Returns the answer of stages/rewarded_again.py on the rows of a donor under the settings and inputs of `spec`.

    out: where explorer steps with new rewards are written; it has the name of the stage whose they will be. rows: only
    this many, by the functions of the donor as they were. whole: every explorer step.
    """
    kept = [str(donor / launch.CODE)] if rows else []
    path = {"PYTHONPATH": os.pathsep.join([*kept, launch.python_path()])}
    asked = {key: spec[key] for key in ("run", "name", "kind", "identity", "config", "inputs")}
    return launch.ask("ouroboros.stages.rewarded_again", {
        "donor": str(donor), "spec": asked, "out": str(out), "rows": rows, "whole": whole}, launch.environment() | path)


def _offered(stage: Path, place: Path, spec: Mapping[str, Any], config: Any, log: logging.Logger) -> trunks.Donor | str:
    """Returns what a donor gives, or why it gives nothing."""
    out, theirs = stage / TEMPORARY / place.name / stage.name, files.read_json(place / "stage.json")
    if words := unrepeatable(Config.of_stage(theirs["kind"], theirs["config"])):
        return words
    shutil.rmtree(out.parent, ignore_errors=True)
    total = trunks.total_of(spec, config, place)
    before = ask(place, theirs, out, rows=TRIED)
    if words := before["unlike"] or (before["first"] and f"rewarded again by its own functions, {before['first']}"):
        return words
    shutil.rmtree(out.parent, ignore_errors=True)
    found = ask(place, files.read_json(stage / "stage.json"), out)
    if found["unlike"] or not total:
        return found["unlike"] or "its steps are not known"
    schedule, equal = trunks.schedule_of(config, total), found["equal"]
    able = [step for step in trunks.given(place) if schedule.last_explorer_step(step) <= equal]
    if not able:
        return f"it has no checkpoint before the first step with another reward; {found['first']}"
    ends = schedule.last_trainer_step(equal) if decide(config) else total
    donor = trunks.usable(place, spec, config, config.verify, total, able, ends)
    if isinstance(donor, str):
        return donor
    if words := before.get("unevaluated") or found.get("unevaluated"):
        log.info("evaluations of %s are left out: %s", place.name, words)
    evaluated = donor.evaluated if before["evaluated"] and found["evaluated"] else -1
    return replace(donor, evaluated=evaluated, rewarded=out, first=found["first"])


def decide(config: Any) -> bool:
    """Returns whether rewards decide what is explored, replayed or kept."""
    return bool(measures(config.buffer.explorer_input) or config.algorithm.max_resample_rounds
                or config.buffer.trainer_input.experience_buffer.replay_buffer.enable
                or config.data_processor.experience_pipeline.operators)
