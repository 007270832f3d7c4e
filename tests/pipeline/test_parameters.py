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
from pipeline.check import parameters, signatures
from pipeline.check.parameters import UNKNOWN, Parameter
from pipeline.check.references import KL
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


@pytest.mark.parametrize("name", ["gspo", "gspo_token"])
def test_a_low_bound_of_a_ratio_is_not_below_0(name):
    """1 - 2 = -1 bounds no ratio; its papers take 3e-4."""
    table = ("operators/loss.py", "POLICY_LOSSES")
    assert wrong(table, name, clip_range_low=1) == []
    (line,) = wrong(table, name, clip_range_low=2)
    assert line.endswith("clip_range_low=2: needed a number at most 1.")


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


def users(tmp_path, source: str) -> dict[str, Parameter]:
    """The parameters of the first function of a user's file."""
    file = tmp_path / "mine.py"
    file.write_text(source)
    return parameters.read(file, next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)))


OWN = "def f(r, a, scale=1, other=2):\n    {}\ndef check_choice(x): ...\ndef check_number(x, minimum=0): ...\n"
OURS = "from operators import arguments\nfrom operators.arguments import check_choice, check_number as number\n\n"


@pytest.mark.parametrize("source", [
    OWN.format("check_choice(scale)"), OWN.format("check_number('f.scale', minimum=0)"),
    OWN.format("check_number('f.scale', scale, above=5)"),  # a function of the user's that is called as ours
    OWN.format("for (i, j), k in (((1, 2), 3), ((), 4)): check_choice(k)"),
    OURS + "def f(scale=1):\n    if scale < 0:\n        number('f.scale', scale, above=5)\n",
    OURS + "def f(scale=1):\n    if scale < 5: return 0\n    number('f.scale', scale, above=5)\n",
    OURS + "def f(scale=1):\n    scale = scale + 9\n    number('f.scale', scale, above=5)\n",
    OURS + "def f(scale=1):\n    number('f.scale', scale + 9, above=5)\n    number(*scale)\n    number('x', **scale)\n",
    OURS + "def f(scale=1, all=()):\n    check_choice('f.scale', scale, all)\n",
    OURS + "def f(scale={[]: 1}): ...\n",
    OURS + "def f(scale=1): check(2 * scale)\n\ndef check(scale):\n    number('f.scale', scale, above=5)\n",
])
def test_of_a_users_function_nothing_is_refused_that_it_may_take(source, tmp_path):
    read = users(tmp_path, source)
    assert "scale" in read
    assert parameters.problems("args", read, {"scale": 3}) == []


@pytest.mark.parametrize(("check", "value", "expected"), [
    ("number('f.scale', scale, above=0)", "abc", ["args.scale=abc: needed a number greater than 0."]),
    ("number('f.scale', scale, above=0)", True, ["args.scale=True: needed a number greater than 0."]),
    ("number('f.scale', scale, above=0)", 0.5, []),
    ("arguments.check_number(key='scale', value=scale, least=2)", 1, ["args.scale=1: needed a number at least 2."]),
    ("number('f.scale', scale, 2, 4)", 5, ["args.scale=5: needed a number at least 2 and at most 4."]),
    ("check_choice('f.scale', scale, [3, True, None])", [4], ["args.scale=[4]: needed one of 3, true, null."]),
])
def test_a_check_of_ours_in_a_users_function_counts(check, value, expected, tmp_path):
    read = users(tmp_path, OURS + f"def f(scale=3):\n    {check}\n    return scale\n")
    assert parameters.problems("args", read, {"scale": value}) == expected


@pytest.mark.parametrize(("annotation", "right", "wrong"), [
    ("int | float", [1, 0.5], {"abc": "needed a whole number or a number, found the text 'abc'"}),
    ("list[str] | str", ["b", ["b"]], {3: "needed a text, found 3"}),
    ("str | int", [5, "five"], {None: "needed a text or a whole number, found null"}),
    ("bool | dict | None", [True, {"a": 1}, None], {1: "needed true or false or a mapping, found 1"}),
    ("None", [3], {}),
])
def test_a_value_that_one_of_several_types_takes_passes(annotation, right, wrong, tmp_path):
    read = users(tmp_path, f"def f(x: {annotation}): ...\n")
    assert [line for value in right for line in parameters.problems("args", read, {"x": value})] == []
    for value, words in wrong.items():
        (problem,) = parameters.problems("args", read, {"x": value})
        assert words in problem


def test_modules_that_import_a_name_from_each_other_define_it_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one_way.py").write_text("from other_way import f")
    (tmp_path / "other_way.py").write_text("from one_way import f")
    assert signatures.dotted("one_way:f") is None
