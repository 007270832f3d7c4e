import os
import signal

import pytest

from ouroboros.operators import juicer, shards
from ouroboros.operators.curation import Dropped, countdown_problem, hash_share
from ouroboros.operators.juicer_processes import PROCESSES
from ouroboros.operators.juicer_recipes import read_recipe
from ouroboros.operators.task_priority import Priority
from ouroboros.pipeline.store.errors import ConfigError, DataError, StageError
from ouroboros.pipeline.store.files import CONF
from tests.golden.messages import refuses, wording
from tests.recipes import run_recipe


def rows_of(*questions, answer="1", solution=None):
    return [{"row": i, "question": q, "answer": answer, "solution": solution, "context": None, "chosen": None,
             "rejected": None, "split": None} for i, q in enumerate(questions)]


def countdown_row(row, question, solution=None):
    target, numbers = question.split("=")
    answer = f'{{"numbers": [{", ".join(numbers.split())}], "target": {target}}}'
    return {"row": row, "question": question, "answer": answer, "solution": solution}


def run(rows, *process, processes=1, size=1000, **others):
    return run_recipe(rows, {"process": list(process), **others}, processes, size)


def test_a_filter_says_what_it_saw_and_what_it_keeps():
    kept, dropped = run(rows_of("short", "x" * 231), {"text_length_filter": {"min_len": 5, "max_len": 64}})
    assert [row["row"] for row in kept] == [0]
    assert dropped == [Dropped(1, "text_length_filter", "text_len=231, kept 5..64")]


def test_rows_that_are_kept_stay_as_they_were():
    rows = rows_of("first question", "second question", solution="s")
    assert run(rows, {"text_length_filter": {"min_len": 1}}, {"document_deduplicator": None})[0] == rows


def test_null_question_or_answer_is_rejected_first():
    rows = [*rows_of("fine", None), {"row": 2, "question": None, "answer": None, "solution": None}]
    kept, dropped = run(rows, {"text_length_filter": {"min_len": 1}})
    assert [row["row"] for row in kept] == [0]
    wording([[(d.row, d.operator, d.reason) for d in dropped]], "(1,", "required_columns", "(2,", "question")


def test_each_filter_looks_at_its_own_text():
    # Data-Juicer itself would take up the first filter's text_len in the second one
    kept, dropped = run(rows_of("a long question", answer="42"), {"text_length_filter": {"min_len": 10}},
                        {"text_length_filter": {"text_key": "answer", "min_len": 1, "max_len": 5}})
    assert (len(kept), dropped) == (1, [])


def test_statistics_of_an_earlier_filter_can_be_asked_for():
    condition = {"general_field_filter": {"filter_condition": "__dj__stats__.text_len > 3"}}
    kept, dropped = run(rows_of("abc", "abcd"), {"text_length_filter": {"min_len": 1}}, condition)
    assert [row["row"] for row in kept] == [1]
    assert dropped[0].operator == "general_field_filter"
    assert "text_len=3" in dropped[0].reason


def test_mapper_changes_the_text_that_later_operators_see():
    kept, dropped = run(rows_of("\t3 5\u00a07 \n"), "whitespace_normalization_mapper",
                        {"text_length_filter": {"max_len": 5, "min_len": 5}})
    assert [row["question"] for row in kept] == ["3 5 7"]
    assert dropped == []


def test_text_keys_of_the_recipe():
    recipe = {"text_length_filter": {"min_len": 3}}
    assert run(rows_of("a long question"), recipe, text_keys="answer")[1][0].reason == "text_len=1, kept 3.."
    assert run(rows_of("a long question"), recipe, text_keys=["question", "answer"])[1] == []


def test_duplicates_name_the_row_that_was_kept():
    kept, dropped = run(rows_of("a", "b", "a", "c", "b", "a"), {"document_deduplicator": {}})
    assert [row["row"] for row in kept] == [0, 1, 3]
    wording([dropped], "document_deduplicator", "row 0", "row 1")


def test_different_demonstrations_of_one_question_are_different_rows():
    rows = [countdown_row(0, "9=3 5 7", "7+5-3"), countdown_row(1, "9=3 5 7", "5+7-3"),
            countdown_row(2, "9=3 5 7", "7+5-3"), countdown_row(3, "9=3 5 7")]
    kept, dropped = run(rows, {"join_columns_mapper": {"columns": ["question", "solution"]}},
                        {"document_deduplicator": {"text_key": "text"}})
    assert [row["row"] for row in kept] == [0, 1, 3]
    wording([dropped], "document_deduplicator", "row 0")


def test_a_deduplicator_that_edits_text_is_heard():
    kept, _ = run(rows_of("a header line here\nfirst body of text", "a header line here\nsecond body of text"),
                  {"document_line_deduplicator": {"frequency_threshold": 1}})
    wording([[row["question"] for row in kept]], "first", "second")


def test_selector():
    kept, dropped = run(rows_of("a", "b", "c", "d"), {"random_selector": {"select_num": 1}})
    assert (len(kept), len(dropped)) == (1, 3)
    wording(dropped[0].reason, "{'text_key': 'question', 'select_num'", "1}")


def test_full_match_filter():
    kept, dropped = run(rows_of("3 5 = 8", "3 \u00d7 5 = 8", "3 5 = 8\n"),
                        {"full_match_filter": {"pattern": "[0-9 =]+"}})
    assert [row["row"] for row in kept] == [0]
    wording(dropped[0].reason, "full_match=False", "[0-9 =]+")


@pytest.mark.parametrize(("answer", "problem"), [
    ('{"numbers": [3, 5, 7], "target": 9}', None),
    ('{"numbers": [3, 5, 7], "target": 2}', "[3, 5, 7] cannot make 2 with + and -"),
    ('{"numbers": [3, 5', "is not JSON"), ('{"numbers": [3, 5]}', "has no target"),
    ('{"numbers": [' + ",".join("1" * 40) + '], "target": 40}', "40 numbers, more than")])
def test_countdown_problem(answer, problem):
    found = countdown_problem(answer)
    assert found is None if problem is None else problem in found


def test_unsolvable_tasks_are_dropped_with_the_reason():
    kept, dropped = run([countdown_row(0, "9=3 5 7"), countdown_row(1, "50=3 5 7")], "countdown_solvable_filter")
    assert [row["row"] for row in kept] == [0]
    wording([dropped], "countdown_solvable_filter", "countdown=[3, 5, 7]", "50 with")


def test_hash_share_is_fixed_for_ever():
    # sha256("abc") begins with ba7816bf 8f01cfea
    assert hash_share("abc") == 0xBA7816BF8F01CFEA / 2**64


def test_split_keeps_orders_together_and_holds_demonstrations_out():
    # tasks with three numbers 1..9 whose sum is the target, in two orders, each with a demonstration
    triples = [(a, b, c) for a in range(1, 10) for b in range(a, 10) for c in range(b, 10)]
    rows = []
    for a, b, c in triples:
        rows.append(countdown_row(len(rows), f"{a + b + c}={a} {b} {c}"))
        rows.append(countdown_row(len(rows), f"{a + b + c}={c} {a} {b}"))
        rows.append(countdown_row(len(rows), f"{a + b + c}={b} {c} {a}", f"{a}+{b}+{c}"))
    kept, dropped = run(rows, {"split_by_hash_mapper": {"key": "countdown", "test_ratio": 0.2}})
    split = {row["row"]: row["split"] for row in kept}
    for first in range(0, len(rows), 3):
        assert split[first] == split[first + 1]
        assert split.get(first + 2) == (None if split[first] == "test" else "sft")
    tests = [s for s in split.values() if s == "test"]
    assert 0.1 < len(tests) / (2 * len(triples)) < 0.3
    assert len(dropped) == len(tests) / 2
    assert dropped[0].operator == "split_by_hash_mapper"
    wording(dropped[0].reason, "demonstration")


def test_split_by_question_ignores_spacing():
    rows = rows_of(*(f"question number {i}" for i in range(50)), *(f"question  number\n{i}" for i in range(50)))
    kept, _ = run(rows, {"split_by_hash_mapper": {"test_ratio": 0.5}})
    splits = [row["split"] for row in kept]
    assert splits[:50] == splits[50:]
    assert set(splits) == {"train", "test"}


@pytest.mark.parametrize(("process", "error", "message"), [
    ({"text_lenght_filter": {}}, ConfigError, "'text_lenght_filter'"),
    ({"text_length_filter": {"max_length": 3}}, ConfigError, "'max_length'"),
    ({"split_by_hash_mapper": {"test_ratio": 2}}, ConfigError, "'split_by_hash_mapper'"),
    ({"split_by_hash_mapper": {}}, ConfigError, "'split_by_hash_mapper'"),
    ({"a": {}, "b": {}}, ConfigError, "recipe line"), ({"text_length_filter": [3]}, ConfigError, "recipe line"),
    ({"key_value_grouper": {"group_by_keys": ["question"]}}, ConfigError, "'key_value_grouper' neither maps"),
    ({"text_chunk_mapper": {"max_len": 4}}, ConfigError, "'text_chunk_mapper'"),
    ({"text_length_filter": {"text_key": "text"}}, StageError, "'text_length_filter' failed"),
    ({"split_by_hash_mapper": {"key": "countdown", "test_ratio": 0.1}}, DataError, "'split_by_hash_mapper': truth")])
def test_errors_name_the_operator(process, error, message):
    with refuses(error, message):
        run(rows_of("a question to be chunked"), process)


def test_a_failing_operator_never_drops_rows_even_if_the_recipe_asks_for_it():
    # Data-Juicer's skip_op_error would drop all rows of the batch
    with refuses(StageError, "text_length_filter"):
        run([*rows_of("a"), {"row": 1, "question": 5, "answer": "1", "solution": None}],
            {"text_length_filter": {"min_len": 1, "skip_op_error": True}})


MINE = """
class Mine(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} of {two}")

"""


@pytest.mark.parametrize(("line", "processes", "words"), [
    ("sys.exit(0)", 1, "SystemExit: 0"), ("sys.exit('no licence')", 2, "no licence"),
    ("raise Mine(1, 2)", 1, "Mine: 1 of"), ("os._exit(3)", 2, "exit code 3"), ("os._exit(3)", 1, "exit code 3"),
    ("os._exit(0)", 1, "exit code 0"), ("os.kill(os.getpid(), 15)", 2, "SIGTERM"),
    ("os.kill(os.getpid(), 9)", 1, "SIGKILL")])
def test_an_operator_that_ends_its_process_is_named(tmp_path, line, processes, words):
    (tmp_path / "mine.py").write_text(f"import os, sys\n{MINE}def strict(sample):\n    {line}\n")
    recipe = {"process": [{"python_file_mapper": {"file_path": str(tmp_path / "mine.py"), "function_name": "strict"}}]}
    with refuses(StageError, "'python_file_mapper'", words):
        run_recipe(rows_of("a", "b"), recipe, processes, size=1)


@pytest.mark.parametrize("kind", ["python_file_mapper", "python_lambda_mapper"])
def test_a_process_runs_code_of_the_user_on_one_shard_after_the_other(tmp_path, kind):
    (tmp_path / "mine.py").write_text("def twice(sample):\n    return {**sample, 'question': sample['question'] * 2}\n")
    given = {"file_path": str(tmp_path / "mine.py"), "function_name": "twice"} if kind == "python_file_mapper" else {
        "lambda_str": "lambda sample: {**sample, 'question': sample['question'] * 2}"}
    kept, dropped = run_recipe(rows_of(*"abcdef"), {"process": [{kind: given}]}, 2, size=1)
    assert [(row["row"], row["question"]) for row in kept] == [*enumerate(["aa", "bb", "cc", "dd", "ee", "ff"])]
    assert dropped == []


def test_a_process_that_is_killed_is_told_with_the_operators_of_its_phase(monkeypatch):
    """The phase after the deduplicator has no part in it."""
    monkeypatch.setattr(juicer, "run", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(StageError) as error:
        run(rows_of("a", "b"), {"text_length_filter": {}}, {"document_deduplicator": {}}, {"words_num_filter": {}},
            processes=2, size=1)
    said = str(error.value)
    assert all(one in said for one in ("text_length_filter", "document_deduplicator", "SIGKILL", PROCESSES))
    assert "words_num_filter" not in said


@pytest.mark.parametrize(("name", "lacks"), [
    ("document_simhash_deduplicator", True), ("ray_document_deduplicator", True), ("text_length_filter", False)])
def test_an_operator_whose_package_is_absent_is_told_before_a_run(monkeypatch, name, lacks):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = juicer.faults({"process": [{name: {}}]})
    assert len(found) == lacks
    if found:
        wording(found, name)


def test_nothing_is_installed_at_run_time():
    from data_juicer.utils.lazy_loader import LazyLoader

    juicer._import_data_juicer()
    with refuses(ImportError, "'some_package_of_an_operator'"):
        LazyLoader("some_package_of_an_operator").anything  # noqa: B018


def test_no_rows_left_is_no_failure():
    kept, dropped = run(rows_of("a"), {"text_length_filter": {"min_len": 5}}, {"document_deduplicator": {}})
    assert (kept, len(dropped)) == ([], 1)


@pytest.mark.parametrize(("text", "message"), [
    ("process: [", "cannot be read"), ("- a", "no list `process:`"), ("process:", "no list `process:`"),
    ("process: []\ncustom_operator_paths: [x.py]", "custom_operator_paths")])
def test_recipe_files(tmp_path, text, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with refuses(ConfigError, message):
        read_recipe(path)


def test_an_executor_on_several_machines_is_refused_by_its_name(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("process: []\nexecutor_type: ray\nray_address: auto\n")
    with pytest.raises(ConfigError) as error:
        read_recipe(path)
    assert "executor_type" in str(error.value)
    path.write_text("process: []\nexecutor_type: default\n")
    assert read_recipe(path)["process"] == []


def test_missing_recipe_file(tmp_path):
    with refuses(ConfigError, "nowhere.yaml"):
        read_recipe(tmp_path / "nowhere.yaml")


def test_the_shipped_gsm8k_recipe():
    question = "Ann has 3 apples and buys {} more. How many apples does she have then?"
    rows = rows_of(*(question.format(n) for n in range(100)), question.format(7), "too short", answer="3 + n\n#### 42")
    kept, dropped = run_recipe(rows, read_recipe(CONF / "data_juicer" / "gsm8k.yaml"))
    assert [(d.row, d.operator) for d in dropped] == [(101, "text_length_filter"), (100, "document_deduplicator")]
    assert {row["split"] for row in kept} == {"train", "test"}


TEXTS = [f"{'ab' * (n % 5 + 1)} question {n % 7}" for n in range(40)]


@pytest.mark.parametrize("process", [
    [{"text_length_filter": {"max_len": 18}}, {"document_deduplicator": {}}, {"text_length_filter": {"min_len": 14}}],
    [{"document_minhash_deduplicator": {"jaccard_threshold": 0.8, "num_permutations": 64}}],
    [{"document_line_deduplicator": {"frequency_threshold": 1}}],
    [{"text_length_filter": {"min_len": 1}},
     {"topk_specified_field_selector": {"field_key": "__dj__stats__.text_len", "topk": 7}}],
    [{"topk_specified_field_selector": {"field_key": "question", "top_ratio": 0.3, "reverse": False}}],
    [{"topk_specified_field_selector": {"field_key": "row", "topk": 7, "top_ratio": 0.5}}],
    [{"range_specified_field_selector": {"field_key": "row", "lower_rank": 3, "upper_rank": 9}}],
    [{"text_length_filter": {"min_len": 99}}, {"document_deduplicator": {}}]])
def test_rows_in_shards_have_the_fate_of_rows_together(process):
    together = run_recipe(rows_of(*TEXTS), {"process": process})
    apart = run_recipe(rows_of(*TEXTS), {"process": process}, size=9)
    assert together[0] == apart[0]
    assert {(one.row, one.operator, one.reason) for one in together[1]} == {
        (one.row, one.operator, one.reason) for one in apart[1]}
    assert together != (rows_of(*TEXTS), [])


def test_the_verdicts_on_a_shard_hold_the_edited_rows_of_that_shard():
    (operator,) = juicer.build({"process": [{"document_line_deduplicator": {"frequency_threshold": 1}}]})
    judging, rows = juicer.whole(operator), juicer.required(rows_of(*"abcd"))[0]
    columns = [judging.column(part) for part in (rows[:3], [], rows[3:])]
    verdicts = judging.judge(lambda: iter(columns))
    assert [sorted(one.edited) for one in verdicts] == [[0, 1, 2], [], [3]]


def test_the_rows_with_the_greatest_numbers_are_those_that_data_juicer_keeps(monkeypatch):
    """Lengths 1 3 2 3 3: of the equal ones the first; int(0.5 x 5) is 2."""
    rows, ask = rows_of("a", "bbb", "cc", "ddd", "eee"), {"field_key": "__dj__stats__.text_len"}
    for given, left in (({"topk": 2}, [1, 3]), ({"topk": 4}, [1, 2, 3, 4]), ({"top_ratio": 0.5}, [1, 3]),
                        ({"topk": 1, "reverse": False}, [0]), ({"topk": 1, "top_ratio": 0.9}, [1]), ({}, [*range(5)])):
        process = [{"text_length_filter": {"min_len": 1}}, {"topk_specified_field_selector": ask | given}]
        assert [row["row"] for row in run_recipe(rows, {"process": process}, size=2)[0]] == left
        with monkeypatch.context() as patch:
            patch.setattr("ouroboros.operators.juicer_whole._numbers", lambda table, path: None)
            assert [row["row"] for row in run_recipe(rows, {"process": process}, size=2)[0]] == left


def test_an_interrupted_curation_goes_on_with_the_shard_that_is_missing(tmp_path):
    """A draw at random is not made again either: the rows of the first shard have passed with it already."""
    loaded, made, broken = [], {}, [2]
    parts = [rows_of(*TEXTS[begin:begin + 10]) for begin in range(0, 40, 10)]

    def load(shard):
        loaded.append(shard)
        return juicer.required([row | {"row": 10 * shard + row["row"]} for row in parts[shard]])

    def finish(shard, kept, dropped):
        if shard in broken:
            raise KeyboardInterrupt
        made[shard] = [row["row"] for row in kept]

    job = shards.Job(tmp_path, 4, load, finish, juicer.build({"process": [{"random_selector": {"select_num": 20}}]}))
    with pytest.raises(KeyboardInterrupt):
        shards.run(job, 1, lambda: None)
    first = dict(made)
    assert sorted(first) == [0, 1]
    broken.clear()
    shards.run(job, 1, lambda: None)
    assert loaded == [0, 1, 2, 3]
    assert made | first == made
    assert sum(map(len, made.values())) == 20


def judged(rows, priority, process=(), size=2):
    kept, dropped = run_recipe(rows, {"process": list(process)}, size=size, priority=[priority])
    return sorted(kept, key=lambda row: row["place"]), dropped


def test_priority_by_quality_and_difficulty():
    """alnum_ratio of abcd 1, ab-- 1/2, a--- 1/4; perplexity is not measured: difficulty 1/2 for all.

    Quality 1 x 2 + difficulty 1/2 x -1: 1.5, 0.5 and 0.
    """
    rows = rows_of("ab--", "abcd", "a---")
    kept, dropped = judged(rows, Priority({"quality": 2.0, "difficulty": -1.0}, 2), [{"alphanumeric_filter": {}}])
    assert [(row["question"], row["priority"], row["place"]) for row in kept] == [("abcd", 1.5, 0), ("ab--", 0.5, 1)]
    assert [(one.row, one.operator) for one in dropped] == [(2, "priority")]


def test_priority_by_diversity():
    """Of 4 tasks 3 have `one`, 3 `two`, 1 `three`: 1 - mean(3/4, 3/4), 1 - mean(3/4, 3/4, 1/4), 1 - 3/4, 1 - 3/4."""
    kept, _ = judged(rows_of("one two", "One, three two", "one", "two two"), Priority({"diversity": 1.0}))
    assert [(row["row"], round(row["priority"], 6)) for row in kept] == [
        (1, round(1 - 1.75 / 3, 6)), (0, 0.25), (2, 0.25), (3, 0.25)]


def test_only_tasks_for_training_have_a_priority():
    """The first of the tests stays although top_k is 1; without weights those of the guide hold."""
    rows = [row | {"split": split} for row, split in zip(rows_of("a b", "c d", "c d"), ("test", "train", None),
                                                         strict=True)]
    kept, dropped = judged(rows, Priority({}, 1))
    assert [(row["row"], row["priority"]) for row in kept] == [(1, pytest.approx(0.5 - 0.35)), (0, None)]
    assert [one.row for one in dropped] == [2]
