"""Values of arguments: what a function would refuse when it is called is refused before the run."""

import ast

import pytest

from operators.advantage import ADVANTAGES
from operators.entropy import ENTROPY_LOSSES
from operators.generate import GENERATORS
from operators.loss import POLICY_LOSSES
from operators.priority import PRIORITIES
from operators.reward import REWARDS
from operators.sampling import SAMPLE_STRATEGIES
from pipeline import parameters, signatures, syntax
from pipeline.inputs import KL
from pipeline.parameters import UNKNOWN, Parameter
from workflows.rewards import OPENED
from workflows.single_turn import WORKFLOWS

TABLES = {("operators/advantage.py", "ADVANTAGES"): ADVANTAGES, ("operators/loss.py", "POLICY_LOSSES"): POLICY_LOSSES,
          ("operators/generate.py", "GENERATORS"): GENERATORS, ("operators/reward.py", "REWARDS"): REWARDS,
          ("operators/entropy.py", "ENTROPY_LOSSES"): ENTROPY_LOSSES,
          ("operators/sampling.py", "SAMPLE_STRATEGIES"): SAMPLE_STRATEGIES,
          ("operators/priority.py", "PRIORITIES"): PRIORITIES, ("workflows/rewards.py", "OPENED"): OPENED,
          ("workflows/single_turn.py", "WORKFLOWS"): WORKFLOWS}
NO_VALUE = {"of": "no type at all"}


def wrong(table: tuple[str, str], function: str, **given) -> list[str]:
    return signatures.table(*table)[function].wrong_values("args", given)


@pytest.mark.parametrize(("table", "name"), [(t, name) for t, functions in TABLES.items() for name in functions])
def test_every_argument_of_every_function_is_judged(table, name):
    signature = signatures.table(*table)[name]
    for argument in signature.optional:
        assert signature.parameters[argument].kind is not UNKNOWN, argument
        assert signature.wrong_values("args", {argument: NO_VALUE}), argument
    defaults = {n: p.default for n, p in signature.parameters.items() if p.default is not UNKNOWN}
    assert signature.wrong_values("args", defaults) == []


LOSS, ADVANTAGE = ("operators/loss.py", "POLICY_LOSSES"), ("operators/advantage.py", "ADVANTAGES")


@pytest.mark.parametrize(("table", "function", "given", "words"), [
    (LOSS, "ppo", {"clip_range": "abc"}, "key 'args.clip_range': needed a number, found the text 'abc'."),
    (LOSS, "ppo", {"clip_range": None}, "key 'args.clip_range': needed a number, found null."),
    (LOSS, "ppo", {"clip_range": -1}, "args.clip_range=-1: needed a number at least 0."),
    (LOSS, "ppo", {"clip_range": float("inf")}, "args.clip_range=inf: needed a finite number."),
    (LOSS, "ppo", {"clip_ratio_c": 1}, "args.clip_ratio_c=1: needed a number greater than 1."),
    (LOSS, "mix", {"clip_ratio_c": 1}, "args.clip_ratio_c=1: needed"),  # checked by the ppo that it uses
    (LOSS, "mix_chord", {"mu_peak": 2}, "args.mu_peak=2: needed a number at least 0 and at most 1."),  # in a loop
    (LOSS, "sapo", {"tau_neg": 0}, "args.tau_neg=0: needed a number greater than 0."),
    (LOSS, "topr", {"level": "word"}, "args.level=word: needed one of sequence, token."),
    (ADVANTAGE, "ppo", {"gamma": 7}, "args.gamma=7: needed a number at least 0 and at most 1."),
    (ADVANTAGE, "ppo", {"gamma": [1]}, "key 'args.gamma': needed a number, found a list."),
    (ADVANTAGE, "grpo", {"duplicate_experiences": "yes"}, "needed true or false"),
    (("operators/generate.py", "GENERATORS"), "countdown", {"tasks": 1e3}, "needed a whole number, found 1000.0."),
    (("operators/generate.py", "GENERATORS"), "countdown", {"low": 12}, "args.high=9: needed a number at least 12 and"),
    (("operators/reward.py", "REWARDS"), "format_reward", {"pattern": 5}, "needed a text, found 5."),
])
def test_a_wrong_value_is_told(table, function, given, words):
    (problem,) = wrong(table, function, **given)
    assert words in problem


@pytest.mark.parametrize(("table", "function", "given"), [
    (LOSS, "ppo", {"clip_range": 0, "clip_range_low": None, "clip_range_high": 0.28}),
    (ADVANTAGE, "grpo", {"std_threshold": None, "rank_penalty": 1}), (ADVANTAGE, "rec", {"drop": None}),
    (("operators/sampling.py", "SAMPLE_STRATEGIES"), "staleness_control", {"max_staleness": float("inf")}),
])
def test_a_right_value_passes(table, function, given):
    assert wrong(table, function, **given) == []


def test_what_steers_a_kl_is_needed_where_it_is_steered():
    assert KL.wrong_values("kl", {"kl_coef": 0.1, "target_kl": None}) == []
    assert KL.wrong_values("kl", {"adaptive": True, "target_kl": 0.1, "horizon": 100}) == []
    assert KL.wrong_values("kl", {"adaptive": True, "target_kl": 0}) == [
        "kl.target_kl (adaptive=true)=0: needed a number greater than 0.",
        "kl.horizon (adaptive=true)=null: needed a number greater than 0."]
    assert KL.wrong_values("kl", {"kl_coef": -3}) == ["kl.kl_coef=-3: needed a number at least 0."]


def test_a_users_annotations_count_and_what_they_leave_open_passes(tmp_path):
    source = "def f(x: float, y: int | None = 3, z=1, w: 'MyType' = None, v: float = None, u: list[int] = []): ..."
    (tmp_path / "mine.py").write_text(source)
    read = parameters.read(tmp_path / "mine.py", ast.parse(source).body[0])
    assert read == {"x": Parameter(float), "y": Parameter(int | None, 3), "z": Parameter(UNKNOWN, 1),
                    "w": Parameter(UNKNOWN, None), "v": Parameter(float, None), "u": Parameter(list, [])} | {
                        "u": read["u"]}
    assert parameters.problems("a", read, {"x": 1, "y": None, "z": "any", "w": 3, "v": None, "u": [1]}) == []
    assert [p.partition(":")[0] for p in parameters.problems("a", read, {"x": "1", "y": 1.5, "v": "n", "u": 1})] == [
        "key 'a.x'", "key 'a.y'", "key 'a.v'", "key 'a.u'"]


def of_user(tmp_path, lines: str, **given) -> list[str]:
    """What is wrong with arguments of the user's function f, whose file has these lines."""
    (tmp_path / "mine.py").write_text(f"from operators import arguments\n{IMPORT}\n{lines}")
    found = syntax.function(tmp_path / "mine.py", "f")
    return parameters.problems("a", parameters.read(*found), given)


IMPORT = "from operators.arguments import check_choice, check_number"


@pytest.mark.parametrize("lines", [
    "def check_choice(x): ...\ndef f(x=1):\n    check_choice(x)",
    "def check_number(x, minimum=0): ...\ndef f(x=1):\n    check_number('x', minimum=3)",
    "def f(x=1):\n    for (i, j), k in (((1, 2), 3),):\n        check_number(f'{k}', x)",
    "def f(x=1):\n    for k, v in ((), (1, 2), 3):\n        check_number(f'a.{k}', v, above=5)",
    "def f(x=1):\n    check_number(*[x])\n    check_number(key='x', value=x, least=9)",
    "def f(x=1):\n    check_number(f'', x, least=9)",
    "def f(x=1):\n    check_number(3, x, **{'least': 9})\n    check_choice('x', x, choices=range(9, 12))",
    "def f(x: None = None, y: None | None = None): ...",
    "def f(x=1):\n    if x != 1:\n        check_number('x', x, least=9)",
    "def f(x=1, y=-{'a': 1}['a']):\n    if y < 0:\n        pass\n    else:\n        check_number('x', x, least=9)"])
def test_what_a_users_function_does_otherwise_is_left_to_it(tmp_path, lines):
    assert of_user(tmp_path, lines, x=2) == of_user(tmp_path, lines, x=[2]) == []


@pytest.mark.parametrize(("check", "given", "words"), [
    ("check_number('x', x, above=0)", -1, ["a.x=-1: needed a number greater than 0."]),
    ("check_number('x', x, above=0)", "abc", []),  # without an annotation, and perhaps never checked
    ("arguments.check_number('x', x, 1, 2)", 3, ["a.x=3: needed a number at least 1 and at most 2."]),
    ("check_choice('x', x, choices=[0, 1])", 2, ["a.x=2: needed one of 0, 1."]),
    ("check_choice('x', x, ('a', 'b'))", [1], ["a.x=[1]: needed one of a, b."]),
    ("if x is not None:\n        check_number('x', x, above=0)", 0, ["a.x=0: needed a number greater than 0."]),
    ("if y:\n        check_number('x', x, above=0)", 0, ["a.x (y=true)=0: needed a number greater than 0."])])
def test_a_users_function_may_use_our_checks(tmp_path, check, given, words):
    assert of_user(tmp_path, f"def f(x=1, y=True):\n    {check}", x=given) == words


@pytest.mark.parametrize(("kind", "right", "wrong"), [
    ("int | float", [1, 0.5], ["a", True]), ("float | int", [1, 0.5], [None]), ("list[str] | str", ["b", ["b"]], [{}]),
    ("str | int", [5, "a"], [[1], 0.5]), ("int | str | None", [5, "a", None], [True])])
def test_a_value_that_one_of_several_types_takes_is_right(tmp_path, kind, right, wrong):
    for value in right:
        assert of_user(tmp_path, f"def f(x: {kind}): ...", x=value) == []
    for value in wrong:
        assert len(of_user(tmp_path, f"def f(x: {kind}): ...", x=value)) == 1


def test_modules_that_import_a_name_from_each_other_define_it_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one_way.py").write_text("from other_way import f")
    (tmp_path / "other_way.py").write_text("from one_way import f")
    assert signatures.dotted("one_way:f") is None
