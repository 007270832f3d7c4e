"""Functions handed over in Python: how a recipe names them, what is written of them, what is refused."""

import functools
import importlib
import linecache
import math
import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest

import ouroboros
from ouroboros.commands.by_source import literal, name_of
from ouroboros.operators.reward import accuracy_reward
from ouroboros.pipeline.store.errors import ConfigError
from tests.golden.messages import wording

CELL = '''
import math
import os.path as places
import xml.dom
import re
from collections import Counter

WORDS = {"plum": 1, "pear": [2.5, None]}
NUMBER = re.compile(r"\\d+", re.I)
NAMES = {"b", "a"}
seen = Counter()
count = 0

def plain(text):
    return text.strip().lower()

def score(response, answer, *, scale=2, bound=math.inf):
    """Judges."""
    found = NUMBER.findall(plain(response))
    return {"accuracy": float(answer in found), "share": scale * len(WORDS) * bool(NAMES)}

first, second = (lambda response, answer: 1.0), (lambda response, answer: float(answer in response))

def scaled(by):
    def inner(response, answer):
        return by * len(response)
    return inner

later = [lambda response, answer, k=k: k for k in (3, 4)]

def even(n): return n == 0 or odd(n - 1)
def odd(n): return n > 0 and even(n - 1)
def parity(response, answer): return float(even(len(response)))
def parsed(response, answer): return float(xml.dom.Node.ELEMENT_NODE)

if __name__ == "__main__":
    async def indented(response, answer):
        return math.sqrt(4) + len(places.basename(response))

def counting(response, answer):
    global count
    count += 1

def remembering(response, answer):
    seen[response] += 1
    return seen[response]

def counter():
    k = 0
    def inner(response, answer):
        nonlocal k
        k += 1
        return k
    return inner

def cached(function):
    def inner(*given):
        return function(*given)
    return inner

@cached
def decorated(response, answer): return 1.0

class Judge:
    def __call__(self, response, answer): return 1.0
    def judged(self, response, answer): return 1.0

def judged(response, answer): return Judge().judged(response, answer)
def lacking(response, answer): return missing_name(response)
def handing(response, answer, client=Judge()): return 1.0

same, chosen = (lambda r, a: 1.0 if r == a else 0.0), (lambda r, a: (lambda given: given if r == a else 0.5)(0.25))
asked = []
kept = {"a": []}
api_key = "a text"
def appending(response, answer): return asked.append(response) or 1.0
def within(response, answer): kept["a"].append(response)
def assigning(response, answer): kept[response] = answer
def posting(response, answer): return float(api_key in response)
def early():
    def inner(response, answer): return later_bound
    refused = inner
    if False:
        later_bound = 1
    return refused
def classy(response, answer):
    class Held:
        math = math
    return Held.math.sqrt(4.0)
def submodule(response, answer): return float(len(wsgiref.util.FileWrapper.__name__))
import wsgiref
'''


@pytest.fixture
def cell(tmp_path, monkeypatch):
    """What a cell of a notebook, whose source only the line cache has, defines in __main__."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [one for one in sys.modules if one.partition(".")[0] == "train_functions"]:
        monkeypatch.delitem(sys.modules, name)
    name = "/tmp/ipykernel_1/cell.py"
    monkeypatch.setitem(linecache.cache, name, (len(CELL), None, CELL.splitlines(keepends=True), name))
    names = {"__name__": "__main__"}
    exec(compile(CELL, name, "exec"), names)
    return names


def loaded(name: str):
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def test_a_function_is_written_with_what_its_free_names_mean(cell):
    named = name_of(cell["score"], "reward")
    score = loaded(named)
    assert score("It is 12 ", "12") == {"accuracy": 1.0, "share": 4}
    assert (score.__doc__, score.__kwdefaults__["bound"]) == ("Judges.", math.inf)
    text = Path(named.partition(":")[0].replace(".", "/")).with_suffix(".py").read_text()
    assert "def plain" in text
    assert "seen" not in text


@pytest.mark.parametrize(("pick", "given", "value"), [
    (lambda cell: cell["first"], ("a", "b"), 1.0), (lambda cell: cell["second"], ("a", "b"), 0.0),
    (lambda cell: cell["scaled"](3), ("ab", ""), 6), (lambda cell: cell["later"][0], ("a", "b"), 3),
    (lambda cell: cell["parity"], ("ab", ""), 1.0), (lambda cell: cell["parsed"], ("", ""), 1.0),
    (lambda cell: cell["same"], ("a", "a"), 1.0), (lambda cell: cell["chosen"], ("a", "a"), 0.25),
    (lambda cell: cell["chosen"], ("a", "b"), 0.5), (lambda cell: cell["classy"], ("", ""), 2.0),
    (lambda cell: cell["submodule"], ("", ""), 11.0)])
def test_lambdas_closures_and_helpers_mean_what_they_meant(cell, pick, given, value):
    assert loaded(name_of(pick(cell), "reward"))(*given) == value


def test_a_coroutine_within_if_main_stays_one(cell):
    import asyncio

    assert asyncio.run(loaded(name_of(cell["indented"], "reward"))("x/abc", "")) == 5


def test_what_stages_can_import_keeps_its_name(cell, monkeypatch):
    Path("my_scores.py").write_text("def short(response, answer): return 1.0\n")
    assert name_of(importlib.import_module("my_scores").short, "reward") == "my_scores:short"
    assert name_of("accuracy_reward", "reward") == "accuracy_reward"
    assert name_of(accuracy_reward, "reward") == "ouroboros.operators.reward:accuracy_reward"
    assert not Path("train_functions").exists()


def test_a_module_that_only_this_process_can_import_is_written_too(cell, tmp_path, monkeypatch):
    (other := tmp_path / "elsewhere").mkdir()
    (other / "only_here.py").write_text("def short(response, answer): return 1.0\n")
    monkeypatch.syspath_prepend(str(other))
    assert name_of(importlib.import_module("only_here").short, "reward").startswith("train_functions.short_")


@pytest.mark.parametrize(("pick", "words"), [
    (lambda cell: cell["counting"], ["count"]), (lambda cell: cell["remembering"], ["seen", "Counter"]),
    (lambda cell: cell["counter"](), ["'k'"]), (lambda cell: cell["decorated"], ["cached"]),
    (lambda cell: cell["Judge"](), ["Judge"]), (lambda cell: cell["Judge"]().judged, ["judged"]),
    (lambda cell: cell["judged"], ["Judge"]), (lambda cell: cell["lacking"], ["missing_name"]),
    (lambda cell: cell["handing"], ["client"]), (lambda cell: functools.partial(cell["score"], scale=1), ["partial"]),
    (lambda cell: eval("lambda response, answer: 1.0"), ["source"]),
    (lambda cell: cell["appending"], ["asked"]), (lambda cell: cell["within"], ["kept"]),
    (lambda cell: cell["assigning"], ["kept"]), (lambda cell: cell["posting"], ["api_key"]),
    (lambda cell: cell["early"](), ["later_bound"])])
def test_what_a_module_cannot_hold_is_refused_by_its_name(cell, pick, words):
    with pytest.raises(ConfigError) as refused:
        name_of(pick(cell), "reward")
    wording(re.sub(" at 0x[0-9a-f]+", " at 0x", str(refused.value)), *words)
    assert not Path("train_functions").exists()


def test_a_class_in_annotations_alone_needs_no_definition(cell):
    text = "class Held: pass\nPARTS = range(3)\ndef sized(response, answer: Held) -> Held: return float(len(PARTS))\n"
    assert loaded(name_of(defined(text, "from __future__ import annotations\n")["sized"], "reward"))("", "") == 3.0


@pytest.mark.parametrize(("name", "value", "is_refused"), [
    ("EOS_TOKEN", "<|im_end|>", False), ("ANSWER_KEY", "final answer", False), ("START_TOKEN", "<think>", False),
    ("HF_TOKEN", "hf_aB3dE5gH7jK9mN1pQ", True), ("DB_PASSWORD", "letters", True), ("api_key", b"k", True)])
def test_a_constant_is_a_secret_by_name_and_value(cell, name, value, is_refused):
    function = defined(f"{name} = {value!r}\ndef using(response, answer): return float({name} in response)\n")["using"]
    with pytest.raises(ConfigError) if is_refused else nullcontext():
        assert name_of(function, "reward").endswith(":using")


def test_a_value_of_a_secret_variable_is_not_written(cell, monkeypatch):
    monkeypatch.setenv("A_KEY", "b-c-d-e-f")
    monkeypatch.setitem(cell, "WORDS", {"header": ["Bearer b-c-d-e-f"]})
    with pytest.raises(ConfigError) as refused:
        name_of(cell["score"], "reward")
    wording(str(refused.value), "A_KEY")
    assert not Path("train_functions").exists()


def defined(text: str, future: str = "") -> dict:
    """What a script defines."""
    Path("script.py").write_text(future + text)
    exec(compile(future + text, str(Path("script.py").absolute()), "exec"), names := {"__name__": "__main__"})
    return names


@pytest.mark.parametrize("edit", ["# a comment\n\n{}", "{}\nx = 1\n"])
def test_source_edited_around_a_function_is_still_its_own(cell, edit):
    text = "def score(response, answer):\n    return 1.0\n"
    score = defined(text)["score"]
    Path("script.py").write_text(edit.format(text))
    assert loaded(name_of(score, "reward"))("", "") == 1.0


@pytest.mark.parametrize(("old", "new"), [("1.0", "0.0"), ("1.0", "1"), ("answer)", "truth)"), (" + 0", " - 0"),
                                          ('"s"', '"t"'), ("given: 1.0", "given: 2.0")])
def test_source_edited_since_it_was_loaded_is_refused(cell, old, new):
    text = 'def score(response, answer):\n    "s"\n    return (lambda given: 1.0)(len(response) + 0)\n'
    score = defined(text)["score"]
    Path("script.py").write_text(text.replace(old, new))
    with pytest.raises(ConfigError) as refused:
        name_of(score, "reward")
    wording(str(refused.value), "changed")


def test_names_in_postponed_annotations_are_kept_where_they_are_defined(cell):
    from typing import get_type_hints

    score = defined("from typing import Literal\n"
                    "def score(response: Literal['a'], answer: str):\n    found: Never = 1.0\n    return found\n",
                    "from __future__ import annotations\n")["score"]
    assert get_type_hints(loaded(name_of(score, "reward")))["response"].__args__ == ("a",)


def test_a_later_process_names_the_same_function_alike(tmp_path):
    program = tmp_path / "score.py"
    program.write_text("from ouroboros.commands.by_source import name_of\nSET = {'b', 'a', 'c'}\n"
                       "def score(response, answer):\n    return float(response in SET)\n"
                       "print(name_of(score, 'reward'))\n")
    told = set()
    for seed, comment in (("1", ""), ("2", "# a comment\n")):
        program.write_text(comment + program.read_text())
        told.add(subprocess.run([sys.executable, program], env={**os.environ, "PYTHONHASHSEED": seed}, cwd=tmp_path,
                                text=True, capture_output=True, check=True).stdout)
    assert len(told) == 1
    assert len([*(tmp_path / "train_functions").glob("*.py")]) == 1


def test_constants_have_one_text_and_others_have_none():
    value = {"a": (1, 2.5, None), "b": [True, b"x"], "c": {3, 1, 2}, "d": frozenset(), "e": -math.inf, "f": ()}
    assert eval(literal(value)) == value
    assert eval(literal(re.compile("a", re.I))).flags & re.I
    for other in (Counter(), object(), [len], {"a": Path()}):
        with pytest.raises(TypeError):
            literal(other)


def test_the_package_shows_its_functions_alone():
    assert dir(ouroboros) == sorted(ouroboros.__all__)
