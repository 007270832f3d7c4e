"""Arguments read from source agree with those that Python sees."""

import inspect

import pytest

from operators.advantage import ADVANTAGES
from operators.entropy import ENTROPY_LOSSES
from operators.generate import GENERATORS
from operators.loss import POLICY_LOSSES
from operators.reward import REWARDS
from pipeline.check import signatures, syntax
from pipeline.check.signatures import Signature
from workflows.single_turn import WORKFLOWS

TABLES = {("operators/advantage.py", "ADVANTAGES"): ADVANTAGES, ("operators/loss.py", "POLICY_LOSSES"): POLICY_LOSSES,
          ("operators/generate.py", "GENERATORS"): GENERATORS, ("operators/reward.py", "REWARDS"): REWARDS,
          ("operators/entropy.py", "ENTROPY_LOSSES"): ENTROPY_LOSSES,
          ("workflows/single_turn.py", "WORKFLOWS"): WORKFLOWS}


@pytest.mark.parametrize(("place", "functions"), TABLES.items())
def test_the_tables_of_names_can_be_read_without_importing_them(place, functions):
    read = signatures.table(*place)
    assert list(read) == list(functions)
    for name, function in functions.items():
        parameters = inspect.signature(function).parameters.values()
        named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
        assert read[name].required == tuple(p.name for p in named if p.default is p.empty)
        assert read[name].optional == tuple(p.name for p in named if p.default is not p.empty)
        assert read[name].anything == any(p.kind is p.VAR_KEYWORD for p in parameters)


LOSS = Signature(("logprobs", "advantages"), ("clip_range_low", "clip_ratio_c"), False)
GENERATOR = Signature(("seed", "tasks"), ("low",), False)


@pytest.mark.parametrize(("signature", "given", "passed", "words"), [
    (LOSS, {"clip_range_low": 0.2}, None, []),
    (LOSS, {"clip_rang_low": 0.2}, None, ["no argument 'clip_rang_low'. Did you mean 'clip_range_low'? It has: c"]),
    (LOSS, {"logprobs": 1}, None, ["has no argument 'logprobs'"]),  # the caller's, not the user's
    (GENERATOR, {"tasks": 5}, 1, []),
    (GENERATOR, {"lo": 5}, 1, ["has no argument 'lo'.", "needs the argument 'tasks'."]),
    (GENERATOR, {"seed": 1, "tasks": 5}, 1, ["has no argument 'seed'"]),
    (Signature(("response", "answer"), (), True), {"x": 1}, 2, []),
    (Signature((), (), False), {"x": 1}, None, ["It has: none."]),
])
def test_what_is_wrong_with_arguments(signature, given, passed, words):
    problems = signature.problems(given, passed)
    assert len(problems) == len(words)
    assert all(word in problem for word, problem in zip(words, problems, strict=True))


def test_a_users_function_is_read_and_not_run(tmp_path, monkeypatch):
    (tmp_path / "mine_to_read.py").write_text(
        "raise SystemExit\ndef reward(response, answer, *, scale, bonus=0, **more): ...\nnot_one = 3\n")
    (tmp_path / "mine_too.py").write_text("import mine_to_read as m\nfrom mine_to_read import reward as other\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    expected = Signature(("response", "answer", "scale"), ("bonus",), True)
    assert signatures.dotted("mine_to_read:reward") == expected
    assert signatures.dotted("mine_too:other") == expected
    for unreadable in ("mine_to_read:not_one", "mine_to_read:none", "no_such_module:x", "math:sqrt"):
        assert signatures.dotted(unreadable) is None


def test_tables_that_import_their_functions_are_followed(tmp_path, monkeypatch):
    (tmp_path / "family.py").write_text("def one(batch, a=1): ...\n")
    (tmp_path / "foot.py").write_text("import family as f\nfrom family import one\nT: dict = {'x': one, 'y': f.one}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(syntax, "HOME", tmp_path)
    assert signatures.table("foot.py", "T") == dict.fromkeys("xy", Signature(("batch",), ("a",), False))
    with pytest.raises(AssertionError, match="no table U"):
        signatures.table("foot.py", "U")
