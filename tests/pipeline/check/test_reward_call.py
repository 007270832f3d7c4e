"""The one call of a reward function before a run: in a process of its own, with a real row."""

import json
import re
import time
from pathlib import Path

import pytest

from ouroboros.commands.cli import main
from ouroboros.pipeline.check import calls, preflight
from ouroboros.pipeline.store.errors import ConfigError
from tests.configs import overridden
from tests.golden.messages import refuses, wording

MINE = """\
import os, subprocess, sys, time
def score(response, answer): return float(response == answer == '4') + len(os.environ['CUDA_VISIBLE_DEVICES'])
async def later(response, answer): return {'accuracy': response == 'because'}
def batch(prompts, completions, answers, scale=1.0): return [scale * (p[-4:] == 'two?') for p in prompts]
def of_ids(response, answer, completion_ids): return 1.0
def reads_ids(completions, answer, **kwargs): return [len(one) for one in kwargs['completion_ids']]
def text(response, answer): return 'good'
def none(response, answer): return None
def fails(response, answer):
    return parse(answer)
def parse(text):
    raise ValueError('no number')
def hangs(response, answer):
    child = subprocess.Popen(['sleep', '600'])
    open('pid', 'w').write(str(child.pid))
    child.wait()
def leaves(response, answer):
    child = subprocess.Popen(['sleep', '600'], start_new_session=True)
    open('pid', 'w').write(str(child.pid))
    return 1.0
def ends(response, answer):
    print('last words', flush=True)
    os._exit(3)
def exits(response, answer):
    sys.exit(0)
def alone(responses, answers): return [1.0]
def device(response, answer): raise RuntimeError('No CUDA GPUs are available')
def numeric(response, answer): return float(int(response) == int(answer))
def given(response, answer, key): return float(key == 'hush-hush') if response else 0.0
def holds(response, answer): return {'accuracy': answer in response, 'short': 1.0}
def form(response, answer): return 0.5 if response.startswith('<answer>') else -0.5
def cases(response, answer, tests, level=1): return float(len(tests) * level)
def others(response, answer, **columns): return float(len(columns))
def slow(response, answer):
    time.sleep(0.6)
    return float(answer in response)
"""


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """asked(function, ...): (facts, [(where, line)]) of one stage whose train set has one usable row."""
    (tmp_path / "ouro_test_judge.py").write_text(MINE)
    rows = [{"question": "no truth", "answer": None}, {"question": "two and two?", "answer": 4}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    preflight.forget()

    def ask(*names: str, path="rows.jsonl", told="", **arguments):
        config = overridden(*([f"buffer.explorer_input.taskset.path={path}"] if path else []))
        own = {"default_reward_fn_type": [f"ouro_test_judge:{name}" for name in names], "reward_fn_args": arguments}
        config = config.merged({"buffer": {"explorer_input": {"taskset": own}}})
        lines = []
        facts = calls.call_rewards([config], told, lambda stage, found, to: lines.extend((to, f) for f in found))
        return facts, lines

    return ask


def test_a_reward_is_called_with_the_truth_as_response_and_sees_no_gpu(asked):
    facts, lines = asked("score", "batch", "none", scale=2)
    row = "where the response is the truth of the row whose prompt ends with 'two and two?' and whose truth is '4'"
    [(of_batch, paid), (where, line)] = lines
    assert (of_batch, paid.key) == ("warnings", "'ouro_test_judge:batch'")  # it reads the prompt alone
    assert (where, "returned None" in line) == ("warnings", True)
    assert facts == [("ouro_test_judge:score", f"reward=1, {row}"), ("ouro_test_judge:batch", f"reward=2, {row}")]


@pytest.mark.parametrize(("name", "where", "words"), [
    ("alone", "problems", ("1 for", "2 responses")), ("none", "problems", ()), ("ends", "problems", ("code 3",)),
    ("exits", "problems", ("ouro_test_judge.py",)),
    ("numeric", "warnings", ("ValueError",)),  # for an empty response
    ("device", "unjudged", ()), ("of_ids", "unjudged", ()), ("reads_ids", "unjudged", ())])
def test_what_is_found_without_a_reward(asked, name, where, words):
    facts, [(to, line)] = asked(name)
    assert (facts, to, line.key) == ([], where, f"'ouro_test_judge:{name}'")
    wording(line.needed, *words)


def test_columns_are_given_to_the_call_which_says_what_takes_what(asked, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "why?", "answer": "x", "tests": [1, 2], "hard": 3}))
    [(_, words)], _ = asked("cases", level="${column:hard}")
    wording(words, "reward=6", "tests <- tests", "level <- hard")


@pytest.mark.parametrize(("name", "given"), [("cases", {"tests": [1]}), ("others", {"hard": 2})])
def test_an_argument_that_is_a_column_too_is_a_problem(asked, tmp_path, name, given):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "why?", "answer": "x", "tests": [1, 2], "hard": 3}))
    facts, [(to, line)] = asked(name, **given)
    assert (facts, to) == ([], "problems")
    wording(line, next(iter(given)))


def test_a_demonstration_is_the_better_response(asked, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "why?", "answer": "x", "solution": "because"}))
    [(_, words)], lines = asked("later")
    assert lines == []
    wording(words, "accuracy=1", "demonstration")


def test_rows_of_a_generator_will_do_and_without_a_row_nothing_is_called(asked):
    [(_, words)], _ = asked("score", path=None)
    wording(words, '{"numbers"')
    facts, [(to, line)] = asked("none", path="nowhere.jsonl")
    assert (facts, to) == ([], "unjudged")
    wording(line, "'ouro_test_judge:none'")


@pytest.mark.parametrize("name", ["holds", "slow"])
def test_a_question_that_is_paid_as_the_response_is_a_warning_with_the_row(asked, tmp_path, name):
    """A slow function is called with fewer rows."""
    rows = [{"question": f"Is 1{i} more\nthan 2{i}?", "answer": f"1{i}"} for i in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    [fact], [(to, line)] = asked(name)
    assert (fact[0], to) == (f"ouro_test_judge:{name}", "warnings")
    assert "its question" in line
    assert ("20 of 20" in line) == (name == "holds")


@pytest.mark.parametrize("name", ["form", "score"])
def test_a_function_that_pays_the_truth_alone_or_not_even_it_is_none(asked, name):
    assert asked(name)[1] == []


def test_what_is_no_reward_is_a_problem_and_an_error_shows_the_users_frames(asked, tmp_path):
    facts, [(to, wrong), (also, raised)] = asked("text", "fails")
    assert (facts, to, also) == ([], "problems", "problems")
    assert wrong.key == "'ouro_test_judge:text'"
    wording(wrong.needed, "good (str)", "'two and two?'", "'4'")
    first, *frames = raised.splitlines()
    assert raised.key == "'ouro_test_judge:fails'"
    wording(first, "ValueError", "ouro_test_judge.py:12", "parse")
    assert [re.findall(r'"(.*)", line (\d+), in (\w+)', line) for line in frames if line.startswith("  File")] == [
        [(f"{tmp_path}/ouro_test_judge.py", "10", "fails")], [(f"{tmp_path}/ouro_test_judge.py", "12", "parse")]]


def test_a_call_that_does_not_end_is_a_warning_and_is_killed_with_its_children(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(calls, "LIMIT", 1)
    _, [(to, line)] = asked("hangs")
    assert to == "warnings"
    assert "explorer.max_timeout" in line
    assert (line.key, "after 1 s" in line) == ("'ouro_test_judge:hangs'", True)
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):  # its parent is dead, init reaps it
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child of the reward function lives")


def test_what_a_call_leaves_running_in_a_session_of_its_own_is_killed(asked, tmp_path):
    facts, lines = asked("leaves")
    assert (len(facts), [to for to, _ in lines]) == (1, ["warnings"])  # an empty reply is paid too
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_where_no_row_can_be_read_nothing_is_called(asked, tmp_path):
    (tmp_path / "rows.jsonl").write_text("no JSON")
    (_, [(to, line)]) = asked("score")
    assert to == "unjudged"
    assert line.key == "'ouro_test_judge:score'"
    assert "rows.jsonl, line 1" in line


def test_a_secret_is_revealed_in_the_process_of_the_call_alone(asked, monkeypatch):
    monkeypatch.setenv("OURO_TEST_API_KEY", "hush-hush")
    [(_, words)], _ = asked("given", key="${oc.env:OURO_TEST_API_KEY}")
    assert words.startswith("reward=1,")


def test_what_is_known_to_be_wrong_and_what_is_ours_is_not_called(asked, monkeypatch):
    monkeypatch.setattr(calls, "call_once", None)
    name = overridden().buffer.explorer_input.taskset.name
    assert asked("score", told="'ouro_test_judge:score' cannot be imported") == ([], [])
    assert asked("score", told=f"buffer.explorer_input.taskset.path ({name}): has no column 'x'") == ([], [])
    assert calls.call_rewards([overridden()], "", None) == []


@pytest.mark.parametrize(("options", "calls"), [
    ([], True), (["--no-call"], False), (["--no-data"], False), (["--elsewhere"], False)])
def test_config_check_calls_unless_told_otherwise(monkeypatch, options, calls):
    seen = {}
    monkeypatch.setattr(preflight, "check", lambda _, elsewhere, **given: seen.update(given) or preflight.Report("a/b"))
    assert main(["config", "check", *options]) == 0
    assert seen["call"] is calls


@pytest.mark.usefixtures("without_preview")
def test_a_run_begins_with_a_call_and_not_where_it_fails(asked, tmp_path):
    asked("fails")
    words = ("buffer.explorer_input.taskset.path=rows.jsonl", f"checkpoint_root_dir={tmp_path}",
             "buffer.max_rejected_ratio=0.5", "buffer.explorer_input.taskset.default_reward_fn_type=ouro_test_judge:{}")
    refused = overridden(*(word.format("fails") for word in words))
    with refuses(ConfigError, "no number"):
        preflight.judged_plan(refused, on_warning=lambda line: None)
    assert preflight.judged_plan(refused, on_warning=lambda line: None, plans_only=True)
    assert preflight.judged_plan(overridden(*(word.format("of_ids") for word in words)), on_warning=lambda line: None)


def test_a_run_begins_not_where_no_row_can_be_used(asked, tmp_path):
    (tmp_path / "empty.jsonl").write_text('{"question": "?", "answer": null}\n' * 3)
    config = overridden("buffer.explorer_input.taskset.path=empty.jsonl", f"checkpoint_root_dir={tmp_path}")
    with refuses(ConfigError, "3 of 3"):
        preflight.judged_plan(config, on_warning=lambda line: None)
