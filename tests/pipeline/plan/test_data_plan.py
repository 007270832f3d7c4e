"""Which stages read which sets of tasks, and what of a set changes whose identity."""

from pathlib import Path

import pytest

from ouroboros.pipeline.settings.data import Taskset
from ouroboros.pipeline.store.errors import DataError
from tests.configs import composed, element
from tests.golden.messages import refuses
from tests.plans import AFTER_SFT, EVALS, identities, identities_of_default, planned, re_run

SOURCE = "buffer.explorer_input"


def jsonl(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def sets(root: Path, place: str = "", edited: str = "") -> dict:
    """Two training sets, an evaluation set and demonstrations, each with a file of its own, in a directory `place`."""
    files_of = {name: jsonl(root / place / f"{name}.jsonl", f"{name} {edited if edited.startswith(name) else ''}")
                for name in ("first", "second", "held", "shown")}
    return {"data_processor.task_pipeline.generator": None,
            f"{SOURCE}.tasksets": [element(Taskset, {"name": n, "path": files_of[n]}) for n in ("first", "second")],
            f"{EVALS}.0.path": [files_of["held"]], "buffer.trainer_input.experience_buffer.path": files_of["shown"]}


RFT = {"tasks_rft", "curate_rft", "rft", "evaluate_rft", "report"}
EVAL = {"tasks_eval", "curate_eval", "evaluate_sft", "evaluate_rft", "report"}
LATER = {"rft", "evaluate_rft", "report"}


def test_the_content_of_the_file_of_every_set_counts_where_it_is_read_and_its_path_does_not(tmp_path):
    first = identities(tmp_path, sets(tmp_path))
    assert identities(tmp_path, sets(tmp_path, "elsewhere")) == first
    warmup = {"tasks", "curate", "sft"} | AFTER_SFT
    for name, expected in (("first", RFT), ("second", RFT), ("held", EVAL), ("shown", warmup)):
        edited = identities(tmp_path, sets(tmp_path, edited=f"{name}, edited"))
        assert {n for n in first if first[n] != edited[n]} == expected, name


def test_the_images_that_a_file_names_count_as_its_content_does(tmp_path):
    given = sets(tmp_path)
    jsonl(tmp_path / "first.jsonl", '{"image": "a.png"}')
    text = identities(tmp_path, given)
    (tmp_path / "a.png").write_bytes(b"0")
    assert identities(tmp_path, given) == text  # no image_key
    (tmp_path / "a.png").unlink()
    given[f"{SOURCE}.tasksets"][0] = given[f"{SOURCE}.tasksets"][0].but("format.image_key", "image")
    absent = identities(tmp_path, given)
    (tmp_path / "b.png").write_bytes(b"not named")
    assert identities(tmp_path, given) == absent
    for content in (b"1", b"2"):
        (tmp_path / "a.png").write_bytes(content)
        edited = identities(tmp_path, given)
        assert {name for name in absent if absent[name] != edited[name]} == RFT
        absent = edited


@pytest.mark.parametrize(("key", "value", "expected"), [
    ("tasksets.1.reward_fn_args.x", 1, LATER), ("tasksets.1.limit", 3, LATER),
    ("tasksets.0.data_selector.selector_type", "random", LATER), ("tasksets.0.format.prompt_key", "q", RFT),
    ("tasksets.0.name", "renamed", RFT), ("eval_tasksets.0.limit", 3, EVAL - {"tasks_eval", "curate_eval"}),
    ("eval_tasksets.0.format.response_key", "a", EVAL),
    ("default_eval_workflow_type", "simple_workflow", EVAL - {"tasks_eval", "curate_eval"})])
def test_what_of_a_set_re_runs_what(tmp_path, key, value, expected):
    first = identities(tmp_path, sets(tmp_path))
    second = identities(tmp_path, {**sets(tmp_path), f"{SOURCE}.{key}": value})
    assert {name for name in first if first[name] != second[name]} == expected


def test_a_set_without_files_is_no_part_of_the_pool(tmp_path):
    """It may be renamed, or another be evaluated on, and the pool is what it was."""
    assert re_run(tmp_path, {f"{SOURCE}.taskset.name": "renamed"}) == LATER
    more = [composed().buffer.explorer_input.eval_tasksets[0].but("name", n) for n in ("a", "b")]
    assert re_run(tmp_path, {EVALS: more}) == {"evaluate_sft", "evaluate_rft", "report"}
    path = jsonl(tmp_path / "held.jsonl", "x")
    before, after = identities_of_default(), identities(tmp_path, {EVALS: [*more, element(Taskset, {"path": path})]})
    assert {n for n in after if after[n] != before.get(n)} == EVAL


def test_a_stage_is_handed_the_sets_it_reads_with_their_paths(tmp_path):
    by_name = {s.name: s.config for s in planned(tmp_path, sets(tmp_path)).stages}
    (first, second) = by_name["tasks_rft"].buffer.explorer_input.tasksets
    assert [Path(one.path).name for one in (first, second)] == ["first.jsonl", "second.jsonl"]
    assert set(dict(first)) == {"name", "path", "subset_name", "split", "format", "data_selector", "columns"}
    assert by_name["tasks_rft"].buffer.explorer_input.eval_tasksets == []
    assert by_name["tasks_rft"].buffer.trainer_input.experience_buffer.path is None
    (held,) = by_name["evaluate_rft"].buffer.explorer_input.eval_tasksets
    assert (Path(held.path[0]).name, held.repeat_times) == ("held.jsonl", 8)
    assert by_name["curate_eval"].data_processor.task_pipeline.num_process == 1


def test_a_file_of_a_set_that_is_not_there_is_named_with_its_setting(tmp_path):
    values = sets(tmp_path) | {f"{SOURCE}.tasksets": [element(Taskset, {"path": "openai/gsm8k"})]}
    with refuses(DataError, "openai/gsm8k", "buffer.explorer_input.tasksets.0.path", "hf://datasets/openai/gsm8k"):
        planned(tmp_path, values)


def test_stages_that_read_the_same_data_share_it(tmp_path):
    """The warmup of the guide has demonstrations of its own; evaluation and rft have the pool of the recipe."""
    shown = jsonl(tmp_path / "shown.jsonl", "x")

    def curated(values):
        return {s.name: Path(s.inputs["tasks"]).name.rsplit("-", 1)[0] for s in planned(tmp_path, values).stages
                if s.kind in ("train", "rft", "evaluate")}

    assert curated({"stages.sft.buffer.trainer_input.experience_buffer.path": shown}) == {
        "sft": "curate", "rft": "curate_pool", "evaluate_sft": "curate_pool", "evaluate_rft": "curate_pool"}
    assert curated({"stages.rft.data_processor.task_pipeline.split": "train"}) == curated({})  # what it is anyway
    assert curated({"stages.rft.seed": 7}) == curated({})  # the same tasks, otherwise sampled
    assert curated({"stages.rft.data_processor.task_pipeline.generator_args.tasks": 100}) == {
        "sft": "curate", "evaluate_sft": "curate", "rft": "curate_rft", "evaluate_rft": "curate_rft"}
    assert curated({"stages.rft.data_processor.task_pipeline.config_path": None}) == {
        "sft": "curate", "evaluate_sft": "curate", "rft": "curate_rft", "evaluate_rft": "curate_rft"}


def test_the_seed_is_no_part_of_what_is_read_from_files(tmp_path):
    values = sets(tmp_path)
    first, second = identities(tmp_path, values), identities(tmp_path, values | {"seed": 2})
    assert {n for n in first if first[n] == second[n]} == {
        f"{kind}{who}" for kind in ("tasks", "curate") for who in ("", "_rft", "_eval")}


def test_evaluation_on_the_way_reads_the_eval_sets_and_they_change_nothing_of_the_training(tmp_path):
    """The explorer of rft is given the tasks to evaluate on beside those to train on, by role."""
    def rft(edited: str):
        plan = planned(tmp_path, sets(tmp_path, edited=edited) | {"explorer.eval_interval": 2})
        return next(s for s in plan.stages if s.name == "rft")

    before, after = rft(""), rft("held, edited")
    assert {role: Path(d).name.rsplit("-", 1)[0] for role, d in before.inputs.items()} == {
        "tasks": "curate_rft", "held": "curate_eval", "model": "sft"}
    assert before.config.buffer.explorer_input.eval_tasksets[0].path == [str(tmp_path / "held.jsonl")]
    assert before.inputs["held"] != after.inputs["held"]
    assert before.identity == after.identity


def test_a_stage_that_only_explores_reads_no_rows_of_an_expert(tmp_path):
    """Nor needs a buffer of them to be planned."""
    assert planned(tmp_path, {"algorithm.algorithm_type": "mix", "stages.rft.mode": "explore"}).stages
