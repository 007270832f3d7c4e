"""No file of ours that makes what a setting names is forgotten in identities: pipeline/plan/identity.py, CODE."""

import ast

import pytest

from pipeline.plan.identity import CODE, DECLARED, EXTERNAL
from pipeline.plan.plan import make_plan
from pipeline.store import files
from tests.configs import changed

HOME = files.CONF.parent
NAMES = {name for names in CODE.values() for name in names}

# files that no setting names, and what they are instead: a change of what they write is records.FORMAT
ELSEWHERE = {
    "how every stage works, whatever it is told": (
        "stages/explorer/children.py", "stages/curate.py", "stages/evaluate.py", "stages/bench.py", "stages/explore.py",
        "stages/follow.py", "stages/explorer/groups.py", "stages/explorer/interim.py", "stages/learn.py",
        "stages/offline.py", "stages/rft.py", "stages/rollout.py", "stages/tasks.py",
        "stages/train.py", "stages/explorer/prompts.py"),
    "how every trainer works": tuple(f"stages/learner/{name}.py" for name in (
        "actor", "engine/attention", "batches/choose", "estimates", "batches/fixed_scores", "engine/packing",
        "engine/policy", "batches/recorded", "reference", "batches/rollouts", "shortfall", "engine/zero")),
    "an engine, which is to answer as every other would, and what asks it": tuple(f"workflows/{name}.py" for name in (
        "engines/engine", "engines/engine_pool", "engines/engine_process", "engines/hugging_face", "engines/open",
        "engines/scripted_engine", "engines/transformers_engine", "engines/vllm_engine", "engines/vllm_worker",
        "runner", "seeds")),
    "how arguments are judged, whatever they are": tuple(f"pipeline/settings/arguments/{name}.py" for name in (
        "base", "users")),
    "what no stage reads": ("stages/counterfactual.py", "stages/learner/replay_engine.py", "stages/own_code.py",
                            "stages/model_size.py", "stages/overlap.py", "stages/preview.py", "stages/report.py",
                            "operators/catalogue.py"),
}
OTHERS = {name for names in ELSEWHERE.values() for name in names}


def taken_in(name: str) -> set[str]:
    """Files of operators/ that a file of ours imports."""
    found = [node for node in ast.parse((HOME / name).read_text()).body if isinstance(node, ast.ImportFrom)]
    modules = {part for node in found for one in node.names for part in (node.module, f"{node.module}.{one.name}")}
    return {f"{module.replace('.', '/')}.py" for module in modules if module.startswith("operators.")}


def test_every_file_of_ours_counts_or_has_a_reason():
    """A new file belongs into CODE when a setting names or switches on what it holds, and into ELSEWHERE otherwise."""
    there = {str(path.relative_to(HOME)) for package in ("operators", "workflows", "stages", DECLARED)
             for path in (HOME / package).rglob("*.py") if path.name != "__init__.py"}
    assert there - NAMES - OTHERS == set()
    assert (NAMES | OTHERS) - there == set()
    assert not NAMES & OTHERS


@pytest.mark.parametrize("kind", sorted(CODE))
def test_what_counts_takes_in_no_operator_that_does_not(kind):
    counted = set(CODE[kind])
    assert counted >= {other for name in CODE[kind] for other in taken_in(name) if (HOME / other).is_file()}


def test_a_comment_in_a_recipe_for_curation_is_no_other_content(tmp_path):
    recipe = tmp_path / "recipe.yaml"

    def identity(text: str) -> str:
        recipe.write_text(text)
        plan = make_plan(changed({"checkpoint_root_dir": str(tmp_path), EXTERNAL["curate"][0]: str(recipe)}))
        return next(stage.identity for stage in plan.stages if stage.kind == "curate")

    first = identity("text_keys: question\nprocess: [{text_length_filter: {min_len: 1, max_len: 9}}]\n")
    assert identity("# why\nprocess:\n- text_length_filter: {max_len: 9, min_len: 1}\ntext_keys: question\n") == first
    assert identity("text_keys: question\nprocess: [{text_length_filter: {min_len: 1, max_len: 8}}]\n") != first
