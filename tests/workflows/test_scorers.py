"""Scorers of veRL and TRL as rewards, unchanged, with the packages themselves: `make test-frameworks` fetches them."""

import importlib
import json
import math
import sys

import pytest

from ouroboros.pipeline.settings.data import Taskset
from ouroboros.pipeline.settings.row_columns import asked_columns
from ouroboros.pipeline.store.files import HOME
from ouroboros.workflows.attempts.user_reward import Rule
from ouroboros.workflows.protocol.outcomes import Outcome, add_rewards
from ouroboros.workflows.protocol.trajectory import Trajectory
from tests.configs import composed, element

pytestmark = pytest.mark.frameworks
VERL, TRL = "verl.utils.reward_score", "trl.rewards"
CALLS = '<tool_call>\n{"name": "stock", "parameters": {"fruit": "plum"}}\n</tool_call>'
SUM = "```python\nprint(int(input()) + 1)\n```"
PAIRS = {"inputs": ["1\n", "2\n"], "outputs": ["2\n", "3\n"]}
ARGUMENTS = {"prime_code:compute_score": {"continuous": True}}  # as veRL calls it; else it fails for a wrong program
THIRD, HALF = (rf"So \boxed{{\frac{{1}}{{{of}}}}}" for of in (3, 2))


@pytest.fixture(autouse=True)
def packages(tmp_path, monkeypatch):
    """verl has its scorers alone: to import the whole package takes Ray."""
    scorers = tmp_path / "verl" / "utils"
    scorers.mkdir(parents=True)
    for package in (scorers.parent, scorers):
        (package / "__init__.py").touch()
    for name in ("reward_score", "import_utils.py"):
        (scorers / name).symlink_to(HOME / ".scorers" / "verl" / "utils" / name)
    (tmp_path / "trl").symlink_to(HOME / ".scorers" / "trl")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("verl", "trl")]:
        monkeypatch.delitem(sys.modules, name)


def named(name: str):
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def rewarded(function, responses, truth, columns, form="plaintext", **arguments):
    """The outcomes of responses of one, two, … tokens to tasks with one truth, and its record's columns."""
    outcomes = [Outcome("ok", response=one, trajectory=Trajectory([1], [7] * n, [-1.0] * n, [1] * n, "stop"))
                for n, one in enumerate(responses, 1)]
    add_rewards(outcomes, [[{"role": "user", "content": "?"}]] * len(outcomes), [truth] * len(outcomes),
                [Rule(function, arguments, 0, form=form)], columns=[columns] * len(outcomes))
    assert [outcome.reason for outcome in outcomes] == [None] * len(outcomes)
    return outcomes


@pytest.mark.parametrize(("scorer", "asked", "responses", "truth", "columns", "rewards"), [
    ("gsm8k:compute_score", ["ground_truth"], ["#### 1,050", "1050"], "1050", {}, [1.0, 0.0]),
    ("math_reward:compute_score", ["ground_truth"], [HALF, THIRD], r"\frac12", {}, [1.0, 0.0]),
    ("math_dapo:compute_score", ["ground_truth"], ["Answer: 7", "Answer: 8"], "7", {}, [1.0, -1.0]),
    ("math_verify:compute_score", [], [r"\boxed{0.5}", THIRD], r"\frac{1}{2}", {}, [1.0, 0.0]),
    ("math_batch:compute_score_batched", ["data_source", "extra_info", "ground_truth"], [HALF, THIRD], r"\frac12",
     {"data_source": "math"}, [1.0, 0.0]),
    ("search_r1_like_qa_em:compute_score", ["ground_truth"], ["<answer>The Plum</answer>", "plum"], "",
     {"ground_truth": {"target": ["plum", "pear"]}}, [1.0, 0.0]),
    ("prime_code:compute_score", [], [SUM, SUM.replace("1", "2")], json.dumps(PAIRS), {}, [1.0, 0.0]),
    ("rlla:compute_score", ["data_source", "extra_info", "ground_truth"],
     [f"<|im_start|>assistant{CALLS}", "<|im_start|>assistant none"], CALLS,
     {"data_source": "rlla", "extra_info": {"experiment_name": "qwen"}}, [3.0, -3.0]),
    ("default_compute_score", ["*", "data_source", "extra_info", "ground_truth"], ["#### 5", "#### 6"], "5",
     {"data_source": "openai/gsm8k", "split": "train"}, [1.0, 0.0])])
def test_a_scorer_of_verl_is_a_reward(scorer, asked, responses, truth, columns, rewards):
    name = f"{VERL}.{scorer}" if ":" in scorer else f"{VERL}:{scorer}"
    taskset = element(Taskset, {"default_reward_fn_type": name})
    assert asked_columns(taskset, composed().buffer.explorer_input, "taskset") == asked
    outcomes = rewarded(named(name), responses, truth, columns, **ARGUMENTS.get(scorer, {}))
    assert [outcome.reward for outcome in outcomes] == rewards
    assert [*outcomes[0].components] == ["reward"]


def test_what_a_scorer_of_verl_tells_besides_is_accuracy_and_notes():
    right, wrong = rewarded(named(f"{VERL}.math_dapo:compute_score"), ["Answer: 7", "Answer: 8"], "7", {})
    assert (right.accuracy, right.notes, wrong.accuracy, wrong.notes) == (1.0, {"pred": "7"}, 0.0, {"pred": "8"})


@pytest.mark.parametrize(("reward", "made", "asked", "responses", "rewards"), [
    ("accuracy_reward", None, ["*", "solution"], [THIRD, HALF], [1.0, 0.0]),
    ("reasoning_accuracy_reward", None, ["*", "solution"], [f"<think>?</think>{THIRD}", f"<think>{THIRD}"], [1.0, 0.0]),
    ("think_format_reward", None, ["*"], ["<think>a</think>b", "b"], [1.0, 0.0]),
    # of 2 tokens; right after 1: 0.5 + 0.25 (1 + cos(pi/2)), wrong after 2: the least bad
    ("get_cosine_scaled_reward", {"max_len": 2}, [], [THIRD, HALF], [0.75, -0.5]),
    ("get_repetition_penalty_reward", {"ngram_size": 1}, [], ["x", "x"], [0.0, -0.5]),  # a token, and one twice
    ("get_soft_overlong_punishment", {"max_completion_len": 3, "soft_punish_cache": 2}, [], ["x", "x"], [0.0, -0.5])])
def test_a_reward_of_trl_is_a_reward(reward, made, asked, responses, rewards):
    """Of two responses, of one and of two tokens, to records with messages. made: arguments of what returns it."""
    function = named(f"{TRL}:{reward}") if made is None else named(f"{TRL}:{reward}")(**made)
    if made is None:
        taskset = element(Taskset, {"default_reward_fn_type": f"{TRL}.{function.__module__.split('.')[-1]}:{reward}"})
        assert asked_columns(taskset, composed().buffer.explorer_input, "taskset") == asked
    outcomes = rewarded(function, responses, "", {"solution": r"\frac{1}{3}"}, form="messages")
    assert all(math.isclose(one.reward, wanted) for one, wanted in zip(outcomes, rewards, strict=True))
