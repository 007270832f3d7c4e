"""Which stages of a small plan run again after an edit: of a formula, a docstring, a log line, a setting.

Edits of code are made in a copy of the packages, at the named definition, so that a reworded line breaks no row.
"""

import ast
import copy
import re
import shutil
from pathlib import Path

import pytest

from pipeline.plan import identity
from pipeline.plan.plan import make_plan
from pipeline.store.files import HOME
from tests.configs import changed

PPO = {"algorithm_type": "ppo", "repeat_times": 8, "kl_loss_fn": "k3", "bypass_old_logprobs": False}
LINES = {"formula": "edited = 1", "log": "context.log.info('edited')", "comment": "# edited"}
RUN = {
    "buffer.explorer_input.eval_tasksets.0.default_reward_fn_type": "accuracy_reward",
    "stages": [
        {"stage_name": "sft", "algorithm": {"algorithm_type": "sft"}},
        {"stage_name": "grpo", "algorithm": {"kl_loss_fn": "k2"}},
        {"stage_name": "ppo", "after": ["sft"], "algorithm": PPO,
         "explorer": {"rollout_model": {"engine_type": "transformers"}}}],
}
NOTHING: set[str] = set()
GRPO, PPO_ONLY = {"grpo", "evaluate_grpo", "report"}, {"ppo", "evaluate_ppo", "report"}
RFT = GRPO | PPO_ONLY
EVALUATIONS = {"evaluate_sft", "evaluate_grpo", "evaluate_ppo", "report"}
ANSWERING = RFT | EVALUATIONS
TRAINED = {"sft"} | ANSWERING
DATA = {"tasks", "curate"} | TRAINED
LOSSES, ADVANTAGES = "operators/losses", "operators/advantages"

CODE = [  # file, definition, what is edited there, the stages that run again
    (f"{LOSSES}/clipped.py", "ppo", "formula", TRAINED),
    (f"{LOSSES}/clipped.py", "gspo", "formula", TRAINED),
    (f"{LOSSES}/weighted.py", "opmd", "formula", TRAINED),
    (f"{LOSSES}/demonstrations.py", "sft", "formula", TRAINED),
    (f"{LOSSES}/ratio.py", "log_ratio", "formula", TRAINED),
    (f"{LOSSES}/clipped.py", "ppo", "docstring", NOTHING),
    (f"{LOSSES}/clipped.py", "ppo", "comment", NOTHING),
    (f"{LOSSES}/clipped.py", "ppo", "layout", TRAINED),
    (f"{ADVANTAGES}/group.py", "grpo", "formula", RFT),
    (f"{ADVANTAGES}/group.py", "rloo", "formula", RFT),
    (f"{ADVANTAGES}/token.py", "ppo", "formula", RFT),
    (f"{ADVANTAGES}/query.py", "require", "error", RFT),
    ("operators/kl.py", "k2", "formula", TRAINED),
    ("operators/kl.py", "k3", "formula", TRAINED),
    ("operators/priority.py", "linear_decay", "formula", RFT),
    ("operators/correction.py", "importance_correction", "formula", TRAINED),
    ("operators/reward.py", "countdown_reward", "formula", {"curate"} | TRAINED),
    ("operators/reward.py", "accuracy_reward", "formula", {"curate"} | TRAINED),
    ("operators/generate.py", "countdown", "formula", DATA),
    ("operators/curation.py", "OURS", "entry", {"curate"} | TRAINED),
    ("operators/formats.py", "read_records", "formula", DATA),
    ("operators/statistics.py", "pass_at_k", "formula", EVALUATIONS),
    ("workflows/single_turn.py", "simple_workflow", "formula", ANSWERING),
    ("workflows/retry.py", "retry_workflow", "formula", ANSWERING),
    ("workflows/runner.py", "roll_out", "formula", NOTHING),
    ("workflows/evaluation.py", "evaluate", "formula", EVALUATIONS),
    ("workflows/engines/vllm_engine.py", "VllmEngine", "formula", NOTHING),
    ("workflows/engines/transformers_engine.py", "TransformersEngine", "formula", NOTHING),
    ("workflows/reward_model.py", "RewardModel", "formula", ANSWERING),
    ("stages/explorer/groups.py", "Groups", "formula", NOTHING),
    ("stages/explorer/resample.py", "fill", "formula", RFT),
    ("stages/learner/actor.py", "Actor", "formula", NOTHING),
    ("stages/learner/engine/packing.py", "pack", "formula", NOTHING),
    ("stages/learner/objective.py", "Objective", "formula", TRAINED),
    ("stages/learner/objective.py", "refuse_parameters", "error", TRAINED),
    ("stages/learner/critic.py", "Critic", "formula", RFT),
    ("stages/learner/teacher.py", "Teacher", "formula", RFT),
    ("stages/learner/engine/adapter.py", "inject", "formula", TRAINED),
    ("stages/learn.py", "Trainer", "log", NOTHING),
    ("stages/model.py", "work", "formula", {"model"} | TRAINED),
    ("stages/report.py", "work", "formula", NOTHING),
    ("pipeline/job/tracking.py", "Mlflow", "formula", NOTHING),
    ("pipeline/job/progress.py", "step_line", "formula", NOTHING),
    ("pipeline/settings/config.py", "RolloutModel", "formula", NOTHING),
    ("pipeline/settings/arguments/losses.py", "Ppo", "docstring", NOTHING),
    ("pipeline/settings/arguments/advantages.py", "Grpo", "meaning", RFT),
    ("pipeline/settings/arguments/advantages.py", "Grpo", "formula", RFT),
    ("pipeline/cli.py", "run", "formula", NOTHING),
]
SETTINGS = [
    ("stages.grpo.algorithm.optimizer.lr", 1e-4, GRPO),
    ("stages.sft.algorithm.optimizer.lr", 1e-4, TRAINED),
    ("explorer.rollout_model.engine_num", 2, NOTHING),
    ("trainer.save_interval", 5, NOTHING),
    ("log.level", "DEBUG", NOTHING),
    ("monitor.monitor_type", "none", NOTHING),
    ("name", "other", {"report"}),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """(a copy of our packages, whose code counts in place of the tree's; identities before any edit)"""
    made = tmp_path_factory.mktemp("copy")
    for package in ("operators", "workflows", "stages", "pipeline"):
        shutil.copytree(HOME / package, made / package, ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "HOME", made)
        yield made, identities()


def identities(values: dict | None = None) -> dict[str, str]:
    settings = changed({"checkpoint_root_dir": "/nowhere", **copy.deepcopy(RUN)})
    for key, value in (values or {}).items():
        *parts, last = key.split(".")
        target = settings
        if parts[:1] == ["stages"]:
            target = next(entry for entry in settings["stages"] if entry["stage_name"] == parts[1])
        for part in parts[2:] if target is not settings else parts:
            target = target.setdefault(part, {})
        target[last] = value
    return {stage.name: stage.identity for stage in make_plan(settings).stages}


def run_again(before: dict[str, str], after: dict[str, str]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


def edited(source: str, name: str, what: str) -> str:
    """The text of a module with one edit of what it defines under a name."""
    node = next(node for node in ast.parse(source).body if name in _names(node))
    lines = source.splitlines(keepends=True)
    if what in LINES:
        first = (node.body[1:] or node.body)[0]  # after the docstring
        above = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))]) - 1
        lines.insert(above, f"{' ' * first.col_offset}{LINES[what]}\n")
    elif what == "entry":
        lines[node.lineno - 1] += "    'edited': None,\n"
    elif what == "layout":
        first = next(n for n in ast.walk(node) if isinstance(n, ast.Assign))
        lines[first.lineno - 1] = lines[first.lineno - 1].replace(" = ", "  =  ", 1)
    else:
        kind = {"docstring": ast.Expr, "error": ast.Raise, "meaning": ast.keyword}[what]
        inside = next(n for n in ast.walk(node) if isinstance(n, kind))
        text = next(n for n in ast.walk(inside) if isinstance(n, (ast.JoinedStr, ast.Constant)))
        line = lines[text.lineno - 1]
        quotes = re.compile("f?(\"{3}|\"|')").match(line, text.col_offset).end()
        lines[text.lineno - 1] = f"{line[:quotes]}edited {line[quotes:]}"
    return "".join(lines)


def _names(node: ast.stmt) -> set[str]:
    return {getattr(node, "name", "")} | {t.id for t in getattr(node, "targets", []) if isinstance(t, ast.Name)}


@pytest.mark.parametrize(("file", "name", "what", "expected"), CODE, ids=lambda value: str(value)[:40])
def test_stages_that_run_again_after_an_edit_of_code(home, file, name, what, expected):
    path, before = home[0] / file, home[1]
    source = path.read_text()
    text = edited(source, name, what)
    compile(text, file, "exec")
    assert text != source
    try:
        path.write_text(text)
        assert run_again(before, identities()) == expected
    finally:
        path.write_text(source)


@pytest.mark.parametrize(("key", "value", "expected"), SETTINGS)
def test_stages_that_run_again_after_another_setting(home, key, value, expected):
    assert run_again(home[1], identities({key: value})) == expected
