import contextlib
import dataclasses
import logging
from collections import Counter
from types import SimpleNamespace

import pytest

from ouroboros.operators.generate import countdown
from ouroboros.operators.reward import parse_countdown
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.store import tables
from ouroboros.pipeline.store.errors import ConfigError, DataError
from ouroboros.pipeline.store.files import CONF
from ouroboros.pipeline.store.records import RawTask, Rejected, Task
from ouroboros.stages.curate import check_memory, make_task, work
from tests.configs import changed
from tests.golden.messages import refuses, wording


def curate(directory, rows, recipe, allowed=0.1, **settings):
    """Runs the stage on rows, with settings of the task pipeline; allowed: max_rejected_ratio. Returns (tasks,
    rejected, made)."""
    source, target = directory / "tasks", directory / "curate"
    tables.write(source / "raw.parquet", RawTask, rows)
    given = {"config_path": None if recipe is None else str(recipe), **settings}
    config = changed({f"data_processor.task_pipeline.{key}": value for key, value in given.items()}
                     | {"buffer.max_rejected_ratio": allowed})
    context = Context("p/n", "curate", "0", target, config, {"tasks": source}, logging.getLogger("test"))
    work(context)
    return (tables.read(target / "tasks.parquet", Task).to_pylist(),
            tables.read(target / "rejected.parquet", Rejected).to_pylist(), context.made)


def recipe_file(directory, text):
    path = directory / "recipe.yaml"
    path.write_text(text)
    return path


def test_every_row_is_kept_or_rejected_and_nothing_leaks(tmp_path):
    rows = list(countdown(1, tasks=400, demonstrations=300, dirt=0.2))
    tasks, rejected, made = curate(tmp_path, rows, CONF / "data_juicer" / "countdown.yaml")
    assert made["read"] == len(rows) == 840
    assert sorted([t["row"] for t in tasks] + [r["row"] for r in rejected]) == list(range(840))
    assert made["kept"] + made["rejected"] == made["read"]
    assert made["train"] + made["test"] + made["sft"] == made["kept"]

    def keys(*splits):
        chosen = [parse_countdown(t["answer"]) for t in tasks if t["split"] in splits]
        return {(*sorted(numbers), target) for numbers, target in chosen}

    assert keys("test")
    assert not keys("test") & keys("train", "sft")
    assert all((t["solution"] is not None) == (t["split"] == "sft") for t in tasks)
    assert len({(t["question"], t["solution"]) for t in tasks}) == len(tasks)
    for dropped in rejected:
        assert dropped["question"] == rows[dropped["row"]].question
        assert dropped["reason"]
    assert set(Counter(r["operator"] for r in rejected)) == {
        "required_columns", "text_length_filter", "full_match_filter", "countdown_solvable_filter",
        "document_deduplicator", "split_by_hash_mapper"}


def test_the_default_recipe_leaves_enough_of_every_split(tmp_path):
    settings = compose([]).data_processor.task_pipeline
    rows = list(countdown(1, **settings.generator_args))
    made = curate(tmp_path, rows, CONF.parent / settings.config_path)[2]
    assert made["test"] >= 256
    assert made["train"] >= 1500
    assert made["sft"] >= 2000


def test_without_a_split_all_rows_are_for_training(tmp_path):
    rows = [RawTask(0, "a question", "1", None), RawTask(1, "another one", "2", "shown")]
    tasks, _, made = curate(tmp_path, rows, recipe_file(tmp_path, "process: []"))
    assert [(t["split"], t["solution"]) for t in tasks] == [("train", None), ("train", None)]
    assert (made["train"], made["test"], made["sft"]) == (2, 0, 0)


def test_the_same_task_has_the_same_id():
    read = dataclasses.asdict(RawTask(0, "q", "a", None))
    first, second = make_task(read), make_task({**read, "row": 5, "split": "sft", "solution": "s"})
    assert first.task_id == second.task_id
    assert len(first.task_id) == 16
    assert make_task({**read, "answer": "b"}).task_id != first.task_id
    assert make_task({**read, "context": [{"role": "user", "content": "c"}]}).task_id != first.task_id
    assert make_task({**read, "choices": '{"workflow": "retry_workflow"}'}).task_id != first.task_id


def test_demonstrations_alone_are_enough_for_a_recipe_of_sft(tmp_path):
    recipe = recipe_file(tmp_path, "process: [{split_by_hash_mapper: {key: question, test_ratio: 0.0}}]")
    _, _, made = curate(tmp_path, [RawTask(0, "what?", "1", "one"), RawTask(1, "who?", "2", "two")], recipe)
    assert (made["train"], made["sft"]) == (0, 2)


def test_nothing_left_lists_the_rejections(tmp_path):
    rows = [RawTask(0, "short", "1", None), RawTask(1, None, "1", None), RawTask(2, "tiny", "1", None)]
    recipe = recipe_file(tmp_path, "process: [{text_length_filter: {min_len: 50}}]")
    with refuses(DataError, "nothing", "text_length_filter 2, required_columns", "1"):
        curate(tmp_path, rows, recipe, allowed=1.0)
    assert not (tmp_path / "curate" / "tasks.parquet").exists()


def test_sets_to_test_on_alone_are_enough_and_a_pool_needs_something_to_train_on(tmp_path):
    assert curate(tmp_path, in_set("a", "test", "q"), None)[2]["test"] == 1
    recipe = recipe_file(tmp_path, "process: [{split_by_hash_mapper: {test_ratio: 0.999}}]")
    with refuses(DataError, "1 test", "0 rejected"):
        curate(tmp_path, [RawTask(0, "q", "1", None), *in_set("a", "train", "q", first=1)], recipe)


TALK = [{"role": "user", "content": "Are you there?"}, {"role": "assistant", "content": "I am."}]


def in_set(taskset, split, *questions, first=0, **columns):
    """Rows of a set; a question stands for its answer too."""
    return [RawTask(first + i, q, q, None, taskset=taskset, split=split, **columns) for i, q in enumerate(questions)]


def test_sets_are_curated_each_by_itself_and_keep_their_split(tmp_path):
    """The question stands in both sets, twice in one; the recipe splits the pool, with a share of 0 for the test."""
    rows = [*in_set("a", "train", "the same", "the same"), *in_set("b", "test", "the same", first=2),
            RawTask(3, "the same", "1", None), RawTask(4, "shown", "1", "one")]
    recipe = recipe_file(tmp_path, "process: [{document_deduplicator: {text_key: question}},"
                                   " {split_by_hash_mapper: {test_ratio: 0.0}}]")
    tasks, rejected, made = curate(tmp_path, rows, recipe)
    assert [(t["row"], t["taskset"], t["split"]) for t in tasks] == [
        (0, "a", "train"), (2, "b", "test"), (3, None, "train"), (4, None, "sft")]
    wording([[(r["row"], r["taskset"], r["reason"]) for r in rejected]], "(1,", "row 0")
    assert (made["train"], made["test"], made["sft"], made["preference"]) == (2, 1, 1, 0)


def test_without_a_recipe_rows_pass_with_their_split(tmp_path):
    rows = [RawTask(0, "a question", "1", None), *in_set("a", "test", "q", "q", first=1), RawTask(3, None, "1", None),
            *in_set("b", "preference", "p", first=4, chosen="good", rejected="bad")]
    tasks, rejected, _ = curate(tmp_path, rows, None, allowed=1.0)
    assert [(t["row"], t["split"], t["chosen"]) for t in tasks] == [
        (0, "train", None), (1, "test", None), (2, "test", None), (4, "preference", "good")]
    assert [(r["row"], r["operator"]) for r in rejected] == [(3, "required_columns")]


def test_operators_in_place_of_a_recipe(tmp_path):
    """The second field is not the default column: `answer` is 4 characters and would be dropped."""
    operators = [{"name": "text_length_filter", "args": {"min_len": 5}}, {"name": "whitespace_normalization_mapper"}]
    rows = [RawTask(0, " long  enough ", "four", None), RawTask(1, "tiny", "four", None)]
    tasks, rejected, _ = curate(tmp_path, rows, None, operators=operators, target_fields=["question", "answer"])
    assert [t["question"] for t in tasks] == ["long  enough"]
    assert [(r["row"], r["operator"]) for r in rejected] == [(1, "text_length_filter")]


def test_several_processes_make_the_same_tables(tmp_path):
    """2,500 rows are three shards."""
    rows = [RawTask(i, f"question {i} " + "x" * (i % 7), "1", "s" if i % 3 else None) for i in range(2500)]
    recipe = recipe_file(tmp_path, "process: [{text_length_filter: {max_len: 18}}, {document_deduplicator: },"
                                   " {split_by_hash_mapper: {test_ratio: 0.3}}]")
    alone = curate(tmp_path / "one", rows, recipe)
    assert curate(tmp_path / "four", rows, recipe, num_process=4) == alone
    assert min(alone[2]["train"], alone[2]["test"], alone[2]["sft"], alone[2]["rejected"]) > 0


def test_a_record_that_could_not_be_used_is_rejected_with_its_reason(tmp_path):
    rows = [RawTask(0, "fine", "1", None), RawTask(1, None, None, None, taskset="a", split="train", problem="no turn"),
            *in_set("a", "train", *map(str, range(9)), first=2)]
    tasks, rejected, made = curate(tmp_path, rows, None)
    assert [t["row"] for t in tasks] == [0, *range(2, 11)]
    assert (made["kept"], made["rejected"]) == (10, 1)
    assert [(r["row"], r["operator"], r["reason"], r["taskset"]) for r in rejected] == [(1, "format", "no turn", "a")]


@pytest.mark.parametrize(("unusable", "of", "allowed", "stops"), [
    (1, 10, 0.1, False), (2, 19, 0.1, True), (1, 10, 0.0, True), (9, 10, 0.9, False)])
def test_a_set_may_lose_a_share_of_its_records(tmp_path, unusable, of, allowed, stops):
    """The rows of the pool, which are all usable, do not make up for those of the set."""
    rows = [*in_set("a", "train", *[None] * unusable, problem="no turn"),
            *in_set("a", "train", *map(str, range(of - unusable)), first=unusable),
            *(RawTask(100 + i, f"q{i}", "1", None) for i in range(50))]
    if stops:
        with refuses(DataError, f"'a': {unusable}", of, "max_rejected_ratio"):
            curate(tmp_path, rows, None, allowed=allowed)
        assert not (tmp_path / "curate" / "tasks.parquet").exists()
    else:
        assert curate(tmp_path, rows, None, allowed=allowed)[2]["rejected"] == unusable


@pytest.mark.parametrize("lost", [
    {"answer": None}, {"question": None}, {"problem": "rate (data_selector.feature_keys) is 'high'"}])
def test_a_row_without_a_truth_or_a_number_is_lost_like_one_that_cannot_be_read(tmp_path, lost):
    """2 of 19 are more than a tenth, and 1 of 10 is not."""
    def rows(unusable, of):
        made = in_set("a", "train", *map(str, range(of)))
        return [dataclasses.replace(row, **lost) if row.row < unusable else row for row in made]

    assert curate(tmp_path / "few", rows(1, 10), None)[2]["rejected"] == 1
    with refuses(DataError, "'a': 2 of 19", "max_rejected_ratio"):
        curate(tmp_path / "many", rows(2, 19), None)


def test_skipped_harbor_tasks_and_what_operators_drop_do_not_count(tmp_path):
    """9 tasks cannot run here and 9 are too short: a tenth of the rest would be none."""
    rows = [*in_set("a", "train", *["cannot run here"] * 9, problem="needs docker"),
            *in_set("a", "train", *"123456789", first=9), *in_set("a", "train", "long enough", first=18)]
    operators = [{"name": "text_length_filter", "args": {"min_len": 5}}]
    made = curate(tmp_path, rows, None, operators=operators, allowed=0.0)[2]
    assert (made["kept"], made["rejected"]) == (1, 18)


def test_a_set_of_which_nothing_is_left_is_named_with_a_reason(tmp_path):
    rows = [RawTask(0, "fine", "1", None),
            *in_set("chats", "test", None, None, first=1, problem="turn 1 has from, value; needed role and content")]
    with refuses(DataError, "'chats'", "2 rows", "by", "1 has"):
        curate(tmp_path, rows, None)


def test_a_conversation_is_judged_by_all_the_user_says_and_stays_as_it_is(tmp_path):
    """`go  on` alone is too short; what a mapper does to the joined text is not taken over."""
    rows = in_set("a", "train", "go  on", first=0, context=TALK) + in_set(
        "a", "train", "go  on", first=1, context=[{"role": "system", "content": "Think."}])
    recipe = recipe_file(tmp_path, "process: [whitespace_normalization_mapper, {text_length_filter: {min_len: 10}}]")
    tasks, rejected, _ = curate(tmp_path, rows, recipe)
    assert [(t["question"], t["context"]) for t in tasks] == [("go  on", TALK)]
    assert [r["row"] for r in rejected] == [1]


def test_conversations_that_differ_before_the_question_are_no_duplicates(tmp_path):
    other = [TALK[0], {"role": "assistant", "content": "I am not."}]
    rows = [*in_set("a", "train", "then say what is 1 + 1", context=TALK),
            *in_set("a", "train", "then say what is 1 + 1", context=other, first=1),
            *in_set("a", "train", "then say what is 1 + 1", context=TALK, first=2)]
    tasks, rejected, _ = curate(tmp_path, rows, CONF / "data_juicer" / "gsm8k.yaml")
    assert [t["row"] for t in tasks] == [0, 1]
    assert [r["operator"] for r in rejected] == ["document_deduplicator"]


def test_pairs_of_the_pool_are_for_preference_training(tmp_path):
    recipe = recipe_file(tmp_path, "process: [{split_by_hash_mapper: {test_ratio: 0.0}}]")
    rows = [RawTask(0, "q", "1", None, [], "good", "bad"), RawTask(1, "r", "1", None, [])]
    tasks, _, _ = curate(tmp_path, rows, recipe)
    assert [(t["split"], t["chosen"], t["rejected"]) for t in tasks] == [
        ("preference", "good", "bad"), ("train", None, None)]


def test_a_raw_table_that_is_missing_names_the_file(tmp_path):
    context = Context("p/n", "curate", "0", tmp_path, None, {"tasks": tmp_path}, logging.getLogger("test"))
    with refuses(DataError, "raw.parquet"):
        work(context)


def test_a_conversation_with_tools_stays_whole_and_counts_in_the_id(tmp_path):
    """A mapper that edits questions leaves it alone; the same texts with other tools are another task."""
    rows = [RawTask(place, "q", "a", None, messages=text) for place, text in enumerate((None, '{"tools": 1}', "{}"))]
    tasks, rejected, _ = curate(tmp_path, rows, None, operators=[{"name": "whitespace_normalization_mapper"}])
    assert [task["messages"] for task in tasks] == [None, '{"tools": 1}', "{}"]
    assert len({task["task_id"] for task in tasks}) == 3
    assert rejected == []


@pytest.mark.parametrize(("permutations", "fits"), [(256, False), (128, True)])
def test_memory_is_judged_by_the_largest_set_and_the_permutations(tmp_path, monkeypatch, permutations, fits):
    """Five rows of the larger set take 95 kB with 256 permutations, 47.5 kB with 128."""
    monkeypatch.setattr("ouroboros.stages.curate.total_memory", lambda: 60_000)
    rows = [*in_set("a", "train", *"vwxyz"), *in_set("b", "train", *"xyz", first=5)]
    given = [{"name": "document_minhash_deduplicator", "args": {"num_permutations": permutations}}]
    with contextlib.nullcontext() if fits else pytest.raises(ConfigError):
        curate(tmp_path, rows, None, operators=given)


@pytest.mark.parametrize(("rows", "warnings"), [(10_000, 0), (200_000, 1), (10**10, None)])
def test_an_operator_that_holds_all_rows_says_what_it_needs_before_it_begins(rows, warnings, caplog):
    """19 kB a row: 0.19 GB, 3.8 GB, and more than any machine has."""
    context = SimpleNamespace(log=logging.getLogger("tests"))
    exact, minhash, longer = (SimpleNamespace(_name=name, num_permutation=256) for name in (
        "document_deduplicator", "document_minhash_deduplicator", "text_length_filter"))
    check_memory(context, [exact], rows)
    if warnings is None:
        with refuses(ConfigError, "document_minhash_deduplicator"):
            check_memory(context, [minhash], rows)
        check_memory(context, [longer, minhash], rows)  # may leave any number of them
        return
    check_memory(context, [minhash], rows)
    assert len(caplog.records) == warnings
