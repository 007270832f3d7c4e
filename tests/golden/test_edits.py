"""Which stages of a small plan run again after an edit: of a formula, a docstring, a log line, a setting.

Edits of code are made in a copy of the packages, at the named definition, so that a reworded line breaks no row.
"""

import ast
import copy
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pydantic
import pytest

from ouroboros.pipeline.plan import code
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.settings import declared
from ouroboros.pipeline.store.files import HOME
from tests.configs import changed

PPO = {"algorithm_type": "ppo", "repeat_times": 8, "kl_loss_fn": "k3", "bypass_old_logprobs": False}
LINES = {"formula": "edited = 1", "log": "context.log.info('edited')", "comment": "# edited"}
RUN = {
    "buffer.explorer_input.eval_tasksets.0.default_reward_fn_type": "accuracy_reward", "stages": [
        {"stage_name": "sft", "algorithm": {"algorithm_type": "sft"}},
        {"stage_name": "grpo", "algorithm": {"kl_loss_fn": "k2"}},
        {"stage_name": "ppo", "after": ["sft"], "algorithm": PPO,
         "explorer": {"rollout_model": {"engine_type": "transformers"}}}],
}
KEYED = {"data_processor.task_pipeline.format.workflow_key": "w",
         "data_processor.task_pipeline.format.reward_fn_key": "r"}
POOLS = {"buffer.explorer_input.taskset.data_selector.selector_type": "solve_rate_pools"}
NOTHING: set[str] = set()
GRPO, PPO_ONLY = {"grpo", "evaluate_grpo", "report"}, {"ppo", "evaluate_ppo", "report"}
RFT = GRPO | PPO_ONLY
EVALUATIONS = {"evaluate_sft", "evaluate_grpo", "evaluate_ppo", "report"}
LEARNT = RFT | EVALUATIONS - {"evaluate_sft"}
ANSWERING = RFT | EVALUATIONS
TRAINED = {"sft"} | ANSWERING
DATA = {"tasks", "curate"} | TRAINED
LOSSES, ADVANTAGES = "operators/losses", "operators/advantages"

CODE = [  # file, definition, what is edited there, the stages that run again
    (f"{LOSSES}/clipped.py", "Ppo.__call__", "formula", RFT),
    (f"{LOSSES}/clipped.py", "Gspo.__call__", "formula", NOTHING),  # no stage uses it
    (f"{LOSSES}/weighted.py", "Opmd.__call__", "formula", NOTHING),
    (f"{LOSSES}/demonstrations.py", "Sft.__call__", "formula", TRAINED),
    (f"{LOSSES}/ratio.py", "log_ratio", "formula", RFT),  # used by ppo
    (f"{LOSSES}/clipped.py", "Ppo", "docstring", NOTHING),
    (f"{LOSSES}/clipped.py", "Ppo.__call__", "comment", NOTHING),
    (f"{LOSSES}/clipped.py", "Ppo.__call__", "layout", NOTHING),
    (f"{ADVANTAGES}/group.py", "Grpo.__call__", "formula", GRPO),
    (f"{ADVANTAGES}/group.py", "Rloo.__call__", "formula", NOTHING),
    (f"{ADVANTAGES}/token.py", "Ppo.__call__", "formula", PPO_ONLY),
    (f"{ADVANTAGES}/query.py", "require", "error", NOTHING),
    ("operators/kl.py", "k2", "formula", GRPO),
    ("operators/kl.py", "k3", "formula", PPO_ONLY),
    ("operators/priority.py", "linear_decay", "formula", NOTHING),  # no stage replays
    ("operators/correction.py", "importance_correction", "formula", RFT),
    ("operators/reward.py", "countdown_reward", "formula", ANSWERING),
    ("operators/reward.py", "accuracy_reward", "formula", EVALUATIONS),
    ("operators/generate.py", "countdown", "formula", DATA),
    ("operators/curation.py", "OURS", "entry", {"curate"} | TRAINED),
    ("operators/shards.py", "run", "formula", {"curate"} | TRAINED),
    ("operators/task_priority.py", "Priority.judge", "formula", NOTHING),  # tasks keep their order
    ("operators/formats.py", "read_records", "formula", NOTHING),  # the rows come from a generator
    ("operators/statistics.py", "pass_at_k", "formula", EVALUATIONS),
    ("workflows/single_turn.py", "simple_workflow", "formula", ANSWERING),
    ("workflows/retry.py", "retry_workflow", "formula", NOTHING),
    ("workflows/protocol/outcomes.py", "finished", "formula", ANSWERING),
    ("workflows/attempts/schedule.py", "roll_out", "formula", ANSWERING),
    ("workflows/evaluation.py", "evaluate", "formula", EVALUATIONS),
    ("workflows/engines/vllm_engine.py", "VllmEngine", "formula", GRPO | {"evaluate_sft"}),
    ("workflows/engines/vllm_worker.py", "WeightLoader", "formula", GRPO | {"evaluate_sft"}),
    ("workflows/engines/transformers_engine.py", "TransformersEngine", "formula", PPO_ONLY),
    ("workflows/engines/engine_pool.py", "EnginePool", "formula", NOTHING),  # responses do not depend on the number
    ("workflows/attempts/continued.py", "ContinuedEngine", "formula", NOTHING),  # answers end under their weights
    ("workflows/attempts/continued.py", "origins", "formula", ANSWERING),  # whose experts and kept tokens rows have
    ("workflows/attempts/pace.py", "Pace.ended", "formula", NOTHING),  # no attempt has a limit by the others' time
    ("workflows/reward_model.py", "RewardModel", "formula", NOTHING),
    ("stages/explorer/groups.py", "Groups.of_step", "formula", RFT),
    ("stages/explorer/resample.py", "fill", "formula", RFT),
    ("stages/explorer/over_rollout.py", "FirstComplete", "formula", NOTHING),  # all stages wait for all groups
    ("stages/explore.py", "Explorer", "formula", NOTHING),
    ("stages/learner/actor.py", "Actor.step", "formula", TRAINED),
    ("stages/learner/actor.py", "Actor.step", "log", NOTHING),
    ("stages/learner/engine/packing.py", "pack", "formula", TRAINED),
    ("stages/learner/engine/prefixes.py", "worthwhile", "formula", TRAINED),
    ("stages/learner/objective.py", "Objective", "formula", TRAINED),
    ("operators/terms.py", "refuse_parameters", "error", NOTHING),
    ("stages/learner/critic.py", "Critic", "formula", PPO_ONLY),
    ("stages/learner/teacher.py", "Teacher", "formula", NOTHING),
    ("stages/learner/teacher.py", "TeacherScores.refuse_unknown_tokens", "formula", NOTHING),
    ("stages/learner/served_teacher.py", "ServedTeacher", "formula", NOTHING),
    ("stages/learner/engine/adapter.py", "inject", "formula", NOTHING),
    ("operators/algorithm.py", "Algorithm.loss", "formula", TRAINED),
    ("operators/sampling.py", "selected", "formula", TRAINED),
    ("stages/learner/steps.py", "Steps.policy", "formula", TRAINED),
    ("stages/learn.py", "Trainer._step", "formula", NOTHING),
    ("stages/learner/publishing.py", "Publishing.publish", "formula", NOTHING),
    ("stages/model.py", "work", "formula", {"model"} | TRAINED),
    ("stages/report.py", "work", "formula", NOTHING),
    ("pipeline/job/sinks.py", "Mlflow", "formula", NOTHING),
    ("pipeline/job/progress.py", "step_line", "formula", NOTHING),
    ("pipeline/settings/explorer.py", "RolloutModel", "formula", NOTHING),
    (f"{ADVANTAGES}/group.py", "Grpo", "meaning", NOTHING),
    ("src/ouroboros/commands/cli.py", "run", "formula", NOTHING),
]
SETTINGS = [
    ("stages.grpo.algorithm.optimizer.lr", 1e-4, GRPO),
    ("stages.sft.algorithm.optimizer.lr", 1e-4, TRAINED),
    ("explorer.rollout_model.engine_num", 2, NOTHING),
    ("explorer.watch.default_reward_fn_type", "format_reward", RFT),
    ("explorer.watch.share", 0.5, NOTHING),  # of none
    ("explorer.dynamic_timeout.enable", True, RFT),
    ("explorer.dynamic_timeout.ratio", 5.0, NOTHING),  # of what is off
    ("explorer.partial_rollout", True, RFT),
    ("trainer.share_prompts", True, NOTHING),
    ("trainer.save_interval", 5, NOTHING),
    ("log.level", "DEBUG", NOTHING),
    ("monitor.monitor_type", "none", NOTHING),
    ("name", "other", {"report"}),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """(a copy of our packages, whose code counts in place of the tree's; identities before any edit)"""
    made = tmp_path_factory.mktemp("copy")
    for package in ("operators", "workflows", "stages", "pipeline", "src/ouroboros/commands"):
        shutil.copytree(HOME / package, made / package, ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code, "HOME", made)
        yield made, identities()


def identities(values: dict | None = None) -> dict[str, str]:
    config = changed({"checkpoint_root_dir": "/nowhere", **copy.deepcopy(RUN), **(values or {})})
    return {stage.name: stage.identity for stage in make_plan(config).stages}


def run_again(before: dict[str, str], after: dict[str, str]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


@contextmanager
def written(path: Path, text: str) -> Iterator[None]:
    """A file of the copy has another text within the block."""
    source = path.read_text()
    try:
        path.write_text(text)
        yield
    finally:
        path.write_text(source)


def edited(source: str, name: str, what: str) -> str:
    """The text of a module with one edit of what it defines under a name."""
    outer, _, method = name.partition(".")
    node = next(node for node in ast.parse(source).body if outer in _names(node))
    node = next(one for one in node.body if getattr(one, "name", "") == method) if method else node
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


@pytest.mark.parametrize(("file", "name", "what", "expected"), CODE, ids=[":".join(row[:3]) for row in CODE])
def test_stages_that_run_again_after_an_edit_of_code(home, file, name, what, expected):
    path, before = home[0] / file, home[1]
    source = path.read_text()
    text = edited(source, name, what)
    compile(text, file, "exec")
    assert text != source
    with written(path, text):
        assert run_again(before, identities()) == expected


@pytest.mark.parametrize(("file", "name"), [
    ("operators/reward.py", "accuracy_reward"), ("workflows/retry.py", "retry_workflow")])
def test_every_function_that_a_row_may_name_counts(home, file, name):
    path, before = home[0] / file, identities(KEYED)
    with written(path, edited(path.read_text(), name, "formula")):
        assert run_again(before, identities(KEYED)) == ANSWERING


@pytest.mark.parametrize(("file", "name", "given", "again"), [
    ("workflows/environments/terminal.py", "Terminal._edited", {"workflow": "terminal_agent"}, ANSWERING),
    ("workflows/environments/harbor.py", "Harbor.bash", {"workflow": "terminal_agent"}, ANSWERING),  # its base
    ("workflows/environments/shop.py", "Shop", {"environment_class": "ouroboros.workflows.environments.shop:Shop"},
     LEARNT),
    ("workflows/calculator.py", "product", {"tools": ["ouroboros.workflows.calculator:product"]}, LEARNT),
    ("operators/reward.py", "format_reward", {"reward": "ouroboros.operators.reward:format_reward"}, LEARNT)])
def test_code_of_ours_that_arguments_and_dotted_names_name_counts(home, file, name, given, again):
    workflow, reward = given.get("workflow", "tool_call_workflow"), given.get("reward", "countdown_reward")
    arguments = {key: value for key, value in given.items() if key in ("environment_class", "tools")}
    values = {"buffer.explorer_input.default_workflow_type": workflow,
              "buffer.explorer_input.default_eval_workflow_type": "simple_workflow",
              "buffer.explorer_input.taskset.workflow_args": arguments,
              "buffer.explorer_input.taskset.default_reward_fn_type": reward}
    path, before = home[0] / file, identities(values)
    with written(path, edited(path.read_text(), name, "formula")):
        assert run_again(before, identities(values)) == again


@pytest.mark.parametrize(("key", "value", "expected"), SETTINGS)
def test_stages_that_run_again_after_another_setting(home, key, value, expected):
    assert run_again(home[1], identities({key: value})) == expected


@pytest.mark.parametrize(("setting", "name", "argument", "named", "again"), [
    ("advantage_fn", "grpo", {"epsilon": (float, 1e-5)}, {}, GRPO),
    ("selector_type", "solve_rate_pools", {"hard": (float, 0.2)}, POOLS, RFT),
    ("default_workflow_type", "retry_workflow", {"edited": (int, 7)}, KEYED, ANSWERING),
    ("default_reward_fn_type", "judge_reward", {"edited": (int, 7)}, KEYED, ANSWERING),
    ("default_reward_fn_type", "judge_reward", {"edited": (int, 7)}, {}, NOTHING),
    ("selector_type", "solve_rate_pools", {"hard": (float, 0.2)}, {}, NOTHING)])
def test_another_default_argument_counts_where_its_function_is_named(home, monkeypatch, setting, name, argument, named,
                                                                     again):
    before, table = identities(named), declared.TABLES[setting]
    monkeypatch.setitem(table, name, pydantic.create_model(
        table[name].__name__, __base__=table[name], __module__=table[name].__module__, **argument))
    assert run_again(before, identities(named)) == again
